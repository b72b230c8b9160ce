"""The post office: carries deliveries to the app, and tries again as the platform does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from channels.slack.fake.delivery import Delivery
from channels.slack.fake.sockets import Sockets
from channels.slack.fake.state import State
from channels.slack.fake.webhooks import Webhooks
from gateway.testing.faults import FaultScript

WAITS = (0, 0, 60, 300)
"""Seconds before each attempt to deliver an event: at once, at once again, a minute, five minutes."""


class PostOffice:
    """Sends over sockets, or by HTTP once an address is registered.

    ``held`` collects what is sent while it is a list. ``settled`` is called for each delivery in the end.
    """

    def __init__(
        self,
        state: State,
        sockets: Sockets,
        webhooks: Webhooks,
        faults: FaultScript,
        settled: Callable[[Delivery], None],
    ) -> None:
        self.held: list[Delivery] | None = None
        self._tasks = asyncio.TaskGroup()
        self._state = state
        self._sockets = sockets
        self._webhooks = webhooks
        self._faults = faults
        self._settled = settled
        self._running: set[asyncio.Task[None]] = set()

    def send(self, delivery: Delivery) -> None:
        """Take a delivery, and an event once more if the script says so."""
        if self.held is not None:
            self.held.append(delivery)
            return
        self._start(delivery)
        if delivery.kind == "events_api" and self._faults.doubles():
            self._start(self._state.keep(Delivery(delivery.kind, delivery.team, delivery.payload)))

    async def __aenter__(self) -> PostOffice:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._running:
            task.cancel()
        await self._tasks.__aexit__(None, None, None)  # what went wrong outside is not a task's failure

    def _start(self, delivery: Delivery) -> None:
        task = self._tasks.create_task(self._deliver(delivery))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _deliver(self, delivery: Delivery) -> None:
        for wait in WAITS if delivery.kind == "events_api" else (0,):
            if wait:
                await self._state.clock.sleep(wait)
            if delivery.acknowledged:
                break
            delivery.attempts += 1
            self._state.changed()
            reason = await (self._webhooks if self._webhooks.url else self._sockets).attempt(delivery)
            if reason is None:
                break
            delivery.reasons.append(reason)
            self._state.changed()
            if reason == "no_retry":
                break
        if not delivery.acknowledged:
            late = delivery.reasons[-1] in ("timeout", "http_timeout") and bool(self._sockets.live)
            delivery.refused = "operation_timeout" if late else "dispatch_failed"
            delivery.give_up()
        self._settled(delivery)
        self._state.changed()
