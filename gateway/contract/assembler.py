"""The assembler: builds a message from deltas, independent of how they were cut."""

from __future__ import annotations

from typing import Any, assert_never

import msgspec

from gateway.contract.deltas import (
    Complete,
    Delta,
    MetadataDelta,
    PartDelta,
    RateLimit,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    ToolResultDelta,
    ToolResultEnd,
    ToolResultStart,
)
from gateway.contract.errors import DeltaParseError
from gateway.contract.messages import (
    Message,
    Metadata,
    Part,
    ResultMetadata,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    now_ms,
)

_arguments_decoder = msgspec.json.Decoder(dict[str, Any])
_Start = TextDelta | ToolCallStart | ToolResultStart | PartDelta


class _Draft:
    """A part under construction: its first delta and the text collected so far."""

    __slots__ = ("chunks", "end", "start")

    def __init__(self, start: _Start) -> None:
        self.start = start
        self.chunks: list[str] = []
        self.end: ToolResultEnd | None = None

    @property
    def runs(self) -> bool:
        """Return whether the part is the result of a tool that is still running."""
        return isinstance(self.start, ToolResultStart) and self.end is None

    def finish(self) -> Part | None:
        start, text = self.start, "".join(self.chunks)
        match start:
            case TextDelta():
                return TextPart(text, start.kind) if text else None
            case ToolCallStart():
                return _call(start, text)
            case ToolResultStart():
                return _result(start, text, self.end)
            case PartDelta(part=TextPart(content="", state=None)):
                return None
            case PartDelta():
                return start.part
            case _:
                assert_never(start)

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
                return [] if getattr(start.part, "state", None) else [start]
            case _:
                assert_never(start)


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
    """Builds a message from its deltas.

    Call ``apply`` with each; ``message`` returns the state so far. An inconsistent delta (of another message,
    for a part that was never begun, with a wrong length) raises DeltaParseError.
    """

    def __init__(self, session_id: str, message_id: str, created_at: int | None = None) -> None:
        self.session_id = session_id
        self.message_id = message_id
        self.metadata = Metadata()
        self._created_at = now_ms() if created_at is None else created_at
        self._drafts: dict[int, _Draft] = {}
        self._lengths: dict[int, int] = {}
        self._counts: MetadataDelta | None = None
        self._waits_at: tuple[int, int] | None = None
        self._end: Complete | None = None

    def apply(self, delta: Delta) -> None:
        """Apply one delta. Raises DeltaParseError."""
        if delta.message_id != self.message_id:
            raise DeltaParseError(f"the delta belongs to message {delta.message_id}, not {self.message_id}")
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
                self._end, self.metadata = delta, delta.final_metadata
            case _:
                assert_never(delta)

    @property
    def waits_for(self) -> RateLimit | None:
        """The rate limit that the answer waits for, until more of it arrives."""
        waits = self._waits_at is not None and self._waits_at == self._progress()
        return self._counts.rate_limit if waits and self._counts is not None else None

    def outline(self, last: int) -> list[tuple[_Start, bool]]:
        """Return how the last parts began, and whether each is the result of a tool that still runs."""
        drafts = (self._drafts[index] for index in sorted(self._drafts)[-last:])
        return [(draft.start, draft.runs) for draft in drafts]

    def snapshot(self) -> list[Delta]:
        """Return the fewest deltas that produce what readers know; later deltas continue from there.

        A wait for a provider's rate limit is included until more of the answer arrives.
        """
        parts = [delta for index in sorted(self._drafts) for delta in self._drafts[index].snapshot()]
        counts = [] if self._counts is None else [self._counts]
        if self._waits_at not in (None, self._progress()) or self._end is not None:
            counts = [msgspec.structs.replace(count, rate_limit=None) for count in counts]
        return [*parts, *counts, *([] if self._end is None else [self._end])]

    def _progress(self) -> tuple[int, int]:
        """Return the number of parts and of chunks received."""
        return len(self._drafts), sum(len(draft.chunks) for draft in self._drafts.values())

    @property
    def next_index(self) -> int:
        """Return the index after the last part."""
        return max(self._drafts, default=-1) + 1

    def parts_from(self, first: int) -> list[tuple[int, Part]]:
        """Return the known parts from an index on, with their indices."""
        drafts = self._drafts
        return [
            (index, part)
            for index in sorted(drafts)
            if index >= first and (part := drafts[index].finish()) is not None
        ]

    def message(self) -> Message:
        """Return the message in its current state, without empty parts."""
        return self._message(tuple(part for _, part in self.parts_from(0)))

    def preview(self) -> Message:
        """Return the message as readers know it, without the results of tools that are still running."""
        running = {index for index, draft in self._drafts.items() if draft.runs}
        parts = (part for index, part in self.parts_from(0) if index not in running)
        return self._message(tuple(parts)).with_state_of()

    def _message(self, parts: tuple[Part, ...]) -> Message:
        return Message(
            id=self.message_id,
            session_id=self.session_id,
            role="assistant",
            parts=parts,
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
