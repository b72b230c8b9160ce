"""The channel contract's values, and how abilities are found."""

from __future__ import annotations

import msgspec
import pytest

from gateway.channel import Channel, Edits, FollowsSession, Reconciles, ReportsHealth, SendsAck, SessionKey
from gateway.testing.chat import written
from gateway.testing.letterbox import Letterbox


def test_a_session_key_names_channel_account_chat_thread_and_user() -> None:
    assert str(SessionKey("telegram", "bot", "-100")) == "telegram:bot:-100"
    assert str(SessionKey("slack", "T1", "C1", "17.5", "U9")) == "slack:T1:C1:t17.5:uU9"


def test_a_thread_and_a_user_of_the_same_name_are_two_sessions() -> None:
    assert str(SessionKey("x", "a", "c", thread="1")) != str(SessionKey("x", "a", "c", user="1"))


def test_002_33_a_message_from_outside_survives_its_encoding() -> None:
    message = written(
        "hi", kind="audio", response_mode="voice", order=7, alt_key="k", raw={"update": [1, None]}
    )
    assert msgspec.json.decode(msgspec.json.encode(message), type=type(message)) == message


@pytest.mark.parametrize("ability", [Edits, FollowsSession, Reconciles, ReportsHealth, SendsAck])
def test_a_channel_has_only_the_abilities_it_has(ability: type) -> None:
    box = Letterbox()
    assert isinstance(box, Channel)
    assert not isinstance(box, ability)
