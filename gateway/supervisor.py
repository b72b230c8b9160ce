"""Keeping channels running: one that ends or fails is started again, later each time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from gateway.channel import Channel, Health, PlacementDeferred, PlacementRefused, Receive, ReportsHealth
from gateway.errors import FAILURES, TrunklineError, asked_for

log = structlog.get_logger("trunkline.channels")

_NAMED = (TrunklineError, PlacementDeferred, PlacementRefused)
_FAILED = "a channel failed and will be started again"
_LONGEST = 60.0
_STEADY = 60.0


class Supervisor:
    """Runs one channel for as long as it is wanted."""

    def __init__(self, channel: Channel, receive: Receive) -> None:
        self.channel = channel
        self._receive = receive
        self._failure: str | None = None
        self._told = ""
        self._running = False

    async def run(self) -> None:
        """Run the channel until cancelled."""
        delay = 1.0
        task = asyncio.current_task()
        while True:
            begun = asyncio.get_running_loop().time()
            await self._once()
            if task is not None and task.cancelling():
                # It ended or failed in answer to its cancellation: that is no reason to start it again.
                raise asyncio.CancelledError
            if asyncio.get_running_loop().time() - begun > _STEADY:
                delay, self._told = 1.0, ""
            await asyncio.sleep(delay)
            delay = min(_LONGEST, delay * 2)

    def health(self) -> Health:
        """Whether the channel works, as far as it can tell."""
        if self._failure is not None:
            return Health(ok=False, detail=self._failure)
        if isinstance(self.channel, ReportsHealth):
            return self.channel.health()
        return Health(ok=self._running, detail="" if self._running else "starting")

    async def _once(self) -> None:
        self._running, self._failure = True, None
        try:
            await self.channel.run(self._receive)
            self._failure = "it ended by itself"
        except FAILURES as error:
            if asked_for(error):
                raise
            error = _single(error)
            self._failure = f"{type(error).__name__}: {error}"
            self._tell(error, self._failure)
        finally:
            self._running = False

    def _tell(self, error: BaseException, reason: str) -> None:
        """Tell the operator. What has a name says all there is to say, and is no news the next time; where it
        came from only tells of what nobody foresaw."""
        if not isinstance(error, _NAMED):
            log.exception(_FAILED, channel=self.channel.id, reason=reason)
        else:
            (log.debug if reason == self._told else log.error)(
                _FAILED, channel=self.channel.id, reason=reason
            )
        self._told = reason


def _single(error: BaseException) -> BaseException:
    """What went wrong, without the task groups around it, where it was one thing."""
    inside: Sequence[BaseException] = getattr(error, "exceptions", ())
    return _single(inside[0]) if len(inside) == 1 else error
