"""The contract suite for channels, with the fake Slack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from channels.slack.fake import FakeSlack
from gateway.app import Gateway
from gateway.testing.contracts.channel_contract import ChannelCheck, checks_for
from gateway.testing.contracts.channel_platform import Platform, until
from gateway.testing.fake_platform import Fault
from tests.channels.slack.gateways import PACE

pytestmark = pytest.mark.slow

_MALFORMED: Sequence[Mapping[str, Any]] = (
    {"type": "message"},
    {"type": "message", "channel": 5, "channel_type": "im", "user": None, "ts": [], "text": {}},
    {"type": "message", "subtype": "message_changed", "channel": "D1", "message": "?"},
    {"type": "message", "subtype": "message_deleted", "channel": "D1"},
    {"type": "app_mention", "text": 7},
    {"type": "brand_new"},
)


class SlackPlatform(Platform):
    """Ada's direct chat with the app, and the channel ``general``."""

    name = "slack"
    longest = 12_000

    def __init__(self) -> None:
        self.fake = FakeSlack()

    async def __aenter__(self) -> SlackPlatform:
        await self.fake.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self.fake.__aexit__(*failure)

    def settings(self) -> Mapping[str, Any]:
        tokens = {"bot_token": self.fake.bot_token, "app_token": self.fake.app_token}
        return {**tokens, "api_base_url": self.fake.api_url, "allow": "*", "pace": PACE}

    async def connected(self, gateway: Gateway, url: str) -> None:
        await until(lambda: self.fake.sockets.live)

    def write(self, text: str) -> str:
        return self.fake.say("@ada", text)

    def shown(self) -> Sequence[str]:
        return self.fake.answers("@ada")

    def check(self) -> None:
        self.fake.transcript.check()

    def fail(self, fault: Fault) -> None:
        self.fake.then(fault, method="chat.postMessage")

    def malformed(self) -> None:
        for event in _MALFORMED:
            self.fake.deliver_event({**event})
        self.fake.deliver_raw({"type": "event_callback", "event": "?"})

    def repeat(self) -> None:
        self.fake.faults.repeats = 1

    def reordered(self) -> AbstractContextManager[object]:
        return self.fake.reordered()

    def edit(self, key: str, text: str) -> None:
        self.fake.edit("@ada", key, text)

    def delete(self, key: str) -> None:
        self.fake.delete("@ada", key)

    def write_in_room(self, text: str, *, addressed: bool, file: bytes | None = None) -> str:
        files = [] if file is None else [("minutes.txt", file)]
        return self.fake.say("general", f"@trunkline {text}" if addressed else text, files=files)

    def shown_in_room(self) -> Sequence[str]:
        return self.fake.answers("general")

    def downloads(self) -> int:
        return len(self.fake.transcript.of("download"))


@pytest.mark.parametrize("check", checks_for(SlackPlatform), ids=str)
async def test_the_contract(check: ChannelCheck, tmp_path: Path) -> None:
    await check(SlackPlatform(), tmp_path)
