"""The fake Telegram with a third-party client: grammY, under Node.js."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from channels.telegram.fake import FakeTelegram
from gateway.testing.served import until
from tests.channels.telegram.pictures import png


@asynccontextmanager
async def grammy(fake: FakeTelegram, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a bot of grammY that polls the fake platform."""
    client = await asyncio.create_subprocess_exec(
        "node", str(folder / "client.mjs"), fake.url, fake.token, stdout=asyncio.subprocess.PIPE
    )
    assert client.stdout is not None
    try:
        async with asyncio.timeout(60):
            assert await client.stdout.readline() == b"@fake_bot polls\n"
        yield client
    finally:
        if client.returncode is None:
            client.kill()
        await client.wait()


async def test_grammy_does_what_a_bot_does(fake: FakeTelegram, foreign: Path) -> None:
    chat = fake.private("Ada")
    async with grammy(fake, foreign) as client:
        said = fake.say(chat, "Hi 😀")
        await until(lambda: fake.answers(chat) == ["You said: Hi 😀"])
        assert fake.messages(chat)[0].reactions[fake.world.bot.id][0]["emoji"] == "👀"
        assert fake.messages(chat)[1].reply_to == said
        fake.edit(chat, said, "Ho")
        await until(lambda: fake.answers(chat)[1:] == ["Now you say: Ho"])
        fake.say(chat, "/ask")
        await until(lambda: fake.answers(chat)[2:] == ["Well?"])
        query = fake.press(chat, fake.chat(chat).newest().id, "Yes")
        await until(lambda: fake.answers(chat)[2:] == ["Good"])
        assert query.answer == {"text": "Got y"}
        fake.send(chat, png(1600, 800))
        await until(lambda: fake.answers(chat)[3:] == [f"4 sizes, {len(png(1600, 800))} bytes"])
        fake.say(chat, "/file")
        await until(lambda: fake.answers(chat)[4:] == ["here"])
        assert fake.messages(chat)[-1].media["document"]["file_name"] == "note.txt"
        fake.say(chat, "/draft")
        await until(lambda: len(fake.drafts(chat)) == 1)
        fake.stop(chat)
        await until(lambda: fake.answers(chat)[5:] == ["Stopped"])
        fake.transcript.check()
        fake.say(chat, "/wrong")
        await until(lambda: "reserved" in fake.answers(chat)[-1])
        assert len(fake.transcript.problems) == 1
        fake.say(chat, "/quit")
        assert await client.wait() == 0
    (commands,) = fake.world.commands.values()
    assert commands == [{"command": "ask", "description": "Ask something"}]


async def test_grammy_answers_in_the_topic_it_was_asked_in(fake: FakeTelegram, foreign: Path) -> None:
    forum = fake.group("Forum", "Ada", forum=True, admin=True)
    topic = fake.topic(forum, "News", "Ada")
    async with grammy(fake, foreign):
        fake.say(forum, "Hi", "Ada", thread=topic)
        await until(lambda: fake.answers(forum) == ["You said: Hi"])
    assert fake.messages(forum)[-1].thread == topic
    fake.transcript.check()
