"""Answers at random, and an answer as any client understood it, so that two may be compared."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from msgspec import Struct

from gateway.contract.deltas import Complete
from gateway.contract.messages import Metadata, TextPart, ToolCallPart
from gateway.contract.provider import Provider
from gateway.testing.contracts.provider_calls import OPTIONS, user
from gateway.testing.fake_models.script import Bytes, Pause, Reply, Say, Think, Tokens, Use, UseTogether

EXAMPLES = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Read(Struct, frozen=True):
    """An answer as a client understood it. ``calls`` are (id, name, arguments)."""

    text: str
    reasoning: str
    calls: list[tuple[str, str, dict[str, Any]]]
    tokens: Tokens
    stop: str


words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
json_values = st.recursive(st.integers(-(2**31), 2**31) | st.booleans() | words, st.lists, max_leaves=4)
arguments = st.dictionaries(words, json_values, max_size=3).map(json.dumps)


@st.composite
def replies(draw: st.DrawFn, *, comments: bool = True) -> Reply:
    """Reasoning, then text, then tool calls, each perhaps; cut and paused anywhere, with comments between."""
    between = (Pause(0), Bytes(b": keep-alive\n\n")) if comments else (Pause(0),)
    said = [*map(Think, draw(st.lists(words, max_size=3))), *map(Say, draw(st.lists(words, max_size=6)))]
    count = draw(st.integers(0, 3))
    calls = tuple(
        Use(
            draw(st.sampled_from(("clock", "sum"))),
            draw(arguments),
            f"call_{number}",
            draw(st.integers(1, 5)),
        )
        for number in range(count)
    )
    moves: list[Any] = [*said, *([UseTogether(calls)] if calls else [])]
    for place in draw(st.lists(st.integers(0, len(moves)), max_size=2)):
        moves.insert(place, draw(st.sampled_from(between)))
    cached = draw(st.integers(0, 50))
    tokens = Tokens(cached + draw(st.integers(1, 50)), draw(st.integers(1, 99)), cached)
    return Reply(tuple(moves), "tools" if calls else draw(st.sampled_from(("end", "length"))), tokens)


async def ours(provider: Provider) -> Read:
    last: Complete | None = None
    message = await provider.chat((user("Hi"),), OPTIONS)
    async for delta in provider.stream((user("Hi"),), OPTIONS):
        last = delta if isinstance(delta, Complete) else last
    assert last is not None
    assert last.final_metadata == message.metadata
    texts = [part for part in message.parts if isinstance(part, TextPart)]
    return Read(
        "".join(part.content for part in texts if part.kind == "text"),
        "".join(part.content for part in texts if part.kind == "reasoning"),
        [
            (part.tool_call_id, part.tool_name, part.arguments)
            for part in message.parts
            if isinstance(part, ToolCallPart)
        ],
        tokens_of(last.final_metadata),
        last.stop_reason,
    )


def tokens_of(metadata: Metadata) -> Tokens:
    assert metadata.input_tokens is not None
    assert metadata.output_tokens is not None
    return Tokens(metadata.input_tokens, metadata.output_tokens, metadata.cached_tokens or 0)
