"""Messages that a message points at."""

from __future__ import annotations

from typing import Any

import pytest

from channels.telegram.parse import parse_update
from gateway.channel import Quoted, Sender
from tests.channels.telegram.recorded import ME, heard, payload, received

BEN = Sender("5000000002", "Ben")
ADA = Sender("5000000001", "Ada Lovelace", "ada")


def test_a_photo_that_is_replied_to_comes_along() -> None:
    found = heard("reply_photo")
    assert found.inbound.text == "what is this?"
    assert found.inbound.quotes == (Quoted("reply", "from the roof", BEN),)
    assert [(file.kind, file.file.file_id, file.quote) for file in found.files] == [
        ("picture", "PHAgAD00000009-m", 0)
    ]


def test_a_voice_message_that_is_replied_to_comes_along() -> None:
    found = heard("reply_voice")
    assert found.inbound.quotes == (Quoted("reply", "[voice message]", ADA),)
    assert [(file.kind, file.quote) for file in found.files] == [("voice", 0)]


def test_a_message_of_another_chat_comes_with_the_text_that_telegram_quotes() -> None:
    found = heard("external_reply")
    text = "Figures (https://example.org/f) are out"
    assert found.inbound.quotes == (Quoted("quote", text, Sender("-1002000000009", "News", "news")),)
    assert [(file.name, file.quote) for file in found.files] == [("report.csv", 0)]


def test_a_message_of_the_bot_is_quoted_only_as_far_as_the_user_selected_it() -> None:
    assert heard("reply").inbound.quotes == ()
    [quote] = heard("quote").inbound.quotes
    assert (quote.kind, quote.text, quote.own) == ("quote", "it is so", True)


def test_the_files_of_a_message_of_the_bot_come_along_without_its_text() -> None:
    update = payload("reply")
    update["message"]["reply_to_message"] |= payload("forwarded_photo")["message"] | {
        "from": update["message"]["reply_to_message"]["from"],
        "forward_origin": None,
    }
    found = received(update)
    assert found.inbound.quotes == (
        Quoted("reply", "", Sender("123456789", "Fake bot", "fake_bot"), own=True),
    )
    assert [file.quote for file in found.files] == [0]
    update["message"]["reply_to_message"] |= payload("voice")["message"]
    update["message"]["reply_to_message"] |= {"from": payload("reply")["message"]["reply_to_message"]["from"]}
    del update["message"]["reply_to_message"]["photo"], update["message"]["reply_to_message"]["caption"]
    assert (received(update).inbound.quotes, received(update).files) == ((), ())


@pytest.mark.parametrize(
    ("origin", "sender"),
    [
        (
            {"type": "user", "sender_user": {"id": 7, "first_name": "Eve", "username": "eve"}},
            Sender("7", "Eve", "eve"),
        ),
        ({"type": "hidden_user", "sender_user_name": "Eve"}, Sender("0", "Eve")),
        (
            {"type": "chat", "sender_chat": {"id": -5, "type": "group", "title": "Street"}},
            Sender("-5", "Street"),
        ),
        (
            {"type": "channel", "chat": {"id": -9, "type": "channel", "title": "News", "username": "news"}},
            Sender("-9", "News", "news"),
        ),
        ({}, None),
        ("?", None),
        (0, None),
    ],
)
def test_forwarded_words_are_a_quote_and_never_the_users_own(origin: Any, sender: Sender | None) -> None:
    for name, text in (("forwarded", "/new"), ("forwarded_photo", "yes")):
        update = payload(name)
        update["message"]["forward_origin"] = origin
        found = received(update).inbound
        assert (found.text, found.quotes) == ("", (Quoted("forward", text, sender),))


def test_forwarded_words_address_no_bot() -> None:
    update = payload("mention")
    update["message"]["forward_origin"] = {"type": "hidden_user", "date": 1, "sender_user_name": "Eve"}
    found = received(update).inbound
    assert (found.addressed, found.text) == ("none", "")
    update = payload("command")
    update["message"]["forward_origin"] = {"type": "hidden_user", "date": 1, "sender_user_name": "Eve"}
    assert received(update).inbound.text == ""


def test_a_reply_to_a_forwarded_message_quotes_its_author() -> None:
    update = payload("reply_photo")
    origin = {"type": "hidden_user", "date": 1, "sender_user_name": "Eve"}
    update["message"]["reply_to_message"]["forward_origin"] = origin
    assert received(update).inbound.quotes[0].sender == Sender("0", "Eve")


def test_commands_point_at_nothing() -> None:
    update = payload("command")
    update["message"]["reply_to_message"] = payload("reply_photo")["message"]["reply_to_message"]
    found = received(update)
    assert (found.inbound.quotes, found.files) == ((), ())


def test_long_quotes_are_cut() -> None:
    update = payload("reply_photo")
    update["message"]["reply_to_message"]["caption"] = "x" * 1_000_000
    assert received(update).inbound.quotes[0].text == "x" * 7_999 + "…"
    update["message"]["quote"] = {"text": "y\0" * 500_000, "position": 0}
    assert received(update).inbound.quotes[0].text == "y\ufffd" * 3_999 + "y…"
    update = payload("forwarded")
    update["message"]["text"] = "z" * 1_000_000
    assert received(update).inbound.quotes[0].text == "z" * 7_999 + "…"


def test_a_task_and_an_option_that_are_replied_to_are_named() -> None:
    update = payload("private")
    update["message"] |= {
        "reply_to_message": payload("checklist")["message"],
        "reply_to_checklist_task_id": 2,
    }
    assert received(update).inbound.quotes == (Quoted("quote", "Publish", ADA),)
    update["message"] |= {"reply_to_message": payload("poll")["message"], "reply_to_poll_option_id": "1"}
    assert received(update).inbound.quotes == (Quoted("quote", "Tuesday", ADA),)
    update["message"] |= {"reply_to_poll_option_id": "9"}
    assert received(update).inbound.quotes[0].text == "[poll: Which day?]\n- Monday\n- Tuesday"
    update = payload("private")
    update["message"]["reply_to_story"] = payload("story")["message"]["story"]
    assert received(update).inbound.quotes == (Quoted("reply", "[story of Ben]"),)


@pytest.mark.parametrize("field", ["reply_to_message", "external_reply", "quote", "reply_to_story"])
@pytest.mark.parametrize("value", [0, "x", [], {}, {"text": 7}, {"origin": {"type": 3}}, {"photo": [1]}])
def test_what_cannot_be_read_does_not_take_the_message_with_it(field: str, value: Any) -> None:
    update = payload("private")
    update["message"][field] = value
    assert received(update).inbound.text == "hello 😀"


@pytest.mark.parametrize(
    ("text", "entities", "addressed", "to_another"),
    [
        ("@fake_bot", [("mention", 0, 9, None)], "mention", False),
        ("@ben_s look", [("mention", 0, 6, None)], "none", True),
        ("Ben look", [("text_mention", 0, 3, 5000000002)], "none", True),
        ("hello @ben_s", [("mention", 6, 6, None)], "none", False),
        ("look, bot", [("text_mention", 6, 3, 123456789)], "mention", False),
        ("mail me@fake_bot", [("email", 5, 11, None)], "none", False),
    ],
)
def test_how_a_message_addresses_the_bot(
    text: str, entities: list[tuple[str, int, int, int | None]], addressed: str, to_another: bool
) -> None:
    update = payload("mention")
    update["message"] |= {
        "text": text,
        "entities": [
            {"type": kind, "offset": at, "length": length, **({"user": {"id": user}} if user else {})}
            for kind, at, length, user in entities
        ],
    }
    found = received(update)
    assert (found.inbound.addressed, found.to_another) == (addressed, to_another)
    if text == "@fake_bot":
        assert found.inbound.text == ""


def test_commands_of_other_bots_are_not_passed_on_except_in_private_chats() -> None:
    update = payload("command")
    text = update["message"]["text"].replace("fake_bot", "old_name")
    update["message"]["text"] = text
    assert parse_update(update, ME) is None
    update["message"]["chat"] = payload("private")["message"]["chat"]
    assert received(update).inbound.text == "/new-chat now"
