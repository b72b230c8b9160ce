"""Slash commands and context menus, from end to end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from channels.discord.fake import FakeDiscord
from gateway import CommandContext, MentionCompletion, Plugin, SlashCommand
from gateway.testing.fake_models.script import Gate, Reply, Say
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.fake_platform import Fault
from tests.channels.discord.talking import (
    CALLBACK,
    CREATE,
    ORIGINAL,
    REGISTER,
    gateway_at,
    registered,
    sessions,
    settled,
    until,
)


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


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["slow_down", "fail_before", "fail_after", "drop_before", "drop_after"])
@pytest.mark.parametrize("call", [CALLBACK, ORIGINAL])
async def test_a_command_is_answered_once_after_any_failure(
    fake: FakeDiscord, tmp_path: Path, fault: Fault, call: str
) -> None:
    async with gateway_at(fake, tmp_path) as gateway:
        await fake.until(lambda: bool(fake.transcript.of("PUT /applications/{application_id}/commands")))
        fake.then(fault, method=call)
        pressed = fake.slash("general", "ask", {"text": "hello"})
        await settled(gateway, 1)
    assert fake.answers("general") == ["You said: hello"]
    assert not fake.failed(pressed)


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
    assert any("> the moon is a cheese" in text for text in asked), asked
    assert any("Who is Bob" in text for text in asked)
    fake.transcript.check()


async def test_commands_that_discord_refuses_do_not_prevent_the_others(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    fake.refuse_commands("model", "help")
    for _ in range(2):
        async with gateway_at(fake, tmp_path) as gateway:
            await until(lambda gateway=gateway: "not registered" in gateway.health()["discord"][1])
            ok, detail = gateway.health()["discord"]
            assert ok
            assert detail.endswith("does not accept them: help, model")
            used = fake.slash("general", "ask", {"text": "hello"})
            await fake.until(lambda used=used: fake.interaction(used).state == "answered")
    fake.refuse_commands()
    assert fake.answers("general") == ["You said: hello"] * 2


AGENTS = {"poet": {"description": "Writes verse"}, "clerk": {}}


class Fruits(Plugin):
    """Plugin with commands whose choices are too many or too long, come too late, or are for admins."""

    name = "fruits"

    def commands(self) -> Sequence[SlashCommand]:
        async def take(rest: str, ctx: CommandContext) -> str:
            return f"You have {rest}."

        async def wait(typed: str) -> Sequence[MentionCompletion]:
            await asyncio.Event().wait()
            return ()

        def fail(typed: str) -> Sequence[MentionCompletion]:
            raise RuntimeError("no fruits")

        def many(typed: str) -> Sequence[MentionCompletion]:
            names = ["x" * 101, *(f"Apple {number}" for number in range(40)), "big apple"]
            return [MentionCompletion(name, description="sweet " * 30) for name in names]

        commands = [("many", many), ("late", wait), ("broken", fail)]
        offered = [SlashCommand(name, name, take, choices=choices) for name, choices in commands]
        return [*offered, SlashCommand("secret", "secret", take, admin=True, choices=many)]


async def offers(
    fake: FakeDiscord, chat: str | int, command: str, typed: str, user: str = "ada"
) -> list[str]:
    """Type the argument of a command; return the values that are offered."""
    key = fake.complete(chat, command, typed, user)
    await fake.until(lambda: fake.interaction(key).state == "answered")
    return [value for _, value in fake.choices(key)]


async def test_arguments_of_commands_are_completed(fake: FakeDiscord, tmp_path: Path) -> None:
    settings = {"agents": AGENTS, "aliases": {"fast": "openai/fake-small"}}
    async with gateway_at(fake, tmp_path, more=settings) as gateway:
        await registered(fake)
        offered = ["main", "poet", "clerk", "general", "explore", "plan", "default"]
        assert await offers(fake, "general", "agent", "") == offered
        key = fake.complete(fake.dm("ada"), "agent", "PO")
        await fake.until(lambda: bool(fake.choices(key)))
        assert fake.choices(key) == (("poet: Writes verse", "poet"),)
        known = ["openai/fake-small", "openai/fake-large"]
        assert await offers(fake, "general", "model", "") == ["fast", *known, "default"]
        assert await offers(fake, "general", "model", "FA") == ["fast", *known, "default"]
        assert await offers(fake, "general", "model", "defa") == ["default"]
        assert await offers(fake, "general", "link", "") == ["off"]
        with pytest.raises(LookupError):
            fake.complete("general", "help", "")
        assert await sessions(gateway) == 0
        fake.slash("general", "agent", {"text": "poet"})
        await settled(gateway, 1)
    assert "agent `poet`" in fake.answers("general")[0]
    fake.transcript.check()


async def test_choices_fit_the_limits_of_the_platform(fake: FakeDiscord, tmp_path: Path) -> None:
    async with gateway_at(fake, tmp_path, plugins=[Fruits()]):
        await registered(fake)
        found = await offers(fake, "general", "many", "big")
        assert found == ["big apple"]
        found = await offers(fake, "general", "many", "apple")
        assert found == [f"Apple {number}" for number in range(25)]
        assert "x" * 101 not in await offers(fake, "general", "many", "")
        assert await offers(fake, "general", "broken", "a") == []
    fake.transcript.check()


async def test_choices_are_only_for_users_who_may_run_the_command(fake: FakeDiscord, tmp_path: Path) -> None:
    ada, root = (str(fake.user(name).id) for name in ("ada", "root"))
    closed, dm = fake.add_channel("closed"), fake.dm("eve")
    rooms = {"rooms": {str(closed): {"enabled": False}}}
    access = {"allow": [ada], "admins": [root], **rooms}
    async with gateway_at(fake, tmp_path, plugins=[Fruits()], **access) as gateway:
        await registered(fake)
        assert await offers(fake, "general", "many", "big") == ["big apple"]
        assert await offers(fake, "general", "many", "big", "eve") == []
        assert await offers(fake, dm, "many", "big", "eve") == []
        assert await offers(fake, "closed", "many", "big") == []
        assert await offers(fake, "general", "secret", "big") == []
        assert await offers(fake, "general", "secret", "big", "root") == ["big apple"]
        assert await sessions(gateway) == 0
        assert fake.answers(dm) == [], "there is no pairing code for someone who only types"
    fake.transcript.check()


@pytest.mark.slow
async def test_choices_that_come_too_late_are_none(fake: FakeDiscord, tmp_path: Path) -> None:
    async with gateway_at(fake, tmp_path, plugins=[Fruits()]):
        await registered(fake)
        key = fake.complete("general", "late", "a")
        await fake.until(lambda: fake.interaction(key).state == "answered")
        assert fake.choices(key) == ()
    fake.transcript.check()
