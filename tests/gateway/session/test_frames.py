"""Events: frames with their place in a session, the same bytes for every transport."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.contract.deltas import Complete, TextDelta
from gateway.contract.messages import Message, Metadata, TextPart, to_json
from gateway.session.frames import (
    ApprovalAsked,
    ApprovalResolved,
    Event,
    Frame,
    MessageFrame,
    Replayed,
    SessionFrame,
    Totals,
    TurnStart,
)

SHAPES: list[tuple[Frame, dict[str, Any]]] = [
    (
        MessageFrame(Message(id="u", session_id="s", role="user", parts=(TextPart("Hi"),), created_at=5)),
        {
            "type": "message",
            "message": {
                "id": "u",
                "session_id": "s",
                "role": "user",
                "parts": [{"type": "text", "content": "Hi"}],
                "created_at": 5,
            },
        },
    ),
    (TurnStart("a", "u", 2), {"type": "turn_start", "message_id": "a", "reply_to": "u", "attempt": 2}),
    (
        ApprovalAsked("p", "rm", {"path": "x"}, 60_000),
        {
            "type": "approval_request",
            "approval_id": "p",
            "tool_name": "rm",
            "arguments": {"path": "x"},
            "timeout_ms": 60_000,
            "always": None,
            "reason": "",
        },
    ),
    (
        ApprovalResolved("p", "timeout"),
        {"type": "approval_resolved", "approval_id": "p", "decision": "timeout"},
    ),
    (SessionFrame(title="T"), {"type": "session", "title": "T"}),
    (
        SessionFrame(usage=Totals(1, 2, 0.5), status="idle"),
        {
            "type": "session",
            "usage": {"input_tokens": 1, "output_tokens": 2, "cost": 0.5},
            "status": "idle",
        },
    ),
    (Replayed(), {"type": "replayed"}),
]


@pytest.mark.parametrize(("frame", "plain"), SHAPES, ids=[plain["type"] for _, plain in SHAPES])
def test_a_frame_goes_out_with_its_session_and_its_number(frame: Frame, plain: dict[str, Any]):
    got = msgspec.json.decode(Event("se:ss", 7, frame).json)
    got.get("message", {}).pop("metadata", None)
    assert got == {**plain, "session": "se:ss", "seq": 7}


@pytest.mark.parametrize("delta", [TextDelta("m", 0, "é", 1), Complete("m", Metadata(), "cancelled")])
def test_004_20_an_event_is_the_deltas_own_json_and_two_fields_more(delta: TextDelta | Complete):
    event = Event("s", 3, delta)
    assert event.json == to_json(delta)[:-1] + b',"session":"s","seq":3}'


def test_an_event_is_encoded_once_however_many_read_it():
    event = Event("s", 1, TextDelta("m", 0, "x", 1))
    assert event.json is event.json


def test_broken_text_does_not_keep_an_event_from_going_out():
    event = Event("s", 1, TextDelta("m", 0, "\ud83d", 1))
    assert msgspec.json.decode(event.json)["content"] == "\ufffd"
