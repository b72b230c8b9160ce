"""The contract suite for channels, with the fake homeserver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from channels.matrix.fake import FakeMatrix
from gateway.app import Gateway
from gateway.testing.contracts.channel_contract import ChannelCheck, checks_for
from gateway.testing.contracts.channel_platform import Platform, until
from gateway.testing.fake_platform import Fault
from tests.channels.matrix.malformed import MALFORMED

pytestmark = pytest.mark.slow

BOT = "@trunkline:fake.example"


class MatrixPlatform(Platform):
    """Ada's direct chat with the bot, and the room ``Team``."""

    name = "matrix"
    longest = 40_000
    lacks = {"reordering": "the order of a sync timeline is the order of the room"}

    def __init__(self) -> None:
        self.fake = FakeMatrix()

    async def __aenter__(self) -> MatrixPlatform:
        await self.fake.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self.fake.__aexit__(*failure)

    def settings(self) -> Mapping[str, Any]:
        return {
            "homeserver": self.fake.url,
            "access_token": self.fake.token,
            "allow": ["@ada:fake.example"],
            "pace": 1000,
        }

    async def connected(self, gateway: Gateway, url: str) -> None:
        rooms = (self.fake.direct, self.fake.room)
        await until(lambda: all(room.membership(BOT) == "join" for room in rooms))
        await until(lambda: gateway.health()["matrix"][0])

    def write(self, text: str) -> str:
        return self.fake.say(text)

    def shown(self) -> Sequence[str]:
        return [self._text(one) for one in self.fake.direct.shown(BOT)]

    def check(self) -> None:
        self.fake.transcript.check()

    def fail(self, fault: Fault) -> None:
        self.fake.then(fault, method="send")

    def malformed(self) -> None:
        for event in MALFORMED:
            self.fake.direct.inject(event)

    def repeat(self) -> None:
        self.fake.faults.repeats = 1

    def edit(self, key: str, text: str) -> None:
        self.fake.edit(key, text)

    def delete(self, key: str) -> None:
        self.fake.direct.redact(key, "@ada:fake.example")

    def write_in_room(self, text: str, *, addressed: bool, file: bytes | None = None) -> str:
        mention: dict[str, Any] = {"m.mentions": {"user_ids": [BOT]} if addressed else {}}
        if file is not None:
            info = {"msgtype": "m.file", "filename": "minutes.txt", "url": self.fake.keep("text/plain", file)}
            mention |= {**info, "info": {"mimetype": "text/plain", "size": len(file)}}
        return self.fake.say(text, room=self.fake.room, **mention)

    def shown_in_room(self) -> Sequence[str]:
        return [self._text(one) for one in self.fake.room.shown(BOT)]

    def downloads(self) -> int:
        return len(self.fake.transcript.of("download"))

    def _text(self, content: Mapping[str, Any]) -> str:
        if content["msgtype"] == "m.text":
            return str(content["body"])
        return self.fake.files[content["url"].rpartition("/")[2]][1].decode()


@pytest.mark.parametrize("check", checks_for(MatrixPlatform), ids=str)
async def test_the_contract(check: ChannelCheck, tmp_path: Path) -> None:
    await check(MatrixPlatform(), tmp_path)
