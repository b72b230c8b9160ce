"""What the scripted server says: answers of every kind, in the pieces a model would send."""

from __future__ import annotations

import base64
import os
import struct
import zlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from gateway import ErrorPart, FilePart, ImagePart, Part
from gateway.contract.messages import ErrorMetadata
from tests.e2e.page_server import Frame, Script, Turn, stored

_PIECE = 7
_FIGURES = {
    "model": "demo/small",
    "input_tokens": 10,
    "output_tokens": 20,
    "cost": 0.0042,
    "duration_ms": 1500,
}


def answering(text: str) -> Script:
    """Says ``text`` and stores it as the log would."""

    async def script(turn: Turn) -> AsyncIterator[Frame]:
        async for frame in _said(turn, text):
            yield frame
        yield complete(turn)
        yield stored(turn, [{"type": "text", "content": text}], **_FIGURES)

    return script


def halting(before: str, after: str) -> Script:
    """Stops in the middle of its answer until the test lets it go on, or the user ends it."""

    async def script(turn: Turn) -> AsyncIterator[Frame]:
        async for frame in _said(turn, before):
            yield frame
        await turn.go.wait()
        if not turn.cancelled:
            async for frame in _said(turn, after):
                yield frame
        said = before if turn.cancelled else before + after
        reason = "cancelled" if turn.cancelled else "end_turn"
        yield complete(turn, reason)
        yield stored(turn, [{"type": "text", "content": said}], **_FIGURES, stop_reason=reason)

    return script


async def every_part(turn: Turn) -> AsyncIterator[Frame]:
    """A notice, reasoning, two tools (one halts while it runs, one fails), a picture, a file and an error."""
    async for frame in _said(turn, "one failed. Answering with two instead.", "notice"):
        yield frame
    async for frame in _said(turn, "I should look at the clock.", "reasoning"):
        yield frame
    yield _delta(turn.write.tool_call("c1", "clock"))
    yield _delta(turn.write.arguments("c1", '{"zone": "Asia'))
    yield _delta(turn.write.arguments("c1", '/Tokyo"}'))
    async for frame in _ran(turn, "c1", ["winding up\n", "12:38 in Tokyo"], 1234, halt=True):
        yield frame
    yield _delta(turn.write.tool_call("c2", "forecast"))
    async for frame in _ran(turn, "c2", ["no route to host"], 40, is_error=True):
        yield frame
    for part in WHOLE_PARTS:
        yield _delta(turn.write.part(part))
    yield complete(turn)


async def asking_leave(turn: Turn) -> AsyncIterator[Frame]:
    """A tool that needs an approval."""
    yield _delta(turn.write.tool_call("c1", "shell"))
    yield _delta(turn.write.arguments("c1", '{"argv": ["git", "status"]}'))
    asked = {
        "approval_id": "p1",
        "tool_name": "shell",
        "arguments": {"argv": ["git", "status"], "note": "b\u202ec\u3164\U000e0041"},
        "timeout_ms": 60_000,
        "always": "git status",
    }
    yield {"type": "approval_request", **asked}
    yield {"type": "approval_resolved", "approval_id": "p1", "decision": await turn.approved}
    async for frame in _ran(turn, "c1", ["clean"], 5):
        yield frame
    yield complete(turn)


def complete(turn: Turn, stop_reason: str = "end_turn") -> Frame:
    """The last delta of an answer."""
    return {
        "type": "complete",
        "message_id": turn.answer_id,
        "final_metadata": _FIGURES,
        "stop_reason": stop_reason,
    }


def picture(width: int, height: int, *, noise: bool = False) -> bytes:
    """A PNG of one colour, or of noise that nothing can compress."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = b"".join(
        b"\0" + (os.urandom(3 * width) if noise else b"\x30\x70\x68" * width) for _ in range(height)
    )
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


WHOLE_PARTS: tuple[Part, ...] = (
    ImagePart(base64.b64encode(picture(40, 20)).decode(), "image/png", "A green field"),
    FilePart("notes/plan.py", "x = 1\n", "python", (3, 3)),
    ErrorPart("RateLimitError", "The provider asked us to slow down.", ErrorMetadata("429", retryable=True)),
)


async def _said(turn: Turn, text: str, kind: Any = "text") -> AsyncIterator[Frame]:
    for start in range(0, len(text), _PIECE):
        yield _delta(turn.write.text(text[start : start + _PIECE], kind))


async def _ran(
    turn: Turn, call: str, output: list[str], duration_ms: int, *, is_error: bool = False, halt: bool = False
) -> AsyncIterator[Frame]:
    """A tool's result; with ``halt`` it waits before its last piece of output."""
    start = turn.write.result(call)
    yield _delta(start)
    place = {"message_id": turn.answer_id, "part_index": start.part_index, "tool_call_id": call}
    for number, piece in enumerate(output, 1):
        if halt and number == len(output):
            await turn.go.wait()
        yield {"type": "tool_result_delta", **place, "content": piece}
    yield {"type": "tool_result_end", **place, "is_error": is_error, "duration_ms": duration_ms}


def _delta(value: Any) -> Frame:
    return msgspec.to_builtins(value)


async def looking_up(turn: Turn) -> AsyncIterator[Frame]:
    """Runs a tool for four of the five seconds that it takes, five seconds after it was asked."""
    parts = [
        {"type": "text", "content": "Let me look."},
        {"type": "tool_call", "tool_call_id": "c1", "tool_name": "weather", "arguments": {}},
        {
            "type": "tool_result",
            "tool_call_id": "c1",
            "output": "17 degrees",
            "metadata": {"duration_ms": 4000},
        },
        {"type": "text", "content": "It is sunny."},
    ]
    yield complete(turn)
    frame = stored(turn, parts, **{**_FIGURES, "duration_ms": 5000})
    frame["message"]["created_at"] = 5_000
    yield frame
