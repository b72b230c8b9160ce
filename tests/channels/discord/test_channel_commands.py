"""Commands, menus and approvals, from end to end."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from channels.discord.fake import FakeDiscord, Message
from channels.discord.fake.state import SUPPRESS_EMBEDS, VOICE_MESSAGE
from gateway import Attachment, Plugin, Tool, ToolOutput, tool_from
from gateway.testing.faults import FAULTS
from gateway.testing.models import FakeModels
from gateway.testing.script import Gate, Reply, Say, Use
from tests.channels.discord.talking import CREATE, EDIT, REGISTER, gateway_at, settled, until
from tests.recordings import MP3, SILENCE, Speaking, ogg_opus

SPOKEN = Speaking(("audio/ogg", ogg_opus(), "said.ogg"))
ASK: dict[str, Any] = {"permissions": {"measure": "ask"}}


class Measuring(Plugin):
    """Two tools: one that says something, and one that draws."""

    name = "measuring"

    def tools(self) -> Sequence[Tool]:
        async def measure(what: str) -> str:
            """Measure something."""
            return f"{what} is 5 long"

        async def draw() -> ToolOutput:
            """Draw something."""
            return ToolOutput("done", attachments=(Attachment("image/png", "aGVsbG8=", "plan.png"),))

        return [tool_from(measure), tool_from(draw)]


async def registered(fake: FakeDiscord) -> None:
    await fake.until(lambda: bool(fake.transcript.of(REGISTER)))


def bots(fake: FakeDiscord, chat: Any) -> list[Message]:
    return [message for message in fake.messages(chat) if message.author == fake.bot_id]


async def test_a_typed_command_is_answered(fake: FakeDiscord, tmp_path: Path) -> None:
    async with gateway_at(fake, tmp_path) as gateway:
        fake.say(fake.dm("ada"), "/model")
        fake.say("general", f"{fake.mention} /model")
        await settled(gateway, 2)
    assert "fake-small" in fake.answers("general")[0]
    assert fake.answers("general") == fake.answers(fake.dm("ada"))
    fake.transcript.check()


async def test_a_slash_command_is_acknowledged_and_answered_in_its_place(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    async with gateway_at(fake, tmp_path) as gateway:
        await registered(fake)
        first = fake.slash("general", "model", {"text": "openai/other"})
        fake.slash(fake.dm("ada"), "ask", {"text": "hello"})
        await settled(gateway, 2)
    (answer,) = fake.messages("general")
    assert "other" in answer.content
    assert not answer.loading
    assert fake.interaction(first).response == answer.id
    assert fake.answers(fake.dm("ada")) == ["You said: hello"]
    assert fake.transcript.of(CREATE) == []
    fake.transcript.check()


async def test_a_slash_command_that_was_cut_by_a_crash_is_answered_in_its_place(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    async with FakeModels() as models:
        models.then(Reply((Gate(asyncio.Event()),)))
        async with gateway_at(fake, tmp_path, models=models, more={"limits": {"drain_seconds": 0}}):
            await registered(fake)
            fake.slash("general", "ask", {"text": "hello"})
            await until(lambda: bool(fake.messages("general")) and bool(models.requests))
        async with gateway_at(fake, tmp_path, models=models) as gateway:
            await settled(gateway, 1)
    (answer,) = fake.messages("general")
    assert (answer.content, answer.loading) == ("You said: hello", False)
    fake.transcript.check()


async def test_a_slash_command_whose_time_is_over_is_answered_in_the_room(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models) as gateway:
        await registered(fake)
        go_on = asyncio.Event()
        models.then(Reply((Gate(go_on), Say("late"))))
        fake.slash("general", "ask", {"text": "hello"})
        await fake.until(lambda: bool(fake.messages("general")))
        fake.advance(1000)
        go_on.set()
        await settled(gateway, 1)
    assert fake.answers("general")[-1] == "late"
    assert fake.answers("general").count("late") == 1


async def test_commands_are_registered_only_when_they_are_new(fake: FakeDiscord, tmp_path: Path) -> None:
    for _ in range(2):
        async with gateway_at(fake, tmp_path):
            await registered(fake)
    async with gateway_at(fake, tmp_path) as gateway:
        fake.say(fake.dm("ada"), "hello")
        await settled(gateway, 1)
    (call,) = fake.transcript.of(REGISTER)
    names = {command["name"] for command in call.arguments["body"]} if "body" in call.arguments else None
    assert names is None or {"ask", "help", "model", "Ask about this"} <= names
    fake.transcript.check()


async def test_the_menu_of_a_message_asks_about_it(fake: FakeDiscord, tmp_path: Path) -> None:
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models) as gateway:
        await registered(fake)
        said = fake.say("general", "the moon is a cheese", "bob")
        fake.pick("general", "Ask about this", said)
        fake.pick("general", "Ask about this person", fake.user("bob"))
        await settled(gateway, 2)
        asked = [request.user_text for request in models.requests]
    assert any("> Bob wrote: the moon is a cheese" in text for text in asked), asked
    assert any("Who is Bob" in text for text in asked)
    fake.transcript.check()


async def test_a_person_allows_a_tool_with_a_button(fake: FakeDiscord, tmp_path: Path) -> None:
    async with (
        FakeModels() as models,
        gateway_at(fake, tmp_path, models=models, plugins=[Measuring()], more=ASK) as gateway,
    ):
        models.then(Reply((Use("measure", '{"what": "the table"}'),), "tools"))
        fake.say("general", f"{fake.mention} go")
        await fake.until(lambda: any(m.components for m in bots(fake, "general")))
        (prompt,) = [m for m in bots(fake, "general") if m.components]
        assert "measure" in prompt.content
        assert "the table" in prompt.content
        buttons = [b["custom_id"] for b in prompt.components[0]["components"]]
        stranger = fake.press("general", prompt.id, buttons[0], "bob")
        await fake.until(lambda: fake.interaction(stranger).state == "answered")
        fake.press("general", prompt.id, buttons[0])
        await settled(gateway, 1)
        await fake.until(lambda: "Allowed once" in fake.message("general", prompt.id).content)
        assert "the table is 5 long" in str(models.requests[-1].body)
    whispered = [m for m in bots(fake, "general") if m.ephemeral]
    assert ["Only the person" in m.content for m in whispered] == [True]
    assert fake.message("general", prompt.id).components == ()
    fake.transcript.check()


async def test_a_button_of_before_a_restart_says_that_it_is_expired(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    async with FakeModels() as models:
        models.then(Reply((Use("measure", '{"what": "the table"}'),), "tools"))
        more = ASK | {"limits": {"drain_seconds": 0}}
        async with gateway_at(fake, tmp_path, models=models, plugins=[Measuring()], more=more):
            fake.say("general", f"{fake.mention} go")
            await fake.until(lambda: any(m.components for m in bots(fake, "general")))
            (prompt,) = [m for m in bots(fake, "general") if m.components]
            fake.transcript.check()
            fake.forbid("general", "SEND_MESSAGES")
        fake.permit("general", "SEND_MESSAGES")
        async with gateway_at(fake, tmp_path, models=models, plugins=[Measuring()]) as gateway:
            await settled(gateway, 1)
            if fake.message("general", prompt.id).components:
                button = prompt.components[0]["components"][0]["custom_id"]
                fake.press("general", prompt.id, button)
                await fake.until(lambda: not fake.message("general", prompt.id).components)
    fake.transcript.check()


async def test_tools_and_their_files_are_shown(fake: FakeDiscord, tmp_path: Path) -> None:
    async with (
        FakeModels() as models,
        gateway_at(fake, tmp_path, models=models, plugins=[Measuring()]) as gateway,
    ):
        models.then(Reply((Use("draw"),), "tools"), Reply((Say("There it is."),)))
        fake.say(fake.dm("ada"), "draw")
        await settled(gateway, 1)
    (answer,) = bots(fake, fake.dm("ada"))
    assert answer.content.startswith("-# 🔧 `draw` ✓")
    assert answer.content.endswith("There it is.")
    (file,) = answer.attachments
    assert (file.filename, file.data) == ("plan.png", b"hello")
    assert len(fake.transcript.of(CREATE)) == 1
    assert fake.transcript.of(EDIT)
    fake.transcript.check()


async def test_what_is_spoken_comes_as_a_voice_message(fake: FakeDiscord, tmp_path: Path) -> None:
    packets = [SILENCE] * 10 + [SILENCE + bytes(90)] * 5
    spoken = Speaking(
        ("audio/ogg", ogg_opus(packets=packets), "said.ogg"),
        ("audio/mpeg", MP3, "sung.mp3"),
        ("audio/ogg; codecs=opus", ogg_opus(30), "long"),
    )
    async with (
        FakeModels() as models,
        gateway_at(fake, tmp_path, models=models, plugins=[spoken]) as gateway,
    ):
        models.then(Reply((Use("speak"),), "tools"))
        fake.say("general", f"{fake.mention} say it aloud")
        await settled(gateway, 1)
    text, short, long = bots(fake, "general")
    assert [file.filename for file in text.attachments] == ["sung.mp3"]
    assert (short.flags, long.flags) == (VOICE_MESSAGE, VOICE_MESSAGE)
    [file] = short.attachments
    assert (file.filename, file.data) == ("said.ogg", ogg_opus(packets=packets))
    assert (file.duration_secs, base64.b64decode(file.waveform or "")) == (0.3, bytes([8, 8, 255]))
    [file] = long.attachments
    assert (file.filename, file.duration_secs) == ("long.oga", 30.0)
    assert base64.b64decode(file.waveform or "") == bytes([255] * 256)
    fake.transcript.check()


async def test_where_nobody_may_speak_a_recording_is_a_file(fake: FakeDiscord, tmp_path: Path) -> None:
    fake.forbid("general", "SEND_VOICE_MESSAGES")
    async with (
        FakeModels() as models,
        gateway_at(fake, tmp_path, models=models, plugins=[SPOKEN], tools=False) as gateway,
    ):
        await registered(fake)
        models.then(*[Reply((Use("speak"),), "tools"), Reply(())] * 2)
        fake.say("general", f"{fake.mention} say it aloud")
        await settled(gateway, 1)
        fake.slash(fake.dm("ada"), "ask", {"text": "say it aloud"})
        await settled(gateway, 2)
    [refused] = bots(fake, "general")
    [instead_of_thinking] = bots(fake, fake.dm("ada"))
    for message in (refused, instead_of_thinking):
        assert not message.flags & VOICE_MESSAGE
        assert message.attachments[0].data == ogg_opus()
    fake.transcript.check()


async def test_a_voice_message_that_goes_wrong_is_made_good_and_not_doubled(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    async with (
        FakeModels() as models,
        gateway_at(fake, tmp_path, models=models, streaming=False, plugins=[SPOKEN]) as gateway,
    ):
        models.then(Reply((Use("speak"),), "tools"))
        fake.say(fake.dm("ada"), "say it aloud")
        fake.then("none", *FAULTS, method=CREATE)
        await settled(gateway, 1)
    assert [said.flags for said in bots(fake, fake.dm("ada"))] == [SUPPRESS_EMBEDS, VOICE_MESSAGE]
    fake.transcript.check()
