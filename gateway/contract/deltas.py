"""Deltas: the increments of a message that is being streamed.

Eight kinds stream content, and ``part`` carries a part that is sent whole. Each is encoded once and
fanned out as bytes. Text may be cut anywhere: every granularity assembles to the same message.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from gateway.contract.messages import DisplayHints, Metadata, Part, ResultMetadata, TextKind, TextPart

StopReason = Literal["end_turn", "max_tokens", "tool_use", "cancelled"]


class RateLimit(Struct, frozen=True, gc=False, omit_defaults=True):
    """A wait for a provider's rate limit, in milliseconds (0 if unknown)."""

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
    """The start of a tool call by the model."""

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
    """The start of a tool's run."""

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
    """The end of a tool's run."""

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


class Tokens(Struct, frozen=True, gc=False):
    """The tokens of one model call. ``cached`` and ``cache_write`` are part of ``input``."""

    input: int
    output: int
    cached: int = 0
    cache_write: int = 0

    @classmethod
    def of(cls, call: MetadataDelta) -> Tokens:
        """Return the tokens that a provider reported, with parts limited to the total."""
        cached = min(call.cached_tokens, call.input_tokens)
        written = min(call.cache_write_tokens, call.input_tokens - cached)
        return cls(call.input_tokens, call.output_tokens, cached, written)


class PartDelta(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="part"):
    """A part that is sent whole (error, image, file); it replaces the part at that index."""

    message_id: str
    part_index: int
    part: Part


class Complete(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="complete"):
    """The end of the message: it is complete and stored."""

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


class DeltaWriter:
    """Numbers the parts and counts the text of a message that is produced in deltas.

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
        """Make a chunk of text; a change of ``kind`` begins a new part."""
        if kind != self._kind:
            self._open(kind)
        self._length += len(content)
        return TextDelta(self.message_id, self.next_index - 1, content, self._length, kind)

    def tool_call(self, tool_call_id: str, tool_name: str) -> ToolCallStart:
        """Begin a tool call in a new part."""
        self._open(None)
        self._calls[tool_call_id] = self.next_index - 1
        return ToolCallStart(self.message_id, self.next_index - 1, tool_call_id, tool_name)

    def arguments(self, tool_call_id: str, fragment: str) -> ToolCallDelta:
        """Add a fragment to the arguments of a begun call; calls may interleave."""
        return ToolCallDelta(self.message_id, self._calls[tool_call_id], tool_call_id, fragment)

    def part(self, part: Part) -> PartDelta:
        """Add a whole part."""
        self._open(None)
        return PartDelta(self.message_id, self.next_index - 1, part)

    def result(
        self, tool_call_id: str, title: str | None = None, display: DisplayHints | None = None
    ) -> ToolResultStart:
        """Begin a tool's result in a new part."""
        self._open(None)
        return ToolResultStart(self.message_id, self.next_index - 1, tool_call_id, title, display)

    def skip_to(self, index: int) -> None:
        """Continue at an index, after parts of another writer."""
        self.next_index, self._kind = index, None

    def _open(self, kind: TextKind | None) -> None:
        self._kind = kind
        self._length = 0
        self.next_index += 1


def deltas_of(part: Part, message_id: str, index: int) -> list[Delta]:
    """Return the fewest deltas that produce a finished part."""
    match part:
        case TextPart(state=None):
            return [TextDelta(message_id, index, part.content, len(part.content), part.kind)]
        case _:
            return [PartDelta(message_id, index, part)]
