"""Topics and drafts on the fake Telegram."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from telegram import Bot, ReplyParameters
from telegram.error import BadRequest

from channels.telegram.fake import FakeTelegram
from tests.channels.telegram.bots import bot_of, refused


@pytest.fixture
async def fake() -> AsyncIterator[FakeTelegram]:
    """Yield a platform whose bot has topics in private chats."""
    async with FakeTelegram(topics=True) as fake:
        yield fake


async def test_a_forum_keeps_its_topics_apart(fake: FakeTelegram, bot: Bot) -> None:
    forum = fake.group("Forum", "Ada", forum=True, admin=True)
    topic = await bot.create_forum_topic(forum, "News")
    said = fake.say(forum, "In it", "Ada", thread=topic.message_thread_id)
    fake.say(forum, "Outside", "Ada")
    updates = [update.message for update in await bot.get_updates(timeout=0) if update.message]
    opened, inside, outside = updates
    assert opened.forum_topic_created is not None
    assert (inside.message_thread_id, inside.is_topic_message) == (topic.message_thread_id, True)
    assert (
        inside.reply_to_message is not None
    )  # the message that opened the topic, although it is not a reply
    assert inside.reply_to_message.message_id == topic.message_thread_id
    assert (outside.message_thread_id, outside.is_topic_message) == (None, None)
    answer = await bot.send_message(forum, "Yes", reply_parameters=ReplyParameters(said))
    assert (answer.message_thread_id, answer.is_topic_message) == (topic.message_thread_id, True)
    for wrong in (1, 4711):
        assert (
            await refused(bot.send_message(forum, "?", message_thread_id=wrong)) == "Message thread not found"
        )
    fake.transcript.check()


async def test_topics_are_closed_renamed_and_deleted(fake: FakeTelegram, bot: Bot) -> None:
    forum = fake.group("Forum", "Ada", forum=True, admin=True)
    topic = (await bot.create_forum_topic(forum, "News")).message_thread_id
    await bot.edit_forum_topic(forum, topic, "Old news")
    assert await refused(bot.edit_forum_topic(forum, topic, "Old news")) == "Topic_not_modified"
    await bot.close_forum_topic(forum, topic)
    await bot.send_message(forum, "An administrator may", message_thread_id=topic)
    fake.promote(forum, "member")
    assert await refused(bot.send_message(forum, "?", message_thread_id=topic)) == "Topic_closed"
    assert await refused(bot.create_forum_topic(forum, "More")) == "Not enough rights to create a topic"
    fake.promote(forum)
    await bot.reopen_forum_topic(forum, topic)
    await bot.delete_forum_topic(forum, topic)
    assert fake.messages(forum) == []
    assert await refused(bot.send_message(forum, "?", message_thread_id=topic)) == "Message thread not found"


async def test_a_group_without_topics_has_none(fake: FakeTelegram, bot: Bot) -> None:
    group = fake.group("Lab", "Ada", admin=True)
    assert await refused(bot.create_forum_topic(group, "News")) == "The chat is not a forum"
    first = await bot.send_message(group, "Hi", message_thread_id=4711)  # ignored there
    assert first.message_thread_id is None
    replied = fake.say(group, "Ho", "Ada", reply_to=first.message_id)
    (update,) = await bot.get_updates(timeout=0)
    assert update.message is not None
    assert (update.message.message_id, update.message.message_thread_id) == (replied, first.message_id)
    assert update.message.is_topic_message is None


async def test_private_chats_have_topics_where_the_bot_has_them(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    assert (await bot.get_me()).has_topics_enabled
    said = fake.say(chat, "What is a trunk line?")
    opened, asked = [update.message for update in await bot.get_updates(timeout=0)]
    assert opened is not None
    assert opened.forum_topic_created is not None
    assert opened.forum_topic_created.is_name_implicit
    assert asked is not None
    assert asked.message_id == said
    thread = asked.message_thread_id
    assert asked.is_topic_message
    await bot.edit_forum_topic(chat, thread, "Trunk lines")
    await bot.send_message(chat, "A line that joins exchanges.", message_thread_id=thread)
    assert [(message.thread, message.in_topic) for message in fake.messages(chat)] == [(thread, True)] * 4
    fake.say(chat, "Thanks", thread=thread)
    assert len(fake.chat(chat).topics) == 1


async def test_private_chats_of_other_bots_have_none() -> None:
    async with FakeTelegram() as fake, bot_of(fake) as bot:
        chat = fake.private()
        assert await refused(bot.create_forum_topic(chat, "News")) == "The chat is not a forum"
        assert await refused(bot.send_message(chat, "?", message_thread_id=5)) == "Message thread not found"


async def test_a_draft_is_shown_for_thirty_seconds_or_until_the_message(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    await bot.send_message_draft(chat, 7, "A tru")
    await bot.send_message_draft(chat, 7, "*A trunk*", parse_mode="MarkdownV2")
    (draft,) = fake.drafts(chat)
    assert (draft.id, draft.text, draft.entities[0]["type"]) == (7, "A trunk", "bold")
    fake.clock.advance(31)
    assert fake.drafts(chat) == []
    await bot.send_message_draft(chat, 8, "A trunk line")
    await bot.send_message(chat, "A trunk line.")
    assert fake.drafts(chat) == []
    assert fake.messages(chat)[0].text == "A trunk line."
    fake.transcript.check()


async def test_drafts_are_for_private_chats(fake: FakeTelegram, bot: Bot) -> None:
    group = fake.group("Lab", "Ada")
    assert await refused(bot.send_message_draft(group, 7, "A")) == "Textdraft_peer_invalid"
    assert await refused(bot.send_message_draft(fake.private(), 0, "A")) == "Random_id_empty"


async def test_a_person_stops_a_draft(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    with pytest.raises(LookupError):
        fake.stop(chat)
    await draft(bot, chat, 7, "A tru", can_stop=True)
    await draft(bot, chat, 8, "Kept", can_stop=True, keep_on_stop=True)
    fake.stop(chat, 7)
    fake.stop(chat)
    assert [shown.text for shown in fake.drafts(chat)] == ["Kept"]
    await draft(bot, chat, 7, "A trunk")
    assert [shown.text for shown in fake.drafts(chat)] == ["Kept"]
    updates = fake.world.updates.waiting
    assert [(update.kind, update.content["draft_id"]) for update in updates] == [
        ("stopped_message_generation", 7),
        ("stopped_message_generation", 8),
    ]
    fake.transcript.check()


async def draft(bot: Bot, chat: int, number: int, text: str, **more: bool) -> None:
    """Send a draft with arguments that the library does not support yet."""
    try:
        await bot.send_message_draft(chat, number, text, api_kwargs=more)
    except BadRequest as error:
        raise AssertionError(str(error)) from error
