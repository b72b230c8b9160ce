"""The fake's page and its control interface, with which a bot is tried by hand."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import os
import sys

import aiohttp
import pytest
from playwright.async_api import Browser, Page, expect

from channels.discord.fake import FakeDiscord, relaxed, serve
from tests.channels.discord.raw_bot import RawBot

BUTTONS = [{"type": 1, "components": [{"type": 2, "style": 1, "label": "Go", "custom_id": "go"}]}]


async def act(bot: RawBot, name: str, **given: object) -> tuple[int, object]:
    async with bot.http.post(f"{bot.fake.url}/_fake/{name}", json=given) as answer:
        said = await answer.json() if answer.content_type == "application/json" else {}
        return answer.status, said.get("result", said.get("error"))


async def test_people_act_over_http(bot: RawBot, fake: FakeDiscord, general: int) -> None:
    file = base64.b64encode(b"hi").decode()
    status, key = await act(bot, "say", chat="general", text="hello", user="bob", attach={"a.txt": file})
    assert (status, key) == (200, str(fake.messages("general")[0].id))
    assert fake.messages("general")[0].attachments[0].data == b"hi"
    assert (await act(bot, "edit", chat=str(general), key=key, text="hullo"))[0] == 200
    assert fake.messages("general")[0].versions == ("hello",)
    assert (await act(bot, "react", chat=str(general), key=key, sign="👍"))[0] == 200
    assert (await act(bot, "delete", chat=str(general), key=key))[0] == 200
    assert fake.messages("general") == []


async def test_it_tells_how_far_an_interaction_is_answered(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    key = (await bot.send(general, "ready?", components=BUTTONS)).body["id"]
    async with bot.session() as socket:
        _, pressed = await act(bot, "press", chat="general", key=key, custom_id="go")
        told = await socket.until("INTERACTION_CREATE")
    assert await act(bot, "response", key=pressed) == (200, "waiting")
    await bot.call("POST", f"/interactions/{told['id']}/{told['token']}/callback", {"type": 6})
    assert await act(bot, "response", key=pressed) == (200, "deferred update")


@pytest.mark.parametrize(
    ("name", "given", "status"),
    [
        ("say", {"chat": "nowhere", "text": "x"}, 400),
        ("say", {"text": "x"}, 400),
        ("say", {"chat": "general", "text": "x", "attach": {"a": "not base64!"}}, 400),
        ("react", {"chat": "general", "key": "1", "sign": "👍"}, 400),
        ("slash", {"chat": "general", "command": "nothing"}, 400),
        ("__init__", {}, 404),
    ],
)
async def test_what_cannot_be_done_is_refused(
    bot: RawBot, name: str, given: dict[str, object], status: int
) -> None:
    assert (await act(bot, name, **given))[0] == status


async def test_a_page_of_another_origin_cannot_act(bot: RawBot, fake: FakeDiscord) -> None:
    """A request that a browser sends without a preflight is refused."""
    form = '{"chat": "general", "text": "x"}'
    async with bot.http.post(
        f"{fake.url}/_fake/say", data=form, headers={"Content-Type": "text/plain"}
    ) as answer:
        assert answer.status == 415
    assert fake.messages("general") == []


async def test_the_state_comes_when_it_is_newer(bot: RawBot, fake: FakeDiscord, general: int) -> None:
    async with bot.http.get(f"{fake.url}/_fake/state") as answer:
        state = await answer.json()
    assert [room["title"] for room in state["rooms"]] == ["general"]
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(later(bot, state["version"]))
        await bot.send(general, "news", bogus=1)
    state = waiting.result()
    assert state["rooms"][0]["messages"][0]["content"] == "news"


async def later(bot: RawBot, version: int) -> dict[str, object]:
    async with bot.http.get(f"{bot.fake.url}/_fake/state?after={version}") as answer:
        return await answer.json()


async def test_the_transcript_can_be_read(bot: RawBot, fake: FakeDiscord, general: int) -> None:
    await bot.send(general, "x", bogus=1)
    async with bot.http.get(f"{fake.url}/_fake/transcript") as answer:
        calls = (await answer.json())["calls"]
    assert calls[0]["method"] == "POST /channels/{channel_id}/messages"
    assert calls[0]["problem"] == "bogus: no such parameter"


async def test_it_runs_alone_and_says_where() -> None:
    read, write = os.pipe()
    with contextlib.redirect_stdout(io.TextIOWrapper(os.fdopen(write, "wb"), write_through=True)):
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(serve(["--port", "0", "--no-limits"]))
            address = await asyncio.to_thread(os.read, read, 100)
            async with aiohttp.ClientSession() as http, http.get(address.decode().strip()) as answer:
                assert answer.status == 200
                assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
            running.cancel()
        sys.stdout.close()
    os.close(read)


async def write(page: Page, text: str) -> None:
    await page.get_by_label("What to say").fill(text)
    await page.get_by_role("button", name="Say", exact=True).click()


async def test_a_bot_is_tried_by_hand(browser: Browser) -> None:
    async with FakeDiscord(figures=relaxed()) as fake, aiohttp.ClientSession() as http:
        bot, general = RawBot(fake, http), fake.channel("general").id
        page = await browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        await page.goto(fake.url)
        await expect(page.get_by_role("status")).to_have_text("no bot is connected")
        async with bot.session() as socket:
            await expect(page.get_by_role("status")).to_have_text("a bot is connected")
            await write(page, "**hello** <img src=x onerror=alert(1)> @trunkline")
            told = await socket.until("MESSAGE_CREATE")
            assert told["mentions"][0]["id"] == str(fake.bot_id)
            await expect(page.locator("#messages strong")).to_have_text("hello")
            await expect(page.locator("#messages .mention")).to_have_text("@trunkline")

            key = (await bot.send(general, "ready?", components=BUTTONS)).body["id"]
            await page.locator(f"#m{key}").get_by_role("button", name="Go").click()
            pressed = await socket.until("INTERACTION_CREATE")
            assert pressed["data"]["custom_id"] == "go"
            path = f"/interactions/{pressed['id']}/{pressed['token']}/callback"
            await bot.call("POST", path, {"type": 7, "data": {"content": "gone", "components": []}})
            await expect(page.locator(f"#m{key} .text")).to_contain_text("gone(edited 1")

            ask = {"name": "ask", "description": "x"}
            question = {"type": 3, "name": "question", "description": "x"}
            await bot.call("PUT", f"/applications/{fake.bot_id}/commands", [{**ask, "options": [question]}])
            await expect(page.locator("#problems")).to_be_hidden()
            await write(page, "/ask why is it so")
            asked = await socket.until("INTERACTION_CREATE")
            assert asked["data"]["options"][0]["value"] == "why is it so"

            await page.get_by_label("A person's name").fill("bob")
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", level=2)).to_have_text("@bob")
            await write(page, "psst")
            told = await socket.until("MESSAGE_CREATE")
            assert (told["author"]["username"], told.get("guild_id")) == ("bob", None)
            await bot.send(int(told["channel_id"]), "@everyone", bogus=1)
            await expect(page.locator("#problems")).to_contain_text("no such parameter")
        assert errors == []
        await page.close()
