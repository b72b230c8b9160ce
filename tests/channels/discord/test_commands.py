"""Slash commands and context menus, from end to end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from channels.discord.fake import FakeDiscord
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
async def test_a_command_is_answered_once_whatever_goes_wrong(
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
    assert any("> Bob wrote: the moon is a cheese" in text for text in asked), asked
    assert any("Who is Bob" in text for text in asked)
    fake.transcript.check()
