"""One storm over one database: the world around the gateway, the killing, the waiting, the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from checker import Record, Verdict, check, decode_rooms
from client import Client, Hooks, Person
from failpoints import Failpoints
from killer import BrokenStormError, Killer, end_of
from sqlalchemy import Engine, create_engine, func, select

from gateway.store import schema as t

HOME = Path(__file__).parent
ROOT = HOME.parent.parent
CLIENTS, PERSONS = 12, 6


@dataclass(frozen=True)
class Plan:
    """What a storm is to be like. ``rate`` is messages per second in all, ``faults`` a share."""

    store: str
    seconds: float
    rate: float
    faults: float
    seed: int
    planted: str | None = None
    drain: float = 90.0
    """Seconds that the calm after it may take: a message that died with many gateways waits a minute."""


@dataclass
class Progress:
    """How far it is."""

    phase: str = "starting"
    elapsed: float = 0.0
    sent: int = 0
    acked: int = 0
    kills: int = 0
    lives: int = 0
    points: int = 0


@dataclass
class Outcome:
    """What a storm came to."""

    plan: Plan
    engine: str
    messages: int
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
        self._killer = Killer(directory, self._failpoints, random.Random(plan.seed + 1))
        self._clients: list[Client] = []
        self._persons: list[Person] = []
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
            model = await self._companion(stack, "model.py", str(self.plan.faults), str(self.plan.seed))
            platform = await self._companion(
                stack, "room.py", *_flags(faults=self.plan.faults, repeats=0.1, seed=self.plan.seed)
            )
            await self._prepare(model, platform)
            engine = create_engine(self.plan.store)
            stack.callback(engine.dispose)
            try:
                async with asyncio.TaskGroup() as tasks:
                    background = [
                        tasks.create_task(self._killer.listen()),
                        tasks.create_task(self._show(show)),
                        *(tasks.create_task(client.live()) for client in self._clients),
                    ]
                    drained, seconds = await self._weather(engine)
                    status = await self._killer.stop()
                    for task in background:
                        task.cancel()
            finally:
                await self._killer.stop()
            rooms = await _rooms(platform)
            verdict = check(
                Record.read(engine), self._clients, self._persons, rooms, self._directory / "effects"
            )
        return self._outcome(engine, verdict, drained, seconds, status)

    async def _prepare(self, model: str, platform: str) -> None:
        port = _free_port()
        given = {
            "directory": str(self._directory),
            "store": self.plan.store,
            "port": port,
            "model": model,
            "platform": platform,
            "planted": self.plan.planted,
        }
        config = self._directory / "victim.json"
        config.write_text(json.dumps(given))
        await self._killer.warm_up(config, _environment())
        hooks = Hooks(
            acked=lambda: self._failpoints.reach("after the ack"),
            began=lambda: self._failpoints.reach("after turn_start"),
        )
        url = f"ws://127.0.0.1:{port}/ws"
        seeds = [self._dice.getrandbits(32) for _ in range(CLIENTS + PERSONS)]
        self._clients = [Client(n, url, random.Random(seeds[n]), hooks) for n in range(CLIENTS)]
        self._persons = [
            Person(n, platform, random.Random(seeds[n])) for n in range(CLIENTS, CLIENTS + PERSONS)
        ]

    async def _weather(self, engine: Engine) -> tuple[bool, float]:
        """The storm itself, then the calm until everything is answered."""
        self._begun = time.monotonic()
        pace = (CLIENTS + PERSONS) / self.plan.rate
        self.progress.phase = "storm"
        async with asyncio.TaskGroup() as tasks:
            for writer in (*self._clients, *self._persons):
                tasks.create_task(writer.write(pace, self._is_over))
            await self._killer.rage(self._is_over)
        self.progress.phase = "drain"
        begun = time.monotonic()
        await self._killer.relent()
        while time.monotonic() - begun < self.plan.drain:
            if all(client.satisfied for client in self._clients) and self._is_empty(engine):
                return True, time.monotonic() - begun
            await asyncio.sleep(0.2)
        return False, time.monotonic() - begun

    def _is_over(self) -> bool:
        return time.monotonic() - self._begun > self.plan.seconds

    def _is_empty(self, engine: Engine) -> bool:
        """Whether everything that persons said was accepted, and nothing accepted is open."""
        with engine.connect() as c:
            rows = select(func.count()).select_from(t.inbox)
            accepted = c.execute(rows.where(t.inbox.c.channel == "line")).scalar_one()
            still_open = c.execute(rows.where(t.inbox.c.state == "new")).scalar_one()
        return not still_open and accepted >= sum(len(person.sent) for person in self._persons)

    async def _companion(self, stack: AsyncExitStack, script: str, *arguments: str) -> str:
        """Start a process of the world; returns its address."""
        path = self._directory / f"{script}.log"
        with path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(HOME / script),
                str(self._directory),
                *arguments,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=_environment(),
            )
        stack.push_async_callback(_end, process)
        assert process.stdout is not None
        address = (await process.stdout.readline()).decode().strip()
        if not address:
            raise BrokenStormError(f"{script} does not start: {end_of(path)}")
        return address

    async def _show(self, show: Callable[[Progress], None]) -> None:
        while True:
            sent = [s for writer in (*self._clients, *self._persons) for s in writer.sent]
            progress = self.progress
            progress.elapsed = time.monotonic() - self._begun
            progress.sent, progress.acked = len(sent), sum(s.message_id is not None for s in sent)
            progress.kills, progress.lives = self._killer.kills, self._killer.lives
            progress.points = sum(hits > 0 for hits in self._failpoints.hits().values())
            show(progress)
            await asyncio.sleep(0.5)

    def _outcome(
        self, engine: Engine, verdict: Verdict, drained: bool, seconds: float, status: int | None
    ) -> Outcome:
        sent = [s for writer in (*self._clients, *self._persons) for s in writer.sent]
        return Outcome(
            plan=self.plan,
            engine=engine.dialect.name,
            messages=len(sent),
            acked=sum(s.message_id is not None for s in sent),
            kills=self._killer.kills,
            lives=self._killer.lives,
            hits=self._failpoints.hits(),
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


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


async def _rooms(platform: str) -> dict[str, list[dict[str, Any]]]:
    async with aiohttp.ClientSession() as http, http.get(f"{platform}/rooms") as response:
        return decode_rooms(await response.read())


def _flags(**values: float) -> list[str]:
    return [piece for name, value in values.items() for piece in (f"--{name}", str(value))]


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"}


def _free_port() -> int:
    """A port that no client is given while the gateway is down: it might find itself at the other end."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
