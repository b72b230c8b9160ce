"""Agent events: deltas told with cumulative texts."""

from __future__ import annotations

from gateway import AgentEvent, ContentEvent, ReasoningEvent
from gateway.contract.events import AgentEventMapper
from gateway.provider_http import DeltaWriter, MetadataDelta


def test_002_17_texts_grow_and_start_empty_after_a_tool() -> None:
    told: list[AgentEvent] = []
    mapper, write = AgentEventMapper(), DeltaWriter("m")
    deltas = (
        write.text("h", "reasoning"),
        write.text("m", "reasoning"),
        write.text("Let "),
        MetadataDelta("m", 1, 1, 0.0),
        write.text("me see."),
        write.tool_call("c", "clock"),
        write.result("c"),
        write.text("Noon."),
    )
    for delta in deltas:
        mapper.convert(delta, told.append)
    assert told == [
        ReasoningEvent("h"),
        ReasoningEvent("hm"),
        ContentEvent("Let "),
        ContentEvent("Let me see."),
        ContentEvent("Noon."),
    ]
