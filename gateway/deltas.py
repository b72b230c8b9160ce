"""Deltas: what a message is made of while it is being made.

Eight kinds as streams need them, and ``part`` for parts that are sent whole. Each is encoded once and
fanned out as bytes; an ``Assembler`` turns any sequence of them back into the message. Text may be cut
anywhere: every granularity assembles to the same message.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from gateway.errors import DeltaParseError
from gateway.messages import (
    DisplayHints,
    Message,
    Metadata,
    Part,
    ResultMetadata,
    TextKind,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    now_ms,
    to_json,
)

StopReason = Literal["end_turn", "max_tokens", "tool_use", "cancelled"]


class RateLimit(Struct, frozen=True, gc=False, omit_defaults=True):
    """A provider's limits make us wait: how long (milliseconds, 0 if that is not known), and which one."""

    retry_after_ms: int
    provider: str


class TextDelta(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="text_delta"):
    """More text for a part. ``accumulated_length`` counts the part's code points after this chunk."""

    message_id: str
    part_index: int
    content: str
    accumulated_length: int
    kind: TextKind = "text"


class ToolCallStart(
    Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="tool_call_start"
):
    """The model begins to ask for a tool."""

    message_id: str
    part_index: int
    tool_call_id: str
    tool_name: str


class ToolCallDelta(
    Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="tool_call_delta"
):
    """More of the call's arguments: a fragment of JSON text."""

    message_id: str
    part_index: int
    tool_call_id: str
    arguments_delta: str


class ToolResultStart(
    Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="tool_result_start"
):
    """A tool runs."""

    message_id: str
    part_index: int
    tool_call_id: str
    title: str | None = None
    display: DisplayHints | None = None


class ToolResultDelta(
    Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="tool_result_delta"
):
    """More output of a tool."""

    message_id: str
    part_index: int
    tool_call_id: str
    content: str


class ToolResultEnd(
    Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="tool_result_end"
):
    """A tool is done."""

    message_id: str
    part_index: int
    tool_call_id: str
    is_error: bool
    duration_ms: int
    metadata: ResultMetadata | None = None


class MetadataDelta(
    Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="metadata_delta"
):
    """Tokens and cost so far: cumulative for the message.

    Cached tokens, and those written to a cache, are part of the input.
    """

    message_id: str
    input_tokens: int
    output_tokens: int
    cost: float
    cached_tokens: int = 0
    rate_limit: RateLimit | None = None
    cache_write_tokens: int = 0


class PartDelta(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="part"):
    """A part that is sent whole (error, image, file); it replaces what was known of that index."""

    message_id: str
    part_index: int
    part: Part


class Complete(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="complete"):
    """The message is finished and stored."""

    message_id: str
    final_metadata: Metadata
    stop_reason: StopReason


Delta = (
    TextDelta
    | ToolCallStart
    | ToolCallDelta
    | ToolResultStart
    | ToolResultDelta
    | ToolResultEnd
    | MetadataDelta
    | PartDelta
    | Complete
)

_decoder = msgspec.json.Decoder(Delta)
_arguments_decoder = msgspec.json.Decoder(dict[str, Any])


def encode_delta(delta: Delta) -> bytes:
    """One JSON object, the same for every transport."""
    return to_json(delta)


def decode_delta(payload: bytes | str) -> Delta:
    """Read a delta back; unknown fields are ignored. Raises DeltaParseError."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DeltaParseError(f"not a delta: {error}") from None


class DeltaWriter:
    """Numbers parts and counts text for whoever produces a message piece by piece.

    Provider adapters and the agent write through it, so indices and lengths cannot disagree.
    """

    __slots__ = ("_calls", "_kind", "_length", "message_id", "next_index")

    def __init__(self, message_id: str, first_part: int = 0) -> None:
        self.message_id = message_id
        self.next_index = first_part
        self._kind: TextKind | None = None
        self._length = 0
        self._calls: dict[str, int] = {}

    def text(self, content: str, kind: TextKind = "text") -> TextDelta:
        """A chunk of text; a change of ``kind`` begins a new part."""
        if kind != self._kind:
            self._open(kind)
        self._length += len(content)
        return TextDelta(self.message_id, self.next_index - 1, content, self._length, kind)

    def tool_call(self, tool_call_id: str, tool_name: str) -> ToolCallStart:
        """A call begins, in a part of its own."""
        self._open(None)
        self._calls[tool_call_id] = self.next_index - 1
        return ToolCallStart(self.message_id, self.next_index - 1, tool_call_id, tool_name)

    def arguments(self, tool_call_id: str, fragment: str) -> ToolCallDelta:
        """A fragment of the arguments of a call that has begun; calls may interleave."""
        return ToolCallDelta(self.message_id, self._calls[tool_call_id], tool_call_id, fragment)

    def part(self, part: Part) -> PartDelta:
        """A whole part."""
        self._open(None)
        return PartDelta(self.message_id, self.next_index - 1, part)

    def result(
        self, tool_call_id: str, title: str | None = None, display: DisplayHints | None = None
    ) -> ToolResultStart:
        """A tool's result begins, in a part of its own."""
        self._open(None)
        return ToolResultStart(self.message_id, self.next_index - 1, tool_call_id, title, display)

    def skip_to(self, index: int) -> None:
        """Go on behind parts that somebody else wrote."""
        self.next_index, self._kind = index, None

    def _open(self, kind: TextKind | None) -> None:
        self._kind = kind
        self._length = 0
        self.next_index += 1


_NOTHING = TextPart("")


class _Draft:
    """A part under construction: the fields known so far and the text gathered for it."""

    __slots__ = ("chunks", "end", "start")

    def __init__(self, start: TextDelta | ToolCallStart | ToolResultStart | PartDelta) -> None:
        self.start = start
        self.chunks: list[str] = []
        self.end: ToolResultEnd | None = None

    def finish(self) -> Part | None:
        start, text = self.start, "".join(self.chunks)
        match start:
            case TextDelta():
                return TextPart(text, start.kind) if text else None
            case ToolCallStart():
                return _call(start, text)
            case ToolResultStart():
                return _result(start, text, self.end)
            case PartDelta(part=TextPart(content="")):
                return None
            case PartDelta():
                return start.part

    def snapshot(self) -> list[Delta]:
        start, text = self.start, "".join(self.chunks)
        match start:
            case TextDelta():
                return [TextDelta(start.message_id, start.part_index, text, len(text), start.kind)]
            case ToolCallStart():
                return [start, ToolCallDelta(start.message_id, start.part_index, start.tool_call_id, text)]
            case ToolResultStart():
                more = ToolResultDelta(start.message_id, start.part_index, start.tool_call_id, text)
                return [start, more] if self.end is None else [start, more, self.end]
            case PartDelta():
                return [start]


def _result(start: ToolResultStart, output: str, end: ToolResultEnd | None) -> ToolResultPart:
    if end is None:
        return ToolResultPart(start.tool_call_id, output, start.title, is_error=True, display=start.display)
    metadata = end.metadata or ResultMetadata(duration_ms=end.duration_ms)
    return ToolResultPart(
        start.tool_call_id,
        output,
        start.title,
        metadata,
        is_error=end.is_error,
        display=start.display,
    )


def _call(start: ToolCallStart, text: str) -> ToolCallPart:
    try:
        arguments = _arguments_decoder.decode(text) if text.strip() else {}
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return ToolCallPart(start.tool_call_id, start.tool_name, {}, invalid_arguments=text)
    return ToolCallPart(start.tool_call_id, start.tool_name, arguments)


class Assembler:
    """Builds a message from its deltas, in whatever pieces they come.

    ``apply`` each; ``message`` is the state so far, and final once ``done``. A delta that cannot belong
    (another message's, a part that was never begun, a wrong length) raises DeltaParseError.
    """

    def __init__(self, session_id: str, message_id: str, created_at: int | None = None) -> None:
        self.session_id = session_id
        self.message_id = message_id
        self.metadata = Metadata()
        self.stop_reason: StopReason | None = None
        self._created_at = now_ms() if created_at is None else created_at
        self._drafts: dict[int, _Draft] = {}
        self._lengths: dict[int, int] = {}
        self._counts: MetadataDelta | None = None
        self._waits_at: tuple[int, int] | None = None
        self._end: Complete | None = None

    @property
    def done(self) -> bool:
        """Whether ``complete`` was seen."""
        return self.stop_reason is not None

    def apply(self, delta: Delta) -> None:
        """Take one delta in."""
        if delta.message_id != self.message_id:
            raise DeltaParseError(f"a delta of message {delta.message_id} came to {self.message_id}")
        match delta:
            case TextDelta():
                self._text(delta)
            case ToolCallStart() | ToolResultStart() | PartDelta():
                self._drafts[delta.part_index] = _Draft(delta)
            case ToolCallDelta():
                self._draft(delta.part_index, ToolCallStart).chunks.append(delta.arguments_delta)
            case ToolResultDelta():
                self._draft(delta.part_index, ToolResultStart).chunks.append(delta.content)
            case ToolResultEnd():
                self._draft(delta.part_index, ToolResultStart).end = delta
            case MetadataDelta():
                self._counts = delta
                self._waits_at = None if delta.rate_limit is None else self._progress()
                self.metadata = Metadata(
                    input_tokens=delta.input_tokens,
                    output_tokens=delta.output_tokens,
                    cached_tokens=delta.cached_tokens or None,
                    cost=delta.cost,
                )
            case Complete():
                self._end = delta
                self.metadata, self.stop_reason = delta.final_metadata, delta.stop_reason

    def snapshot(self) -> list[Delta]:
        """The state so far as the fewest deltas that lead to it; later deltas continue from there.

        A wait for a provider's limits is part of it, until more of the answer has come.
        """
        parts = [delta for index in sorted(self._drafts) for delta in self._drafts[index].snapshot()]
        counts = [] if self._counts is None else [self._counts]
        if self._waits_at not in (None, self._progress()) or self._end is not None:
            counts = [msgspec.structs.replace(count, rate_limit=None) for count in counts]
        return [*parts, *counts, *([] if self._end is None else [self._end])]

    def _progress(self) -> tuple[int, int]:
        """How much of the answer has come."""
        return len(self._drafts), sum(len(draft.chunks) for draft in self._drafts.values())

    @property
    def next_index(self) -> int:
        """The index behind the last part."""
        return max(self._drafts, default=-1) + 1

    def parts_from(self, first: int) -> list[tuple[int, Part]]:
        """The parts from an index on, as far as they are known, with their indices."""
        found = ((index, self._drafts[index].finish()) for index in sorted(self._drafts) if index >= first)
        return [(index, part) for index, part in found if part is not None]

    def message(self) -> Message:
        """The message as far as it is known. Parts that turned out empty are left out."""
        return Message(
            id=self.message_id,
            session_id=self.session_id,
            role="assistant",
            parts=tuple(part for _, part in self.parts_from(0)),
            created_at=self._created_at,
            metadata=self.metadata,
        )

    def _text(self, delta: TextDelta) -> None:
        draft = self._drafts.get(delta.part_index)
        if draft is None:
            draft = self._drafts[delta.part_index] = _Draft(delta)
        length = self._lengths.get(delta.part_index, 0) + len(delta.content)
        if length != delta.accumulated_length:
            raise DeltaParseError(
                f"part {delta.part_index} holds {length} code points, not {delta.accumulated_length}"
            )
        self._lengths[delta.part_index] = length
        draft.chunks.append(delta.content)

    def _draft(self, index: int, kind: type) -> _Draft:
        draft = self._drafts.get(index)
        if draft is None or not isinstance(draft.start, kind):
            raise DeltaParseError(f"part {index} was never begun")
        return draft


def deltas_of(part: Part, message_id: str, index: int) -> list[Delta]:
    """A finished part as the fewest deltas that make it."""
    match part:
        case TextPart():
            return [TextDelta(message_id, index, part.content, len(part.content), part.kind)]
        case _:
            return [PartDelta(message_id, index, part)]
