"""The gateway connection breaks, resumes and logs in again, within the login budget."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from channels.discord.api import Api
from channels.discord.connection import Connection, Disconnected, Logins
from channels.discord.delivery import Delivery
from channels.discord.fake import FakeDiscord, relaxed
from channels.discord.inflow import MAX_QUEUED, Event, EventReader, History, Inflow, LoginBudget, StoredState
from channels.discord.options import Options
from channels.discord.parse import BotProfile
from channels.discord.rooms import Chats, Roles
from gateway.app import Gateway
from gateway.channel import Cursor, InboundMessage, Receipt, Receive, Rejected, Signal
from gateway.files import FileReader
from gateway.testing.fake_models.script import Gate, Reply, Say
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.fake_platform import Fault
from tests.channels.discord.talking import (
    NO_DRAIN,
    bot_at,
    gateway_at,
    healthy,
    later,
    settings_for,
    settled,
    until,
)


@pytest.mark.slow
async def test_a_restart_resumes_the_session_and_hears_what_was_said_meanwhile(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    async with gateway_at(fake, tmp_path) as gateway:
        fake.say(fake.dm("ada"), "one")
        await settled(gateway, 1)
    fake.say(fake.dm("ada"), "two")
    fake.say("general", f"{fake.mention} three")
    async with gateway_at(fake, tmp_path) as gateway:
        await settled(gateway, 3)
    assert fake.answers(fake.dm("ada")) == ["You said: one", "You said: two"]
    assert fake.answers("general") == ["You said: three"]
    assert [call.status for call in fake.transcript.of("CLOSE")] == []
    assert len(fake.transcript.of("IDENTIFY")) == 1
    fake.transcript.check()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sever", "ask_reconnect", "invalid", "closed"])
async def test_a_connection_that_breaks_is_made_again(tmp_path: Path, how: str) -> None:
    async with FakeDiscord(figures=relaxed()) as fake:
        async with gateway_at(fake, tmp_path) as gateway:
            match how:
                case "invalid":
                    fake.invalidate(resumable=True)
                case "closed":
                    fake.close(4000)
                case _:
                    getattr(fake, how)()
            fake.say("general", f"{fake.mention} hello")
            await settled(gateway, 1)
            await until(lambda: healthy(gateway))
        assert fake.answers("general") == ["You said: hello"]
        assert len(fake.transcript.of("IDENTIFY")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["slow_down", "fail_before", "drop_before"])
async def test_a_login_that_fails_is_tried_again(fake: FakeDiscord, tmp_path: Path, fault: Fault) -> None:
    for call in ("GET /users/@me", "GET /gateway/bot", "GET /applications/@me"):
        fake.then(fault, fault, method=call)
    async with gateway_at(fake, tmp_path) as gateway:
        fake.say(fake.dm("ada"), "hello")
        await settled(gateway, 1)
    fake.transcript.check()


@pytest.mark.slow
async def test_a_token_that_is_refused_shows_at_once(fake: FakeDiscord, tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with FakeModels() as models, gateway_at(fake, tmp_path, models=models, more=NO_DRAIN) as gateway:
        models.then(Reply((Gate(gate), Say("Done."))))
        fake.say(fake.dm("ada"), "hello")
        await until(lambda: models.requests)
        assert healthy(gateway)
        fake.account.reset()
        gate.set()
        await until(lambda: "Discord rejects it (401)" in gateway.health()["discord"][1])


@pytest.mark.slow
async def test_logins_are_counted_over_restarts(tmp_path: Path) -> None:
    async with FakeDiscord(figures=relaxed()) as fake:
        for _ in range(2):
            async with gateway_at(fake, tmp_path):
                fake.expire_sessions()
            later(tmp_path)
        async with gateway_at(fake, tmp_path) as gateway:
            cursors = {c.shard: c.value for c in await gateway.parts.host.cursors("discord")}
        assert float(cursors["identify"].strip("[").split(",")[0]) < 98
        assert len(fake.transcript.of("IDENTIFY")) == 3


@pytest.mark.slow
async def test_the_last_login_of_the_day_is_not_spent(tmp_path: Path) -> None:
    async with FakeDiscord(figures=replace(relaxed(), identifies=1)) as fake:
        fake.account.spend(1)
        async with FakeModels() as models:
            gateway = Gateway(settings_for(tmp_path, models, bot_at(fake)))
            async with gateway.running():
                await until(lambda: "next login" in gateway.health()["discord"][1])
        assert fake.transcript.of("IDENTIFY") == []


@pytest.mark.slow
@pytest.mark.parametrize("jump", [-3_600_000, 3_600_000])
def test_a_login_waits_no_longer_though_the_clock_was_wrong(jump: int) -> None:
    now = 1_800_000_000_000
    spent = LoginBudget().spend(now + jump)
    assert spent.wait(now) <= 5
    assert spent.spend(now).wait(now) == 5
    used_up = LoginBudget(0.0, now + jump)
    assert used_up.wait(now) <= 86_400 / 850 + 1


async def test_an_event_that_the_full_queue_refuses_is_repeated_by_the_resumed_session(
    fake: FakeDiscord,
) -> None:
    options = Options.model_validate({"token": "t"})
    api, state = Api(fake.api_url, lambda: fake.token), StoredState((), "1")
    delivery, chats = Delivery(api, by_user=False), Chats(_fetch_nothing, _fetch_nothing)
    bot, roles = BotProfile("discord", "1", options), Roles(_fetch_nothing)
    reader = EventReader(api, chats, roles, delivery, bot, lambda _: "answer", FileReader().read)
    inflow = Inflow(_accept, reader, chats, History(api), state)
    async with asyncio.TaskGroup() as tasks:
        logins = Logins(_accept, state)
        connection = Connection(
            api, options, (0, 1), logins, inflow, reader, state.position, _accept, _ignore, tasks
        )
        ready = {"session_id": "s", "resume_gateway_url": "ws://localhost"}
        connection.on_event(Event("READY", ready, 1))
        for seq in range(2, MAX_QUEUED + 1):
            connection.on_event(Event("TYPING_START", {}, seq))
        with pytest.raises(Disconnected):
            connection.on_event(Event("MESSAGE_CREATE", {}, MAX_QUEUED + 1))
    assert connection.position.seq == MAX_QUEUED


async def _fetch_nothing(*keys: str) -> Any:
    raise LookupError(*keys)


async def _accept(
    *messages: InboundMessage,
    cursor: Cursor | None = None,
    rejected: Sequence[Rejected] = (),
    signals: Sequence[Signal] = (),
) -> Sequence[Receipt]:
    return ()


async def _ignore(data: Any, receive: Receive) -> None:
    pass
