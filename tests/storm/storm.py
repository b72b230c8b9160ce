"""One storm over one database: the world around the gateway, the killing, the waiting, the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from checker import Record, Verdict, check
from client import Client, Hooks, Person, name_of
from failpoints import Failpoints, points_of
from killer import BrokenStormError, Killer, end_of
from platforms import Platform
from sqlalchemy import Engine, create_engine, func, select
from world import World, environment

from gateway.store import schema as t

CLIENTS, PERSONS = 12, 6
"""How many there are on websockets, and on each platform."""

_KILLS_PER_SECOND = 60 / 45
_ZEAL_IN_GROUPS = 0.5
"""Platforms take fewer messages of a bot there."""

_DAWN = 60.0
"""Seconds in which the gateway has to reach all platforms, before anybody kills it."""


@dataclass(frozen=True)
class Plan:
    """What a storm is to be like. ``rate`` is messages per second in all, ``faults`` a share."""

    store: str
    seconds: float
    rate: float
    faults: float
    seed: int
    planted: str | None = None
    channels: Sequence[str] = ("websocket", "line")
    drain: float = 90.0
    """Seconds that the calm after it may take: a message that died with many gateways waits a minute."""

    @property
    def fewest_kills(self) -> float:
        """How often it has to kill to prove anything."""
        return self.seconds * _KILLS_PER_SECOND


@dataclass
class Progress:
    """How far it is."""

    phase: str = "starting"
    elapsed: float = 0.0
    sent: int = 0
    acked: int = 0
    kills: int = 0
    lives: int = 0
    points: str = ""
    """How many of the failpoints were hit, of how many."""


@dataclass
class Outcome:
    """What a storm came to."""

    plan: Plan
    engine: str
    messages: int
    said: Counter[str]
    """How many of the messages were written on each platform."""
    acked: int
    kills: int
    lives: int
    hits: dict[str, int]
    drained: bool
    drain_seconds: float
    exit_status: int | None
    unexpected: list[str]
    verdict: Verdict


class Storm:
    """A storm in a directory of its own."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self.plan = plan
        self.progress = Progress()
        self._directory = directory
        self._dice = random.Random(plan.seed)
        self._failpoints = Failpoints(directory)
        self._points = points_of(plan.channels)
        dice = random.Random(plan.seed + 1)
        self._killer = Killer(directory, self._failpoints, self._points, dice)
        self._platforms: list[Platform] = []
        self._clients: list[Client] = []
        self._persons: list[Person] = []
        self._port = _free_port()
        self._begun = time.monotonic()

    async def run(self, show: Callable[[Progress], None]) -> Outcome:
        """Rage, let it drain, and judge. ``show`` is called a few times a second. Raises BrokenStormError."""
        try:
            return await self._run(show)
        except BaseExceptionGroup as group:
            broken = group.subgroup(BrokenStormError)
            if broken is None:
                raise
            raise BrokenStormError(*_reasons(broken)) from None

    async def _run(self, show: Callable[[Progress], None]) -> Outcome:
        async with AsyncExitStack() as stack:
            world = World(stack, self._directory, self.plan.faults, self.plan.seed)
            model = await world.model()
            for name in self.plan.channels:
                if name != "websocket":
                    self._platforms.append(await world.platform(name))
            http = await stack.enter_async_context(aiohttp.ClientSession())
            await self._prepare(model, http)
            engine = create_engine(self.plan.store)
            stack.callback(engine.dispose)
            try:
                async with asyncio.TaskGroup() as tasks:
                    background = [
                        tasks.create_task(self._killer.listen()),
                        tasks.create_task(self._show(show)),
                        *(tasks.create_task(client.live()) for client in self._clients),
                    ]
                    drained, seconds = await self._weather(engine, http)
                    status = await self._killer.stop()
                    for task in background:
                        task.cancel()
            finally:
                await self._killer.stop()
            rooms = {platform.name: await platform.rooms(http) for platform in self._platforms}
            for platform in self._platforms:
                transcript = self._directory / f"{platform.name}.transcript.json"
                transcript.write_bytes(await platform.transcript(http))
            verdict = check(
                Record.read(engine), self._clients, self._persons, rooms, self._directory / "effects"
            )
        return self._outcome(engine, verdict, drained, seconds, status)

    async def _prepare(self, model: str, http: aiohttp.ClientSession) -> None:
        settings = {platform.name: platform.settings for platform in self._platforms}
        own: dict[str, Any] = {"websocket": {}} if "websocket" in self.plan.channels else {}
        given = {
            "directory": str(self._directory),
            "store": self.plan.store,
            "port": self._port,
            "model": model,
            "channels": own | settings,
            "planted": self.plan.planted,
        }
        config = self._directory / "victim.json"
        config.write_text(json.dumps(given))
        await self._killer.warm_up(config, environment())
        hooks = Hooks(
            acked=lambda: self._failpoints.reach("after the ack"),
            began=lambda: self._failpoints.reach("after turn_start"),
        )
        url = f"ws://127.0.0.1:{self._port}/ws"
        for number in range(CLIENTS if own else 0):
            self._clients.append(Client(number, url, self._die(), hooks))
        for number in range(PERSONS * len(self._platforms)):
            platform = self._platforms[number % len(self._platforms)]
            person = CLIENTS + number
            group = number // len(self._platforms) % 3 == 2
            room = await platform.open(http, name_of(person), group=group)
            zeal = platform.zeal * (_ZEAL_IN_GROUPS if group else 1.0)
            self._persons.append(Person(person, platform, room, self._die(), zeal))

    def _die(self) -> random.Random:
        return random.Random(self._dice.getrandbits(32))

    async def _dawn(self, engine: Engine, http: aiohttp.ClientSession) -> None:
        """The gateway comes to all platforms and learns whom there is, before anything happens to it."""
        self.progress.phase = "dawn"
        await self._killer.start()
        try:
            async with asyncio.timeout(_DAWN):
                while not await self._is_ready(http):
                    await asyncio.sleep(0.1)
                for person in self._persons:
                    await person.say(http)
                while not self._is_accepted(engine):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            log = end_of(self._directory / "gateway.log")
            raise BrokenStormError(f"the gateway does not come to all its platforms: {log}") from None

    async def _is_ready(self, http: aiohttp.ClientSession) -> bool:
        async with http.get(f"http://127.0.0.1:{self._port}/readyz") as response:
            return response.status == 200

    async def _weather(self, engine: Engine, http: aiohttp.ClientSession) -> tuple[bool, float]:
        """The storm itself, then the calm until everything is answered."""
        await self._dawn(engine, http)
        self._begun = time.monotonic()
        pace = sum(writer.zeal for writer in (*self._clients, *self._persons)) / self.plan.rate
        self.progress.phase = "storm"
        async with asyncio.TaskGroup() as tasks:
            for writer in (*self._clients, *self._persons):
                tasks.create_task(writer.write(pace, self._is_over))
            await self._killer.rage(self._is_over)
        self.progress.phase = "drain"
        begun = time.monotonic()
        await self._killer.relent()
        while time.monotonic() - begun < self.plan.drain:
            if (
                all(client.satisfied for client in self._clients)
                and self._is_accepted(engine)
                and self._is_settled(engine)
            ):
                return True, time.monotonic() - begun
            await asyncio.sleep(0.2)
        return False, time.monotonic() - begun

    def _is_over(self) -> bool:
        """Whether it raged long enough; on a slow machine that is longer, so that it proves something."""
        elapsed = time.monotonic() - self._begun
        if self._killer.kills < self.plan.fewest_kills and not self.plan.planted:
            return elapsed > 2 * self.plan.seconds
        return elapsed > self.plan.seconds

    def _are_satisfied(self) -> bool:
        return all(client.satisfied for client in self._clients)

    def _is_accepted(self, engine: Engine) -> bool:
        """Whether everything that persons said was accepted."""
        with engine.connect() as c:
            counted = select(t.inbox.c.channel, func.count()).group_by(t.inbox.c.channel)
            accepted = Counter(dict(c.execute(counted).tuples().all()))
        said = Counter(person.platform.name for person in self._persons for _ in person.sent)
        return accepted >= said

    def _is_settled(self, engine: Engine) -> bool:
        """Whether nothing that was accepted is open."""
        inbox, outbox = select(func.count()).select_from(t.inbox), select(func.count()).select_from(t.outbox)
        with engine.connect() as c:
            waiting = c.execute(inbox.where(t.inbox.c.state == "new")).scalar_one()
            growing = c.execute(outbox.where(t.outbox.c.state.not_in(("final", "dead")))).scalar_one()
        return not waiting and not growing

    async def _show(self, show: Callable[[Progress], None]) -> None:
        while True:
            sent = [s for writer in (*self._clients, *self._persons) for s in writer.sent]
            progress = self.progress
            progress.elapsed = time.monotonic() - self._begun
            progress.sent, progress.acked = len(sent), sum(s.message_id is not None for s in sent)
            progress.kills, progress.lives = self._killer.kills, self._killer.lives
            progress.points = f"{len(self._failpoints.hits())}/{len(self._points)}"
            show(progress)
            await asyncio.sleep(0.5)

    def _outcome(
        self, engine: Engine, verdict: Verdict, drained: bool, seconds: float, status: int | None
    ) -> Outcome:
        sent = [s for writer in (*self._clients, *self._persons) for s in writer.sent]
        hits = self._failpoints.hits()
        return Outcome(
            plan=self.plan,
            engine=engine.dialect.name,
            messages=len(sent),
            said=Counter([person.platform.name for person in self._persons for _ in person.sent]),
            acked=sum(s.message_id is not None for s in sent),
            kills=self._killer.kills,
            lives=self._killer.lives,
            hits={point: hits[point] for point in self._points},
            drained=drained,
            drain_seconds=seconds,
            exit_status=status,
            unexpected=self._killer.unexpected,
            verdict=verdict,
        )


def _reasons(group: BaseExceptionGroup[BrokenStormError]) -> list[str]:
    found: list[str] = []
    for error in group.exceptions:
        found += _reasons(error) if isinstance(error, BaseExceptionGroup) else [str(error)]
    return found


def _free_port() -> int:
    """A port that no client is given while the gateway is down: it might find itself at the other end."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
