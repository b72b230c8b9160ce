"""The fake Telegram with python-telegram-bot: messages between a bot and users."""

from __future__ import annotations

import json
from typing import Any

import pytest
from telegram import (
    Bot,
    BotCommand,
    BotCommandScopeAllGroupChats,
    BotCommandScopeChat,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    InputMediaDocument,
    InputMediaPhoto,
    Message,
    MessageEntity,
    MessageOriginUser,
    ReactionTypeEmoji,
    ReplyKeyboardMarkup,
    ReplyParameters,
    Update,
)
from telegram.error import ChatMigrated, Forbidden
from telegram.ext import ApplicationBuilder, MessageHandler, filters

from channels.telegram.fake import FakeTelegram, problems
from gateway.testing.served import until
from tests.channels.telegram.bots import refused
from tests.channels.telegram.pictures import png
from tests.channels.telegram.recorded import PAYLOADS
from tests.recordings import WAV, ogg_opus

BUTTONS = InlineKeyboardMarkup(
    [[InlineKeyboardButton("Yes", callback_data="y"), InlineKeyboardButton("No", callback_data="n")]]
)
CONTENT = ("location", "contact", "poll", "dice", "checklist", "sticker", "story", "game", "rich_message")


async def heard(bot: Bot, **asked: Any) -> list[Update]:
    """Return all updates without confirming them."""
    return list(await bot.get_updates(timeout=0, **asked))


async def test_a_bot_reads_what_a_person_writes_and_answers_it(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private("Ada")
    said = fake.say(chat, "/start me")
    (update,) = await heard(bot)
    assert update.message is not None
    assert (update.message.text, update.message.chat.id, update.message.message_id) == (
        "/start me",
        chat,
        said,
    )
    assert update.message.from_user is not None
    assert update.message.from_user.first_name == "Ada"
    assert update.message.parse_entities([MessageEntity.BOT_COMMAND]) == {
        update.message.entities[0]: "/start"
    }
    answer = await bot.send_message(chat, "Hello", reply_parameters=ReplyParameters(said))
    assert fake.answers(chat) == ["Hello"]
    assert answer.reply_to_message is not None
    assert answer.reply_to_message.message_id == said
    fake.transcript.check()


async def test_everything_the_fake_says_is_in_the_bot_api(fake: FakeTelegram, bot: Bot) -> None:
    """Updates and results are checked against the schema, like calls."""
    chat, group = fake.private("Ada"), fake.group("Lab", "Ada", forum=True, admin=True)
    await bot.get_updates(allowed_updates=Update.ALL_TYPES)
    topic = fake.topic(group, "News", "Ada")
    for room in (chat, group):
        said = fake.say(room, "Hi @fake_bot", "Ada")
        fake.edit(room, said, "Hi there")
        fake.react(room, said, "🔥", "Ada")
        fake.send(room, png(), "Ada", caption="look")
        fake.send(room, b"text", "Ada", kind="document", name="a.txt", mime="text/plain")
        fake.send(room, b"OggS", "Ada", kind="voice", duration=3)
        fake.send(room, b"ID3", "Ada", kind="audio", name="a.mp3", mime="audio/mpeg")
        fake.send(room, b"mp4", "Ada", kind="video", width=3, height=4)
        fake.send(room, b"mp4", "Ada", kind="animation")
        fake.album(room, [png(), png()], "Ada", caption="two")
        asked = await bot.send_message(room, "Well?", reply_markup=BUTTONS)
        fake.press(room, asked.message_id, "Yes", "Ada")
        fake.forward(room, room, said, "Ada")
        fake.forward(room, room, said, "Ada", hidden=True)
        fake.say(room, "which part?", "Ada", reply_to=said, quote="there")
        fake.say(room, "and elsewhere?", "Ada", outside=(chat, asked.message_id))
        for name in CONTENT:
            content = json.loads((PAYLOADS / f"{name}.json").read_text())["message"]
            fake.post(room, {name: content[name]}, "Ada")
    fake.close_topic(group, topic, "Ada")
    fake.join(group, "Ben")
    fake.promote(group, "member")
    fake.kick(group)
    fake.block("Ada")
    fake.clock.advance(1)
    await bot.get_updates(allowed_updates=Update.ALL_TYPES, limit=100)
    emitted = fake.transcript.calls[-1].answer
    assert len(emitted) == 38 + 2 * len(CONTENT)
    assert [problem for update in emitted for problem in problems("Update", update)] == []


async def test_replies_and_forwards_name_their_source(fake: FakeTelegram, bot: Bot) -> None:
    chat, group = fake.private("Ada"), fake.group("Lab", "Ada", "Ben", admin=True)
    first = fake.say(group, "one and two", "Ben")
    fake.say(group, "two?", "Ada", reply_to=first, quote="two")
    fake.say(chat, "really?", "Ada", outside=(group, first))
    fake.forward(chat, group, first, "Ada")
    _, quoting, outside, forwarded = [update.message for update in await heard(bot)]
    assert quoting is not None
    assert quoting.quote is not None
    assert outside is not None
    assert outside.external_reply is not None
    assert outside.quote is not None
    assert forwarded is not None
    assert (quoting.quote.text, quoting.quote.position) == ("two", 8)
    assert outside.reply_to_message is None
    assert (outside.external_reply.message_id, outside.quote.text) == (first, "one and two")
    assert isinstance(forwarded.forward_origin, MessageOriginUser)
    assert (forwarded.text, forwarded.forward_origin.sender_user.first_name) == ("one and two", "Ben")
    with pytest.raises(ValueError, match="latitude"):
        fake.post(chat, {"location": {"longitude": 1.5}})


async def test_message_numbers_are_one_row_for_private_chats_and_one_for_each_supergroup(
    fake: FakeTelegram, bot: Bot
) -> None:
    ada, ben, group = fake.private("Ada"), fake.private("Ben"), fake.group("Lab", "Ada")
    numbers = [fake.say(ada, "1"), fake.say(ben, "2"), (await bot.send_message(ada, "3")).message_id]
    assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 2]
    assert [fake.say(group, "1", "Ada"), (await bot.send_message(group, "2")).message_id] == [2, 3]


async def test_an_edit_that_changes_nothing_is_refused_in_the_platforms_words(
    fake: FakeTelegram, bot: Bot
) -> None:
    chat = fake.private()
    sent = await bot.send_message(chat, "Hello")
    edited = await bot.edit_message_text("Hello!", chat, sent.message_id)
    assert isinstance(edited, Message)
    assert edited.edit_date is not None
    said = await refused(bot.edit_message_text("  Hello! ", chat, sent.message_id))
    assert said == (
        "Message is not modified: specified new message content and reply markup are exactly the same as a "
        "current content and reply markup of the message"
    )
    fake.transcript.check()  # probing is not a problem


async def test_the_probe_tells_own_messages_from_others_and_from_none(fake: FakeTelegram, bot: Bot) -> None:
    """A no-op edit shows whether a message is the bot's, which the search for a lost answer uses."""
    chat = fake.private()
    person = fake.say(chat, "Hi")
    own = (await bot.send_message(chat, "Hello")).message_id
    keyboard = (await bot.send_message(chat, "?", reply_markup=ReplyKeyboardMarkup([["a"]]))).message_id
    words = [
        await refused(bot.edit_message_reply_markup(chat, one)) for one in (own, person, keyboard, own + 9)
    ]
    assert words[0].startswith("Message is not modified: ")
    assert words[1:] == ["Message can't be edited", "Message can't be edited", "Message to edit not found"]


async def test_editing_text_without_buttons_takes_them_away(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    sent = await bot.send_message(chat, "Well?", reply_markup=BUTTONS)
    await bot.edit_message_text("Good", chat, sent.message_id)
    assert fake.messages(chat)[-1].markup is None
    await bot.edit_message_reply_markup(chat, sent.message_id, reply_markup=BUTTONS)
    assert [button["text"] for button in fake.messages(chat)[-1].buttons] == ["Yes", "No"]


async def test_a_pressed_button_is_answered_once_and_soon(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    sent = await bot.send_message(chat, "Well?", reply_markup=BUTTONS)
    query = fake.press(chat, sent.message_id, "Yes")
    (update,) = await heard(bot)
    assert update.callback_query is not None
    assert (update.callback_query.data, update.callback_query.id) == ("y", query.id)
    await update.callback_query.answer("Noted", show_alert=True)
    assert query.answer == {"text": "Noted", "show_alert": True}
    late = fake.press(chat, sent.message_id, "n")
    fake.clock.advance(20)
    words = [await refused(bot.answer_callback_query(one.id)) for one in (query, late)]
    assert words == ["Query is too old and response timeout expired or query id is invalid"] * 2
    with pytest.raises(LookupError):
        fake.press(chat, sent.message_id, "Maybe")


async def test_files_go_both_ways(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    fake.send(chat, png(1600, 800), caption="look")
    (update,) = await heard(bot)
    assert update.message is not None
    sizes = [(size.width, size.height) for size in update.message.photo]
    assert sizes == [(90, 45), (320, 160), (800, 400), (1280, 640)]
    assert update.message.caption == "look"
    file = await bot.get_file(update.message.photo[-1].file_id)
    assert bytes(await file.download_as_bytearray()) == png(1600, 800)
    sent = await bot.send_document(
        chat, b"all of it", filename="répört.txt", caption="<b>here</b>", parse_mode="HTML"
    )
    assert sent.document is not None
    assert (sent.document.file_name, sent.document.file_size) == ("répört.txt", 9)
    assert sent.caption_entities[0].type == MessageEntity.BOLD
    again = await bot.send_document(chat, sent.document.file_id)
    assert again.document is not None
    assert again.document.file_unique_id == sent.document.file_unique_id
    voice = await bot.send_voice(chat, ogg_opus(4), duration=4)
    assert voice.to_dict()["voice"]["duration"] == 4
    photo = await bot.send_photo(chat, png())
    assert photo.photo[-1].width == 300
    fake.transcript.check()


async def test_a_voice_message_has_to_be_one_and_is_never_another(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    voice = await bot.send_voice(chat, ogg_opus(1))
    edited = bot.edit_message_media(InputMediaDocument(b"text"), chat, voice.message_id)
    assert await refused(edited) == "There is no media in the message to edit"
    fake.transcript.check()
    assert await refused(bot.send_voice(chat, WAV)) == "Wrong file type"
    [problem] = fake.transcript.problems
    assert "Opus in an Ogg file" in problem


async def test_a_link_to_a_file_holds_for_an_hour(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    fake.send(chat, b"text", kind="document", name="a.txt")
    (update,) = await heard(bot)
    assert update.message is not None
    assert update.message.document is not None
    file = await bot.get_file(update.message.document.file_id)
    fake.clock.advance(3601)
    assert "Not Found" in await refused(file.download_as_bytearray(), Exception)
    fake.send(chat, bytes(21 * 1024 * 1024), kind="document")
    large = (await heard(bot))[-1].message
    assert large is not None
    assert large.document is not None
    assert await refused(bot.get_file(large.document.file_id)) == "File is too big"


async def test_what_is_not_a_photo_is_refused(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    assert await refused(bot.send_photo(chat, b"text")) == "Image_process_failed"
    assert await refused(bot.send_photo(chat, png(10, 500))) == "Photo_invalid_dimensions"
    assert await refused(bot.send_photo(chat, "AgACnothing")) == "Wrong file identifier/http url specified"
    assert await refused(bot.send_document(chat, b"")) == "File must be non-empty"
    assert len(fake.transcript.problems) == 4


async def test_an_album_is_all_or_nothing(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    sent = await bot.send_media_group(chat, [InputMediaPhoto(png()), InputMediaPhoto(png())], caption="two")
    assert len({message.media_group_id for message in sent}) == 1
    assert [message.caption for message in sent] == ["two", None]
    broken = [InputMediaPhoto(png()), InputMediaPhoto(b"text")]
    said = await refused(bot.send_media_group(chat, broken))
    assert said == 'Failed to send message #2 with the error message "image_process_failed"'
    mixed = [InputMediaPhoto(png()), InputMediaDocument(b"text")]
    assert (
        await refused(bot.send_media_group(chat, mixed)) == "Document can't be mixed with other media types"
    )
    many = [InputMediaPhoto(sent[0].photo[-1].file_id)] * 11
    assert await refused(bot.send_media_group(chat, many)) == "Too many messages to send as an album"
    assert len(fake.messages(chat)) == 2


async def test_editing_needs_what_is_there(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    photo, words = await bot.send_photo(chat, png(), caption="a"), await bot.send_message(chat, "b")
    assert await refused(photo.edit_text("c")) == "There is no text in the message to edit"
    assert await refused(words.edit_caption("c")) == "There is no caption in the message to edit"
    await photo.edit_caption("d")
    await photo.edit_media(InputMediaDocument(b"text", filename="a.txt", caption="e"))
    assert fake.answers(chat) == ["e", "b"]


async def test_deleting_follows_rights_and_age(fake: FakeTelegram, bot: Bot) -> None:
    chat, group = fake.private(), fake.group("Lab", "Ada")
    theirs, own = fake.say(chat, "Hi"), (await bot.send_message(chat, "Hello")).message_id
    await bot.delete_messages(chat, [theirs, own, own + 50])
    assert fake.messages(chat) == []
    foreign = fake.say(group, "Hi", "Ada")
    assert await refused(bot.delete_message(group, foreign)) == "Message can't be deleted for everyone"
    fake.promote(group)
    await bot.delete_message(group, foreign)
    assert await refused(bot.delete_message(group, foreign)) == "Message to delete not found"
    old = await bot.send_message(chat, "Old")
    fake.clock.advance(49 * 3600)
    assert await refused(bot.delete_message(chat, old.message_id)) == "Message can't be deleted for everyone"


async def test_reactions_go_both_ways(fake: FakeTelegram, bot: Bot) -> None:
    chat, group = fake.private(), fake.group("Lab", "Ada", admin=True)
    said = fake.say(chat, "Hi")
    await bot.set_message_reaction(chat, said, "👀")
    assert fake.messages(chat)[0].reactions == {fake.world.bot.id: ({"type": "emoji", "emoji": "👀"},)}
    await bot.set_message_reaction(chat, said)
    assert fake.messages(chat)[0].reactions == {fake.world.bot.id: ()}
    two = [ReactionTypeEmoji("👀"), ReactionTypeEmoji("👍")]
    assert await refused(bot.set_message_reaction(chat, said, two)) == "Reactions_too_many"
    assert await refused(bot.set_message_reaction(chat, said, ReactionTypeEmoji("🦖"))) == "Reaction_invalid"
    theirs = fake.say(group, "Hi", "Ada")
    fake.react(group, theirs, "👍")
    assert [update.message_reaction for update in await heard(bot)] == [None] * 2  # they were not requested
    await bot.get_updates(allowed_updates=["message_reaction"])
    fake.react(group, theirs, "🔥")
    fake.clock.advance(1)  # a repeated poll gets one update only
    assert (await heard(bot))[-1].message_reaction is not None


async def test_a_blocked_bot_gets_an_error(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private("Ada")
    sent = await bot.send_message(chat, "Hello")
    fake.block("Ada")
    assert await refused(bot.send_message(chat, "?"), Forbidden) == "Forbidden: bot was blocked by the user"
    assert await refused(sent.edit_text("?"), Forbidden) == "Forbidden: bot was blocked by the user"
    fake.unblock("Ada")
    await bot.send_message(chat, "!")
    changes = [
        update.my_chat_member.new_chat_member.status for update in await heard(bot) if update.my_chat_member
    ]
    assert changes == ["kicked", "member"]


async def test_unknown_chats_are_refused(fake: FakeTelegram, bot: Bot) -> None:
    group = fake.group("Lab", "Ada")
    assert await refused(bot.send_message(42, "?")) == "Chat not found"
    stranger = fake.person("Ben").id
    said = await refused(bot.send_message(stranger, "?"), Forbidden)
    assert said == "Forbidden: bot can't initiate conversation with a user"
    fake.kick(group)
    said = await refused(bot.send_message(group, "?"), Forbidden)
    assert said == "Forbidden: bot was kicked from the supergroup chat"


async def test_a_group_that_became_a_supergroup_says_where_it_went(fake: FakeTelegram, bot: Bot) -> None:
    old = fake.group("Lab", "Ada", kind="group")
    before = await bot.send_message(old, "Hi")
    new = fake.migrate(old)
    with pytest.raises(ChatMigrated) as moved:
        await bot.send_message(old, "?")
    assert moved.value.new_chat_id == new
    there = [update.message.migrate_to_chat_id for update in await heard(bot) if update.message]
    assert there == [new, None]
    await bot.send_message(new, "Here")
    assert fake.answers(new) == ["Here"]
    await bot.edit_message_text("Hello", old, before.message_id)
    assert fake.answers(old) == ["Hello"]
    with pytest.raises(ChatMigrated):
        await bot.delete_message(old, before.message_id)


async def test_privacy_mode_leaves_what_is_meant_for_the_bot(fake: FakeTelegram, bot: Bot) -> None:
    group = fake.group("Lab", "Ada")
    fake.say(group, "Hello all", "Ada")
    fake.say(group, "/help", "Ada")
    fake.say(group, "/help@fake_bot", "Ada")
    fake.say(group, "/help@other_bot", "Ada")
    sent = await bot.send_message(group, "Hello")
    fake.say(group, "/help", "Ada")  # it was the last bot that wrote
    fake.say(group, "Thanks", "Ada", reply_to=sent.message_id)
    other = fake.person("Other", is_bot=True)
    fake.say(group, "/help@fake_bot", other)
    fake.say(group, "/help", "Ada")
    fake.promote(group)
    fake.say(group, "Everything", "Ada")
    texts = [update.message.text for update in await heard(bot) if update.message]
    assert texts == ["/help@fake_bot", "/help", "Thanks", "Everything"]


async def test_commands_are_kept_by_scope(fake: FakeTelegram, bot: Bot) -> None:
    chat = fake.private()
    await bot.set_my_commands([BotCommand("help", "What there is")])
    await bot.set_my_commands([BotCommand("stop", "Stop")], BotCommandScopeChat(chat))
    assert [command.command for command in await bot.get_my_commands()] == ["help"]
    assert [command.command for command in await bot.get_my_commands(BotCommandScopeChat(chat))] == ["stop"]
    assert await bot.get_my_commands(BotCommandScopeAllGroupChats()) == ()
    await bot.delete_my_commands()
    assert await bot.get_my_commands() == ()
    assert await refused(bot.set_my_commands([("Help", "x")])) == "Bot_command_invalid"
    assert await refused(bot.set_my_commands([("help", "")])) == "Bot_command_description_invalid"


async def test_the_bot_can_ask_about_itself_and_its_chats(fake: FakeTelegram, bot: Bot) -> None:
    group = fake.group("Lab", "Ada", "Ben", admin=True)
    me = await bot.get_me()
    assert (me.username, me.can_read_all_group_messages) == ("fake_bot", False)
    chat = await bot.get_chat(group)
    assert (chat.title, chat.type, await bot.get_chat_member_count(group)) == ("Lab", "supergroup", 3)
    (admin,) = await bot.get_chat_administrators(group)
    assert (admin.user.id, admin.status) == (me.id, "administrator")
    assert (await bot.get_chat_member(group, fake.person("Ada").id)).status == "member"
    await bot.leave_chat(group)
    said = await refused(bot.send_message(group, "?"), Forbidden)
    assert said == "Forbidden: bot is not a member of the supergroup chat"


async def test_chats_may_refuse_messages(fake: FakeTelegram, bot: Bot) -> None:
    group = fake.group("Lab", "Ada")
    fake.chat(group).muted = True
    said = await refused(bot.send_message(group, "?"))
    assert said == "Not enough rights to send text messages to the chat"
    fake.chat(group).muted, fake.chat(group).refused = False, "CHAT_RESTRICTED"
    assert await refused(bot.send_message(group, "?")) == "Chat_restricted"


async def test_an_application_of_the_library_polls_and_answers(fake: FakeTelegram) -> None:
    chat = fake.private("Ada")
    fake.say(chat, "Hi")

    async def answer(update: Update, _context: Any) -> None:
        assert update.message is not None
        await update.message.reply_text(f"You said: {update.message.text}")

    builder = ApplicationBuilder().token(fake.token)
    application = builder.base_url(fake.base_url).base_file_url(fake.base_file_url).build()
    application.add_handler(MessageHandler(filters.TEXT, answer))
    async with application:
        assert application.updater is not None
        await application.updater.start_polling()
        await application.start()
        await until(lambda: fake.answers(chat) == ["You said: Hi"])
        fake.say(chat, "Ho")
        await until(lambda: fake.answers(chat)[1:] == ["You said: Ho"])
        fake.clock.advance(4)  # otherwise its last poll would be delayed, because it has the same offset
        await application.updater.stop()
        await application.stop()
    fake.transcript.check()
