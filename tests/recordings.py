"""Recordings to send, a tool that sends them, and a plugin that hears them."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Sequence

from gateway import (
    Attachment,
    Pass,
    Plugin,
    Tool,
    ToolOutput,
    Transform,
    TurnContext,
    UserInput,
    tool_from,
)

SILENCE = b"\xf8\xff\xfe"
"""A packet of Opus in which nothing is heard for 20 ms."""
MP3 = b"ID3\x04\0\0\0\0\0\0" + b"\xff\xfb\x90\0" + bytes(413)
"""A tag, and one frame in which nothing is heard."""
WAV = b"RIFF$\0\0\0WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 8000, 1, 8) + b"data\0\0\0\0"

_PACKET = 960
_SKIPPED = 312


class Speaking(Plugin):
    """A tool that answers with these files: their types, what they hold, and their names."""

    name = "speaking"

    def __init__(self, *files: tuple[str, bytes, str]) -> None:
        self._files = tuple(
            Attachment(mime, base64.b64encode(data).decode(), name) for mime, data, name in files
        )

    def tools(self) -> Sequence[Tool]:
        async def speak() -> ToolOutput:
            """Say something aloud."""
            return ToolOutput("said", attachments=self._files)

        return [tool_from(speak)]


class Hearing(Plugin):
    """Makes words of what is spoken: how much of it there is."""

    name = "hearing"

    async def transform_user_input(self, text: str, ctx: TurnContext) -> UserInput:
        audio = ctx.inbound.audio
        if audio is None or audio.url is None:
            return Pass()
        kind, _, data = audio.url.partition(";base64,")
        return Transform(f"{text} {ctx.inbound.kind} {kind} {len(base64.b64decode(data))}".strip())


def ogg_opus(seconds: float = 1.0, packets: Sequence[bytes] = ()) -> bytes:
    """A voice message of so many seconds, or of these packets: a page for every half a second."""
    sound = packets or [SILENCE] * round(seconds * 50)
    head = b"OpusHead" + struct.pack("<BBHIhB", 1, 1, _SKIPPED, 48_000, 0, 0)
    tags = b"OpusTags" + struct.pack("<I4sI", 4, b"test", 0)
    pages = [_page(2, 0, 0, [head]), _page(0, 0, 1, [tags])]
    for at in range(0, len(sound), 25):
        some = sound[at : at + 25]
        last = at + len(some) == len(sound)
        pages.append(_page(4 if last else 0, (at + len(some)) * _PACKET + _SKIPPED * last, len(pages), some))
    return b"".join(pages)


def _page(kind: int, time: int, number: int, packets: Sequence[bytes]) -> bytes:
    laces = bytes(lace for packet in packets for lace in _laces(len(packet)))
    page = struct.pack("<4sBBqIIIB", b"OggS", 0, kind, time, 7, number, 0, len(laces)) + laces
    page += b"".join(packets)
    return page[:22] + struct.pack("<I", _sum(page)) + page[26:]


def _laces(size: int) -> Iterable[int]:
    return (*[255] * (size // 255), size % 255)


def _sum(page: bytes) -> int:
    """Ogg's checksum."""
    total = 0
    for byte in page:
        total ^= byte << 24
        for _ in range(8):
            total = (total << 1) ^ (0x04C11DB7 if total & 0x80000000 else 0)
    return total & 0xFFFFFFFF
