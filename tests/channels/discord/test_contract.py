"""The contract suite for channels, with the fake Discord."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from channels.discord.fake import FakeDiscord, relaxed
from gateway.app import Gateway
from gateway.testing.contracts.channel_contract import ChannelCheck, checks_for
from gateway.testing.contracts.channel_platform import Platform, until
from gateway.testing.fake_platform import Fault
from tests.channels.discord.talking import CREATE

pytestmark = pytest.mark.slow

_MALFORMED: Sequence[Mapping[str, Any]] = (
    {"t": "MESSAGE_CREATE", "d": {}},
    {"t": "MESSAGE_CREATE", "d": {"id": "x", "channel_id": 1, "content": 5, "author": None}},
    {"t": "MESSAGE_UPDATE", "d": {"id": "1"}},
    {"t": "MESSAGE_DELETE", "d": {}},
    {"t": "INTERACTION_CREATE", "d": {"type": "?"}},
    {"t": "BRAND_NEW", "d": {"deep": [[[]]]}},
)


class DiscordPlatform(Platform):
    """Ada's direct chat with the bot, and the channel ``general`` of a server."""

    name = "discord"
    longest = 2000

    def __init__(self) -> None:
        self.fake = FakeDiscord(figures=relaxed())

    async def __aenter__(self) -> DiscordPlatform:
        await self.fake.__aenter__()
        self.chat = self.fake.dm("ada")
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self.fake.__aexit__(*failure)

    def settings(self) -> Mapping[str, Any]:
        return {"token": self.fake.token, "api_base_url": self.fake.api_url, "allow": "*"}

    async def connected(self, gateway: Gateway, url: str) -> None:
        await until(lambda: gateway.health()["discord"][0])

    def write(self, text: str) -> int:
        return self.fake.say(self.chat, text)

    def shown(self) -> Sequence[str]:
        return self.fake.answers(self.chat)

    def check(self) -> None:
        self.fake.transcript.check()

    def fail(self, fault: Fault) -> None:
        self.fake.then(fault, method=CREATE)

    def malformed(self) -> None:
        for event in _MALFORMED:
            self.fake.deliver_raw({**event})

    def repeat(self) -> None:
        self.fake.faults.repeats = 1

    def reordered(self) -> AbstractContextManager[object]:
        return self.fake.held(reverse=True)

    def edit(self, key: int, text: str) -> None:
        self.fake.edit(self.chat, key, text)

    def delete(self, key: int) -> None:
        self.fake.delete(self.chat, key)

    def write_in_room(self, text: str, *, addressed: bool, file: bytes | None = None) -> int:
        said = f"{self.fake.mention} {text}" if addressed else text
        return self.fake.say("general", said, attach={"minutes.txt": file} if file is not None else None)

    def shown_in_room(self) -> Sequence[str]:
        return self.fake.answers("general")

    def downloads(self) -> int:
        return len(self.fake.cdn.served)


@pytest.mark.parametrize("check", checks_for(DiscordPlatform), ids=str)
async def test_the_contract(check: ChannelCheck, tmp_path: Path) -> None:
    await check(DiscordPlatform(), tmp_path)
