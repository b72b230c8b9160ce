"""Parsing of recorded, unusual and corrupted updates."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.telegram.fake import FakeTelegram
from channels.telegram.parse import (
    decoded,
    message_ids,
    named_topic,
    parse_update,
    update_id_of,
)
from channels.telegram.updates.chats import id_sequence, is_group
from channels.telegram.updates.objects import CallbackQuery, StoppedGeneration
from channels.telegram.updates.received import BotIdentity, ReceivedMessage
from gateway.channel import Rejected, Sender
from tests.channels.telegram.lab import lab, until
from tests.channels.telegram.recorded import ME, PAYLOADS, heard, payload

pytestmark = pytest.mark.slow

NAMES = sorted(path.stem for path in PAYLOADS.glob("*.json"))


def test_a_private_message() -> None:
    message = heard("private").inbound
    assert (message.session, message.text) == ("telegram:123456789:5000000001", "hello 😀")
    assert (message.dedup_key, message.order, message.revises) == ("5000000001:7", 7, None)
    assert (message.sender.id, message.sender.name) == ("5000000001", "Ada Lovelace")
    assert (message.address.chat, message.address.reply_to, message.address.group) == (
        "5000000001",
        "7",
        False,
    )


def test_a_change_names_what_it_changes() -> None:
    message = heard("edited").inbound
    assert message.revises == "5000000001:7"
    assert message.dedup_key.startswith("5000000001:7:e1763750000")
    assert parse_update(payload("edited"), BotIdentity("telegram", 123456789, edits=False)) is None


def test_a_mention_is_found_after_characters_of_two_units() -> None:
    message = heard("mention").inbound
    assert message.text == "😀 @Fake_Bot what time is it?"
    assert (message.address.group, message.address.title) == (True, "Lab")
    assert message.addressed == "mention"


def test_a_command_loses_the_bots_name_and_gets_ours() -> None:
    message = heard("command").inbound
    assert (message.text, message.addressed) == ("/new-chat now", "command")


def test_a_topic_is_a_thread_and_the_message_that_opened_it_is_not_answered() -> None:
    message = heard("topic").inbound
    assert message.session == "telegram:123456789:-1002000000001:t5"
    assert (message.address.thread, message.text) == ("5", "in the topic")
    assert (message.addressed, message.quotes) == ("none", ())
    whole = heard("topic", strategy="chat").inbound
    assert (whole.session, whole.address.thread) == ("telegram:123456789:-1002000000001", "5")


def test_the_name_of_a_topic_is_that_of_its_newest_message_about_it() -> None:
    assert named_topic(payload("topic")) == ("-1002000000001", "5", "News")
    renamed = payload("topic")
    renamed["message"]["forum_topic_edited"] = {"name": "Old news"}
    assert named_topic(renamed) == ("-1002000000001", "5", "Old news")
    renamed["message"]["forum_topic_edited"] = renamed["message"]["reply_to_message"] = {"name": 7}
    assert (named_topic(renamed), named_topic(payload("private")), named_topic(None)) == (None, None, None)


def test_a_thread_of_replies_is_not_a_topic() -> None:
    message = heard("reply").inbound
    assert message.session == "telegram:123456789:-1002000000001"
    assert (message.address.thread, message.text) == (None, "and why?")
    assert (message.in_reply_to, message.addressed, message.quotes) == ("6", "reply", ())


def test_the_sender_of_a_message_on_behalf_of_a_chat_is_that_chat() -> None:
    assert heard("anonymous").inbound.sender == Sender("-1002000000001", "Lab")


def test_pictures_come_in_their_largest_size() -> None:
    one = heard("album")
    assert (one.album, [file.file.file_id for file in one.files]) == ("13000000001", ["PHAgAD00000001-m"])
    assert one.inbound.text == "look"


def test_buttons_and_stops_are_signals() -> None:
    assert isinstance(parse_update(payload("pressed"), ME), CallbackQuery)
    assert isinstance(parse_update(payload("stopped"), ME), StoppedGeneration)


def test_chats_and_their_id_sequences() -> None:
    assert [is_group(chat) for chat in ("5", "-5", "-1002000000001")] == [False, True, True]
    assert [id_sequence(chat) for chat in ("5", "-5", "-1002000000001")] == ["", "", "-1002000000001"]


def test_its_own_words_and_those_of_other_bots_are_not_heard() -> None:
    update = payload("private")
    for sender in ({"id": 123456789, "is_bot": True}, {"id": 5, "is_bot": True, "first_name": "Bot"}):
        update["message"]["from"] = sender
        assert parse_update(update, ME) is None


def test_half_characters_keep_nothing_back() -> None:
    assert decoded(b'["\\ud800", "\\ud83d\\ude00", "\xff"]') == ["\ufffd", "😀", "\ufffd"]
    for bad in (b"", b"{", b"[NaN]", b"[" * 100_000):
        with pytest.raises(ValueError):
            decoded(bad)


def mutated(update: Any, dice: Random) -> Any:
    """Return the payload with one to three values changed, removed or added."""
    for _ in range(dice.randint(1, 3)):
        *path, last = dice.choice(places(update) or [("update_id",)])
        inner: Any = update
        for key in path:
            inner = inner[key]
        strange = dice.choice((None, True, -1, 0.5, 10**30, "", "\0", "/help", [], {}, [[]], "x" * 9999))
        match dice.choice(("change", "remove", "add")):
            case "remove" if update:
                inner.pop(last, None) if isinstance(inner, dict) else inner.pop(last)
            case "add" if isinstance(inner, dict):
                inner[str(dice.random())] = strange
            case _:
                inner[last] = strange
    return update


async def test_mutated_updates_never_stop_the_channel(tmp_path: Path, fake: FakeTelegram) -> None:
    dice, chat = Random(42), fake.private()
    async with lab(tmp_path, fake, groups="always", streaming=False) as running:
        for _ in range(300):
            content = mutated(payload(dice.choice(NAMES)), dice)
            content.pop("update_id", None)
            fake.deliver_raw(content)
        last = fake.say(chat, "still there?")
        await until(
            lambda: any(
                one.reply_to == last or one.text == "You said: still there?" for one in fake.messages(chat)
            )
        )
        await running.settled()
        assert len(await running.quarantined()) > 100
        await until(lambda: running.gateway.health()["telegram"] == (True, ""))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a payload."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


STRANGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**30, -(10**30), 2**63, 2**53 + 1]),
    st.floats(),
    st.text(),
    st.sampled_from(["\ud800", "\0", "x" * 100_000, "/help", "@fake_bot"]),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(), st.integers(), max_size=3),
)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None)
@given(data=st.data())
def test_a_mutated_payload_is_read_or_set_aside(name: str, data: st.DataObject) -> None:
    update = payload(name)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(update)))
        inner: Any = update
        for key in path[:-1]:
            inner = inner[key]
        match data.draw(st.sampled_from(["change", "remove", "add"])):
            case "change":
                inner[path[-1]] = data.draw(STRANGE)
            case "remove":
                del inner[path[-1]]
            case _:
                if isinstance(inner, dict):
                    inner[data.draw(st.text())] = data.draw(STRANGE)
        if not update:
            break
    found = parse_update(update, ME)
    list(message_ids(update))
    if isinstance(found, ReceivedMessage):
        assert abs(found.inbound.order) <= 2**53
        assert "\0" not in found.inbound.text + found.inbound.session + found.inbound.dedup_key
    if isinstance(found, Rejected):
        found.raw.encode()
        assert len(found.raw) <= 100_000


@settings(deadline=None)
@given(STRANGE)
def test_what_is_not_an_update_is_set_aside(value: object) -> None:
    assert isinstance(parse_update(value, ME), Rejected) or update_id_of(value) is not None
