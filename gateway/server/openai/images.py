"""Images that clients name by URL: fetched, and replaced by data URLs."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence

from gateway.contract.errors import InvalidRequestError, PartValidationError
from gateway.fetching import Reach, fetch
from gateway.files import picture_type
from gateway.server.openai.chat import ChatMessage, ImageContent, ImageUrl, TextContent, UserMessage

_MAX_URLS = 10
"""Image URLs in one request."""


async def fetch_images(messages: Sequence[ChatMessage], reach: Reach) -> Sequence[ChatMessage]:
    """Return the messages with all image URLs replaced by data URLs.

    Raises InvalidRequestError if an image cannot be fetched.
    """
    urls = tuple(dict.fromkeys(url for message in messages for url in _web_urls(message)))
    if not urls:
        return messages
    if len(urls) > _MAX_URLS:
        raise PartValidationError(f"a request may contain {_MAX_URLS} image URLs, not {len(urls)}")
    fetched = dict(zip(urls, await _fetch_all(urls, reach), strict=True))
    return [_with_data_urls(message, fetched) for message in messages]


async def _fetch_all(urls: Sequence[str], reach: Reach) -> list[str]:
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_fetch(url, reach)) for url in urls]
    except* InvalidRequestError as errors:
        failed = errors
    else:
        return [task.result() for task in tasks]
    raise next(error for error in failed.exceptions if isinstance(error, InvalidRequestError))


async def _fetch(url: str, reach: Reach) -> str:
    fetched = await fetch(url, reach)
    image_type = picture_type(fetched.data)
    if not image_type:
        raise PartValidationError("the image URL leads to data that is not png, jpeg, gif or webp")
    return f"data:{image_type};base64,{base64.b64encode(fetched.data).decode()}"


def _web_urls(message: ChatMessage) -> list[str]:
    return [url for part in _parts(message) if (url := _url(part)).lower().startswith(("http:", "https:"))]


def _with_data_urls(message: ChatMessage, fetched: Mapping[str, str]) -> ChatMessage:
    if not _web_urls(message):
        return message
    parts = [
        ImageContent(ImageUrl(fetched[url])) if (url := _url(part)) in fetched else part
        for part in _parts(message)
    ]
    return UserMessage(parts)


def _parts(message: ChatMessage) -> Sequence[TextContent | ImageContent]:
    if not isinstance(message, UserMessage) or isinstance(message.content, str):
        return ()
    return message.content


def _url(part: TextContent | ImageContent) -> str:
    return part.image_url.url.strip() if isinstance(part, ImageContent) else ""
