"""The fake Telegram over plain HTTP: all encodings of calls, and errors of invalid ones."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from channels.telegram.fake import FakeTelegram
from tests.channels.telegram.pictures import png


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as http:
        yield http


async def ask(http: aiohttp.ClientSession, fake: FakeTelegram, method: str, **how: Any) -> dict[str, Any]:
    """Make a call by POST. Returns the response."""
    async with http.post(f"{fake.base_url}{fake.token}/{method}", **how) as answer:
        body = await answer.json()
        assert body.get("error_code", 200) == answer.status
        return body


async def test_a_call_may_come_as_a_form_as_json_in_parts_or_in_the_address(
    fake: FakeTelegram, http: aiohttp.ClientSession
) -> None:
    chat = fake.private()
    url = f"{fake.base_url}{fake.token}/sendMessage"
    await http.post(url, data={"chat_id": str(chat), "text": "form"})
    await http.post(url, json={"chat_id": chat, "text": "json", "reply_parameters": {"message_id": 1}})
    await http.get(url, params={"chat_id": chat, "text": "address"})
    parts = aiohttp.FormData(default_to_multipart=True)
    parts.add_field("chat_id", str(chat))
    parts.add_field("text", "parts")
    await http.post(url, data=parts)
    await http.post(url.replace("sendMessage", "SENDMESSAGE"), data={"chat_id": str(chat), "text": "loud"})
    assert fake.answers(chat) == ["form", "json", "address", "parts", "loud"]
    assert {call.method for call in fake.transcript.calls} == {"sendMessage"}
    fake.transcript.check()


async def test_an_upload_may_be_named_by_the_parameter_or_attached(
    fake: FakeTelegram, http: aiohttp.ClientSession
) -> None:
    chat = fake.private()
    direct = aiohttp.FormData({"chat_id": str(chat)})
    direct.add_field("photo", png(), filename="a.png", content_type="image/png")
    assert (await ask(http, fake, "sendPhoto", data=direct))["ok"]
    media = [{"type": "document", "media": f"attach://{name}"} for name in ("one", "two")]
    album = aiohttp.FormData({"chat_id": str(chat), "media": msgspec.json.encode(media).decode()})
    album.add_field("one", b"1", filename="1.txt")
    album.add_field("two", b"2", filename="2.txt")
    answer = await ask(http, fake, "sendMediaGroup", data=album)
    assert [message["document"]["file_name"] for message in answer["result"]] == ["1.txt", "2.txt"]
    missing = {"chat_id": chat, "document": "attach://nothing"}
    assert (await ask(http, fake, "sendDocument", json=missing))["description"] == (
        "Bad Request: there is no document in the request"
    )


def button(**fields: str) -> dict[str, Any]:
    """Return the arguments of a message with one button."""
    return {"chat_id": 1, "text": "Hi", "reply_markup": {"inline_keyboard": [[fields]]}}


BUTTON = "can't parse inline keyboard button: "
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("sendMessage", {"text": "Hi"}, "chat_id is empty"),
    ("sendMessage", {"chat_id": 1}, "message text is empty"),
    ("sendMessage", {"chat_id": 1, "text": "Hi", "parse_mode": "BBCode"}, "unsupported parse_mode"),
    (
        "sendMessage",
        {"chat_id": 1, "text": "Hi", "reply_markup": "{"},
        "can't parse reply keyboard markup JSON object",
    ),
    ("sendMessage", button(text="a"), f"{BUTTON}Text buttons are unallowed in the inline keyboard"),
    ("sendMessage", button(url="https://example.org"), f'{BUTTON}Can\'t find field "text"'),
    ("sendMessage", button(text="a", callback_data="ü" * 33), "BUTTON_DATA_INVALID"),
    ("sendMessage", button(text="a", url="x", style="loud"), f"{BUTTON}invalid button style specified"),
    (
        "sendMessage",
        {"chat_id": 1, "text": "Hi", "entities": [{"type": "bold", "offset": "0", "length": 1}]},
        'can\'t parse MessageEntity: Field "offset" must be of type Number',
    ),
    ("sendChatAction", {"chat_id": 1, "action": "dancing"}, "wrong parameter action in request"),
    (
        "editMessageText",
        {"chat_id": 1, "text": "Hi", "message_id": "x"},
        "message identifier is not specified",
    ),
    (
        "deleteMessages",
        {"chat_id": 1, "message_ids": list(range(1, 102))},
        "too many message identifiers specified",
    ),
    (
        "setMessageReaction",
        {"chat_id": 1, "message_id": 1, "reaction": [{"type": "emoji"}]},
        "can't parse ReactionType: Can't find field \"emoji\"",
    ),
    ("answerCallbackQuery", {"callback_query_id": "1", "text": "a" * 201}, "MESSAGE_TOO_LONG"),
    ("createForumTopic", {"chat_id": 1, "name": "a" * 129}, "TOPIC_TITLE_INVALID"),
]


@pytest.mark.parametrize(("method", "given", "says"), WRONG)
async def test_a_wrong_call_is_refused_and_found_out(
    fake: FakeTelegram, http: aiohttp.ClientSession, method: str, given: dict[str, Any], says: str
) -> None:
    answer = await ask(http, fake, method, json=given)
    assert answer == {"ok": False, "error_code": 400, "description": f"Bad Request: {says}"}
    assert len(fake.transcript.problems) == 1


async def test_methods_that_are_not_there_are_refused(
    fake: FakeTelegram, http: aiohttp.ClientSession
) -> None:
    poll = {"chat_id": 1, "question": "?", "options": [{"text": "a"}]}
    for method, given in (("sendMesage", {}), ("sendPoll", poll)):
        answer = await ask(http, fake, method, json=given)
        assert (answer["error_code"], answer["description"]) == (404, "Not Found: method not found")
    assert fake.transcript.problems == [
        "sendMesage: there is no method sendMesage",
        "sendPoll: this fake does not support sendPoll",
    ]


async def test_what_the_platform_overlooks_is_found_out_too(
    fake: FakeTelegram, http: aiohttp.ClientSession
) -> None:
    chat = fake.private()
    given = {
        "chat_id": chat,
        "text": "Hi",
        "disable_web_page_preview": True,
        "reply_parameters": {"message": 1},
    }
    assert (await ask(http, fake, "sendMessage", json=given))["ok"]
    assert sorted(fake.transcript.problems[0].removeprefix("sendMessage: ").split("; ")) == [
        "reply_parameters.message: ReplyParameters has no field message",
        "sendMessage has no parameter disable_web_page_preview",
    ]


async def test_what_the_fake_does_not_play_is_said(fake: FakeTelegram, http: aiohttp.ClientSession) -> None:
    given = {"chat_id": fake.private(), "text": "Hi", "ephemeral_message_parameters": {"receiver_user_id": 1}}
    assert (await ask(http, fake, "sendMessage", json=given))["ok"]
    assert fake.transcript.problems == [
        "sendMessage: this fake does not support ephemeral_message_parameters"
    ]


async def test_another_token_and_another_path_are_refused(
    fake: FakeTelegram, http: aiohttp.ClientSession
) -> None:
    async with http.get(f"{fake.base_url}1:wrong/getMe") as answer:
        assert (answer.status, (await answer.json())["description"]) == (401, "Unauthorized")
    async with http.get(f"{fake.base_file_url}{fake.token}/documents/none.txt") as answer:
        assert (answer.status, (await answer.json())["description"]) == (404, "Not Found")


async def test_too_large_a_request_is_refused(fake: FakeTelegram, http: aiohttp.ClientSession) -> None:
    parts = aiohttp.FormData({"chat_id": str(fake.private())})
    parts.add_field("document", io.BytesIO(bytes(50 * 1024 * 1024 + 1)), filename="large.bin")
    answer = await ask(http, fake, "sendDocument", data=parts)
    assert (answer["error_code"], answer["description"]) == (413, "Request Entity Too Large")


async def test_a_wait_is_in_the_body_and_in_the_header(
    fake: FakeTelegram, http: aiohttp.ClientSession
) -> None:
    fake.then("slow_down")
    url = f"{fake.base_url}{fake.token}/getMe"
    async with http.get(url) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
        assert await answer.json() == {
            "ok": False,
            "error_code": 429,
            "description": "Too Many Requests: retry after 1",
            "parameters": {"retry_after": 1},
        }


async def test_newer_methods_are_known(fake: FakeTelegram, http: aiohttp.ClientSession) -> None:
    """Rich messages, which python-telegram-bot does not support yet."""
    chat = fake.private()
    sent = await ask(
        http, fake, "sendRichMessage", json={"chat_id": chat, "rich_message": {"markdown": "# Hi"}}
    )
    edit = {"chat_id": chat, "message_id": sent["result"]["message_id"], "rich_message": {"markdown": "# Ho"}}
    edited = await ask(http, fake, "editMessageText", json=edit)
    assert edited["result"]["rich_message"]["blocks"]
    assert fake.answers(chat) == ["# Ho"]
    fake.transcript.check()
    both = {"chat_id": chat, "rich_message": {"markdown": "a", "html": "b"}}
    assert not (await ask(http, fake, "sendRichMessage", json=both))["ok"]
    long = {"chat_id": chat, "rich_message": {"markdown": "a" * 32_769}}
    assert (await ask(http, fake, "sendRichMessage", json=long))["description"] == (
        "Bad Request: message is too long"
    )
