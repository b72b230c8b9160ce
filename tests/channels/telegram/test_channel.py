"""A bot at the fake Telegram: what people write is answered, each message exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest

from channels.telegram.fake import FakeTelegram
from gateway.testing.faults import FAULTS, Fault
from tests.channels.telegram.lab import lab


async def test_a_message_is_answered(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake) as running:
        fake.say(chat, "hello")
        await running.answers(chat, "You said: hello")
        fake.say(chat, "again")
        await running.answers(chat, "You said: hello", "You said: again")
        assert await running.states() == ["done", "done"]
    fake.transcript.check()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_send_that_goes_wrong_is_made_good_and_not_doubled(
    tmp_path: Path, fake: FakeTelegram, fault: Fault
) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake, streaming=False) as running:
        fake.then(fault, fault, method="sendMessage")
        fake.say(chat, "hello")
        await running.answers(chat, "You said: hello")
    fake.transcript.check()
