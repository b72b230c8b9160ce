"""The fake with discord.js, a client in another language."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from channels.discord.fake import FakeDiscord, Figures
from tests.channels.discord.raw_bot import misfits

_PATIENCE = 60.0


@asynccontextmanager
async def platform(foreign: Path) -> AsyncGenerator[FakeDiscord]:
    """Run a platform with a bot of discord.js that has logged in and registered its command."""
    async with FakeDiscord(figures=Figures(identify_interval=0)) as fake:
        process = await asyncio.create_subprocess_exec(
            "node", str(foreign / "client.mjs"), f"{fake.url}/api", fake.token
        )
        try:
            registered = "PUT /applications/{application_id}/commands"
            await fake.until(lambda: bool(fake.transcript.of(registered)), _PATIENCE)
            yield fake
        finally:
            process.kill()
            await process.wait()
        fake.transcript.check()
        assert misfits(fake) == []


async def test_discord_js_answers_edits_and_reacts(foreign: Path) -> None:
    async with platform(foreign) as fake:
        key = fake.say("general", "echo")
        await fake.until(lambda: bool(fake.message("general", key).reactions), _PATIENCE)
        assert fake.answers("general") == ["two"]
        assert fake.messages("general")[-1].versions == ("one, ada",)
        private = fake.dm("bob")
        fake.say(private, "echo", "bob")
        await fake.until(lambda: fake.answers(private) == ["two"], _PATIENCE)


async def test_discord_js_answers_commands_and_buttons(foreign: Path) -> None:
    async with platform(foreign) as fake:
        key = fake.slash("general", "ask", {"question": "why?"})
        await fake.until(lambda: len(fake.interaction(key).followups) == 1, _PATIENCE)
        assert fake.answers("general") == ["you asked: why?", "privately"]
        fake.say("general", "buttons")
        await fake.until(lambda: fake.answers("general")[-1] == "ready?", _PATIENCE)
        fake.press("general", fake.messages("general")[-1].id, "go", "bob")
        await fake.until(lambda: fake.answers("general")[-1] == "bob went", _PATIENCE)


async def test_discord_js_resumes_and_hears_what_it_missed(foreign: Path) -> None:
    async with platform(foreign) as fake:
        fake.sever()
        fake.say("general", "echo")
        await fake.until(lambda: fake.answers("general") == ["two"], _PATIENCE)
        fake.ask_reconnect()
        fake.say("general", "echo")
        await fake.until(lambda: fake.answers("general") == ["two", "two"], _PATIENCE)
        assert len(fake.transcript.of("IDENTIFY")) == 1


async def test_discord_js_reads_files_threads_history_and_refusals(foreign: Path) -> None:
    async with platform(foreign) as fake:
        fake.say("general", "file", attach={"a.txt": b"contents"})
        await fake.until(lambda: fake.answers("general") == ["contents"], _PATIENCE)
        key = fake.say("general", "thread")
        await fake.until(lambda: bool(fake.threads("general")) and "in here" in fake.answers(key), _PATIENCE)
        fake.say("general", "history")
        await fake.until(lambda: fake.answers("general")[-1] == "thread contents", _PATIENCE)
        fake.forbid("general", "SEND_MESSAGES")
        fake.say("general", "forbidden")
        await fake.until(lambda: fake.answers(fake.dm("ada")) == ["refused: 50013"], _PATIENCE)


async def test_discord_js_keeps_to_the_limits(foreign: Path) -> None:
    async with platform(foreign) as fake:
        fake.say("general", "many")
        await fake.until(lambda: len(fake.answers("general")) == 6, _PATIENCE)
        sent = fake.transcript.of("POST /channels/{channel_id}/messages")
        assert {call.status for call in sent} == {200}
