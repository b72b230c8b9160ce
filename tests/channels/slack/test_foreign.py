"""The fake against Slack's own JavaScript library, under Node.js."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from channels.slack.fake import FakeSlack


@asynccontextmanager
async def javascript(fake: FakeSlack, folder: Path, mode: str) -> AsyncGenerator[str]:
    """Run the client. Yields what it printed when ready."""
    client = await asyncio.create_subprocess_exec(
        "node",
        str(folder / "client.mjs"),
        mode,
        fake.api_url,
        fake.bot_token,
        fake.app_token,
        fake.app.signing_secret,
        stdout=asyncio.subprocess.PIPE,
    )
    assert client.stdout is not None
    try:
        async with asyncio.timeout(60):
            while True:
                line = (await client.stdout.readline()).decode().strip()
                assert line or client.returncode is None
                if line == "ready" or line.isdigit():
                    break
        yield line
    finally:
        if client.returncode is None:
            client.kill()
        await client.wait()


async def test_bolt_for_javascript_does_what_an_app_does_over_a_socket(foreign: Path) -> None:
    async with FakeSlack() as fake, javascript(fake, foreign, "socket"):
        await fake.until(lambda: fake.sockets.live)
        await _play(fake)


async def test_bolt_for_javascript_does_what_an_app_does_by_http(foreign: Path) -> None:
    async with FakeSlack() as fake, javascript(fake, foreign, "http") as port:
        await fake.register(f"http://127.0.0.1:{port}/slack/events")
        await _play(fake)


async def test_bolt_for_javascript_comes_back_after_a_renewal(foreign: Path) -> None:
    async with FakeSlack() as fake, javascript(fake, foreign, "socket"), asyncio.TaskGroup() as tasks:
        await fake.until(lambda: fake.sockets.live)
        tasks.create_task(fake.refresh_sockets())
        await fake.until(lambda: fake.sockets.opened == 2 and len(fake.sockets.live) == 1)
        fake.say("general", "find")
        await fake.until(lambda: fake.answers("general") == ["found "])
        fake.clock.advance(10)


async def _play(fake: FakeSlack) -> None:
    """Use all abilities of the client as a user, in a direct chat and in a channel."""
    root = fake.say("general", "hello @trunkline")
    await fake.until(lambda: fake.answers("general") == ["**You mentioned me**"])
    streamed = fake.messages("general", thread=root)[-1]
    await fake.until(lambda: not fake.messages("general", thread=root)[-1].streaming)
    assert streamed.thread == root
    chat = "@bob"
    fake.say(chat, "ask", "bob")
    await fake.until(lambda: fake.answers(chat) == ["*Well?*"])
    assert fake.messages(chat)[0].reactions.keys() == {"eyes"}
    fake.say(chat, "find", "bob")
    await fake.until(lambda: fake.answers(chat)[1:] == ["found n1"])
    await fake.press(chat, fake.messages(chat)[1].ts, "Yes", "bob").settled()
    await fake.until(lambda: fake.answers(chat)[0] == "Good")
    fake.say(chat, "ask", "bob")
    await fake.until(lambda: fake.answers(chat)[2:] == ["*Well?*"])
    await fake.press(chat, fake.messages(chat)[-1].ts, "No", "bob").settled()
    await fake.until(lambda: fake.answers(chat)[2:] == ["Bad"])
    fake.say(chat, "upload", "bob")
    await fake.until(lambda: fake.answers(chat)[3:] == ["here"])
    assert fake.messages(chat)[-1].files == ("note.txt",)
    fake.say(chat, "fetch", "bob", files=[("picture.png", b"12345")])
    await fake.until(lambda: fake.answers(chat)[4:] == ["5 bytes"])
    fake.say(chat, "wrong", "bob")
    await fake.until(lambda: fake.answers(chat)[5:] == ["cant_update_message"])
    await fake.command(chat, "/ask everything", "bob").settled()
    assert [said.text for said in fake.hidden(chat, "bob")] == ["about everything"]
    await fake.shortcut("open", "bob").settled()
    await fake.until(lambda: fake.state.views)
    assert fake.transcript.problems == ["chat.update: the message has another author"]
