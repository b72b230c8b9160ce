"""Download of files that users sent, as parts of their messages."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence

import structlog
from msgspec.structs import replace

from channels.telegram.api import CallError, Client, NotSentError, RefusedError, UnansweredError
from channels.telegram.pictures import safe_name
from channels.telegram.updates.received import Attached, ReceivedMessage
from gateway import FilePart, Part
from gateway.channel import Audio, InboundMessage

log = structlog.get_logger("trunkline.telegram")

_ATTEMPTS = 3
_PAUSE = 0.5
_LONGEST_PAUSE = 5.0
_MAX_PARALLEL = 4
_FILE_SECONDS = 20.0
"""Timeout of a download in seconds, retries included; later messages of the bot wait for it."""


class FileDownloader:
    """Downloader of the files of messages, each of at most ``most`` bytes; ``read`` is ``Host.read_file``."""

    def __init__(self, client: Client, most: int, read: Callable[..., Awaitable[Part]]) -> None:
        self._client = client
        self._read = read
        self._most = most
        self._slots = asyncio.Semaphore(_MAX_PARALLEL)

    async def complete(self, messages: Sequence[ReceivedMessage]) -> list[InboundMessage]:
        """Return messages with their files; a file that could not be downloaded is replaced by a note: of the
        message's own files in its text."""
        async with asyncio.TaskGroup() as tasks:
            pending = [tasks.create_task(self._complete(one)) for one in messages]
        return [task.result() for task in pending]

    async def _complete(self, received: ReceivedMessage) -> InboundMessage:
        message, notes = received.inbound, list[str]()
        for file in received.files:
            name = safe_name(file.name)
            try:
                async with asyncio.timeout(_FILE_SECONDS):
                    data = await self._fetch(file)
            except (ValueError, CallError, TimeoutError) as error:
                log.info("skipped a file", reason=str(error), size=file.file.file_size)
                why = str(error) if isinstance(error, ValueError) else "it could not be fetched"
                if file.quote is None:
                    notes.append(f"[{name}: {why}]")
                else:
                    message = _with_part(message, FilePart(name, f"[{why}]"), file.quote)
                continue
            if file.kind != "voice":
                message = _with_part(message, await self._part_of(file, name, data), file.quote)
            elif message.audio is None:
                message = _with_audio(message, _audio(file, data), own=file.quote is None)
            else:
                message = _with_part(message, FilePart(name), file.quote)
        return replace(message, text="\n".join(filter(None, (message.text, *notes))))

    async def _part_of(self, file: Attached, name: str, data: bytes) -> Part:
        size = file.file
        return await self._read(name, file.mime, data, width=size.width, height=size.height)

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


def _audio(file: Attached, data: bytes) -> Audio:
    """Return a voice message with its data inline: Telegram's file links contain the bot's token and
    expire."""
    return Audio(url=f"data:{file.mime};base64,{base64.b64encode(data).decode()}", mime_type=file.mime)


def named(received: ReceivedMessage) -> InboundMessage:
    """Return a message with the names of its files only."""
    message = received.inbound
    for file in received.files:
        message = _with_part(message, FilePart(safe_name(file.name)), file.quote)
    return message


def _with_part(message: InboundMessage, part: Part, quote: int | None) -> InboundMessage:
    """Return a message with a further part, of its own or of one of its quotes."""
    if quote is None:
        return replace(message, parts=(*message.parts, part))
    quotes = list(message.quotes)
    quotes[quote] = replace(quotes[quote], parts=(*quotes[quote].parts, part))
    return replace(message, quotes=tuple(quotes))


def _with_audio(message: InboundMessage, audio: Audio, *, own: bool) -> InboundMessage:
    """Return a message with audio; that of a quote is the content of a message that has no other."""
    spoken = own or not (message.text or message.parts)
    return replace(message, kind="audio" if spoken else message.kind, audio=audio)
