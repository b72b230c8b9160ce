"""The contract suite for channels, with the fake Telegram."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from channels.telegram.fake import FakeTelegram
from gateway.app import Gateway
from gateway.testing.contracts.channel_contract import ChannelCheck, checks_for
from gateway.testing.contracts.channel_platform import Platform, until
from gateway.testing.fake_platform import Fault
from tests.channels.telegram.lab import FAST

pytestmark = pytest.mark.slow

_MALFORMED: Sequence[Mapping[str, Any]] = (
    {},
    {"message": 7},
    {"message": {"message_id": "x", "chat": {}}},
    {"message": {"message_id": 1, "chat": {"id": 1, "type": "private"}, "date": 1, "text": ["?"]}},
    {"edited_message": {"message_id": 1}},
    {"callback_query": {"id": 1}},
    {"brand_new": {}},
)


class TelegramPlatform(Platform):
    """Ada's private chat with the bot, and a group in which it receives all messages."""

    name = "telegram"
    longest = 4096
    lacks = {"deletions": "Telegram does not report deletions to bots"}

    def __init__(self) -> None:
        self.fake = FakeTelegram()

    async def __aenter__(self) -> TelegramPlatform:
        await self.fake.__aenter__()
        self.chat = self.fake.private("Ada")
        self.room = self.fake.group("Lab", "Ada", "Ben", admin=True)
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self.fake.__aexit__(*failure)

    def settings(self) -> Mapping[str, Any]:
        return {"token": self.fake.token, "api_base_url": self.fake.url, "allow": "*", "pace": FAST}

    async def connected(self, gateway: Gateway, url: str) -> None:
        await until(lambda: gateway.health()["telegram"][0])

    def write(self, text: str) -> int:
        return self.fake.say(self.chat, text)

    def shown(self) -> Sequence[str]:
        return self.fake.answers(self.chat)

    def check(self) -> None:
        self.fake.transcript.check()

    def fail(self, fault: Fault) -> None:
        self.fake.then(fault, method="sendMessage")

    def malformed(self) -> None:
        for update in _MALFORMED:
            self.fake.deliver_raw(update)

    def repeat(self) -> None:
        self.fake.faults.repeats = 1

    @contextmanager
    def reordered(self) -> Generator[None]:
        self.fake.reorder()
        yield

    def edit(self, key: int, text: str) -> None:
        self.fake.edit(self.chat, key, text)

    def write_in_room(self, text: str, *, addressed: bool, file: bytes | None = None) -> int:
        said = f"@fake_bot {text}" if addressed else text
        if file is None:
            return self.fake.say(self.room, said, "Ada")
        return self.fake.send(self.room, file, "Ada", kind="document", name="minutes.txt", caption=said)

    def shown_in_room(self) -> Sequence[str]:
        return self.fake.answers(self.room)

    def downloads(self) -> int:
        return len(self.fake.transcript.of("getFile"))


@pytest.mark.parametrize("check", checks_for(TelegramPlatform), ids=str)
async def test_the_contract(check: ChannelCheck, tmp_path: Path) -> None:
    await check(TelegramPlatform(), tmp_path)
