"""Text and files of recorded messages of every kind."""

from __future__ import annotations

from typing import Any

import pytest

from channels.telegram.fake.calls import describe, schemas
from channels.telegram.parse import parse_update
from channels.telegram.updates.content import marked
from channels.telegram.updates.objects import Entity
from channels.telegram.updates.rich import rich_files, rich_text
from tests.channels.telegram.recorded import ME, PAYLOADS, heard, payload, received

READ = {
    "location": "[location: 52.52, 13.405]",
    "venue": "[venue: Museum, Am Lustgarten 1; 52.52, 13.405]",
    "contact": "[contact: Ben Smith, +4930123456]",
    "poll": "[poll: Which day?]\n- Monday\n- Tuesday",
    "dice": "[dice: 🎲 5]",
    "checklist": "[checklist: Release]\n- [x] Write notes\n- [ ] Publish",
    "sticker": "[sticker: 😀]",
    "story": "[story of Ben]",
    "paid_media": "look\n[paid media: 25 stars]",
    "game": "[game: Chess, Play in the chat]",
    "invoice": "[invoice: Ticket, One day]",
    "giveaway": "[giveaway: 2 winners, Books]",
    "unknown": "[unsupported message: hologram]",
    "links": "😀 read this (https://example.org/a?b=1), then run `make all`\n"
    "```python\nx = 1\n```\nand call Ben",
    "rich_message": "## Plan\n\nSee the notes (https://example.org/notes) and `make`.\n\n"
    "1. One\n- [x] Two\n\n| a | b |\n\n```python\nx = 1\n```\n\n[photo]\nA chart",
}


def in_group(update: dict[str, Any]) -> dict[str, Any]:
    update["message"]["chat"] = {"id": -1002000000001, "title": "Lab", "type": "supergroup"}
    return update


@pytest.mark.parametrize("name", sorted(path.stem for path in PAYLOADS.glob("*.json")))
def test_recorded_updates_are_in_the_bot_api(name: str) -> None:
    found = [describe(one, "update") for one in schemas().check(payload(name), "$defs", "Update")]
    assert found == (["update.message.hologram: Message has no field hologram"] if name == "unknown" else [])


@pytest.mark.parametrize("name", READ)
def test_content_of_every_kind_is_readable(name: str) -> None:
    assert heard(name).inbound.text == READ[name]


def test_the_files_of_paid_and_rich_messages_are_files() -> None:
    for name in ("paid_media", "rich_message"):
        [file] = heard(name).files
        assert (file.kind, file.file.file_id, file.quote) == ("picture", "PHAgAD00000009-m", None)


@pytest.mark.parametrize("name", [name for name in READ if name not in ("unknown", "links")])
@pytest.mark.parametrize("value", [0, "x", [], {}, {"title": 7}, {"blocks": [None, 1, {"type": []}]}])
def test_malformed_content_is_named(name: str, value: object) -> None:
    update = payload(name)
    for field in ("caption", "location"):
        update["message"].pop(field, None)
    update["message"][name] = value
    assert received(update).inbound.text.startswith(f"[{name.replace('_', ' ')}")


@pytest.mark.parametrize(
    "service",
    ["pinned_message", "new_chat_members", "forum_topic_edited", "video_chat_started", "boost_added", "gift"],
)
def test_messages_of_the_platform_about_a_chat_are_not_passed_on(service: str) -> None:
    update = payload("unknown")
    update["message"][service] = update["message"].pop("hologram")
    assert parse_update(update, ME) is None


def test_content_that_cannot_be_read_is_named_in_private_chats_only() -> None:
    assert parse_update(in_group(payload("unknown")), ME) is None
    update = payload("unknown")
    del update["message"]["hologram"]
    assert received(update).inbound.text == "[unsupported message: unknown kind]"


def test_updates_of_a_live_location_are_not_messages() -> None:
    update = payload("location")
    update["message"]["location"]["live_period"] = 60
    assert received(update).inbound.text == "[live location: 52.52, 13.405]"
    update["edited_message"] = update.pop("message")
    assert parse_update(update, ME) is None


def test_a_caption_keeps_its_links_and_an_edit_of_a_file_is_another_revision() -> None:
    update = payload("album")
    update["message"] |= {
        "caption": "look here",
        "caption_entities": [{"type": "text_link", "offset": 5, "length": 4, "url": "https://example.org"}],
        "edit_date": 1763750000,
    }
    assert received(update).inbound.text == "look here (https://example.org)"
    update["edited_message"] = update.pop("message")
    first = received(update).inbound.dedup_key
    for size in update["edited_message"]["photo"]:
        size["file_id"] += "2"
    assert received(update).inbound.dedup_key != first


def test_impossible_marks_are_ignored() -> None:
    text = "😀 code"
    for offset, length in ((-1, 2), (0, 0), (3, 99), (2**53, 1), (3, -4)):
        assert marked(text, [Entity("code", offset, length)]) == text
    twice = [Entity("code", 3, 4), Entity("text_link", 3, 4, url="https://example.org")]
    assert marked(text, twice) == "😀 `code`"
    assert marked("a`b", [Entity("code", 0, 3)]) == "`` a`b ``"
    assert marked("x\n```\ny", [Entity("pre", 0, 7)]) == "````\nx\n```\ny\n````"
    same = [Entity("text_link", 0, 19, url="https://example.org/")]
    assert marked("https://example.org", same) == "https://example.org"


def test_a_bottomless_rich_message_is_cut() -> None:
    block: dict[str, Any] = {"type": "paragraph", "text": "deep"}
    text: Any = "deep"
    for _ in range(200):
        block, text = {"type": "blockquote", "blocks": [block]}, {"type": "bold", "text": [text]}
    message = {"blocks": [block, {"type": "paragraph", "text": text}, {"type": "photo", "photo": 7}]}
    assert "deep" not in rich_text(message)
    assert [*rich_files(message)] == []
