"""The supervisor: restarts a channel that ends or fails, with backoff."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from gateway.backoff import Backoff
from gateway.contract.channel import (
    Channel,
    Health,
    PlacementDeferred,
    PlacementRefused,
    Receive,
    ReportsHealth,
)
from gateway.contract.errors import CATCHABLE, TrunklineError, is_cancellation_requested
from gateway.events.bus import EventBus
from gateway.events.types import ChannelHealth

log = structlog.get_logger("trunkline.channels")

_NAMED = (TrunklineError, PlacementDeferred, PlacementRefused)
_FAILED = "a channel failed and will be restarted"
_BACKOFF = Backoff(1, 60)
_HEALTH_SECONDS = 2.0
_STEADY = 60.0
"""Seconds that a channel must have run for its next failure to count as the first."""


class Supervisor:
    """Runs one channel until cancelled."""

    def __init__(self, channel: Channel, receive: Receive, events: EventBus | None = None) -> None:
        self.channel = channel
        self._receive = receive
        self._events = events
        self._reported: Health | None = None
        self._failure: str | None = None
        self._logged = ""
        self._running = False

    async def run(self) -> None:
        """Run the channel until cancelled."""
        failures = 0
        task = asyncio.current_task()
        while True:
            begun = asyncio.get_running_loop().time()
            await self._once()
            if task is not None and task.cancelling():
                # A library may turn the cancellation into another error: that must not restart the channel.
                raise asyncio.CancelledError
            self.report()
            if asyncio.get_running_loop().time() - begun > _STEADY:
                failures, self._logged = 0, ""
            failures += 1
            await asyncio.sleep(_BACKOFF.pause(failures))

    def health(self) -> Health:
        """Return whether the channel works, and why not."""
        if self._failure is not None:
            return Health(ok=False, detail=self._failure)
        if isinstance(self.channel, ReportsHealth):
            return self.channel.health()
        return Health(ok=self._running, detail="" if self._running else "starting")

    async def _once(self) -> None:
        self._running, self._failure = True, None
        self.report()
        try:
            await self.channel.run(self._receive)
            self._failure = "the channel ended by itself"
        except CATCHABLE as error:
            if is_cancellation_requested(error):
                raise
            error = _unwrap(error)
            known = isinstance(error, _NAMED) and str(error)
            self._failure = known or f"{type(error).__name__}: {error}"
            self._log_failure(error, self._failure)
        finally:
            self._running = False

    def report(self) -> None:
        """Emit the channel's health if it changed since the last time."""
        health = self.health()
        if self._events is not None and health != self._reported:
            self._reported = health
            self._events.emit(ChannelHealth(self.channel.id, ok=health.ok, detail=health.detail))

    def _log_failure(self, error: BaseException, reason: str) -> None:
        """Log a failure: a known error without traceback, and only on debug level when it repeats."""
        if not isinstance(error, _NAMED):
            log.exception(_FAILED, channel=self.channel.id, reason=reason)
        else:
            (log.debug if reason == self._logged else log.error)(
                _FAILED, channel=self.channel.id, reason=reason
            )
        self._logged = reason


async def keep_running(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run background work that no answer depends on, and again after an error of it, until cancelled."""
    failures = 0
    while True:
        begun = asyncio.get_running_loop().time()
        try:
            return await work()
        except CATCHABLE as error:
            if is_cancellation_requested(error):
                raise
            log.exception("background work failed and will be restarted", work=name)
        failures = 1 if asyncio.get_running_loop().time() - begun > _STEADY else failures + 1
        await asyncio.sleep(_BACKOFF.pause(failures))


async def run_after(earlier: Sequence[asyncio.Task[None]], supervisor: Supervisor) -> None:
    """Run a supervisor once the tasks of earlier ones have ended."""
    if earlier:
        await asyncio.wait(earlier)
    await supervisor.run()


async def watch_health(supervisors: Sequence[Supervisor]) -> None:
    """Report changes of health until cancelled: a running channel is polled, it does not notify."""
    while True:
        await asyncio.sleep(_HEALTH_SECONDS)
        for supervisor in supervisors:
            supervisor.report()


def _unwrap(error: BaseException) -> BaseException:
    """Return the only error in nested task groups, or the group if there are several."""
    inside: Sequence[BaseException] = getattr(error, "exceptions", ())
    return _unwrap(inside[0]) if len(inside) == 1 else error
