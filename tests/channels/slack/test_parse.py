"""Slack's payloads and their meaning; a malformed one raises UnreadableError."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from channels.slack.context.content import plain_text
from channels.slack.parse import (
    DeletedMessage,
    OtherMessage,
    QuestionPressed,
    Rules,
    StopPressed,
    UnreadableError,
    UserMessage,
    button_value,
    parse,
    parse_history,
    revision,
    user_id_of,
)
from gateway.channel import Address, Sender

PAYLOADS = {
    path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "payloads").glob("*.json")
}
NOW = 1_795_000_000_000_000


def rules(**changes: Any) -> Rules:
    bot = PAYLOADS["app_mention"]["authorizations"][0]["user_id"]
    known = Rules(channel="slack", team="T1", bot_user=bot)
    return replace(known, **changes)


def written(name: str, **changes: Any) -> UserMessage:
    found = parse(PAYLOADS[name], rules(**changes), NOW)
    assert isinstance(found, UserMessage)
    return found


def test_a_direct_message() -> None:
    event = PAYLOADS["message_im"]["event"]
    found = written("message_im").message
    assert found.text == "hello & <welcome> https://example.org/x"
    assert found.dedup_key == f"{event['channel']}:{event['ts']}"
    assert found.alt_key == event["client_msg_id"]
    assert found.order == int(event["ts"].replace(".", ""))
    assert found.session == f"slack:T1:{event['channel']}"
    assert found.sender.id == event["user"]
    assert found.address == Address("slack", "T1", event["channel"], None, event["ts"])


def test_people_of_other_workspaces_carry_the_name_of_theirs() -> None:
    user = PAYLOADS["message_im"]["event"]["user"]
    assert written("message_im", home=False).message.sender.id == f"T1:{user}"
    assert user_id_of(f"T1:{user}") == user_id_of(user) == user


def test_a_mention_and_its_message_are_one() -> None:
    assert written("message_channel").message == written("app_mention").message
    found = written("app_mention").message
    assert found.text.startswith("hello see #general and @")
    assert found.address.group
    assert found.address.thread == PAYLOADS["app_mention"]["event"]["ts"]
    assert found.session.endswith(f":t{found.address.thread}")


def test_ways_to_address_the_bot() -> None:
    event = PAYLOADS["message_thread"]["event"]
    assert written("message_im").message.addressed == "direct"
    assert written("app_mention").message.addressed == "mention"
    assert written("command").message.addressed == "command"
    assert written("message_action").message.addressed == "command"
    assert written("message_thread").message.addressed == "none"
    place = event["channel"], event["thread_ts"], event["ts"]
    known = rules(follows=lambda *asked: asked == place)
    assert addressed("message_thread", known) == "thread"
    assert addressed("message_thread", known, text="<@U7777777777> what do you say?") == "none"
    assert addressed("message_thread", known, text="<!subteam^S777> anyone?") == "none"
    assert addressed("message_thread", known, text="ask <@U7777777777>") == "thread"
    ours = {"parent_user_id": known.bot_user}
    assert addressed("message_thread", rules(), **ours) == "reply"
    assert addressed("message_thread", rules(), text="<@U7777777777> you?", **ours) == "none"
    mention = f"<@{known.bot_user}> and you?"
    assert addressed("message_thread", rules(), text=mention) == "mention"
    assert addressed("message_thread", known, text=mention) == "thread"
    assert addressed("message_thread", rules(), text=mention, **ours) == "reply"
    assert addressed("app_mention", rules(), text=f"<@{known.bot_user}> /model") == "command"


def addressed(name: str, known: Rules, **changes: Any) -> str:
    payload = copy.deepcopy(PAYLOADS[name])
    payload["event"] |= changes
    found = parse(payload, known, NOW)
    assert isinstance(found, UserMessage)
    return found.message.addressed


def test_a_bare_mention_is_a_message_without_text() -> None:
    payload = copy.deepcopy(PAYLOADS["app_mention"])
    payload["event"]["text"] = f"<@{rules().bot_user}>"
    found = parse(payload, rules(), NOW)
    assert isinstance(found, UserMessage)
    assert (found.message.text, found.message.addressed) == ("", "mention")


def test_a_bot_is_heard_if_the_rules_name_it_and_it_mentions_the_bot() -> None:
    payload = copy.deepcopy(PAYLOADS["message_bot"])
    payload["event"] |= {"bot_id": "B777", "subtype": "bot_message", "username": "Intake", "text": ""}
    payload["event"]["attachments"] = [{"text": f"<@{rules().bot_user}> new ticket", "fallback": "x"}]
    assert isinstance(parse(payload, rules(), NOW), OtherMessage)
    assert isinstance(parse(payload, rules(heeds=lambda _: True, bot="B777"), NOW), OtherMessage)
    found = parse(payload, rules(heeds=lambda bot: bot == "B777", bot="B1"), NOW)
    assert isinstance(found, UserMessage)
    assert found.message.sender == Sender("B777", "Intake")
    assert found.message.text == "new ticket"
    payload["event"]["attachments"][0]["text"] = "a ticket"
    assert isinstance(parse(payload, rules(heeds=lambda _: True, bot="B1"), NOW), OtherMessage)


def test_an_edit_that_removes_the_mention_is_still_for_the_bot() -> None:
    payload = copy.deepcopy(PAYLOADS["message_changed"])
    payload["event"] |= {"channel": "C777"}
    payload["event"]["previous_message"]["text"] = f"<@{rules().bot_user}> hi"
    found = parse(payload, rules(), NOW)
    assert isinstance(found, UserMessage)
    assert found.message.addressed == "mention"


@pytest.mark.parametrize(
    ("strategy", "ending"), [("chat", ""), ("chat_user", ":u{user}"), ("thread", ":t{ts}")]
)
def test_what_shares_a_session(strategy: Any, ending: str) -> None:
    event = PAYLOADS["app_mention"]["event"]
    session = written("app_mention", strategy=strategy).message.session
    assert session == f"slack:T1:{event['channel']}" + ending.format(**event)


def test_a_revision() -> None:
    event = PAYLOADS["message_changed"]["event"]
    found = written("message_changed").message
    key = f"{event['channel']}:{event['message']['ts']}"
    assert found.revises == key
    assert found.dedup_key == f"{key}:e{event['message']['edited']['ts']}"
    assert found.alt_key is None
    assert found.text == "hi"
    assert found.address.reply_to == event["message"]["ts"]
    assert found.order > int(event["message"]["ts"].replace(".", ""))
    assert parse(PAYLOADS["message_changed"], rules(edits=False), NOW) is None


def test_an_unfurled_link_is_not_a_revision() -> None:
    payload = copy.deepcopy(PAYLOADS["message_changed"])
    payload["event"]["previous_message"]["text"] = payload["event"]["message"]["text"]
    assert parse(payload, rules(), NOW) is None


@pytest.mark.parametrize("name", ["message_deleted", "message_tombstone"])
def test_a_deletion(name: str) -> None:
    event = PAYLOADS[name]["event"]
    found = parse(PAYLOADS[name], rules(), NOW)
    assert isinstance(found, DeletedMessage)
    assert found.dedup_key == f"{event['channel']}:{event['previous_message']['ts']}"


def test_a_file() -> None:
    (file,) = written("message_file").files
    assert (file.name, file.mime_type, file.size) == ("notes.txt", "text/plain", 4)


def test_other_bots_and_ourselves_are_only_seen() -> None:
    assert isinstance(parse(PAYLOADS["message_bot"], rules(), NOW), OtherMessage)
    user = PAYLOADS["message_im"]["event"]["user"]
    assert isinstance(parse(PAYLOADS["message_im"], rules(bot_user=user), NOW), OtherMessage)


def test_a_slash_command_is_answered_by_its_response_url() -> None:
    found = written("command").message
    assert found.text == "/model openai/gpt"
    assert found.address.reply_to == f"{PAYLOADS['command']['response_url']}#{found.sender.id}"
    assert found.order == NOW
    prefixed = {**PAYLOADS["command"], "command": "/tl-model"}
    again = parse(prefixed, rules(prefix="tl-"), NOW)
    assert isinstance(again, UserMessage)
    assert again.message.text == "/model openai/gpt"


def test_a_slash_command_in_a_direct_message_is_answered_there() -> None:
    found = parse({**PAYLOADS["command"], "channel_id": "D1"}, rules(), NOW)
    assert isinstance(found, UserMessage)
    assert found.message.address.reply_to is None
    assert not found.message.address.group


def test_a_button() -> None:
    found = parse(PAYLOADS["block_actions"], rules(), NOW)
    user = PAYLOADS["block_actions"]["user"]["id"]
    url = PAYLOADS["block_actions"]["response_url"]
    place = PAYLOADS["block_actions"]["container"]
    assert found == QuestionPressed("abc", 0, user, url, place["channel_id"], place["message_ts"], "x")
    assert button_value(0, "abc") == PAYLOADS["block_actions"]["actions"][0]["value"]


def test_a_message_shortcut_asks_about_the_message() -> None:
    found = written("message_action").message
    source = PAYLOADS["message_action"]["message"]
    assert found.text == "Answer this message."
    assert [(one.markup, one.author) for one in written("message_action").shown] == [
        ("what is this", source["user"])
    ]
    assert found.address.thread == source["ts"]


def test_the_stop_button() -> None:
    event = PAYLOADS["agent_session_stopped"]["event"]
    found = parse(PAYLOADS["agent_session_stopped"], rules(), NOW)
    assert found == StopPressed(
        f"slack:T1:{event['channel']}:t{event['thread_ts']}", event["channel"], event["thread_ts"]
    )


def test_a_history_brings_the_first_wording_and_the_last() -> None:
    message = {**PAYLOADS["message_im"]["event"], "edited": {"user": "U1", "ts": "1795000001.000001"}}
    found = parse_history(message, "D1", rules())
    assert isinstance(found, UserMessage)
    assert found.edited == "1795000001.000001"
    assert revision(found.message, found.edited).revises == found.message.dedup_key


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<@UBOT> hello", "hello"),
        ("hello <@UBOT>", "hello"),
        ("<@UBOT|bot>: hello", "hello"),
        ("&lt;tag&gt; &amp;amp;", "<tag> &amp;"),
        ("<https://a.example|a.example>", "https://a.example"),
        ("<https://a.example|here>", "here (https://a.example)"),
        ("<mailto:a@b.example|a@b.example>", "mailto:a@b.example"),
        ("<#C1|general> <!here> <!subteam^S1|@team> <!date^1^{date}|today>", "#general @here @team today"),
    ],
)
def test_markup_as_words(text: str, words: str) -> None:
    assert plain_text(text, "UBOT") == words


ODD = st.sampled_from(
    [None, "", "x", 0, -1, 1.5, True, [], {}, ["x"], {"a": 1}, "x" * 5000, "\0", "\ud800", "1.5"]
)


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    payload = copy.deepcopy(PAYLOADS[draw(st.sampled_from(sorted(PAYLOADS)))])
    for _ in range(draw(st.integers(1, 3))):
        place: Any = payload
        while True:
            keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key: Any = draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and place[key] and draw(st.integers(0, 4)):
                place = place[key]
                continue
            if draw(st.booleans()):
                place[key] = copy.deepcopy(draw(ODD))
            else:
                del place[key]
            break
    return payload


@given(mutated())
def test_a_payload_that_is_wrong_is_read_or_refused(payload: Any) -> None:
    try:
        found = parse(payload, rules(), NOW)
        if isinstance(payload.get("event"), dict):
            parse_history(payload["event"], "C1", rules())
    except UnreadableError:
        return
    if isinstance(found, UserMessage):
        assert isinstance(found.message.text, str)
        assert all(isinstance(file.name, str) for file in found.files)
