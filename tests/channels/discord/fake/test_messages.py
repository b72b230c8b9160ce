"""The fake's messages: sent, replied to, edited, deleted, read again, and refused as Discord does."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from channels.discord.fake import FakeDiscord
from channels.discord.fake.state import VOICE_MESSAGE
from tests.channels.discord.raw_bot import RawBot

CREATE = "POST /channels/{channel_id}/messages"


def first_error(body: Any) -> tuple[str, str, str]:
    """Return the place of the first error, and Discord's code and message."""
    at, path = body["errors"], []
    while "_errors" not in at:
        key = next(iter(at))
        path.append(key)
        at = at[key]
    return ".".join(path), at["_errors"][0]["code"], at["_errors"][0]["message"]


async def test_a_message_is_in_the_channel_and_bots_get_an_event(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    async with bot.session() as socket:
        said = await bot.send(general, "  hello\n", nonce="n1")
        told = await socket.until("MESSAGE_CREATE")
    assert said.status == 200
    assert said.body["content"] == "hello"
    assert (told["id"], told["nonce"], told["guild_id"]) == (said.body["id"], "n1", str(fake.guild))
    assert fake.answers("general") == ["hello"]
    listed = await bot.call("GET", f"/channels/{general}/messages")
    assert "nonce" not in listed.body[0], "the platform does not keep nonces with messages"
    fake.transcript.check()


async def test_ids_are_in_the_order_of_time(bot: RawBot, general: int) -> None:
    ids = [int((await bot.send(general, str(number))).body["id"]) for number in range(5)]
    assert ids == sorted(set(ids))


async def test_the_same_nonce_is_the_same_message_for_a_few_minutes(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    first = await bot.send(general, "one", nonce="n1", enforce_nonce=True)
    second = await bot.send(general, "two", nonce="n1", enforce_nonce=True)
    assert (second.status, second.body["id"]) == (200, first.body["id"])
    assert fake.answers("general") == ["one"]
    fake.advance(fake.figures.nonces + 1)
    third = await bot.send(general, "three", nonce="n1", enforce_nonce=True)
    assert third.body["id"] != first.body["id"]
    fourth = await bot.send(general, "four", nonce="n1")
    assert fake.answers("general") == ["one", "three", "four"]
    assert fourth.status == 200


@pytest.mark.parametrize(
    ("body", "where", "code"),
    [
        ({"content": "x" * 2001}, "content", "BASE_TYPE_MAX_LENGTH"),
        ({"content": "x", "nonce": "x" * 26}, "nonce", "BASE_TYPE_MAX_LENGTH"),
        ({"content": 7}, "content", "STRING_TYPE_CONVERT"),
        ({"embeds": [{"title": "x" * 257}]}, "embeds.0.title", "BASE_TYPE_MAX_LENGTH"),
        ({"embeds": [{}] * 11}, "embeds", "BASE_TYPE_MAX_LENGTH"),
        ({"embeds": [{"description": "x" * 4000}] * 2}, "embeds", "MAX_EMBED_SIZE_EXCEEDED"),
        ({"embeds": [{"url": "ftp://x"}]}, "embeds.0.url", "URL_TYPE_INVALID_SCHEME"),
        ({"content": "x", "tts": "yes"}, "tts", "BOOLEAN_TYPE_CONVERT"),
        ({"content": "x", "flags": "many"}, "flags", "NUMBER_TYPE_COERCE"),
        (
            {"content": "x", "allowed_mentions": {"parse": ["users"], "users": ["1"]}},
            "allowed_mentions",
            "MESSAGE_ALLOWED_MENTIONS_PARSE_EXCLUSIVE",
        ),
        (
            {"content": "x", "allowed_mentions": {"parse": ["everybody"]}},
            "allowed_mentions.parse.0",
            "BASE_TYPE_CHOICES",
        ),
        (
            {"content": "x", "message_reference": {"message_id": "17"}},
            "message_reference",
            "REPLIES_UNKNOWN_MESSAGE",
        ),
        ({"content": "x", "message_reference": {}}, "message_reference.message_id", "BASE_TYPE_REQUIRED"),
        (
            {"content": "x", "flags": 1 << 15, "components": [{"type": 10, "content": "y"}]},
            "content",
            "MESSAGE_CANNOT_USE_LEGACY_FIELDS_WITH_COMPONENTS_V2",
        ),
    ],
)
async def test_a_wrong_message_is_refused_in_the_platforms_words(
    bot: RawBot, fake: FakeDiscord, general: int, body: dict[str, Any], where: str, code: str
) -> None:
    said = await bot.call("POST", f"/channels/{general}/messages", body)
    assert (said.status, said.code, said.body["message"]) == (400, 50035, "Invalid Form Body")
    assert first_error(said.body)[:2] == (where, code)
    assert fake.messages("general") == []
    assert bool(fake.transcript.problems) == (code != "REPLIES_UNKNOWN_MESSAGE")


def button(**more: Any) -> dict[str, Any]:
    return {"type": 2, "style": 1, "label": "Go", "custom_id": "go", **more}


def row(*components: dict[str, Any]) -> dict[str, Any]:
    return {"type": 1, "components": list(components)}


@pytest.mark.parametrize(
    ("components", "where", "code"),
    [
        ([row()], "components.0.components", "BASE_TYPE_BAD_LENGTH"),
        (
            [row(*[button(custom_id=str(n)) for n in range(6)])],
            "components.0.components",
            "BASE_TYPE_BAD_LENGTH",
        ),
        (
            [row(button()), row(button())],
            "components.1.components.0.custom_id",
            "COMPONENT_CUSTOM_ID_DUPLICATED",
        ),
        ([row(button(custom_id="x" * 101))], "components.0.components.0.custom_id", "BASE_TYPE_BAD_LENGTH"),
        ([row(button(label="x" * 81))], "components.0.components.0.label", "BASE_TYPE_MAX_LENGTH"),
        (
            [row(button(custom_id=None))],
            "components.0.components.0.custom_id",
            "BUTTON_COMPONENT_CUSTOM_ID_REQUIRED",
        ),
        ([row(button(style=5, custom_id=None))], "components.0.components.0.url", "BASE_TYPE_REQUIRED"),
        (
            [row(button(style=5, url="https://x.org"))],
            "components.0.components.0",
            "BUTTON_COMPONENT_CUSTOM_ID_URL_MUTUALLY_EXCLUSIVE",
        ),
        ([{"type": 77}], "components.0.type", "UNION_TYPE_CHOICES"),
        ([{"type": 10, "content": "text"}], "components.0.type", "UNION_TYPE_CHOICES"),
        ([row(button(custom_id=str(n))) for n in range(6)], "components", "BASE_TYPE_BAD_LENGTH"),
        (
            [row(button(), {"type": 3, "custom_id": "s", "options": [{"label": "a", "value": "a"}]})],
            "components.0.components",
            "COMPONENT_LAYOUT_WIDTH_EXCEEDED",
        ),
    ],
)
async def test_wrong_components_are_refused(
    bot: RawBot, general: int, components: list[Any], where: str, code: str
) -> None:
    said = await bot.send(general, "x", components=components)
    assert first_error(said.body)[:2] == (where, code)


async def test_text_can_be_made_of_components(bot: RawBot, fake: FakeDiscord, general: int) -> None:
    components = [{"type": 17, "components": [{"type": 10, "content": "**shown**"}, row(button())]}]
    said = await bot.call(
        "POST", f"/channels/{general}/messages", {"flags": 1 << 15, "components": components}
    )
    assert said.status == 200
    assert [part["id"] for part in said.body["components"][0]["components"]] == [2, 3]
    fake.transcript.check()


async def test_2000_code_points_are_taken_however_long_they_are_in_bytes(bot: RawBot, general: int) -> None:
    assert (await bot.send(general, "😀" * 2000)).status == 200
    assert (await bot.send(general, "😀" * 2001)).status == 400


@pytest.mark.parametrize("body", [{}, {"content": " \n "}, {"content": "", "embeds": []}])
async def test_an_empty_message_is_refused(bot: RawBot, general: int, body: dict[str, Any]) -> None:
    said = await bot.call("POST", f"/channels/{general}/messages", body)
    assert (said.status, said.code) == (400, 50006)


@pytest.mark.parametrize(
    ("text", "pings"), [("<@{ada}>", True), ("@everyone", True), ("@here", True), ("<@17>", False)]
)
async def test_a_mention_that_would_ping_is_a_problem(
    bot: RawBot, fake: FakeDiscord, general: int, text: str, pings: bool
) -> None:
    text = text.replace("{ada}", str(fake.user("ada").id))
    quiet = await bot.send(general, text, allowed_mentions={"parse": []})
    assert (quiet.body["mentions"], quiet.body["mention_everyone"]) == ([], False)
    fake.transcript.check()
    loud = await bot.send(general, text)
    assert bool(loud.body["mentions"] or loud.body["mention_everyone"]) == pings
    assert bool(fake.transcript.problems) == pings


async def test_a_mention_that_an_edit_would_ping_is_a_problem(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    key = (await bot.send(general, "…")).body["id"]
    ada = f"<@{fake.user('ada').id}>"
    path = f"/channels/{general}/messages/{key}"
    await bot.call("PATCH", path, {"content": ada, "allowed_mentions": {"parse": []}})
    fake.transcript.check()
    await bot.call("PATCH", path, {"content": ada})
    assert "pings" in fake.transcript.problems[0]


async def test_an_answer_shows_what_it_answers(bot: RawBot, fake: FakeDiscord, general: int) -> None:
    question = fake.say("general", "why?")
    reference = {"message_id": str(question)}
    said = await bot.send(
        general, "because", message_reference=reference, allowed_mentions={"parse": [], "replied_user": True}
    )
    assert said.body["type"] == 19
    assert said.body["referenced_message"]["content"] == "why?"
    assert [user["username"] for user in said.body["mentions"]] == ["ada"]
    fake.delete("general", question)
    again = await bot.call("GET", f"/channels/{general}/messages/{said.body['id']}")
    assert again.body["referenced_message"] is None
    lenient = {**reference, "fail_if_not_exists": False}
    said = await bot.send(general, "anyway", message_reference=lenient)
    assert (said.status, said.body["type"]) == (200, 0)


async def test_what_the_platform_says_itself_cannot_be_answered(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    fake.start_thread("general", "aside")
    notice = fake.messages("general")[-1]
    said = await bot.send(general, "x", message_reference={"message_id": str(notice.id)})
    assert first_error(said.body)[1] == "REPLIES_CANNOT_REPLY_TO_SYSTEM_MESSAGE"


async def test_a_message_is_changed_and_its_versions_are_kept(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    key = int((await bot.send(general, "one", components=[row(button())])).body["id"])
    async with bot.session() as socket:
        said = await bot.call("PATCH", f"/channels/{general}/messages/{key}", {"content": "two"})
        told = await socket.until("MESSAGE_UPDATE")
    assert (said.body["content"], told["content"]) == ("two", "two")
    assert said.body["edited_timestamp"] is not None
    assert said.body["components"], "what is not named stays"
    assert fake.message("general", key).versions == ("one",)
    said = await bot.call("PATCH", f"/channels/{general}/messages/{key}", {"components": []})
    assert said.body["components"] == []


async def test_only_the_bots_own_messages_can_be_changed(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    key = fake.say("general", "mine")
    said = await bot.call("PATCH", f"/channels/{general}/messages/{key}", {"content": "yours"})
    assert (said.status, said.code) == (403, 50005)


async def test_messages_are_deleted(bot: RawBot, fake: FakeDiscord, general: int) -> None:
    key = (await bot.send(general, "x")).body["id"]
    async with bot.session() as socket:
        path = f"/channels/{general}/messages/{key}"
        assert (await bot.call("DELETE", path)).status == 204
        assert (await socket.until("MESSAGE_DELETE"))["id"] == key
        gone = await bot.call("DELETE", path)
        assert (gone.status, gone.code) == (404, 10008)
        other = fake.say("general", "mine")
        said = await bot.call("DELETE", f"/channels/{general}/messages/{other}")
        assert (said.status, said.code) == (403, 50013)
        fake.promote("MANAGE_MESSAGES")
        two = [str(fake.say("general", text)) for text in "ab"]
        said = await bot.call("POST", f"/channels/{general}/messages/bulk-delete", {"messages": two})
        assert said.status == 204
        assert (await socket.until("MESSAGE_DELETE_BULK"))["ids"] == two
    assert [message.content for message in fake.messages("general")] == ["mine"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", "9876543210"),
        ("?limit=3", "987"),
        ("?after={3}", "987654"),
        ("?after={3}&limit=2", "54"),
        ("?before={3}", "210"),
        ("?before={3}&limit=2", "21"),
        ("?around={3}&limit=4", "4321"),
        ("?after={9}", ""),
        ("?after=0&limit=1", "0"),
    ],
)
async def test_history_is_read_in_parts_newest_first(
    bot: RawBot, fake: FakeDiscord, general: int, query: str, found: str
) -> None:
    keys = [fake.say("general", str(number)) for number in range(10)]
    for number, key in enumerate(keys):
        query = query.replace(f"{{{number}}}", str(key))
    said = await bot.call("GET", f"/channels/{general}/messages{query}")
    assert "".join(message["content"] for message in said.body) == found


@pytest.mark.parametrize(
    ("query", "status"),
    [("?limit=0", 400), ("?limit=101", 400), ("?after=x", 400), ("?after=1&before=2", 400)],
)
async def test_a_wrong_question_for_history_is_refused(
    bot: RawBot, general: int, query: str, status: int
) -> None:
    assert (await bot.call("GET", f"/channels/{general}/messages{query}")).status == status


async def test_files_are_uploaded_and_fetched_by_a_signed_link(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    body = {"content": "look", "attachments": [{"id": 0, "description": "a picture"}]}
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x02\0\0\0\x03\x08\x02\0\0\0"
    said = await bot.call("POST", f"/channels/{general}/messages", body, files={"my file.png": png})
    file = said.body["attachments"][0]
    assert (file["filename"], file["title"], file["description"]) == ("my_file.png", "my file", "a picture")
    assert (file["content_type"], file["width"], file["height"]) == ("image/png", 2, 3)
    async with bot.http.get(file["url"]) as answer:
        assert (await answer.read(), answer.content_type) == (png, "image/png")
    async with bot.http.get(file["url"].replace("hm=", "hm=0")) as answer:
        assert answer.status == 404
    fake.advance(fake.figures.link_life + 1)
    async with bot.http.get(file["url"]) as answer:
        assert answer.status == 404
    again = await bot.call("GET", f"/channels/{general}/messages/{said.body['id']}")
    async with bot.http.get(again.body["attachments"][0]["url"]) as answer:
        assert answer.status == 200


SPOKEN = {"duration_secs": 1.5, "waveform": "AP8="}


@pytest.mark.parametrize(
    ("content", "told", "files", "code"),
    [
        ("words", SPOKEN, {"a.ogg": b"OggS"}, 50159),
        ("", SPOKEN, {"a.txt": b"text"}, 50160),
        ("", SPOKEN, {"a.ogg": b"OggS", "b.ogg": b"OggS"}, 50160),
        ("", {"waveform": "AP8="}, {"a.ogg": b"OggS"}, 50161),
        ("", {"duration_secs": 1.5, "waveform": "no base64"}, {"a.ogg": b"OggS"}, 50161),
    ],
)
async def test_a_voice_message_is_one_recording_with_its_length_and_nothing_else(
    bot: RawBot,
    fake: FakeDiscord,
    general: int,
    content: str,
    told: dict[str, Any],
    files: dict[str, bytes],
    code: int,
) -> None:
    body = {"content": content, "flags": VOICE_MESSAGE, "attachments": [{"id": 0, **told}]}
    assert (await bot.call("POST", f"/channels/{general}/messages", body, files=files)).code == code
    assert len(fake.transcript.problems) == 1


async def test_a_voice_message_is_never_changed_and_not_allowed_everywhere(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    path, files = f"/channels/{general}/messages", {"a.ogg": b"OggS"}
    body = {"flags": VOICE_MESSAGE, "attachments": [{"id": 0, **SPOKEN}]}
    said = await bot.call("POST", path, body, files=files)
    assert said.body["flags"] == VOICE_MESSAGE
    assert SPOKEN.items() <= said.body["attachments"][0].items()
    assert (await bot.call("PATCH", f"{path}/{said.body['id']}", {"content": "more"})).code == 50162
    fake.forbid("general", "SEND_VOICE_MESSAGES")
    assert (await bot.call("POST", path, body, files=files)).code == 50173
    fake.transcript.check()


async def test_attachments_stay_or_go_when_a_message_is_changed(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    said = await bot.call(
        "POST", f"/channels/{general}/messages", {"content": "x"}, files={"a.txt": b"a", "b.txt": b"b"}
    )
    path = f"/channels/{general}/messages/{said.body['id']}"
    kept = said.body["attachments"][1]["id"]
    changed = await bot.call("PATCH", path, {"attachments": [{"id": kept}]}, files={"c.txt": b"c"})
    assert [file["filename"] for file in changed.body["attachments"]] == ["b.txt", "c.txt"]
    assert (await bot.call("PATCH", path, {"content": "y"})).body["attachments"]
    fake.transcript.check()


async def test_a_file_that_is_too_large_is_refused(bot: RawBot, fake: FakeDiscord, general: int) -> None:
    size = fake.figures.file_bytes
    path = f"/channels/{general}/messages"
    assert (await bot.call("POST", path, {}, files={"a": b"x" * size})).status == 200
    said = await bot.call("POST", path, {}, files={"a": b"x" * (size + 1)})
    assert (said.status, said.code) == (413, 40005)


async def test_people_attach_files(bot: RawBot, fake: FakeDiscord) -> None:
    async with bot.session() as socket:
        fake.say("general", "", attach={"notes.txt": b"read me"})
        file = (await socket.until("MESSAGE_CREATE"))["attachments"][0]
    assert (file["filename"], file["size"]) == ("notes.txt", 7)
    assert file["content_type"] == "text/plain; charset=utf-8"
    async with bot.http.get(file["url"]) as answer:
        assert await answer.read() == b"read me"
    assert fake.cdn.served == [int(file["id"])]


async def test_people_change_and_delete_what_they_wrote(bot: RawBot, fake: FakeDiscord) -> None:
    async with bot.session() as socket:
        key = fake.say("general", "helo")
        fake.edit("general", key, "hello")
        told = await socket.until("MESSAGE_UPDATE")
        assert (told["content"], told["author"]["username"]) == ("hello", "ada")
        fake.delete("general", key)
        assert (await socket.until("MESSAGE_DELETE"))["id"] == str(key)


@pytest.mark.parametrize(
    ("permission", "error"),
    [("VIEW_CHANNEL", 50001), ("SEND_MESSAGES", 50013)],
)
async def test_a_bot_without_permission_to_write_gets_an_error(
    bot: RawBot, fake: FakeDiscord, general: int, permission: Any, error: int
) -> None:
    fake.forbid("general", permission)
    said = await bot.send(general, "x")
    assert (said.status, said.code) == (403, error)
    fake.permit("general", permission)
    assert (await bot.send(general, "x")).status == 200
    fake.transcript.check()


async def test_what_else_the_bot_may_not(bot: RawBot, fake: FakeDiscord, general: int) -> None:
    key = fake.say("general", "x")
    fake.forbid("general", "READ_MESSAGE_HISTORY", "EMBED_LINKS", "ATTACH_FILES")
    assert (await bot.call("GET", f"/channels/{general}/messages")).body == []
    assert (await bot.call("GET", f"/channels/{general}/messages/{key}")).code == 50013
    said = await bot.send(general, "x", message_reference={"message_id": str(key)})
    assert said.code == 160002
    said = await bot.send(general, "x", embeds=[{"title": "gone"}])
    assert said.body["embeds"] == []
    said = await bot.call("POST", f"/channels/{general}/messages", {}, files={"a": b"a"})
    assert said.code == 50013


async def test_a_channel_that_is_gone_is_unknown(bot: RawBot, fake: FakeDiscord, general: int) -> None:
    async with bot.session() as socket:
        fake.remove_channel("general")
        assert (await socket.until("CHANNEL_DELETE"))["id"] == str(general)
    said = await bot.send(general, "x")
    assert (said.status, said.code) == (404, 10003)


async def test_a_person_who_takes_no_direct_messages_refuses_them(bot: RawBot, fake: FakeDiscord) -> None:
    opened = await bot.call("POST", "/users/@me/channels", {"recipient_id": str(fake.user("ada").id)})
    again = await bot.call("POST", "/users/@me/channels", {"recipient_id": str(fake.user("ada").id)})
    assert (opened.body["type"], opened.body["id"]) == (1, again.body["id"])
    chat = int(opened.body["id"])
    assert chat == fake.dm("ada")
    assert (await bot.send(chat, "psst")).status == 200
    fake.refuse_dms("ada")
    said = await bot.send(chat, "psst")
    assert (said.status, said.code) == (403, 50007)


async def test_unknown_parameters_are_ignored_and_a_problem(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    said = await bot.send(general, "x", allow_mentions={})
    assert said.status == 200
    assert fake.transcript.problems == [f"{CREATE}: allow_mentions: no such parameter"]


async def test_what_the_fake_has_not_got_is_said(bot: RawBot, fake: FakeDiscord, general: int) -> None:
    said = await bot.send(general, "x", poll={"question": {"text": "?"}})
    assert said.status == 501
    assert fake.transcript.problems == [f"{CREATE}: the fake has no poll"]


@pytest.mark.parametrize(
    ("method", "path", "status", "problem"),
    [("GET", "/nowhere", 404, True), ("PUT", "/channels/{general}/messages", 405, True)],
)
async def test_a_call_that_does_not_exist_is_a_problem(
    bot: RawBot, fake: FakeDiscord, general: int, method: str, path: str, status: int, problem: bool
) -> None:
    said = await bot.call(method, path.replace("{general}", str(general)))
    assert (said.status, said.code) == (status, 0)
    assert bool(fake.transcript.problems) == problem


async def test_broken_json_is_refused(bot: RawBot, general: int) -> None:
    said = await bot.call("POST", f"/channels/{general}/messages", raw=b"{")
    assert (said.status, said.code) == (400, 50109)


async def test_a_wrong_token_or_user_agent_is_refused(bot: RawBot, general: int) -> None:
    said = await bot.call("GET", f"/channels/{general}", headers={"Authorization": "Bot wrong"})
    assert (said.status, said.body) == (401, {"message": "401: Unauthorized", "code": 0})
    said = await bot.call("GET", f"/channels/{general}", headers={"User-Agent": "curl"})
    assert (said.status, said.code) == (403, 40333)


async def test_answers_have_the_headers_that_libraries_look_for(bot: RawBot, general: int) -> None:
    said = await bot.send(general, "x")
    assert said.headers["Content-Type"] == "application/json"
    assert said.headers["Via"]


async def test_content_over_http_is_hidden_from_applications_that_may_not_read_it() -> None:
    async with FakeDiscord(privileged=()) as fake, aiohttp.ClientSession() as http:
        fake.say("general", "secret")
        said = await RawBot(fake, http).call("GET", f"/channels/{fake.channel('general').id}/messages")
        assert said.body[0]["content"] == ""
