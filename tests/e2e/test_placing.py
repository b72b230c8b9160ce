"""Answers stand on a platform exactly once: whatever it refuses, delays, repeats or fails to confirm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import select

from gateway.app import Gateway
from gateway.contract.messages import Display, Message, TextPart
from gateway.contract.plugin import Plugin, PluginContext, TurnContext
from gateway.session.log import read_messages
from gateway.settings import Settings
from gateway.store import schema as t
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.fake_platform import Fault
from gateway.testing.polling_channel import PollingChannel
from gateway.testing.polling_platform import PollingPlatform
from gateway.testing.served import until
from tests.small_plugins import Brings


@asynccontextmanager
async def gateway_on(
    directory: Path, platform_url: str, *plugins: Plugin, **more: Any
) -> AsyncGenerator[Gateway]:
    """A gateway whose only channel is a line to the platform."""
    async with FakeModels() as models:
        settings = Settings.model_validate(
            {
                "data_dir": directory,
                "model": "openai/fake-small",
                "providers": {"openai": {"base_url": models.openai_url, "api_key": "none"}},
                "channels": {"line": {"allow": "*"}},
                **more,
            }
        )
        line = PollingChannel(platform_url, lambda channel: gateway.parts.host.cursors(channel))
        gateway = Gateway(settings, plugins=[Brings(line), *plugins])
        async with gateway.running():
            yield gateway


async def states(gateway: Gateway) -> tuple[list[str], list[str]]:
    """The states of what was accepted, and of what was to be placed."""
    return await gateway.parts.store.read(
        lambda c: (
            list(c.execute(select(t.inbox.c.state).order_by(t.inbox.c.ord)).scalars()),
            list(c.execute(select(t.outbox.c.state).order_by(t.outbox.c.sent_at)).scalars()),
        )
    )


async def settled(gateway: Gateway, *wanted: str) -> None:
    async with asyncio.timeout(60):
        while (await states(gateway))[0] != list(wanted):
            await asyncio.sleep(0.02)


async def test_an_answer_is_in_the_room_of_its_question(tmp_path: Path) -> None:
    async with PollingPlatform() as platform, gateway_on(tmp_path, platform.url) as gateway:
        asked = platform.say("kitchen", "hello")
        platform.say("hall", "hi")
        await settled(gateway, "done", "done")
    assert platform.answers("hall") == ["You said: hi"]
    assert [said.reply_to for said in platform.rooms["kitchen"]] == [None, asked]


@pytest.mark.parametrize("fault", ["slow_down", "fail_before", "fail_after", "drop_before", "drop_after"])
async def test_a_send_that_goes_wrong_is_made_good_and_not_doubled(tmp_path: Path, fault: Fault) -> None:
    async with PollingPlatform() as platform, gateway_on(tmp_path, platform.url) as gateway:
        platform.then(fault, fault)
        platform.say("kitchen", "hello")
        await settled(gateway, "done")
        assert (await states(gateway))[1] == ["final"]
    assert platform.answers("kitchen") == ["You said: hello"]
    assert platform.impatient == 0


async def test_an_update_that_comes_twice_is_answered_once(tmp_path: Path) -> None:
    async with PollingPlatform(repeats=1) as platform, gateway_on(tmp_path, platform.url) as gateway:
        platform.say("kitchen", "hello")
        platform.say("kitchen", "again")
        await settled(gateway, "done", "done")
    assert platform.answers("kitchen") == ["You said: hello", "You said: again"]


async def test_a_room_that_refuses_the_bot_becomes_a_dead_letter_and_a_notice(tmp_path: Path) -> None:
    async with PollingPlatform() as platform, gateway_on(tmp_path, platform.url) as gateway:
        platform.closed.add("kitchen")
        platform.say("kitchen", "hello")
        await settled(gateway, "dead")
        platform.closed.clear()
        platform.say("kitchen", "still there?")
        await settled(gateway, "dead", "done")
        assert (await states(gateway))[1] == ["dead", "final"]
        reasons = await gateway.parts.store.read(
            lambda c: list(c.execute(select(t.dead_letter.c.reason)).scalars())
        )
        log = await gateway.parts.store.read(lambda c: read_messages(c, "line:bot:kitchen"))
    assert reasons == ["PlacementRefused: the bot may not write in this chat"]
    assert [m.custom_type for _, m in log] == [None, None, "notice", None, None]
    assert platform.answers("kitchen") == ["You said: still there?"]


async def test_an_answer_waits_for_a_platform_that_is_away(tmp_path: Path) -> None:
    async with PollingPlatform() as platform:
        port = int(platform.url.rsplit(":", 1)[1])
        platform.then("drop_before")
        async with gateway_on(tmp_path, platform.url) as gateway:
            platform.say("kitchen", "hello")
            await until(lambda: platform.sends == 1)
            await platform.__aexit__(None, None, None)
            assert (await states(gateway)) == (["new"], ["intent"])
            async with PollingPlatform(port=port) as back:
                await settled(gateway, "done")
                assert back.answers("kitchen") == ["You said: hello"]


async def test_an_answer_that_could_not_be_placed_is_placed_after_a_restart(tmp_path: Path) -> None:
    async with PollingPlatform() as platform:
        platform.then(*["slow_down"] * 3)
        platform.say("kitchen", "hello")
        async with gateway_on(tmp_path, platform.url) as gateway:
            await until(lambda: platform.sends >= 1)
            gateway.parts.dispatcher.cancel()
        async with gateway_on(tmp_path, platform.url) as gateway:
            await settled(gateway, "done")
    assert platform.answers("kitchen") == ["You said: hello"]


def remark(text: str) -> Message:
    return Message(session_id="", role="assistant", parts=(TextPart(text),))


@pytest.mark.parametrize(
    "fault", [None, "slow_down", "fail_before", "fail_after", "drop_before", "drop_after"]
)
async def test_002_20_an_appended_message_is_placed_once(tmp_path: Path, fault: Fault | None) -> None:
    async with PollingPlatform() as platform, gateway_on(tmp_path, platform.url) as gateway:
        platform.say("kitchen", "hello")
        await settled(gateway, "done")
        platform.then(*([fault] * 2 if fault else []))
        session = await gateway.parts.sessions.find("line:bot:kitchen")
        session.bus.append(remark("by the way"))
        await settled(gateway, "done", "done")
        assert (await states(gateway))[1] == ["final", "final"]
    assert platform.answers("kitchen") == ["You said: hello", "by the way"]


async def test_002_20_an_appended_message_is_placed_after_a_restart(tmp_path: Path) -> None:
    async with PollingPlatform() as platform:
        async with gateway_on(tmp_path, platform.url) as gateway:
            platform.say("kitchen", "hello")
            await settled(gateway, "done")
            platform.then(*["slow_down"] * 3)
            sends = platform.sends
            session = await gateway.parts.sessions.find("line:bot:kitchen")
            session.bus.append(remark("by the way"))
            await until(lambda: platform.sends > sends)
            gateway.parts.dispatcher.cancel()
        async with gateway_on(tmp_path, platform.url) as gateway:
            await settled(gateway, "done", "done")
            log = await gateway.parts.store.read(lambda c: read_messages(c, "line:bot:kitchen"))
    assert platform.answers("kitchen") == ["You said: hello", "by the way"]
    assert [message.text for _, message in log] == ["hello", "You said: hello", "by the way"]


async def test_002_20_a_message_appended_in_a_turn_follows_its_answer(tmp_path: Path) -> None:
    class Remarking(Plugin):
        name = "remarking"

        async def before_llm_call(self, messages: Any, options: Any, ctx: TurnContext) -> None:
            ctx.messages.append(remark("by the way"))

    async with PollingPlatform() as platform, gateway_on(tmp_path, platform.url, Remarking()) as gateway:
        platform.say("kitchen", "hello")
        await settled(gateway, "done", "done")
    assert platform.answers("kitchen") == ["You said: hello", "by the way"]


async def test_002_23_a_renderer_writes_what_is_placed(tmp_path: Path) -> None:
    class Weather(Plugin):
        name = "weather"

        async def activate(self, ctx: PluginContext) -> None:
            ctx.register_message_renderer("weather", lambda message: f"It is {message.text}.")

    async with PollingPlatform() as platform, gateway_on(tmp_path, platform.url, Weather()) as gateway:
        platform.say("kitchen", "hello")
        await settled(gateway, "done")
        session = await gateway.parts.sessions.find("line:bot:kitchen")
        session.bus.append(msgspec.structs.replace(remark("raining"), custom_type="weather"))
        badge = Display(badge="new")
        session.bus.append(msgspec.structs.replace(remark("snow"), display=badge))
        await settled(gateway, "done", "done", "done")
    assert platform.answers("kitchen")[1:] == ["It is raining.", "`new` snow"]
