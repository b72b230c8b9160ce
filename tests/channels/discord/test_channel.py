"""The Discord channel from end to end: a gateway, a model and the platform, over real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from channels.discord.fake import FakeDiscord, Figures
from gateway.app import Gateway
from gateway.testing.fake_models.script import Gate, Reply, Say
from gateway.testing.fake_models.server import FakeModels
from tests.channels.discord.raw_bot import misfits
from tests.channels.discord.talking import (
    CREATE,
    EDIT,
    REGISTER,
    bot_at,
    gateway_at,
    healthy,
    sessions,
    settings_for,
    settled,
    until,
)


async def standing(fake: FakeDiscord) -> int:
    """Return a message of the bot that users can reply to."""
    await fake.until(lambda: bool(fake.transcript.of(REGISTER)))
    fake.slash("general", "ask", {"text": "for later"})
    await fake.until(lambda: bool(fake.answers("general")) and bool(fake.answers("general")[-1]))
    return fake.messages("general")[-1].id


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


async def test_no_text_of_the_model_pings_a_user(fake: FakeDiscord, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(("strategy", "count"), [("thread", 3), ("chat", 2), ("chat_user", 4)])
async def test_what_is_one_conversation_is_a_matter_of_settings(
    fake: FakeDiscord, tmp_path: Path, strategy: str, count: int
) -> None:
    thread = fake.start_thread("general", "aside")
    async with gateway_at(fake, tmp_path, session_strategy=strategy) as gateway:
        fake.say(fake.dm("ada"), "one")
        fake.say("general", f"{fake.mention} two")
        fake.say("general", f"{fake.mention} three", "bob")
        fake.say(thread, f"{fake.mention} four")
        fake.say(thread, f"{fake.mention} five", "cleo")
        await settled(gateway, 5)
        assert await sessions(gateway) == count
    assert sorted(fake.answers(thread)) == ["You said: five", "You said: four"]
    assert sorted(fake.answers("general")) == ["You said: three", "You said: two"]
    fake.transcript.check()


async def test_two_bots_answer_side_by_side(tmp_path: Path) -> None:
    async with (
        FakeDiscord(bot="one") as one,
        FakeDiscord(bot="two", token="other") as two,
        FakeModels() as models,
    ):
        settings = settings_for(tmp_path, models, {"accounts": {"a": bot_at(one), "b": bot_at(two)}})
        gateway = Gateway(settings)
        async with gateway.running():
            await until(lambda: healthy(gateway, "discord.a") and healthy(gateway, "discord.b"))
            one.say(one.dm("ada"), "hello one")
            two.say(two.dm("ada"), "hello two")
            await settled(gateway, 2)
        assert one.answers(one.dm("ada")) == ["You said: hello one"]
        assert two.answers(two.dm("ada")) == ["You said: hello two"]
        one.transcript.check()
        two.transcript.check()


async def test_a_wrong_token_is_said_plainly_and_the_others_run(
    fake: FakeDiscord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with FakeModels() as models:
        accounts = {"good": bot_at(fake), "bad": {**bot_at(fake), "token": "wrong"}, "none": {**bot_at(fake)}}
        accounts["none"]["token"] = "  "
        gateway = Gateway(settings_for(tmp_path, models, {"accounts": accounts}))
        async with gateway.running():
            await until(lambda: healthy(gateway, "discord.good"))
            await until(lambda: "token" in gateway.health()["discord.bad"][1])
            assert gateway.health()["discord.none"] == (
                False,
                "channels.discord.accounts.none.token: is missing; the page Bot of the application shows it",
            )
            fake.say(fake.dm("ada"), "hello")
            await settled(gateway, 1)
    assert fake.answers(fake.dm("ada")) == ["You said: hello"]
    written = capsys.readouterr()
    assert "on the page Bot of the application: Discord rejects it (401)" in written.out + written.err
    assert "Traceback" not in written.out + written.err


async def test_an_intent_that_is_not_switched_on_is_said_plainly(tmp_path: Path) -> None:
    async with FakeDiscord(privileged=()) as fake, FakeModels() as models:
        gateway = Gateway(settings_for(tmp_path, models, bot_at(fake)))
        async with gateway.running():
            await until(lambda: "Message Content Intent" in gateway.health()["discord"][1])


async def test_only_those_who_may_talk_to_it_are_answered(fake: FakeDiscord, tmp_path: Path) -> None:
    ada = fake.user("ada").id
    async with gateway_at(fake, tmp_path, allow=[ada]) as gateway:
        await fake.until(lambda: bool(fake.transcript.of(REGISTER)))
        fake.say(fake.dm("bob"), "hello", "bob")
        fake.say("general", f"{fake.mention} hello", "bob")
        pressed = fake.slash("general", "ask", {"text": "hello"}, "bob")
        fake.say(fake.dm("ada"), "hello")
        await fake.until(lambda: fake.interaction(pressed).state == "answered")
        await fake.until(lambda: bool(fake.answers(fake.dm("ada")) and fake.answers(fake.dm("bob"))))
        await until(lambda: gateway.parts.dispatcher.waiting == 0)
    [told] = fake.answers(fake.dm("bob"))
    assert "trunkline pair approve" in told
    (whisper,) = [m for m in fake.messages("general") if m.author == fake.bot_id]
    assert whisper.ephemeral
    assert fake.answers(fake.dm("ada")) == ["You said: hello"]
    fake.transcript.check()


@pytest.mark.slow
async def test_the_real_limits_are_kept(tmp_path: Path) -> None:
    async with FakeDiscord(figures=Figures()) as fake:
        async with FakeModels() as models, gateway_at(fake, tmp_path, models=models) as gateway:
            models.then(Reply(tuple(Say(f"word{n} " * 40) for n in range(30))))
            fake.say("general", f"{fake.mention} hello")
            for number in range(4):
                fake.say(fake.dm("ada"), f"/help {number}")
            await settled(gateway, 5, seconds=60)
        assert {call.status for call in fake.transcript.of(CREATE, EDIT)} == {200}
        fake.transcript.check()
        assert misfits(fake) == []


@pytest.mark.slow
async def test_a_crowd_is_answered_within_what_discord_takes_of_a_bot_altogether(tmp_path: Path) -> None:
    async with FakeDiscord(figures=Figures()) as fake:
        rooms = [fake.dm(f"user{number}") for number in range(70)]
        async with gateway_at(fake, tmp_path) as gateway:
            for number, room in enumerate(rooms):
                fake.say(room, "hello", f"user{number}")
            await settled(gateway, len(rooms), seconds=60)
        assert [fake.answers(room) for room in rooms] == [["You said: hello"]] * len(rooms)
        assert fake.limits.impatient == 0
        fake.transcript.check()
