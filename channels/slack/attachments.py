"""Files that people send, as parts of their message."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import structlog
from msgspec.structs import replace

from channels.slack.api import Api
from channels.slack.parse import Upload
from channels.slack.render import safe_name
from gateway import FilePart, ImagePart, Part
from gateway.channel import Audio, InboundMessage, PlacementDeferred, PlacementRefused

log = structlog.get_logger("trunkline.slack")

_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_LONGEST_TEXT = 200_000
_TRIES = 3


async def attached(
    message: InboundMessage, files: Sequence[Upload], api: Api, largest: int
) -> InboundMessage:
    """The message with its files; what cannot be had is named all the same. One recording can be heard."""
    if not files:
        return message
    parts: list[Part] = []
    for file in files:
        part = await _part(file, api, largest, listen=message.audio is None)
        if isinstance(part, Audio):
            message = replace(message, kind="audio", audio=part)
        else:
            parts.append(part)
    return replace(message, parts=tuple(parts))


async def _part(file: Upload, api: Api, largest: int, *, listen: bool) -> Part | Audio:
    name = safe_name(file.name)
    heard = listen and file.mime_type.startswith("audio/")
    readable = heard or file.mime_type in _PICTURES or _is_text(file.mime_type)
    content = await _content(file, api, largest) if readable and file.url else None
    if content is None:
        return FilePart(name)
    if heard:
        return Audio(f"data:{file.mime_type};base64,{base64.b64encode(content).decode()}", file.mime_type)
    if file.mime_type in _PICTURES:
        return ImagePart(base64.b64encode(content).decode(), file.mime_type, alt_text=name)
    return FilePart(name, content.decode(errors="replace")[:_LONGEST_TEXT])


async def _content(file: Upload, api: Api, largest: int) -> bytes | None:
    """A file's bytes; None if they cannot be had."""
    if file.size > largest:
        return None
    for attempt in range(_TRIES):
        try:
            return await api.fetch(file.url, largest)
        except PlacementRefused as refused:
            log.info("a file is not looked at", file=file.id, reason=str(refused))
            return None
        except PlacementDeferred as deferred:
            log.info("a file is fetched again", file=file.id, attempt=attempt, reason=str(deferred))
    return None


def _is_text(mime_type: str) -> bool:
    return mime_type.startswith("text/") or mime_type in (
        "application/json",
        "application/xml",
        "application/yaml",
        "application/x-yaml",
        "application/toml",
        "application/javascript",
    )
