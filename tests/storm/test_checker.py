"""The checker of the storm accepts a correct room, and finds duplicates in it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import aiohttp
import pytest
from checker import check
from client import Sent
from notices import Notice, check_notices
from person import Person
from record import Record
from slack_rooms import SlackRooms
from sqlalchemy import create_engine
from verdict import Verdict

from channels.slack.fake import FakeSlack
from gateway import Plugin, PluginContext
from gateway.app import Gateway
from gateway.channel import Address
from gateway.settings import Settings
from gateway.testing.fake_models.server import FakeModels
from tests.e2e.town import until

pytestmark = pytest.mark.slow

KEY, NOTICE = "n48y2", "Notice 1 of n48y2."


class Announcer(Plugin):
    """A plugin that announces in the chat of the last message."""

    name = "announcer"

    async def activate(self, ctx: PluginContext) -> None:
        self.ctx = ctx

    async def announce(self, address: Address) -> None:
        assert self.ctx.announce is not None
        await self.ctx.announce(address, NOTICE, KEY)


class Room:
    """The direct chat of a person who undoes, on a gateway with a database on disk."""

    def __init__(self, slack: FakeSlack, directory: Path) -> None:
        self.slack = slack
        self.rooms = SlackRooms(slack.url, {"bot_token": slack.bot_token}, "")
        self.person = Person(48, self.rooms, "@p48", Random(1), undoes=True)
        self._directory = directory

    def say(self, text: str) -> None:
        """Write as the person."""
        ts = self.slack.say("@p48", text, user="p48")
        if not text.startswith("/"):
            self.person.sent.append(Sent(text.partition(",")[0], text, message_id=ts))

    async def judge(self) -> list[str]:
        """Return the violations that the checker finds in the database and the room."""
        engine = create_engine(f"sqlite:///{self._directory / 'trunkline.db'}")
        record = Record.read(engine)
        engine.dispose()
        async with aiohttp.ClientSession() as http:
            rooms = {self.rooms.name: await self.rooms.rooms(http)}
        verdict = Verdict()
        check(verdict, record, [], [self.person], rooms, self._directory / "effects")
        check_notices(verdict, record, {KEY: Notice({"channel": self.rooms.name}, tried=1, kept=1)})
        return [f"{kind}: {line}" for kind, lines in verdict.found.items() for line in lines]


@asynccontextmanager
async def room_with_notice(directory: Path) -> AsyncGenerator[tuple[Room, Gateway]]:
    """A room with one answered message and a notice."""
    announcer = Announcer()
    async with FakeSlack() as slack, FakeModels() as models:
        room = Room(slack, directory)
        settings = Settings.model_validate(
            {
                "data_dir": directory,
                "model": "openai/fake-small",
                "providers": {"openai": {"base_url": models.openai_url, "api_key": "none"}},
                "channels": {
                    "slack": {
                        "allow": "*",
                        "accounts": {
                            "socket": {
                                "bot_token": slack.bot_token,
                                "app_token": slack.app_token,
                                "api_base_url": slack.api_url,
                            }
                        },
                    }
                },
            }
        )
        gateway = Gateway(settings, plugins=[announcer])
        async with gateway.running():
            await until(lambda: [name for name, (ok, _) in gateway.health().items() if not ok], [])
            room.say("q48x0, please")
            await until(lambda: len(slack.answers("@p48")), 1)
            await until(lambda: gateway.parts.dispatcher.waiting, 0)
            session = next(iter(gateway.parts.sessions.live()))
            await announcer.announce(session.address)
            await until(lambda: len(slack.answers("@p48")), 2)
            await until(lambda: gateway.parts.dispatcher.waiting, 0)
            yield room, gateway


async def undo(room: Room, gateway: Gateway) -> None:
    room.say("/undo")
    await until(lambda: [text.partition(".")[0] for text in room.slack.answers("@p48")][-1], "Undone")
    await until(lambda: gateway.parts.dispatcher.waiting, 0)


async def test_a_notice_may_stay_when_all_that_a_person_wrote_is_undone(tmp_path: Path) -> None:
    async with room_with_notice(tmp_path) as (room, gateway):
        await undo(room, gateway)
        assert NOTICE in room.slack.answers("@p48")
        assert await room.judge() == []


async def test_a_doubled_notice_is_found_after_an_undo(tmp_path: Path) -> None:
    async with room_with_notice(tmp_path) as (room, gateway), aiohttp.ClientSession() as http:
        await undo(room, gateway)
        again = {"channel": room.slack.chat("@p48").id, "text": NOTICE}
        headers = {"Authorization": f"Bearer {room.slack.bot_token}"}
        async with http.post(f"{room.slack.api_url}chat.postMessage", json=again, headers=headers) as posted:
            assert (await posted.json())["ok"]
        assert await room.judge() == ["duplicate: slack.socket: @p48 has one more: Notice 1 of:n48y2"]
