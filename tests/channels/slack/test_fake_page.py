"""Page of the fake: its requests, its server, and the page in a browser."""

from __future__ import annotations

import asyncio
import base64
import sys
from pathlib import Path
from typing import Any

import aiohttp

from channels.slack.fake import FakeSlack
from tests.channels.slack.apps import connect, plain

ROOT = Path(__file__).parents[3]


async def act(http: aiohttp.ClientSession, fake: FakeSlack, name: str, **given: Any) -> int:
    """Act as a user of the page. Returns the status."""
    async with http.post(f"{fake.url}/_fake/{name}", json=given) as answer:
        return answer.status


async def test_channels_are_listed_and_every_action_works() -> None:
    async with plain() as (fake, api):
        assert await act(api.http, fake, "say", chat="general", text="hi", user="bob") == 200
        ts = fake.messages("general")[0].ts
        assert await act(api.http, fake, "react", chat="general", ts=ts, emoji="eyes") == 200
        assert await act(api.http, fake, "edit", chat="general", ts=ts, text="ho", user="bob") == 200
        assert await act(api.http, fake, "open", chat="@ada") == 200
        assert await act(api.http, fake, "command", chat="general", text="/ask") == 200
        async with api.http.get(f"{fake.url}/_fake/state") as answer:
            told = await answer.json()
        rooms = {room["name"]: room for room in told["teams"][0]["rooms"]}
        message = rooms["general"]["messages"][0]
        assert (message["user"], message["text"], message["edited"]) == ("bob", "ho", True)
        assert list(message["reactions"]) == ["eyes"]
        assert rooms[""]["kind"] == "im"
        assert await act(api.http, fake, "delete", chat="general", ts=ts) == 200
        assert fake.messages("general") == []


async def test_people_send_files_on_the_page() -> None:
    async with plain() as (fake, api):
        file = {"a.txt": base64.b64encode(b"hi").decode()}
        assert await act(api.http, fake, "say", chat="general", text="look", files=file) == 200
        assert await act(api.http, fake, "say", chat="general", text="x", files={"a": "no base64!"}) == 400
        (said,) = fake.messages("general")
        (shown,) = said.raw["files"]
        assert fake.state.files[shown["id"]].content == b"hi"


async def test_the_page_tells_whether_the_app_acknowledged_a_press() -> None:
    async with plain() as (fake, api):
        button = {"type": "button", "action_id": "go", "text": {"type": "plain_text", "text": "Go"}}
        blocks = [{"type": "actions", "elements": [button]}]
        sent = await api.call("chat.postMessage", channel="general", text="?", blocks=blocks)
        socket = await connect(fake, api)
        pressed = {"chat": "general", "ts": sent["ts"], "what": "Go"}
        async with api.http.post(f"{fake.url}/_fake/press", json=pressed) as answer:
            delivery = {"envelope": (await answer.json())["result"]}

        async def acknowledged() -> bool:
            async with api.http.post(f"{fake.url}/_fake/is_acknowledged", json=delivery) as told:
                return (await told.json())["result"]

        assert not await acknowledged()
        await socket.ack(await socket.read())
        await fake.deliveries[-1].settled()
        assert await acknowledged()


async def test_what_cannot_be_done_is_said() -> None:
    async with plain() as (fake, api):
        ts = fake.say("general", "hi")
        assert await act(api.http, fake, "press", chat="general", ts=ts, what="Yes") == 400
        assert await act(api.http, fake, "stop", chat="general", thread=ts) == 400
        assert await act(api.http, fake, "dance") == 404
        form = {"chat": "general", "text": "from another page"}
        async with api.http.post(f"{fake.url}/_fake/say", data=form) as answer:
            assert answer.status == 415
        assert len(fake.messages("general")) == 1


async def test_changes_are_sent_when_they_happen() -> None:
    async with plain() as (fake, api), asyncio.TaskGroup() as tasks:

        async def wait() -> Any:
            async with api.http.get(f"{fake.url}/_fake/state?after={fake.changes.version}") as answer:
                return await answer.json()

        before = fake.changes.version
        waiting = tasks.create_task(wait())
        await asyncio.sleep(0)
        fake.say("general", "hi")
        assert (await waiting)["version"] > before


async def test_the_transcript_is_served() -> None:
    async with plain() as (fake, api):
        await api.call("auth.test", loud=True)
        async with api.http.get(f"{fake.url}/_fake/transcript") as answer:
            told = await answer.json()
        assert told["calls"][0]["method"] == "auth.test"
        assert told["problems"] == ["auth.test: unknown argument loud"]


async def test_only_the_pages_own_files_are_served() -> None:
    async with plain() as (fake, api):
        async with api.http.get(fake.url) as answer:
            assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
            assert "<title>Fake Slack</title>" in await answer.text()
        for name in ("..%2Fschema.json", "..%2Fserver.py", "app.css", "%2Fetc%2Fpasswd"):
            async with api.http.get(f"{fake.url}/_fake/page/{name}") as answer:
                assert answer.status == 404


async def test_the_program_prints_its_address_first() -> None:
    command = [sys.executable, "-m", "channels.slack.fake", "--teams", "acme,globex", "--seed", "3"]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            assert (await process.stdout.readline()).startswith(b"http://127.0.0.1:")
            facts: dict[str, str] = {}
            while "bot_token" not in facts:
                name, value, *_ = (await process.stdout.readline()).decode().split()
                facts[name] = value
        headers = {"Authorization": f"Bearer {facts['bot_token']}"}
        async with (
            aiohttp.ClientSession() as http,
            http.get(facts["api"] + "auth.test", headers=headers) as answer,
        ):
            assert (await answer.json())["team"] == "acme"
    finally:
        process.kill()
        await process.wait()


async def test_a_user_works_with_the_page(browser: Any) -> None:
    async with plain() as (fake, api):
        page = await browser.new_page()
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        await page.goto(fake.url)
        await page.wait_for_selector("#title >> text=general")
        await page.fill("#user", "bob")
        await page.fill("#text", "hello @trunkline <b>")
        await page.keyboard.press("Enter")
        await page.wait_for_selector(".message .mention >> text=@trunkline")
        assert await page.inner_text(".said") == "hello @trunkline <b>"
        root = fake.messages("general")[0].ts
        button = {"type": "button", "action_id": "yes", "text": {"type": "plain_text", "text": "Yes"}}
        blocks = [{"type": "markdown", "text": "**Really?**"}, {"type": "actions", "elements": [button]}]
        await api.call("chat.postMessage", channel="general", text="?", blocks=blocks, thread_ts=root)
        await page.wait_for_selector(".reply.bot strong >> text=Really?")
        await page.click(".actions button")
        await fake.until(lambda: fake.deliveries[-1].kind == "interactive")
        assert fake.deliveries[-1].payload["user"]["name"] == "bob"
        await page.click("#toggle")
        await page.wait_for_selector("#calls >> text=chat.postMessage")
        assert wrong == []
        await page.close()
