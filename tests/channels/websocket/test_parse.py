"""Frames from websocket clients."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.websocket.parse import (
    AbortFrame,
    ApprovalFrame,
    AuthFrame,
    MessageFrame,
    PingFrame,
    ResumeFrame,
    ShowFrame,
    parse_frame,
)
from gateway.channel import InvalidRequestError

KNOWN = {
    '{"type":"auth","token":"t"}': AuthFrame("t"),
    '{"type":"ping"}': PingFrame(),
    '{"type":"abort","session":"s"}': AbortFrame("s"),
    '{"type":"show","session":"s","message_id":"m"}': ShowFrame("s", "m"),
    '{"type":"resume","session":"s"}': ResumeFrame("s", 0),
    '{"type":"resume","session":"telegram:bot:1","after":7}': ResumeFrame("telegram:bot:1", 7),
    '{"type":"approval","session":"s","approval_id":"a","decision":"always"}': ApprovalFrame(
        "s", "a", "always"
    ),
    '{"type":"message","client_msg_id":"1","text":"x"}': MessageFrame("1", "x"),
    '{"text":"x","client_msg_id":"1","session":"s","type":"message"}': MessageFrame("1", "x", "s"),
    '{"type":"message","client_msg_id":"ä 1","text":"","parts":[1],"new":{}}': MessageFrame(
        "ä 1", "", None, [1]
    ),
}


@pytest.mark.parametrize("payload", KNOWN)
def test_a_frame_is_read_as_what_it_is(payload: str) -> None:
    assert parse_frame(payload) == parse_frame(payload.encode()) == KNOWN[payload]


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.binary() | st.text())
def test_every_payload_is_a_frame_or_refused(payload: bytes | str) -> None:
    refusal = None
    try:
        parse_frame(payload)
    except InvalidRequestError as error:
        refusal = str(error)
    assert refusal != ""


@given(
    st.sampled_from(["auth", "message", "abort", "resume", "approval", "ping"]),
    st.dictionaries(
        st.sampled_from(
            ["token", "client_msg_id", "text", "session", "parts", "after", "approval_id", "decision"]
        ),
        json_values,
    ),
)
def test_every_value_of_the_fields_is_accepted_or_refused(kind: str, fields: dict[str, Any]) -> None:
    try:
        frame = parse_frame(msgspec.json.encode({"type": kind, **fields}))
    except InvalidRequestError:
        return
    assert type(frame).__name__.lower() == f"{kind}frame"


def test_a_refusal_says_where_the_fault_is() -> None:
    with pytest.raises(InvalidRequestError, match=r"Expected `int`.*`\$\.after`"):
        parse_frame('{"type":"resume","session":"s","after":"x"}')
