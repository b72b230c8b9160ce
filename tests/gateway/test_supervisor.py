"""Channels are kept running, whatever they fail with, and end when they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.channel import Health, OutboundMessage, Placed, Receipt
from gateway.supervisor import Supervisor


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


async def accept(*_messages: Any, **_more: Any) -> Sequence[Receipt]:
    return ()


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (None, "it ended by itself"),
        (OSError("no route"), "OSError: no route"),
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
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(supervisor.run())
        await channel.well.wait()
        assert supervisor.health().ok
        running.cancel()


async def test_a_channel_may_tell_itself_whether_it_works() -> None:
    class Telling(Failing):
        def health(self) -> Health:
            return Health(ok=False, detail="the token is revoked")

    assert Supervisor(Telling(None), accept).health().detail == "the token is revoked"
