"""The Discord channel from end to end: a gateway, a model and the platform, over real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from channels.discord.fake import FakeDiscord
from gateway.testing.models import FakeModels
from gateway.testing.script import Gate, Reply, Say
from tests.channels.discord.talking import CREATE, EDIT, REGISTER, gateway_at, settled


async def test_a_direct_message_is_answered(fake: FakeDiscord, tmp_path: Path) -> None:
    async with gateway_at(fake, tmp_path) as gateway:
        dm = fake.dm("ada")
        fake.say(dm, "hello")
        await settled(gateway, 1)
    assert fake.answers(dm) == ["You said: hello"]
    fake.transcript.check()


async def test_a_mention_in_a_channel_is_answered_with_a_reply(fake: FakeDiscord, tmp_path: Path) -> None:
    async with gateway_at(fake, tmp_path) as gateway:
        fake.say("general", "not for the bot")
        asked = fake.say("general", f"{fake.mention} hello")
        await settled(gateway, 1)
    answer = fake.messages("general")[-1]
    assert answer.content == "You said: hello"
    assert answer.reference is not None
    assert answer.reference.message == asked
    fake.transcript.check()


@pytest.mark.parametrize(
    ("when", "heard"),
    [
        ("mention", ["mentioned", "replied", "/status"]),
        ("reply", ["replied", "/status"]),
        ("command", ["/status"]),
        ("always", ["nothing", "mentioned", "replied", "/status", "/nothing known"]),
    ],
)
async def test_when_it_answers_in_servers_is_a_matter_of_settings(
    fake: FakeDiscord, tmp_path: Path, when: str, heard: list[str]
) -> None:
    async with gateway_at(fake, tmp_path, groups=when) as gateway:
        asked = await standing(fake)
        fake.say("general", "nothing")
        fake.say("general", f"{fake.mention} mentioned")
        fake.say("general", "replied", reply_to=asked)
        fake.say("general", "/status")
        fake.say("general", "/nothing known")
        await settled(gateway, len(heard) + 1)
    said = [answer for answer in fake.answers("general") if answer.startswith("You said")]
    assert said[1:] == [f"You said: {text}" for text in heard if not text.startswith("/")]
    fake.transcript.check()


async def standing(fake: FakeDiscord) -> int:
    """A message of the bot that people can reply to."""
    await fake.until(lambda: bool(fake.transcript.of(REGISTER)))
    fake.slash("general", "ask", {"text": "for later"})
    await fake.until(lambda: bool(fake.answers("general")) and bool(fake.answers("general")[-1]))
    return fake.messages("general")[-1].id


async def test_an_answer_grows_while_it_is_made_and_typing_is_shown(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models) as gateway:
        begin, go_on = asyncio.Event(), asyncio.Event()
        models.then(Reply((Gate(begin), Say("one"), Gate(go_on), Say(" two"))))
        fake.say("general", f"{fake.mention} hello")
        await fake.until(lambda: fake.is_typing("general"))
        begin.set()
        await fake.until(lambda: fake.answers("general") == ["one"])
        go_on.set()
        await settled(gateway, 1)
    assert fake.answers("general") == ["one two"]
    assert len(fake.transcript.of(CREATE)) == 1
    fake.transcript.check()


async def test_without_streaming_only_the_finished_answer_is_shown(fake: FakeDiscord, tmp_path: Path) -> None:
    async with (
        FakeModels() as models,
        gateway_at(fake, tmp_path, models=models, streaming=False) as gateway,
    ):
        models.then(Reply(tuple(Say(f"{n} ") for n in range(50))))
        fake.say("general", f"{fake.mention} hello")
        await settled(gateway, 1)
    assert len(fake.transcript.of(CREATE, EDIT)) == 1
    assert fake.messages("general")[-1].versions == ()


async def test_nobody_is_pinged_whatever_the_model_writes(fake: FakeDiscord, tmp_path: Path) -> None:
    role = fake.guild
    evil = f"@everyone @here {fake.mention} <@{fake.user('bob').id}> <@&{role}> <#{role}>"
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models) as gateway:
        go_on = asyncio.Event()
        models.then(Reply((Say("so "), Gate(go_on), Say(evil))))
        asked = fake.say("general", f"{fake.mention} hello")
        await fake.until(lambda: fake.answers("general") == ["so"])
        go_on.set()
        await settled(gateway, 1)
    answer = fake.messages("general")[-1]
    assert not answer.mentions
    assert "@everyone" not in answer.content
    assert answer.flags & 1 << 2, "links are not shown"
    assert asked
    fake.transcript.check()


async def test_a_long_answer_takes_several_messages_in_order(fake: FakeDiscord, tmp_path: Path) -> None:
    paragraphs = [f"Paragraph {number}. " + "word " * 150 for number in range(8)]
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models) as gateway:
        models.then(Reply(tuple(Say(text + "\n\n") for text in paragraphs)))
        fake.say("general", f"{fake.mention} hello")
        await settled(gateway, 1)
    answers = fake.answers("general")
    assert 3 <= len(answers) <= 6
    assert all(len(answer) <= 2000 for answer in answers)
    assert " ".join("\n\n".join(answers).split()) == " ".join("".join(paragraphs).split())
    assert [m.kind for m in fake.messages("general")[1:]] == [19] + [0] * (len(answers) - 1)
    fake.transcript.check()


async def test_a_very_long_answer_is_a_file(fake: FakeDiscord, tmp_path: Path) -> None:
    text = "\n\n".join(f"Paragraph {number}. " + "word " * 300 for number in range(20))
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models, pages=3) as gateway:
        models.then(Reply((Say(text),)))
        fake.say("general", f"{fake.mention} hello")
        await settled(gateway, 1)
    (answer,) = [m for m in fake.messages("general") if m.author == fake.bot_id]
    assert answer.content.startswith("Paragraph 0.")
    assert "in the file" in answer.content
    (file,) = answer.attachments
    assert file.filename == "answer.md"
    assert file.data.decode().strip() == text.strip()
    fake.transcript.check()
