"""Download of files that users sent, as parts of their messages."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence

import structlog
from msgspec.structs import replace

from channels.telegram.api import CallError, Client, NotSentError, RefusedError, UnansweredError
from channels.telegram.parse import Attached, ReceivedMessage
from channels.telegram.pictures import picture_type, safe_name
from gateway import FilePart, ImagePart, Part
from gateway.channel import Audio, InboundMessage

log = structlog.get_logger("trunkline.telegram")

_ATTEMPTS = 3
_PAUSE = 0.5
_LONGEST_PAUSE = 5.0
_MAX_PARALLEL = 4
_FILE_SECONDS = 20.0
"""Timeout of a download in seconds, retries included; later messages of the bot wait for it."""
_MAX_TEXT = 200_000


class FileDownloader:
    """Downloader of the files of messages, each of at most ``most`` bytes."""

    def __init__(self, client: Client, most: int) -> None:
        self._client = client
        self._most = most
        self._slots = asyncio.Semaphore(_MAX_PARALLEL)

    async def complete(self, messages: Sequence[ReceivedMessage]) -> list[InboundMessage]:
        """Return messages with their files; a file that could not be downloaded is replaced by a note in
        the text."""
        async with asyncio.TaskGroup() as tasks:
            pending = [tasks.create_task(self._complete(one)) for one in messages]
        return [task.result() for task in pending]

    async def _complete(self, received: ReceivedMessage) -> InboundMessage:
        message = received.inbound
        parts: list[Part] = list(message.parts)
        notes: list[str] = []
        for file in received.files:
            name = safe_name(file.name)
            try:
                async with asyncio.timeout(_FILE_SECONDS):
                    data = await self._fetch(file)
            except (ValueError, CallError, TimeoutError) as error:
                log.info("skipped a file", reason=str(error), size=file.file.file_size)
                why = str(error) if isinstance(error, ValueError) else "it could not be fetched"
                notes.append(f"[{name}: {why}]")
                continue
            if file.kind == "voice":
                message = replace(message, kind="audio", audio=_audio(file, data))
            else:
                parts.append(part_of(file, name, data))
        text = "\n".join(filter(None, (message.text, *notes)))
        return replace(message, text=text, parts=tuple(parts))

    async def _fetch(self, file: Attached) -> bytes:
        """Download a file. Raises ValueError if it is too large, and the error of the last attempt."""
        if file.file.file_size > self._most:
            raise ValueError(f"it has more than {self._most:,} bytes")
        async with self._slots:
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    return await self._client.fetch(file.file.file_id, self._most)
                except (NotSentError, UnansweredError):
                    if attempt == _ATTEMPTS:
                        raise
                    await asyncio.sleep(_PAUSE * attempt)
                except RefusedError as refused:
                    if refused.retry_after is None or attempt == _ATTEMPTS:
                        raise
                    await asyncio.sleep(min(refused.retry_after, _LONGEST_PAUSE))
        raise AssertionError("the last attempt returns or raises")


def part_of(file: Attached, name: str, data: bytes) -> Part:
    """Return a file as a part: pictures and texts with their content, other files by name only."""
    mime = picture_type(data)
    if mime is not None:
        shown = base64.b64encode(data).decode()
        return ImagePart(shown, mime, name or None, file.file.width, file.file.height)
    text = _text(data)
    if text is None:
        return FilePart(name, f"[{file.mime or 'unknown type'}, {len(data):,} bytes, no text]")
    cut = "" if len(text) <= _MAX_TEXT else "\n[cut]"
    return FilePart(name, text[:_MAX_TEXT] + cut)


def _audio(file: Attached, data: bytes) -> Audio:
    """Return a voice message with its data inline: Telegram's file links contain the bot's token and
    expire."""
    return Audio(url=f"data:{file.mime};base64,{base64.b64encode(data).decode()}", mime_type=file.mime)


def _text(data: bytes) -> str | None:
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
