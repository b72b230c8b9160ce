"""Chats, users and files in the Web API of the fake."""

from __future__ import annotations

import pytest

from channels.slack.fake import FakeSlack
from tests.channels.slack.apps import client, plain


async def test_a_history_is_newest_first_and_within_its_bounds() -> None:
    async with plain() as (fake, api):
        stamps = [fake.say("general", str(number)) for number in range(5)]
        fake.say("general", "reply", thread=stamps[0])
        room = fake.chat("general").id

        async def texts(**bounds: object) -> list[str]:
            told = await api.call("conversations.history", channel=room, **bounds)
            return [one["text"] for one in told["messages"]]

        assert await texts() == ["4", "3", "2", "1", "0"]
        assert await texts(oldest=stamps[2]) == ["4", "3"]
        assert await texts(oldest=stamps[2], latest=stamps[4], inclusive=True) == ["4", "3", "2"]
        assert await texts(latest=stamps[1]) == ["0"]
        wrong = await api.call("conversations.history", channel=room, oldest="yesterday")
        assert wrong["error"] == "invalid_ts_oldest"
        told = await api.call("conversations.history", channel=room, limit=2)
        assert (told["has_more"], len(told["messages"])) == (True, 2)


async def test_a_thread_begins_with_its_first_message_for_any_bounds() -> None:
    async with plain() as (fake, api):
        root = fake.say("general", "root")
        stamps = [fake.say("general", str(number), thread=root) for number in range(4)]
        room = fake.chat("general").id
        told = await api.form("conversations.replies", channel=room, ts=root, oldest=stamps[1])
        assert [one["text"] for one in told["messages"]] == ["root", "2", "3"]
        inside = await api.form("conversations.replies", channel=room, ts=stamps[0])
        assert len(inside["messages"]) == 5
        nowhere = await api.form("conversations.replies", channel=room, ts="1.000000")
        assert nowhere["error"] == "thread_not_found"


async def test_history_can_be_scarce() -> None:
    async with plain() as (fake, api):
        for number in range(20):
            fake.say("general", str(number))
        fake.switches.scarce_history = True
        room = fake.chat("general").id
        told = await api.call("conversations.history", channel=room)
        assert (len(told["messages"]), told["has_more"]) == (15, True)
        assert (await api.call("conversations.history", channel=room))["error"] == "ratelimited"


async def test_a_history_is_for_members_with_the_scope() -> None:
    async with plain(installed=False) as (fake, api):
        token = fake.install(scopes=["channels:history"]).token
        room = fake.open_chat("lounge", with_bot=False)
        assert (await api.call("conversations.history", token, channel=room))["error"] == "not_in_channel"
        direct = fake.chat("@ada").id
        told = await api.call("conversations.history", token, channel=direct)
        assert (told["error"], told["needed"]) == ("missing_scope", "im:history")


async def test_rooms_are_listed_by_type() -> None:
    async with plain() as (fake, api):
        fake.open_chat("secret", "ada", kind="group")
        fake.open_chat("hidden", "ada", kind="group", with_bot=False)
        fake.open_chat("lounge", with_bot=False)
        fake.open_chat("old", archived=True)
        fake.chat("@ada")

        async def names(types: str, **more: str) -> list[str]:
            told = await api.form("conversations.list", types=types, **more)
            return [one.get("name", "direct") for one in told["channels"]]

        assert await names("public_channel") == ["general", "lounge", "old"]
        assert await names("public_channel", exclude_archived="true") == ["general", "lounge"]
        assert await names("private_channel,im") == ["secret", "direct"]
        wrong = await api.form("conversations.list", types="secret_channel")
        assert wrong["error"] == "invalid_types"
        mine = await api.form("users.conversations", types="public_channel,private_channel,im")
        assert [one.get("name", "direct") for one in mine["channels"]] == [
            "general",
            "secret",
            "old",
            "direct",
        ]


async def test_a_room_describes_itself() -> None:
    async with plain() as (fake, api):
        room, direct = fake.chat("general"), fake.chat("@ada")
        told = await api.form("conversations.info", channel=room.id, include_num_members="true")
        channel = told["channel"]
        assert (channel["name"], channel["is_channel"], channel["is_member"]) == ("general", True, True)
        assert channel["num_members"] == 1
        told = await api.form("conversations.info", channel=direct.id)
        assert (told["channel"]["is_im"], told["channel"]["user"]) == (True, fake.user("ada").id)


async def test_direct_messages_are_opened_once() -> None:
    async with plain() as (fake, api):
        ada, bob = fake.user("ada").id, fake.user("bob").id
        one = await api.call("conversations.open", users=ada)
        two = await api.call("conversations.open", users=ada, return_im=True)
        assert (one["channel"]["id"], two["already_open"]) == (two["channel"]["id"], True)
        assert two["channel"]["user"] == ada
        group = await api.call("conversations.open", users=f"{ada},{bob}")
        assert group["channel"]["id"].startswith("G")
        assert (await api.call("conversations.open"))["error"] == "users_list_not_supplied"
        assert (await api.call("conversations.open", users="U9"))["error"] == "user_not_found"


async def test_the_bot_joins_a_public_channel() -> None:
    async with plain() as (fake, api):
        room = fake.open_chat("lounge", with_bot=False)
        assert (await api.call("conversations.join", channel=room))["channel"]["is_member"]
        assert (await api.call("conversations.join", channel=room))["warning"] == "already_in_channel"
        assert fake.deliveries[0].payload["event"]["type"] == "member_joined_channel"


async def test_users_and_bots_are_described() -> None:
    async with plain() as (fake, api):
        ada = fake.user("ada").id
        told = await api.form("users.info", user=ada, include_locale="true")
        user = told["user"]
        assert (user["name"], user["real_name"], user["is_bot"], user["locale"]) == (
            "ada",
            "Ada",
            False,
            "en-US",
        )
        bot = await api.form("bots.info")
        assert bot["bot"]["app_id"] == fake.app.id
        assert (await api.call("team.info"))["team"]["name"] == "acme"


async def test_a_file_goes_up_in_three_steps() -> None:
    async with FakeSlack() as fake:
        root = fake.say("general", "send it")
        slack = client(fake)
        upload = {"channel": fake.chat("general").id, "thread_ts": root, "initial_comment": "here"}
        told = await slack.files_upload_v2(content="abc", filename="a.txt", title="A", **upload)
        assert told["file"]["title"] == "A"
        assert "shares" not in told["file"]
        message = fake.messages("general", thread=root)[-1]
        assert (message.text, message.files, message.bot) == ("here", ("a.txt",), True)
        info = await slack.files_info(file=told["file"]["id"])
        assert info["file"]["shares"]["public"][fake.chat("general").id][0]["ts"] == message.ts
        methods = [call.method for call in fake.transcript.calls]
        assert methods[:3] == ["files.getUploadURLExternal", "upload", "files.completeUploadExternal"]
        fake.transcript.check()


async def test_a_files_comment_pings_like_any_text() -> None:
    async with FakeSlack() as fake:
        room = fake.chat("general").id
        await client(fake).files_upload_v2(
            content="abc", filename="a.txt", channel=room, initial_comment="<!here> look"
        )
        assert fake.transcript.problems == ["files.completeUploadExternal: unescaped mention <!here>"]


async def test_a_file_that_was_not_uploaded_cannot_be_completed() -> None:
    async with plain() as (fake, api):
        told = await api.form("files.getUploadURLExternal", filename="a.txt", length="3")
        refused = await api.call("files.completeUploadExternal", files=[{"id": told["file_id"]}])
        assert refused["error"] == "file_not_found"
        async with api.http.post(told["upload_url"], data=b"four") as answer:
            assert answer.status == 400
        assert "4 bytes instead of the 3 announced" in fake.transcript.problems[-1]
        empty = await api.form("files.getUploadURLExternal", filename="a.txt", length="0")
        assert empty["error"] == "invalid_arguments"


async def test_a_file_of_a_person_is_downloaded_with_the_token() -> None:
    async with plain() as (fake, api):
        fake.say("general", "look", files=[("a.txt", b"abc")])
        event = fake.deliveries[0].payload["event"]
        assert (event["subtype"], event["files"][0]["size"]) == ("file_share", 3)
        assert fake.deliveries[1].payload["event"]["type"] == "file_shared"
        url = event["files"][0]["url_private"]
        headers = {"Authorization": f"Bearer {fake.bot_token}"}
        async with api.http.get(url, headers=headers) as answer:
            assert (answer.content_type, await answer.read()) == ("text/plain", b"abc")
        fake.transcript.check()
        async with api.http.get(url) as answer:
            assert (answer.status, answer.content_type) == (200, "text/html")
        assert "without a token" in fake.transcript.problems[0]


async def test_a_file_is_not_for_a_token_without_the_scope() -> None:
    async with plain(installed=False) as (fake, api):
        token = fake.install(scopes=["chat:write"]).token
        fake.say("general", "look", files=[("a.txt", b"abc")])
        url = fake.deliveries[0].payload["event"]["files"][0]["url_private_download"]
        async with api.http.get(url, headers={"Authorization": f"Bearer {token}"}) as answer:
            assert answer.content_type == "text/html"


async def test_a_deleted_file_is_gone() -> None:
    async with plain() as (fake, api):
        told = await client(fake).files_upload_v2(content="abc", filename="a.txt")
        file = told["file"]["id"]
        assert (await api.call("files.delete", file=file))["ok"]
        assert (await api.form("files.info", file=file))["error"] == "file_deleted"


@pytest.mark.parametrize("chat", ["general", "#general"])
async def test_a_room_can_be_named(chat: str) -> None:
    async with plain() as (fake, api):
        assert (await api.call("chat.postMessage", channel=chat, text="hi"))["channel"] == fake.chat(chat).id
