"""The fake's chats: threads and their archive, reactions, typing, channels."""

from __future__ import annotations

import pytest

from channels.discord.fake import FakeDiscord
from tests.channels.discord.raw_bot import EVERYTHING, RawBot


async def test_a_thread_begins_at_a_message_and_has_its_id(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    question = fake.say("general", "a long story")
    path = f"/channels/{general}/messages/{question}/threads"
    async with bot.session() as socket:
        made = await bot.call("POST", path, {"name": "story", "auto_archive_duration": 1440})
        told = await socket.until("THREAD_CREATE")
        joined = await socket.until("THREAD_MEMBERS_UPDATE")
        starter = await socket.until("MESSAGE_UPDATE")
        first = await socket.until("MESSAGE_CREATE")
    assert (made.status, made.body["type"], made.body["id"]) == (201, 11, str(question))
    assert made.body["parent_id"] == str(general)
    assert (told["id"], told["newly_created"]) == (str(question), True)
    assert joined["added_members"][0]["user_id"] == str(fake.bot_id)
    assert starter["flags"] == 32
    assert (first["type"], first["channel_id"], first["content"]) == (21, str(question), "")
    assert first["referenced_message"]["content"] == "a long story"
    again = await bot.call("POST", path, {"name": "story"})
    assert (again.status, again.code) == (400, 160004)
    fake.transcript.check()


async def test_a_thread_beside_the_others_is_private_unless_it_says_so(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    path = f"/channels/{general}/threads"
    private = await bot.call("POST", path, {"name": "inside"})
    public = await bot.call("POST", path, {"name": "outside", "type": 11})
    assert (private.body["type"], public.body["type"]) == (12, 11)
    notices = [message for message in fake.messages("general") if message.kind == 18]
    assert [notice.content for notice in notices] == ["outside"]


@pytest.mark.parametrize(("name", "status"), [("x" * 100, 201), ("x" * 101, 400), ("", 400)])
async def test_a_threads_name_has_1_to_100_characters(
    bot: RawBot, general: int, name: str, status: int
) -> None:
    said = await bot.call("POST", f"/channels/{general}/threads", {"name": name, "type": 11})
    assert said.status == status


@pytest.mark.parametrize("media", [False, True])
async def test_a_forum_has_only_posts_which_begin_with_a_message_of_their_id(
    bot: RawBot, fake: FakeDiscord, media: bool
) -> None:
    async with bot.session() as socket:
        forum = fake.add_forum("help", media=media)
        made = await socket.until("CHANNEL_CREATE")
        assert (made["type"], made["available_tags"]) == (16 if media else 15, [])
        post = fake.post(forum, "How?", "Like this", "bob")
        thread = await socket.until("THREAD_CREATE")
        first = await socket.until("MESSAGE_CREATE")
        assert (thread["id"], thread["parent_id"], thread["name"]) == (str(post), str(forum), "How?")
        assert (first["id"], first["channel_id"], first["channel_type"]) == (str(post), str(post), 11)
    said = await bot.send(forum, "x")
    assert (said.status, said.code) == (400, 50008)
    said = await bot.call("POST", f"/channels/{forum}/messages/{post}/threads", {"name": "x"})
    assert (said.status, said.code) == (400, 50024)
    assert (await bot.call("GET", f"/channels/{forum}/messages")).body == []
    assert (await bot.call("GET", f"/channels/{forum}/messages/{post}")).code == 10008
    assert (await bot.send(post, "y")).status == 200
    assert (await bot.call("GET", f"/channels/{post}")).body["message_count"] == 1
    assert (await bot.call("GET", f"/channels/{forum}")).body["last_message_id"] == str(post)
    for mistake in (lambda: fake.say(forum, "x"), lambda: fake.post("general", "x", "y")):
        with pytest.raises(LookupError):
            mistake()


async def test_a_direct_conversation_has_no_threads(bot: RawBot, fake: FakeDiscord) -> None:
    chat = fake.dm()
    key = fake.say(chat, "x")
    said = await bot.call("POST", f"/channels/{chat}/messages/{key}/threads", {"name": "x"})
    assert (said.status, said.code) == (400, 50024)


async def test_an_archived_thread_cannot_be_changed_and_writing_takes_it_out(
    bot: RawBot, fake: FakeDiscord
) -> None:
    thread = fake.start_thread("general", "old")
    key = (await bot.send(thread, "hello")).body["id"]
    fake.archive(thread)
    message = f"/channels/{thread}/messages/{key}"
    for method, path in (("PATCH", message), ("PUT", f"{message}/reactions/👍/@me")):
        said = await bot.call(method, path, {"content": "x"} if method == "PATCH" else None)
        assert (said.status, said.code) == (400, 50083)
    async with bot.session() as socket:
        assert (await bot.send(thread, "back")).status == 200
        assert (await socket.until("THREAD_UPDATE"))["thread_metadata"]["archived"] is False
    assert (await bot.call("PATCH", message, {"content": "now"})).status == 200
    fake.transcript.check()


async def test_a_locked_thread_takes_nothing_from_bots_that_do_not_moderate(
    bot: RawBot, fake: FakeDiscord
) -> None:
    thread = fake.start_thread("general", "closed")
    fake.archive(thread, archived=False, locked=True)
    assert (await bot.send(thread, "x")).code == 160005
    fake.archive(thread, locked=True)
    assert (await bot.send(thread, "x")).code == 50083
    fake.promote("MANAGE_THREADS")
    assert (await bot.send(thread, "x")).status == 200


async def test_a_thread_counts_its_messages(bot: RawBot, fake: FakeDiscord) -> None:
    thread = fake.start_thread("general", "counted")
    keys = [fake.say(thread, text) for text in "abc"]
    fake.delete(thread, keys[0])
    said = await bot.call("GET", f"/channels/{thread}")
    assert (said.body["message_count"], said.body["total_message_sent"]) == (2, 3)
    assert said.body["last_message_id"] == str(keys[-1])


async def test_who_started_a_thread_may_rename_and_archive_it(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    mine = await bot.call("POST", f"/channels/{general}/threads", {"name": "mine", "type": 11})
    changed = await bot.call("PATCH", f"/channels/{mine.body['id']}", {"name": "ours", "archived": True})
    assert (changed.body["name"], changed.body["thread_metadata"]["archived"]) == ("ours", True)
    theirs = fake.start_thread("general", "theirs")
    assert (await bot.call("PATCH", f"/channels/{theirs}", {"name": "mine"})).code == 50013
    archived = await bot.call("GET", f"/channels/{general}/threads/archived/public")
    assert [thread["name"] for thread in archived.body["threads"]] == ["ours"]
    active = await bot.call("GET", f"/guilds/{fake.guild}/threads/active")
    assert [thread["name"] for thread in active.body["threads"]] == ["theirs"]
    assert (await bot.call("DELETE", f"/channels/{theirs}")).code == 50013


async def test_the_bot_goes_into_threads_and_out_of_them(bot: RawBot, fake: FakeDiscord) -> None:
    thread = fake.start_thread("general", "x")
    async with bot.session() as socket:
        assert (await bot.call("PUT", f"/channels/{thread}/thread-members/@me")).status == 204
        assert (await socket.until("THREAD_MEMBERS_UPDATE"))["added_members"]
        assert "member" in (await bot.call("GET", f"/channels/{thread}")).body
        assert (await bot.call("DELETE", f"/channels/{thread}/thread-members/@me")).status == 204
        assert (await socket.until("THREAD_MEMBERS_UPDATE"))["removed_member_ids"] == [str(fake.bot_id)]


async def test_a_private_thread_without_the_bot_cannot_be_seen(bot: RawBot, fake: FakeDiscord) -> None:
    thread = fake.add_private_thread("general", "secret")
    said = await bot.send(thread, "x")
    assert (said.status, said.code) == (403, 50001)


async def test_signs_are_put_under_messages_and_taken_away(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    key = fake.say("general", "x")
    path = f"/channels/{general}/messages/{key}/reactions"
    async with bot.session() as socket:
        assert (await bot.call("PUT", f"{path}/%F0%9F%91%8D/@me")).status == 204
        told = await socket.until("MESSAGE_REACTION_ADD")
        assert told["emoji"] == {"id": None, "name": "👍"}
        assert told["user_id"] == str(fake.bot_id)
        fake.react("general", key, "👍", "bob")
        assert (await socket.until("MESSAGE_REACTION_ADD"))["member"]["user"]["username"] == "bob"
        listed = await bot.call("GET", f"/channels/{general}/messages/{key}")
        assert (listed.body["reactions"][0]["count"], listed.body["reactions"][0]["me"]) == (2, True)
        users = await bot.call("GET", f"{path}/👍")
        assert [user["username"] for user in users.body] == ["trunkline", "bob"]
        assert (await bot.call("DELETE", f"{path}/👍/@me")).status == 204
        assert (await socket.until("MESSAGE_REACTION_REMOVE"))["user_id"] == str(fake.bot_id)
        fake.react("general", key, "👍", "bob", on=False)
        await socket.until("MESSAGE_REACTION_REMOVE")
    assert fake.message("general", key).reactions == ()


async def test_reactions_are_reported_only_to_bots_that_ask_for_them(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    dm = fake.dm("ada")
    places = [("general", fake.say("general", "x")), (dm, fake.say(dm, "y"))]
    async with bot.session() as asks, bot.session(EVERYTHING & ~(1 << 10)) as in_dms:
        for chat, key in places:
            fake.react(chat, key, "👍")
            fake.react(chat, key, "👍", on=False)
            fake.react(chat, key, "👎")
            fake.clear_reactions(chat, key, "👎")
            fake.react(chat, key, "👍")
            fake.clear_reactions(chat, key)
        for socket, told in ((asks, {str(general), str(dm)}), (in_dms, {str(dm)})):
            events = [
                one for one in await socket.settled() if (one["t"] or "").startswith("MESSAGE_REACTION")
            ]
            assert {one["d"]["channel_id"] for one in events} == told
            assert [one["t"].removeprefix("MESSAGE_REACTION_") for one in events[-6:]] == [
                *("ADD", "REMOVE", "ADD", "REMOVE_EMOJI", "ADD", "REMOVE_ALL"),
            ]


@pytest.mark.parametrize(
    ("sign", "status"), [("👍", 204), ("party:42", 204), ("❤️", 204), ("abc", 400), ("5", 400)]
)
async def test_only_what_is_an_emoji_can_be_put_under_a_message(
    bot: RawBot, fake: FakeDiscord, general: int, sign: str, status: int
) -> None:
    key = fake.say("general", "x")
    said = await bot.call("PUT", f"/channels/{general}/messages/{key}/reactions/{sign}/@me")
    assert said.status == status
    assert status == 204 or said.code == 10014


async def test_what_a_bot_needs_to_react(bot: RawBot, fake: FakeDiscord, general: int) -> None:
    key = fake.say("general", "x")
    path = f"/channels/{general}/messages/{key}/reactions"
    fake.forbid("general", "ADD_REACTIONS")
    assert (await bot.call("PUT", f"{path}/👍/@me")).code == 50013
    fake.react("general", key, "👍")
    assert (await bot.call("PUT", f"{path}/👍/@me")).status == 204, "a sign that stands there may be repeated"
    assert (await bot.call("DELETE", path)).code == 50013
    fake.promote("MANAGE_MESSAGES")
    async with bot.session() as socket:
        user = fake.user("ada").id
        assert (await bot.call("DELETE", f"{path}/👍/{user}")).status == 204
        assert (await bot.call("DELETE", f"{path}/👍")).status == 204
        await socket.until("MESSAGE_REACTION_REMOVE_EMOJI")
        assert (await bot.call("DELETE", path)).status == 204
        await socket.until("MESSAGE_REACTION_REMOVE_ALL")
    assert fake.message("general", key).reactions == ()


async def test_typing_is_shown_for_ten_seconds_or_until_the_bot_has_written(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    assert (await bot.call("POST", f"/channels/{general}/typing")).status == 204
    assert fake.is_typing("general")
    fake.advance(11)
    assert not fake.is_typing("general")
    await bot.call("POST", f"/channels/{general}/typing")
    await bot.send(general, "done")
    assert not fake.is_typing("general")


async def test_bots_see_people_typing(bot: RawBot, fake: FakeDiscord) -> None:
    async with bot.session() as socket:
        fake.type("general", "bob")
        assert (await socket.until("TYPING_START"))["member"]["user"]["username"] == "bob"


async def test_channels_and_guilds_come_while_the_bot_is_there(bot: RawBot, fake: FakeDiscord) -> None:
    async with bot.session() as socket:
        key = fake.add_channel("random")
        assert (await socket.until("CHANNEL_CREATE"))["id"] == str(key)
        other = fake.add_guild("Elsewhere")
        assert (await socket.until("GUILD_CREATE"))["id"] == str(other)
    listed = await bot.call("GET", f"/guilds/{fake.guild}/channels")
    assert [channel["name"] for channel in listed.body] == ["general", "random"]
    assert len((await bot.call("GET", "/users/@me/guilds")).body) == 2


async def test_a_channels_topic_is_for_moderators(bot: RawBot, fake: FakeDiscord, general: int) -> None:
    assert (await bot.call("PATCH", f"/channels/{general}", {"topic": "x"})).code == 50013
    fake.promote("MANAGE_CHANNELS")
    assert (await bot.call("PATCH", f"/channels/{general}", {"topic": "x"})).body["topic"] == "x"
    assert (await bot.call("DELETE", f"/channels/{general}")).status == 200
    assert (await bot.call("GET", f"/channels/{general}")).code == 10003


async def test_people_and_guilds_can_be_asked_for(bot: RawBot, fake: FakeDiscord) -> None:
    ada = fake.user("ada").id
    assert (await bot.call("GET", f"/users/{ada}")).body["global_name"] == "Ada"
    assert (await bot.call("GET", "/users/17")).code == 10013
    assert (await bot.call("GET", "/users/@me")).body["bot"] is True
    member = await bot.call("GET", f"/guilds/{fake.guild}/members/{ada}")
    assert member.body["user"]["username"] == "ada"
    assert (await bot.call("GET", f"/guilds/{fake.guild}/members/17")).code == 10007
    assert (await bot.call("GET", "/guilds/17")).code == 10004
    guild = await bot.call("GET", f"/guilds/{fake.guild}")
    roles = await bot.call("GET", f"/guilds/{fake.guild}/roles")
    assert guild.body["roles"] == roles.body
    application = await bot.call("GET", "/applications/@me")
    assert application.body["flags"] == 1 << 19
    assert (await bot.call("GET", "/oauth2/applications/@me")).body == application.body
