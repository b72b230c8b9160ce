"""Texts on the fake Telegram: markup, entities and lengths, by the platform's own parser."""

from __future__ import annotations

import pytest
from telegram import Bot, InputMediaPhoto, MessageEntity

from channels.telegram.fake import FakeTelegram, Message
from tests.channels.telegram.bots import refused


def kinds(message: Message) -> list[tuple[str, int, int]]:
    return [(entity["type"], entity["offset"], entity["length"]) for entity in message.entities]


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("MarkdownV2", "*bold* _italic_ `code` ||hidden|| [link](https://example.org)"),
        ("HTML", "<b>bold</b> <i>italic</i> <code>code</code> <tg-spoiler>hidden</tg-spoiler> "
         '<a href="https://example.org">link</a>'),
    ],
)  # fmt: skip
async def test_markup_becomes_entities(fake: FakeTelegram, bot: Bot, mode: str, text: str) -> None:
    chat = fake.private()
    sent = await bot.send_message(chat, text, parse_mode=mode)
    assert sent.text == "bold italic code hidden link"
    assert kinds(fake.messages(chat)[0]) == [
        ("bold", 0, 4),
        ("italic", 5, 6),
        ("code", 12, 4),
        ("spoiler", 17, 6),
        ("text_link", 24, 4),
    ]
    fake.transcript.check()


@pytest.mark.parametrize(
    ("mode", "text", "says"),
    [
        ("MarkdownV2", "a.b", "character '.' is reserved and must be escaped with the preceding '\\'"),
        ("MarkdownV2", "a *b", "can't find end of Bold entity at byte offset 2"),
        ("HTML", "<b>a", 'can\'t find end tag corresponding to start tag "b"'),
        ("HTML", "<h1>a</h1>", 'unsupported start tag "h1" at byte offset 0'),
        ("Markdown", "a_b", "can't find end of the entity starting at byte offset 1"),
    ],
)
async def test_malformed_markup_is_refused_and_found_out(
    fake: FakeTelegram, bot: Bot, mode: str, text: str, says: str
) -> None:
    said = await refused(bot.send_message(fake.private(), text, parse_mode=mode))
    assert said.lower() == f"can't parse entities: {says}".lower()
    assert len(fake.transcript.problems) == 1
    with pytest.raises(AssertionError, match="the platform objects"):
        fake.transcript.check()


async def test_given_entities_count_utf_16_and_are_checked(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    await bot.send_message(chat, "😀 bold", entities=[MessageEntity("bold", 3, 4)])
    assert kinds(fake.messages(chat)[0]) == [("bold", 3, 4)]
    said = await refused(bot.send_message(chat, "😀", entities=[MessageEntity("bold", 1, 1)]))
    assert said == "Entity begins in a middle of a utf-16 symbol at byte offset 4"
    said = await refused(bot.send_message(chat, "bold", entities=[MessageEntity("bold", 2, 9)]))
    assert said == "Entity beginning at utf-16 offset 2 ends after the end of the text at utf-16 offset 11"


async def test_overlapping_entities_are_put_in_order(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    await bot.send_message(
        chat, "abcdef", entities=[MessageEntity("italic", 2, 4), MessageEntity("bold", 0, 4)]
    )
    assert kinds(fake.messages(chat)[0]) == [("bold", 0, 2), ("italic", 2, 4), ("bold", 2, 2)]


async def test_a_text_has_its_own_entities(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    fake.say(chat, "/help@fake_bot see https://example.org or ask @adalovelace #now")
    found = [kind for kind, _, _ in kinds(fake.messages(chat)[0])]
    assert found == ["bot_command", "url", "mention", "hashtag"]
    await bot.send_message(chat, "`https://example.org` https://example\\.org", parse_mode="MarkdownV2")
    assert [kind for kind, _, _ in kinds(fake.messages(chat)[1])] == ["code", "url"]


async def test_text_is_cleaned_and_its_entities_move_along(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    await bot.send_message(chat, " \n a\r\nb\tc ", entities=[MessageEntity("bold", 6, 3)])
    (message,) = fake.messages(chat)
    assert message.text == "a\nb c"
    assert kinds(message) == [("bold", 2, 3)]


async def test_4096_code_points_fit_and_one_more_does_not(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    await bot.send_message(chat, "😀" * 4096)
    assert await refused(bot.send_message(chat, "😀" * 4097)) == "Message is too long"
    await bot.send_message(chat, f"<b>{'a' * 4096}</b>", parse_mode="HTML")
    assert await refused(bot.send_message(chat, "a" * 40_000)) == "Text is too long"
    assert await refused(bot.edit_message_text("a" * 4097, chat, 1)) == "Message is too long"
    assert [len(text) for text in fake.answers(chat)] == [4096, 4096]


async def test_1024_code_points_fit_under_a_file(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    sent = await bot.send_document(chat, b"text", caption="😀" * 1024)
    said = await refused(bot.send_document(chat, b"text", caption="😀" * 1025))
    assert said == "Message caption is too long"
    assert await refused(sent.edit_caption("a" * 1025)) == "Message caption is too long"
    album = [InputMediaPhoto("x", caption="a" * 1025)] * 2
    assert await refused(bot.send_media_group(chat, album)) == "Message caption is too long"


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
async def test_a_message_says_something(fake: FakeTelegram, bot: Bot, text: str) -> None:
    assert await refused(bot.send_message(fake.private(), text)) == "Message text is empty"


async def test_more_than_a_hundred_entities_are_cut_and_remarked(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    entities = [MessageEntity("bold", place * 2, 1) for place in range(120)]
    await bot.send_message(chat, "a " * 120, entities=entities)
    assert len(fake.messages(chat)[0].entities) == 100
    assert fake.transcript.problems == ["sendMessage: 120 entities, of which 100 are shown"]


async def test_people_in_a_text_are_named(fake: FakeTelegram, bot: Bot) -> None:
    chat, ben = fake.private("Ada"), fake.person("Ben").id
    sent = await bot.send_message(chat, f'<a href="tg://user?id={ben}">him</a>', parse_mode="HTML")
    assert sent.entities[0].user is not None
    assert sent.entities[0].user.first_name == "Ben"
