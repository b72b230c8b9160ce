"""Events as messages."""

from __future__ import annotations

import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from channels.matrix.parse import (
    Bot,
    Event,
    Place,
    event_of,
    file_of,
    for_another,
    latest,
    message_of,
    relation,
    text_of,
)
from gateway.channel import InboundMessage, SessionStrategy

BOT = "@bot-1:hs.test"
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("body", "msgtype", "url", "info", "filename", "m.relates_to", "m.new_content", "m.mentions")


def bot(strategy: SessionStrategy = "thread", name: str = "Bot") -> Bot:
    return Bot("matrix", BOT, name, strategy, {"help"})


def message(
    text: str,
    content: dict[str, Any] | None = None,
    *,
    strategy: SessionStrategy = "thread",
    group: bool = True,
) -> InboundMessage:
    event = Event("m.room.message", "$1", "@ada:hs.test", {"body": text, **(content or {})})
    place = Place("!room:hs.test", group, "Team", "Ada")
    return message_of(event, event, event.content, bot(strategy), place, 7)


@pytest.mark.parametrize(
    ("strategy", "session"),
    [
        ("thread", f"matrix:{BOT}:!room:hs.test:t$root"),
        ("chat", f"matrix:{BOT}:!room:hs.test"),
        ("chat_user", f"matrix:{BOT}:!room:hs.test:u@ada:hs.test"),
    ],
)
def test_the_session_strategy_is_a_setting(strategy: SessionStrategy, session: str) -> None:
    thread = {"m.relates_to": {"rel_type": "m.thread", "event_id": "$root"}}
    found = message("hi", thread, strategy=strategy)
    assert (found.session, found.address.thread) == (session, "$root")


@pytest.mark.parametrize(
    ("text", "left", "addressed"),
    [
        (f"{BOT}: hi", "hi", "mention"),
        (f"{BOT} hi", "hi", "mention"),
        ("Bot, hi", "hi", "mention"),
        ("@bot hi", "hi", "mention"),
        ("Bots are fun", "Bots are fun", "none"),
        ("is this a Bot", "is this a Bot", "none"),
        (f"ask {BOT} now", f"ask {BOT} now", "mention"),
        ("Bot: !help me", "/help me", "command"),
        ("/help", "/help", "command"),
        ("!nothing", "!nothing", "none"),
    ],
)
def test_a_mention_is_removed_from_the_begin_of_a_text(text: str, left: str, addressed: str) -> None:
    found = message(text)
    assert (found.text, found.addressed) == (left, addressed)
    assert message(text, group=False).addressed == "direct"


def test_a_pill_is_a_mention() -> None:
    assert message("hello", {"m.mentions": {"user_ids": [BOT]}}).addressed == "mention"
    assert message("hello", {"m.mentions": {"user_ids": ["@eve:hs.test"]}}).addressed == "none"


def test_the_quote_of_a_reply_is_removed() -> None:
    body = "> <@ben:hs.test> one\n> two\n\nwhat?"
    assert text_of({"body": body}, True) == "what?"
    assert text_of({"body": body}, False) == body
    assert text_of({"body": "> my own quote\n\nwhat?"}, True) == "> my own quote\n\nwhat?"


def test_a_file_has_a_caption_only_if_it_has_its_own_name() -> None:
    file = {"msgtype": "m.image", "url": "mxc://hs.test/abc", "info": {"mimetype": "image/png"}}
    assert text_of({**file, "body": "a.png"}, False) == ""
    here = {"msgtype": "m.location", "body": "My location"}
    assert text_of({**here, "geo_uri": "geo:52.5,-13.405;u=35"}, False) == "[location: 52.5, -13.405]"
    assert text_of({**here, "geo_uri": "geo:here"}, False) == "My location"
    assert text_of({**file, "body": "look", "filename": "a.png"}, False) == "look"
    found = file_of({**file, "body": "look", "filename": "a.png"})
    assert found is not None
    assert (found.name, found.mime_type, found.place) == ("a.png", "image/png", ("hs.test", "abc"))


@pytest.mark.parametrize(
    "url", ["mxc://hs.test/../x", "mxc://hs.test/a?b", "https://hs.test/a", "mxc://a/b/c"]
)
def test_an_address_of_a_file_stays_within_its_path(url: str) -> None:
    found = file_of({"msgtype": "m.file", "body": "x", "url": url})
    assert found is not None
    assert found.place == ("", "")


def test_a_message_for_another_is_not_for_the_bot() -> None:
    link = '<a href="https://matrix.to/#/@eve:hs.test">Eve</a>: hi'
    assert for_another({"body": "Eve: hi", "formatted_body": link})
    assert for_another({"body": "@eve:hs.test hi"})
    assert not for_another({"body": "hi @eve:hs.test"})


@hypothesis.given(st.dictionaries(st.sampled_from(FIELDS), VALUES), VALUES, VALUES)
def test_every_event_is_read_or_refused(content: dict[str, Any], unsigned: Any, at: Any) -> None:
    raw = {"type": "m.room.message", "event_id": "$1", "sender": "@a:b", "unsigned": unsigned}
    try:
        event = event_of(json.loads(json.dumps({**raw, "content": content, "origin_server_ts": at})))
        found = message_of(event, event, latest(event), bot(), Place("!r:b"), 1)
    except ValueError:
        return
    assert isinstance(found.text, str)
    assert isinstance(found.sent_at, int)
    file_of(latest(event))
    for_another(content)
    assert isinstance(relation(content).event, str)
