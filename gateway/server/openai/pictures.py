"""Pictures that clients name by an address: fetched, and put in their place."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence

from gateway.contract.errors import InvalidRequestError, PartValidationError
from gateway.fetching import Reach, fetch
from gateway.server.openai.chat import ChatMessage, PictureAddress, PictureContent, TextContent, UserSaid

MOST = 10
"""Addresses that one request may name."""

_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


async def fetched(messages: Sequence[ChatMessage], reach: Reach) -> Sequence[ChatMessage]:
    """The messages with every picture as a data URL. Raises InvalidRequestError if one cannot be had."""
    named = tuple(dict.fromkeys(url for message in messages for url in _addresses(message)))
    if not named:
        return messages
    if len(named) > MOST:
        raise PartValidationError(f"a request may name {MOST} pictures by address, not {len(named)}")
    found = dict(zip(named, await _all(named, reach), strict=True))
    return [_filled(message, found) for message in messages]


async def _all(urls: Sequence[str], reach: Reach) -> list[str]:
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_data_url(url, reach)) for url in urls]
    except* InvalidRequestError as errors:
        failed = errors
    else:
        return [task.result() for task in tasks]
    raise next(error for error in failed.exceptions if isinstance(error, InvalidRequestError))


async def _data_url(url: str, reach: Reach) -> str:
    got = await fetch(url, reach)
    kind = mime_type(got.data)
    if not kind:
        raise PartValidationError("what was fetched is no picture: png, jpeg, gif and webp are known")
    return f"data:{kind};base64,{base64.b64encode(got.data).decode()}"


def mime_type(data: bytes) -> str:
    """What kind of picture it is, by its first bytes; empty for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for beginning, kind in _BEGINNINGS if data.startswith(beginning)), "")


def _addresses(message: ChatMessage) -> list[str]:
    return [url for part in _parts(message) if (url := _url(part)).lower().startswith(("http:", "https:"))]


def _filled(message: ChatMessage, found: Mapping[str, str]) -> ChatMessage:
    if not _addresses(message):
        return message
    parts = [
        PictureContent(PictureAddress(found[url])) if (url := _url(part)) in found else part
        for part in _parts(message)
    ]
    return UserSaid(parts)


def _parts(message: ChatMessage) -> Sequence[TextContent | PictureContent]:
    if not isinstance(message, UserSaid) or isinstance(message.content, str):
        return ()
    return message.content


def _url(part: TextContent | PictureContent) -> str:
    return part.image_url.url.strip() if isinstance(part, PictureContent) else ""
