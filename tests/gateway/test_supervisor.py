"""Channels are kept running, whatever they fail with, and end when they are told to."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.contract.channel import Health, OutboundMessage, Placed, Receipt
from gateway.contract.errors import SettingsError
from gateway.supervisor import Supervisor, keep_running
from gateway.testing.chat import chatting
from tests.virtual_time import VirtualTimeLoop


class Failing:
    """A channel whose run ends in some way."""

    id = "failing"

    def __init__(self, failure: BaseException | None) -> None:
        self.failure = failure
        self.ended = asyncio.Event()

    async def run(self, receive: Any) -> None:
        asyncio.get_running_loop().call_soon(self.ended.set)
        if self.failure is not None:
            raise self.failure

    async def send(self, outbound: OutboundMessage) -> Placed:
        raise NotImplementedError


async def test_what_a_channel_says_by_name_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    refused = SettingsError("channels.x.token: is refused")
    grouped = ExceptionGroup("tasks", [ExceptionGroup("more tasks", [refused])])
    for failure, traced in ((refused, False), (grouped, False), (OSError("x"), True)):
        channel = Failing(failure)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(Supervisor(channel, accept).run())
            await channel.ended.wait()
            await asyncio.sleep(0)
            running.cancel()
        written = capsys.readouterr()
        assert ("x" if traced else str(refused)) in written.out + written.err
        assert ("Traceback" in written.out + written.err) == traced


async def test_an_unchanged_state_is_not_reported_again() -> None:
    class Refused(Failing):
        runs = 0

        async def run(self, receive: Any) -> None:
            self.runs += 1
            if self.runs == 2:
                self.ended.set()
            raise SettingsError("channels.x.token: is refused")

    channel = Refused(None)
    with capture_logs() as lines:
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(Supervisor(channel, accept).run())
            await channel.ended.wait()
            await asyncio.sleep(0)
            running.cancel()
    assert [line["log_level"] for line in lines] == ["error", "debug"]


@pytest.mark.parametrize(
    ("ran", "pauses"),
    [
        ((0.0,) * 8, [1, 2, 4, 8, 16, 32, 60, 60]),
        ((0.0, 0.0, 0.0, 61.0, 0.0), [1, 2, 4, 1, 2]),
        ((0.0, 0.0, 0.0, 59.0, 0.0), [1, 2, 4, 8, 16]),
    ],
    ids=["fails at once", "fails after a healthy minute", "fails within a minute"],
)
def test_a_channel_waits_longer_before_each_start_until_it_has_run_for_a_minute(
    ran: tuple[float, ...], pauses: list[float]
) -> None:
    """``ran`` has the seconds that each run takes, ``pauses`` those between its end and the next start."""
    times: list[tuple[float, float]] = []

    class Timed(Failing):
        async def run(self, receive: Any) -> None:
            if len(times) == len(ran):
                times.append((asyncio.get_running_loop().time(), 0.0))
                self.ended.set()
                await asyncio.Event().wait()
            begun = asyncio.get_running_loop().time()
            await asyncio.sleep(ran[len(times)])
            times.append((begun, asyncio.get_running_loop().time()))
            raise SettingsError("channels.x.token: is refused")

    async def supervise() -> None:
        channel = Timed(None)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(Supervisor(channel, accept).run())
            await channel.ended.wait()
            running.cancel()

    with capture_logs() as lines, asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(supervise())
    waited = [after[0] - before[1] for before, after in itertools.pairwise(times)]
    assert waited == pytest.approx(pauses)
    # After a healthy run the same failure is news again.
    assert sum(line["log_level"] == "error" for line in lines) == (2 if 61.0 in ran else 1)


def test_background_work_is_begun_again_until_it_ends() -> None:
    begun: list[float] = []

    async def work() -> None:
        begun.append(asyncio.get_running_loop().time())
        if len(begun) < 4:
            raise OSError("too many open files")

    with capture_logs() as lines, asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(keep_running("sweep", work))
    assert [after - before for before, after in itertools.pairwise(begun)] == pytest.approx([1, 2, 4])
    assert [line["work"] for line in lines] == ["sweep"] * 3


async def test_background_work_that_fails_does_not_end_the_gateway(tmp_path: Path) -> None:
    outputs = tmp_path / "tool_outputs"
    outputs.symlink_to(outputs)  # nothing can read it
    async with chatting(tmp_path) as chat:
        assert (await chat.say("hi")).text == "You said: hi"
        outputs.unlink()
        old = outputs / "session" / "output"
        old.parent.mkdir(parents=True)
        old.touch()
        os.utime(old, (0, 0))
        while old.exists():
            await asyncio.sleep(0.01)


async def accept(*_messages: Any, **_more: Any) -> Sequence[Receipt]:
    return ()


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (None, "the channel ended by itself"),
        (OSError("no route"), "OSError: no route"),
        (SettingsError("channels.x.token is wrong"), "channels.x.token is wrong"),
        (asyncio.CancelledError("of its own"), "CancelledError: of its own"),
        (SystemExit(1), "SystemExit: 1"),
    ],
    ids=repr,
)
async def test_a_channel_that_ends_is_ill_and_will_be_started_again(
    failure: BaseException | None, told: str
) -> None:
    channel = Failing(failure)
    supervisor = Supervisor(channel, accept)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(supervisor.run())
        await channel.ended.wait()
        await asyncio.sleep(0)
        assert (supervisor.health().ok, supervisor.health().detail) == (False, told)
        assert not running.done()
        running.cancel()
    assert running.cancelled()


async def test_a_channel_that_failed_is_started_again_and_well() -> None:
    class Recovering(Failing):
        def __init__(self) -> None:
            super().__init__(OSError("no route"))
            self.well = asyncio.Event()

        async def run(self, receive: Any) -> None:
            if self.failure is not None:
                self.failure = None
                raise OSError("no route")
            self.well.set()
            await asyncio.Event().wait()

    channel = Recovering()
    supervisor = Supervisor(channel, accept)
    assert (supervisor.health().ok, supervisor.health().detail) == (False, "starting")
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(supervisor.run())
        await channel.well.wait()
        assert supervisor.health().ok
        running.cancel()


async def test_a_channel_may_tell_itself_whether_it_works() -> None:
    class Telling(Failing):
        def health(self) -> Health:
            return Health(ok=False, detail="the token is revoked")

    assert Supervisor(Telling(None), accept).health().detail == "the token is revoked"
