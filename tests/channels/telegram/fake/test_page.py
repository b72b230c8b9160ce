"""Page of the fake Telegram, in a browser and over HTTP."""

from __future__ import annotations

import asyncio
import base64
import sys
from pathlib import Path
from typing import Any

import aiohttp
from playwright.async_api import Browser, expect
from telegram import Bot, InlineKeyboardButton, InlineKeyboardMarkup

from channels.telegram.fake import FakeTelegram
from tests.channels.telegram.pictures import png

ROOT = Path(__file__).parents[4]
BUTTONS = InlineKeyboardMarkup([[InlineKeyboardButton("Allow", callback_data="y")]])


async def test_a_person_writes_presses_and_stops_on_the_page(
    fake: FakeTelegram, bot: Bot, own_browser: Browser
) -> None:
    chat = fake.private("Ada")
    page = await own_browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    await page.goto(fake.url)
    await page.get_by_label("Message", exact=True).fill("What is <b>a trunk line</b>?")
    await page.keyboard.press("Enter")
    (update,) = await bot.get_updates(timeout=20)
    assert update.message is not None
    assert update.message.text == "What is <b>a trunk line</b>?"
    await update.message.reply_text(
        "*A line* [there](https://example.org)", "MarkdownV2", reply_markup=BUTTONS
    )
    bubble = page.locator(".bot .bubble")
    await expect(bubble.locator("strong").last).to_have_text("A line")
    await expect(bubble.locator("a")).to_have_attribute("href", "https://example.org/")
    await page.get_by_role("button", name="Allow").click()
    (pressed,) = await bot.get_updates(offset=update.update_id + 1, timeout=20)
    assert pressed.callback_query is not None
    await pressed.callback_query.answer("Noted")
    await expect(page.locator(".toast")).to_have_text("“Noted”")
    fake.send(chat, png(), caption="look")
    await expect(page.locator("img")).to_have_js_property("naturalWidth", 300)
    await bot.send_message_draft(chat, 7, "Thinking of it", api_kwargs={"can_stop": True})
    await expect(page.locator(".draft")).to_contain_text("Thinking of it")
    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator(".draft")).to_have_count(0)
    assert errors == []


async def test_the_page_shows_what_the_platform_objects_to(fake: FakeTelegram, own_browser: Browser) -> None:
    fake.private("Ada")
    page = await own_browser.new_page()
    await page.goto(fake.url)
    async with aiohttp.ClientSession() as http:
        await http.post(f"{fake.base_url}{fake.token}/sendMessage", json={"chat_id": 1})
    await expect(page.locator("#problems summary")).to_have_text("Problems (1)")
    await page.get_by_label("New private chat with").fill("Cleo")
    await page.get_by_role("button", name="Open").click()
    await expect(page.get_by_role("heading", name="Cleo")).to_be_visible()
    await page.get_by_role("button", name="Block the bot").click()
    await expect(page.get_by_role("button", name="Unblock the bot")).to_be_visible()


async def test_only_json_is_taken_from_pages(fake: FakeTelegram) -> None:
    """A page of another origin can post a form, but not JSON."""
    chat = fake.private("Ada")
    async with aiohttp.ClientSession() as http:
        form = await http.post(f"{fake.url}/_fake/say", data={"chat": str(chat), "text": "Hi"})
        wrong = await http.post(f"{fake.url}/_fake/press", json={"chat": chat, "message": 1, "button": "x"})
        said = await http.post(f"{fake.url}/_fake/say", json={"chat": chat, "text": "Hi"})
        outside = await http.get(f"{fake.url}/_fake/page/..%2fserver.py")
        assert [form.status, wrong.status, said.status, outside.status] == [415, 400, 200, 404]
    assert [message.text for message in fake.messages(chat)] == ["Hi"]


async def test_people_send_files_over_http(fake: FakeTelegram) -> None:
    chat = fake.private("Ada")
    file = {"chat": chat, "name": "a.txt", "data": base64.b64encode(b"hi").decode(), "caption": "look"}
    async with aiohttp.ClientSession() as http:
        sent = await http.post(f"{fake.url}/_fake/send", json=file)
        wrong = await http.post(f"{fake.url}/_fake/send", json=file | {"data": "not base64!"})
        (said,) = (await (await http.get(f"{fake.url}/_fake/state")).json())["rooms"][0]["messages"]
        data = await (await http.get(f"{fake.url}/_fake/file/{said['document']['file_id']}")).read()
    assert [sent.status, wrong.status] == [200, 400]
    assert (said["caption"], said["document"]["mime_type"], data) == ("look", "text/plain", b"hi")


async def test_it_runs_alone_and_says_where() -> None:
    alone = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "channels.telegram.fake",
        "--token",
        "1:abc",
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert alone.stdout is not None
    try:
        async with asyncio.timeout(60), aiohttp.ClientSession() as http:
            url = (await alone.stdout.readline()).decode().strip()
            async with http.get(f"{url}/bot1:abc/getMe") as answer:
                assert (await answer.json())["result"]["username"] == "fake_bot"
            async with http.get(f"{url}/_fake/state") as answer:
                rooms = (await answer.json())["rooms"]
        assert [room["chat"].get("title", "") for room in rooms] == ["", "", "Lab", "Street", "Forum"]
    finally:
        alone.terminate()
        await alone.wait()


async def test_an_open_page_gets_changes_at_once(fake: FakeTelegram) -> None:
    chat = fake.private("Ada")
    async with aiohttp.ClientSession() as http:
        before = await (await http.get(f"{fake.url}/_fake/state")).json()
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(_state(http, f"{fake.url}/_fake/state?after={before['version']}"))
            await asyncio.sleep(0)
            fake.say(chat, "Hi")
    assert watching.result()["rooms"][0]["messages"][0]["text"] == "Hi"


async def _state(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with http.get(url) as answer:
        return await answer.json()
