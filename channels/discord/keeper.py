"""Keeper of the gateway connection: connects, resumes and logs in again, with increasing pauses."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import msgspec
import structlog

from channels.discord.api import Api, Refused, Rest
from channels.discord.cursor import Budget, Kept, Position
from channels.discord.inflow import MOST_WAITING, Inflow
from channels.discord.link import (
    UNREACHABLE,
    Disconnected,
    Event,
    FatalClosure,
    Socket,
    connect,
    gateway_of,
    poll,
    trouble,
)
from channels.discord.options import Options
from channels.discord.reader import MISFITS, Reader
from gateway import now_ms
from gateway.channel import Backoff, InboundMessage, Receipt, Receive, Rejected

log = structlog.get_logger("trunkline.discord")

_BACKOFF = Backoff(0.2, 60, jitter=-0.5)
_TRIES_TO_RESUME = 4
_NEW_SESSION_AFTER = 1.0
_STARTED = ("READY", "RESUMED")

Interact = Callable[[Any, Receive], Awaitable[None]]


class Keeper:
    """Keeper of one connection. Its tasks run in the given task group."""

    def __init__(
        self,
        api: Api,
        options: Options,
        inflow: Inflow,
        reader: Reader,
        kept: Kept,
        receive: Receive,
        interact: Interact,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._api = api
        self._options = options
        self._inflow = inflow
        self._reader = reader
        self._kept = kept
        self._receive = receive
        self._interact = interact
        self._tasks = tasks
        self._position = kept.position
        self._budget = kept.budget
        self._socket: Socket | None = None
        self._started = False
        self._why = "connecting"

    def trouble(self) -> str:
        """Return the reason why the connection does not count as working; empty if it works."""
        if not self._started:
            return self._why
        return trouble(self._socket) or self._inflow.problem

    async def run(self) -> None:
        """Keep the connection open until cancelled. Raises FatalClosure, and Refused for a wrong token."""
        failures = 0
        while True:
            try:
                await self._once()
            except Disconnected as gone:
                self._why = str(gone)
                if not gone.resumable:
                    self._position = Position()
                    await asyncio.sleep(_NEW_SESSION_AFTER * (1 + random.random()))  # noqa: S311 - no secret
            except UNREACHABLE as error:
                self._why = str(error) or type(error).__name__
            failures = 1 if self._started else failures + 1
            self._started = False
            if failures % _TRIES_TO_RESUME == 0:
                self._position = Position()
            log.info("connecting to Discord again", reason=self._why)
            if failures > 1:
                await asyncio.sleep(_BACKOFF.pause(failures))

    async def _once(self) -> None:
        """Run one connection until it ends."""
        async with self._api.opened() as rest:
            resume = self._position if self._position.resumable else None
            url = self._options.gateway_url or (resume.url if resume is not None else None)
            if resume is None:
                url = await self._may_log_in(rest, url)
            token = self._options.token.get_secret_value()
            self._socket = socket = await connect(rest, url or "", token, resume, self)
            try:
                while True:
                    await poll(socket)
            finally:
                await socket.leave()

    async def _may_log_in(self, rest: Rest, url: str | None) -> str:
        """Wait until the login budget allows a login, and store that it is used. Returns the gateway's
        address."""
        while True:
            try:
                named, left, seconds = await gateway_of(rest)
            except Refused as refused:
                raise FatalClosure(str(refused)) from refused
            wait = self._budget.wait(now_ms()) if left else max(seconds, 1.0)
            if wait <= 0:
                break
            self._why = f"the next login is possible in {wait:.0f} s"
            log.info("waiting to log in", seconds=round(wait, 1))
            await asyncio.sleep(wait)
        self._budget: Budget = self._budget.spend(now_ms())
        await self._receive(cursor=self._kept.cursor(self._budget))
        return url or named

    def hear(self, event: Event) -> None:
        """Take an event from the connection. Raises Disconnected when nobody takes them further."""
        if event.name in _STARTED:
            self._started = True
        if event.name == "READY":
            data = cast("dict[str, Any]", event.data)
            self._position = Position(data["session_id"], event.seq, data["resume_gateway_url"])
        elif event.seq is not None:
            session = self._position
            self._position = Position(session.session, event.seq, session.url)
        if self._inflow.waiting >= MOST_WAITING:
            raise Disconnected("too much is waiting to be stored", resumable=True)
        if event.name == "INTERACTION_CREATE":
            durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._tasks.create_task(self._take(event.data, durable))
            event = msgspec.structs.replace(event, durable=durable)
        self._inflow.offer(event)

    def reject(self, raw: str, why: str) -> None:
        """Quarantine an invalid frame."""
        rejected = self._reader.rejected("frame", raw, why)
        self._tasks.create_task(self._quarantine(rejected))

    async def _quarantine(self, rejected: Rejected) -> None:
        await self._receive(rejected=[rejected])

    async def _take(self, data: Any, durable: asyncio.Future[None]) -> None:
        """Process an interaction at once: the response is due within three seconds."""

        async def receive(*messages: InboundMessage, **more: Any) -> Sequence[Receipt]:
            receipts = await self._receive(*messages, **more)
            durable.set_result(None)
            return receipts

        try:
            await self._interact(data, receive)
        except MISFITS as error:
            await self._receive(rejected=[self._reader.rejected("INTERACTION_CREATE", data, error)])
        finally:
            if not durable.done():
                durable.set_result(None)
