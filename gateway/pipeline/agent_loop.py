"""The cumulative view of a turn, for ``after_llm_call`` hooks and custom agent loops.

A turn is a sequence of deltas. Hooks and loops work with whole texts instead: ``turn_result`` sums up the
parts of a model call, ``rewrite`` and ``follow`` turn a hook's or a loop's texts back into deltas.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from gateway.contract.deltas import PartDelta
from gateway.contract.events import AgentEvent, ContentEvent, ReasoningEvent, TurnEndEvent
from gateway.contract.messages import TextKind, TextPart, ToolCallPart
from gateway.contract.plugin import ToolCall, TurnResult
from gateway.session import Turn


def turn_result(turn: Turn, first: int, usage: int, cached_tokens: int) -> TurnResult:
    """Return the parts from index ``first`` on as the result of one model call."""
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


def rewrite(turn: Turn, first: int, before: TurnResult, after: TurnResult) -> None:
    """Replace the parts of a model call, which amounted to ``before``, so that they amount to ``after``."""
    kept = {call.id: call for call in after.tool_calls}
    texts = {"text": after.content, "reasoning": after.reasoning}
    changed = {"text": before.content != after.content, "reasoning": before.reasoning != after.reasoning}
    for index, part in turn.assembler.parts_from(first):
        if isinstance(part, TextPart) and changed.get(part.kind, False):
            # The whole new text goes into the first part of its kind; the others become empty, because
            # readers know the parts by index and none can be removed.
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
    """Emit the cumulative texts of a custom loop as deltas, and forward its other events."""
    emitted: dict[TextKind, str] = {"text": "", "reasoning": ""}

    def grow(kind: TextKind, text: str) -> None:
        more = text[len(emitted[kind]) :]
        emitted[kind] = text
        if more:
            turn.emit(turn.writer.text(more, kind))

    async for event in events:
        match event:
            case ContentEvent():
                grow("text", event.text)
            case ReasoningEvent():
                grow("reasoning", event.text)
            case TurnEndEvent():
                # Texts are cumulative within one model call, so the next call starts from nothing.
                emitted = {"text": "", "reasoning": ""}
                turn.writer.skip_to(turn.assembler.next_index)
                turn.notify(event)
            case _:
                turn.notify(event)
