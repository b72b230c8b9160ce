"""The killer: runs one gateway process after the other, and kills each at random or at a failpoint."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from failpoints import Aims, Failpoints
from forks import ForkServer
from lives import BrokenStormError, Life, Parent

AT_START = ("before recovery", "after recovery", "after the claim")
_INSISTENCE = 12.0
"""Seconds to wait for the last missing failpoints: a bot may log in once in 5 s."""
_CLOCKS = (0, 0, 0, -3_600, 3_600)
"""Seconds by which the wall clock of a process is ahead."""
_SLOWEST_START = 20.0
_STARTS = 5


class Killer:
    """Starts the gateway, kills it, and starts it again at once. Its counts are for the report."""

    def __init__(
        self,
        directory: Path,
        fork_server: ForkServer,
        failpoints: Failpoints,
        points: Sequence[str],
        dice: random.Random,
    ) -> None:
        self.kills = 0
        self.lives = 0
        self.faults: Counter[str] = Counter()
        self.exits: Counter[int] = Counter()
        self.outage_seconds = 0.0
        self.answers_in_outages = 0
        self.unexpected: list[str] = []
        self._parent = Parent(directory, fork_server)
        self._failpoints = failpoints
        self._aims = Aims(failpoints, points, dice)
        self._dice = dice
        self._is_killing = False
        self._life: Life | None = None

    async def open(self, environment: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Return the port of the gateway, and the settings that depend on it."""
        port = free_port()
        return port, {"port": port}

    async def warm_up(self, config: Path, environment: dict[str, str]) -> None:
        """Start the process that gateways are forked from."""
        await self._parent.warm_up(config, environment)

    async def listen(self) -> None:
        """Read the reports of the parent process until it ends."""
        await self._parent.listen()

    async def run_faults(self, over: Callable[[], bool], insist: Callable[[], bool]) -> None:
        """Kill the gateway until ``over``, the present process first. ``insist``: only at failpoints."""
        self._is_killing = True
        if self._life is not None:
            await self._end(self._life)
        while not over():
            if insist():
                self._aims.drop_hit()
                await self._at_a_failpoint(_INSISTENCE)
            elif self.lives and self._dice.random() < 0.6:
                await self._at_a_failpoint()
            else:
                await self._at_random()

    async def stop_faults(self) -> None:
        """Start the last process, which is not killed."""
        self._is_killing = False
        self._failpoints.disarm()
        await self.start()

    async def start(self) -> Life:
        """Start a gateway process; a refused start is retried."""
        for _ in range(_STARTS):
            life = await self._fork()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SLOWEST_START):
                    await life.begun.wait()
            if not life.begun.is_set():
                break
            if not life.gone.is_set():
                return life
            self._count(life)
        raise BrokenStormError(f"the gateway does not start: {self._parent.log_end}")

    async def stop(self) -> int | None:
        """Stop the last process with SIGTERM. Returns its exit status."""
        life = self._life
        if life is not None and not life.gone.is_set():
            life.send(signal.SIGTERM)
            await life.ends_within(30)
        await self._parent.stop()
        return life.status if life is not None else None

    async def _fork(self) -> Life:
        # The clock of the first process and of the last one is right.
        ahead = self._dice.choice(_CLOCKS) if self._is_killing else 0
        self._life = await self._parent.fork(ahead=ahead)
        self.lives += 1
        return self._life

    async def _at_random(self) -> None:
        """Kill some time after the fork: during the start, the recovery, or later work."""
        life = await self._fork()
        seconds = self._dice.choice(((0.02, 0.3), (0.02, 0.3), (0.5, 1.4), (0.5, 1.4), (1.4, 3.0)))
        await life.ends_within(self._dice.uniform(*seconds))
        await self._end(life)

    async def _at_a_failpoint(self, least: float = 0.0) -> None:
        point = self._aims.next()
        if point in AT_START:
            self._failpoints.arm(point)
            life = await self._fork()
        else:
            life = await self.start()
            self._failpoints.arm(point)
        if not await life.ends_within(self._aims.patience(point, least)):
            self._aims.miss(point)
        self._failpoints.disarm()
        await self._end(life)

    async def _end(self, life: Life) -> None:
        await life.kill()
        self._count(life)

    def _count(self, life: Life) -> None:
        if life.status == -signal.SIGKILL:
            self.kills += 1
        else:
            self.unexpected.append(f"exit {life.status}")


def free_port() -> int:
    """Return a port that is not ephemeral: a client could get such a port and connect to itself."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
