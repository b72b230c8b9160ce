"""Between a turn's deltas and the cumulative view that hooks and custom loops have of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gateway.deltas import PartDelta
from gateway.events import AgentEvent, ContentEvent, ReasoningEvent, TurnEndEvent
from gateway.messages import TextKind, TextPart, ToolCallPart
from gateway.plugin import ToolCall, TurnResult
from gateway.session import Turn


def result_of(turn: Turn, first: int, usage: int, cached_tokens: int) -> TurnResult:
    """What the parts from an index on amount to, as one result of a model call."""
    parts = [part for _, part in turn.assembler.parts_from(first)]
    texts = [part for part in parts if isinstance(part, TextPart)]
    return TurnResult(
        content="".join(part.content for part in texts if part.kind == "text"),
        reasoning="".join(part.content for part in texts if part.kind == "reasoning"),
        tool_calls=tuple(
            ToolCall(part.tool_call_id, part.tool_name, part.arguments)
            for part in parts
            if isinstance(part, ToolCallPart)
        ),
        usage=usage,
        cached_tokens=cached_tokens,
    )


def withdraw(turn: Turn, first: int) -> None:
    """Take back what a model call said that failed in the middle: its parts become empty."""
    for index, _ in turn.assembler.parts_from(first):
        turn.emit(PartDelta(turn.message_id, index, TextPart("")))
    turn.writer.skip_to(turn.assembler.next_index)


def rewrite(turn: Turn, first: int, before: TurnResult, after: TurnResult) -> None:
    """Make the parts of a model call say what a hook made of it."""
    kept = {call.id: call for call in after.tool_calls}
    texts = {"text": after.content, "reasoning": after.reasoning}
    changed = {"text": before.content != after.content, "reasoning": before.reasoning != after.reasoning}
    for index, part in turn.assembler.parts_from(first):
        if isinstance(part, TextPart) and changed.get(part.kind, False):
            turn.emit(PartDelta(turn.message_id, index, TextPart(texts[part.kind], part.kind)))
            texts[part.kind] = ""
        elif isinstance(part, ToolCallPart):
            call = kept.get(part.tool_call_id)
            new = TextPart("") if call is None else ToolCallPart(call.id, call.name, dict(call.arguments))
            if new != part:
                turn.emit(PartDelta(turn.message_id, index, new))
    if changed["text"] and texts["text"]:
        turn.emit(turn.writer.part(TextPart(texts["text"])))


async def follow(turn: Turn, events: AsyncIterator[AgentEvent]) -> None:
    """Turn the cumulative texts of a custom loop into deltas."""
    said: dict[TextKind, str] = {"text": "", "reasoning": ""}

    def grow(kind: TextKind, text: str) -> None:
        more = text[len(said[kind]) :]
        said[kind] = text
        if more:
            turn.emit(turn.writer.text(more, kind))

    async for event in events:
        match event:
            case ContentEvent():
                grow("text", event.text)
            case ReasoningEvent():
                grow("reasoning", event.text)
            case TurnEndEvent():
                said = {"text": "", "reasoning": ""}
                turn.writer.skip_to(turn.assembler.next_index)
                turn.tell(event)
            case _:
                turn.tell(event)
