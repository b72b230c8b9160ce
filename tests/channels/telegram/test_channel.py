"""The channel on the fake Telegram: each message is answered exactly once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from channels.telegram.fake import FakeTelegram, Figures, Rate
from gateway.testing.fake_platform import FAULTS, Fault
from tests.channels.telegram.lab import lab, until
from tests.channels.telegram.pictures import png

pytestmark = pytest.mark.slow


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


async def test_many_chats_under_faults_are_answered_exactly_once(tmp_path: Path) -> None:
    async with FakeTelegram(faults=0.15, repeats=0.2, seed=7) as fake:
        chats = [fake.private(f"P{number}") for number in range(6)]
        chats += [fake.group(f"G{number}", "Ada", admin=True) for number in range(3)]
        async with lab(tmp_path, fake, groups="always", streaming=False) as running:
            for turn in range(3):
                for chat in chats:
                    fake.say(chat, f"{turn}")
            for chat in chats:
                await running.answers(chat, *(f"You said: {turn}" for turn in range(3)))
        fake.transcript.check()


async def test_the_limits_of_the_platform_are_kept(tmp_path: Path) -> None:
    # Under load, calls arrive closer together; a bot without a rate limiter sends far more at once.
    figures = Figures(chat=Rate(7, 5), group=Rate(24, 60), all=Rate(50, 1))
    async with FakeTelegram(limits=True, figures=figures) as fake:
        chats = [fake.private(f"P{number}") for number in range(40)]
        group = fake.group("Lab", "Ada", admin=True)
        async with lab(tmp_path, fake, groups="always") as running:
            for chat in [*chats, group]:
                fake.say(chat, "one")
                fake.say(chat, "two")
            for chat in [*chats, group]:
                await running.answers(chat, "You said: one", "You said: two")
        assert [call for call in fake.transcript.calls if call.status == 429] == []
        fake.transcript.check()


async def test_a_slow_chat_does_not_delay_the_others(tmp_path: Path, fake: FakeTelegram) -> None:
    slow, quick = fake.private("Slow"), fake.private("Quick")
    fake.retry_after = 3600
    async with lab(tmp_path, fake, streaming=False) as running:
        fake.then("slow_down", method="sendMessage")
        fake.say(slow, "hello")
        await until(lambda: fake.transcript.of("sendMessage"))
        fake.say(quick, "hello")
        await until(lambda: fake.answers(quick) == ["You said: hello"])
        assert fake.answers(slow) == []
        running.gateway.parts.dispatcher.cancel()
    fake.transcript.check()


async def test_a_failed_start_is_retried(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    for method in ("getMe", "deleteWebhook", "setMyCommands", "getUpdates"):
        fake.then("slow_down", "fail_after", method=method)
    async with lab(tmp_path, fake) as running:
        assert not running.gateway.health()["telegram"][0]
        fake.say(chat, "hello")
        await running.answers(chat, "You said: hello")
        await until(lambda: running.gateway.health()["telegram"] == (True, ""))
    fake.transcript.check()


async def test_no_token_is_ever_logged(
    tmp_path: Path, fake: FakeTelegram, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    chat = fake.private()
    caplog.set_level(logging.DEBUG)
    async with lab(tmp_path, fake) as running:
        fake.then("drop_before", "fail_before", method="getUpdates")
        fake.then("drop_after", method="sendMessage")
        fake.drop_sockets()
        fake.send(chat, png(), caption="hello")
        await running.answers(chat, "You said: hello")
        assert fake.token not in repr(running.gateway.channels.list())
    secret = fake.token.partition(":")[2]
    written = capsys.readouterr()
    assert written.out
    assert secret not in written.out + written.err + caplog.text
    fake.transcript.check()
