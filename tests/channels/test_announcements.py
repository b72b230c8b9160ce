"""Announcements on each platform: in the session of their chat, once, edited, and in their order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from gateway import CommandContext, Plugin, PluginContext, SlashCommand
from gateway.app import Gateway
from gateway.channel import Edits, InvalidRequestError
from gateway.settings import Settings
from gateway.testing.contracts.channel_platform import Platform, settled, until
from gateway.testing.fake_models.script import Gate, Reply, Say
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.fake_platform import Fault
from tests.channels.discord.test_contract import DiscordPlatform
from tests.channels.email.test_contract import EmailPlatform
from tests.channels.matrix.test_contract import MatrixPlatform
from tests.channels.slack.test_contract import SlackPlatform
from tests.channels.telegram.test_contract import TelegramPlatform

pytestmark = pytest.mark.slow


class Herald(Plugin):
    """``/herald`` tells it the chat, which it keeps as plain data, as a table does."""

    name = "herald"
    ctx: PluginContext

    def __init__(self) -> None:
        self.places: list[tuple[str, Any]] = []

    async def activate(self, ctx: PluginContext) -> None:
        self.ctx = ctx

    def commands(self) -> list[SlashCommand]:
        return [SlashCommand("herald", "Announce here", self._here)]

    async def announce(self, address: Any, text: str, key: str = "key") -> None:
        assert self.ctx.announce is not None
        await self.ctx.announce(address, text, key)

    async def _here(self, rest: str, command: CommandContext) -> str:
        address = json.dumps(msgspec.to_builtins(command.inbound.address))
        self.places.append((command.session, json.loads(address)))
        return "ready"


PLATFORMS: list[Any] = [
    TelegramPlatform,
    DiscordPlatform,
    SlackPlatform,
    MatrixPlatform,
    EmailPlatform,
]


@pytest.fixture(params=PLATFORMS, ids=lambda platform: platform.name)
def platform(request: pytest.FixtureRequest) -> Platform:
    if request.param is EmailPlatform:
        request.getfixturevalue("dovecot_path")
    return request.param()


@asynccontextmanager
async def running(
    platform: Platform, models: FakeModels, directory: Path, *plugins: Plugin, **rules: Any
) -> AsyncGenerator[Gateway]:
    given = {
        "data_dir": directory,
        "model": "openai/fake-small",
        "providers": {"openai": {"base_url": models.openai_url, "api_key": "k", "max_retries": 0}},
        "channels": {platform.name: {**platform.settings(), "envelope": "off", **rules}},
    }
    gateway = Gateway(Settings.model_validate(given), plugins=plugins)
    async with gateway.running():
        async with asyncio.timeout(60):
            await platform.connected(gateway, "")
        yield gateway


async def place(
    platform: Platform, herald: Herald, gateway: Gateway, *, room: bool = False
) -> tuple[str, Any]:
    """Return the session and the address of a chat, as Ada's command has them."""
    if room:
        platform.write_in_room("/herald", addressed=True)
    else:
        platform.write("/herald")
    await until(lambda: herald.places)
    await settled(gateway)
    return herald.places[-1]


@pytest.mark.parametrize("room", [False, True], ids=["private", "room"])
async def test_an_announcement_comes_once_in_the_session_of_its_chat_also_after_a_restart(
    platform: Platform, tmp_path: Path, room: bool
) -> None:
    first, second = Herald(), Herald()

    def shown() -> list[str]:
        return [*(platform.shown_in_room() if room else platform.shown())]

    async with platform, FakeModels() as models:
        async with running(platform, models, tmp_path, first) as gateway:
            session, address = await place(platform, first, gateway, room=room)
            await first.announce(address, "**Good** morning", "morning")
            await settled(gateway)
            said = shown()
            assert len(said) == 2
            assert "morning" in said[1]
        async with running(platform, models, tmp_path, second) as gateway:
            await second.announce(address, "**Good** morning", "morning")
            await second.announce(address, "Good evening", "evening")
            await settled(gateway)
            assert shown()[:2] == said
            assert len(shown()) == 3
            assert "evening" in shown()[2]
            log = await gateway.parts.sessions.read(session)
            texts = [message.text for _, message in log]
            assert texts[-2:] == ["**Good** morning", "Good evening"]
            assert [row.id for row in await gateway.parts.sessions.list()] == [session]
        platform.check()


async def test_new_content_edits_the_message_where_the_channel_can(
    platform: Platform, tmp_path: Path
) -> None:
    herald = Herald()
    async with platform, FakeModels() as models:
        async with running(platform, models, tmp_path, herald) as gateway:
            session, address = await place(platform, herald, gateway)
            await herald.announce(address, "Oven: 100", "oven")
            await settled(gateway)
            await herald.announce(address, "Oven: 200", "oven")
            await herald.announce(address, "Oven: 200", "oven")
            await settled(gateway)
            edits = isinstance(gateway.channels.get(platform.name), Edits)
            assert edits == (platform.name != "email")
            assert [*platform.shown()][1:] == ["Oven: 200" if edits else "Oven: 100"]
            log = await gateway.parts.sessions.read(session)
            assert log[-1][1].text == "Oven: 200"
        platform.check()


async def test_an_announcement_follows_the_running_answer(platform: Platform, tmp_path: Path) -> None:
    herald, gate = Herald(), asyncio.Event()
    async with platform, FakeModels() as models:
        async with running(platform, models, tmp_path, herald) as gateway:
            session, address = await place(platform, herald, gateway)
            models.then(Reply((Say("The "), Gate(gate), Say("answer."))))
            platform.write("go")
            await until(lambda: models.requests)
            await herald.announce(address, "A remark", "remark")
            platform.write("next")
            gate.set()
            await until(lambda: len(platform.shown()) == 4)
            await settled(gateway)
            assert [*platform.shown()][1:] == ["The answer.", "A remark", "You said: next"]
            log = [message.text for _, message in await gateway.parts.sessions.read(session)]
            # What was written meanwhile may already be part of the log.
            said = [text for text in log if text not in ("go", "next")]
            assert said[-3:] == ["The answer.", "A remark", "You said: next"]
        platform.check()


@pytest.mark.parametrize(
    ("platform", "fault"),
    [
        (platform, fault)
        for platform in PLATFORMS
        for fault in ("fail_before", "drop_before", "drop_after")
        if platform is not EmailPlatform or fault != "drop_after"
    ],
    indirect=["platform"],
)
async def test_an_announcement_whose_delivery_goes_wrong_is_not_doubled(
    platform: Platform, tmp_path: Path, fault: Fault
) -> None:
    """Except a mail whose acceptance was not seen: it is sent again with the same Message-ID."""
    herald = Herald()
    async with platform, FakeModels() as models:
        async with running(platform, models, tmp_path, herald) as gateway:
            _, address = await place(platform, herald, gateway)
            platform.fail(fault)
            await herald.announce(address, "Good morning", "morning")
            await settled(gateway)
            assert [*platform.shown()][1:] == ["Good morning"]
        platform.check()


def room_of(platform: Any) -> str:
    """Return the id of the room in which no user has written yet."""
    if platform.name == "telegram":
        return str(platform.room)
    if platform.name == "matrix":
        return str(platform.fake.room.id)
    channel = platform.fake.channel if platform.name == "discord" else platform.fake.chat
    return str(channel("general").id)


@pytest.mark.parametrize("platform", PLATFORMS[:-1], indirect=True, ids=lambda platform: platform.name)
async def test_a_room_is_announced_to_before_anybody_wrote_there(platform: Platform, tmp_path: Path) -> None:
    """Except by mail, where a conversation begins with a mail of its user."""
    herald = Herald()
    async with platform, FakeModels() as models:
        async with running(platform, models, tmp_path, herald) as gateway:
            _, address = await place(platform, herald, gateway)
            room = {**address, "chat": room_of(platform), "thread": None, "group": True}
            await herald.announce(room, "Good morning", "morning")
            await settled(gateway)
            assert [*platform.shown_in_room()] == ["Good morning"]
            platform.write_in_room("hi", addressed=True)
            await until(lambda: len(platform.shown_in_room()) == 2)
            await settled(gateway)
        platform.check()


WRONG: Mapping[str, list[dict[str, Any]]] = {
    "telegram": [{"account": "42"}, {"chat": "the lab"}, {"thread": "x"}],
    "discord": [{"account": "me"}, {"chat": "general"}, {"thread": "x"}],
    "slack": [{"account": ""}, {"chat": "general"}, {"thread": "x"}],
    "matrix": [{"account": "me"}, {"chat": "lab"}],
    "email": [{"account": "eve@example.org"}, {"chat": "ada"}, {"thread": None}],
}


async def test_an_address_that_names_no_chat_is_refused_and_nothing_is_stored(
    platform: Platform, tmp_path: Path
) -> None:
    herald = Herald()
    async with platform, FakeModels() as models:
        async with running(platform, models, tmp_path, herald) as gateway:
            _, address = await place(platform, herald, gateway)
            before = len(platform.shown())
            for wrong in WRONG[platform.name]:
                with pytest.raises(InvalidRequestError) as refused:
                    await herald.announce(cast("Any", {**address, **wrong}), "hello")
                assert platform.name in str(refused.value) or "Telegram" in str(refused.value)
            await settled(gateway)
            assert len(await gateway.parts.sessions.list()) == 1
            assert len(platform.shown()) == before
        platform.check()
