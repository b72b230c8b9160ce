"""Whoever kills the gateway: lives one after the other, each ended at random or at a failpoint."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from failpoints import Failpoints

_AT_START = ("before recovery", "after recovery", "after the claim")
_PATIENCE, _LONGEST_PATIENCE = 0.9, 3.6
"""Seconds to wait for a failpoint to be reached before the life is ended at random. They are more for one
that was missed: on a busy machine few lives come as far as an answer in the first of them."""
_INSISTENCE = 12.0
"""Seconds to wait for a failpoint that is all that is missing: a bot may log in once in 5 s."""
_CLOCKS = (0, 0, 0, -3_600, 3_600)
"""How many seconds a life's wall clock is ahead."""
_SLOWEST_START = 20.0
_STARTS = 5


class BrokenStormError(Exception):
    """The storm itself could not be held, so nothing can be said about the gateway."""


class Life:
    """One process of the gateway, as its parent reports it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.begun = asyncio.Event()
        """It is ready, or it ended before it was."""
        self.gone = asyncio.Event()
        self.status: int | None = None

    async def ends_within(self, seconds: float) -> bool:
        """Wait for its end. Returns whether it came in time."""
        try:
            async with asyncio.timeout(seconds):
                await self.gone.wait()
        except TimeoutError:
            return False
        return True


class Killer:
    """Starts the gateway, kills it, and starts it at once again. Its counts are for the report."""

    def __init__(
        self, directory: Path, failpoints: Failpoints, points: Sequence[str], dice: random.Random
    ) -> None:
        self.kills = 0
        self.lives = 0
        self.unexpected: list[str] = []
        self._directory = directory
        self._failpoints = failpoints
        self._points = points
        self._dice = dice
        self._to_come: list[str] = []
        self._missed: Counter[str] = Counter()
        self._raging = False
        self._process: asyncio.subprocess.Process | None = None
        self._life: Life | None = None
        self._forked: asyncio.Queue[Life] = asyncio.Queue(1)

    async def warm_up(self, config: Path, environment: dict[str, str]) -> None:
        """Start the process that gateways are forked from."""
        with (self._directory / "gateway.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(Path(__file__).parent / "victim.py"),
                str(config),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        assert self._process.stdout is not None
        if not await self._process.stdout.readline():
            raise BrokenStormError(f"no gateway can be started: {end_of(self._directory / 'gateway.log')}")

    async def listen(self) -> None:
        """Follow what the parent reports, until it ends."""
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            what, _, pid = line.decode().strip().partition(" ")
            if what == "forked":
                self._life = Life(int(pid))
                self._failpoints.target(self._life.pid)
                await self._forked.put(self._life)
            elif what == "ready" and self._life is not None and self._life.pid == int(pid):
                self._life.begun.set()
            elif what.startswith("gone") and self._life is not None:
                self._life.status = int(what.split(":")[1])
                self._life.gone.set()
                self._life.begun.set()

    async def rage(self, over: Callable[[], bool], insist: Callable[[], bool]) -> None:
        """Kill until it is over, first the present life. ``insist``: only at failpoints, with patience."""
        self._raging = True
        if self._life is not None:
            await self._end(self._life)
        while not over():
            if insist():
                self._to_come = [point for point in self._to_come if not self._failpoints.hits()[point]]
                await self._at_a_failpoint(_INSISTENCE)
            elif self.lives and self._dice.random() < 0.6:
                await self._at_a_failpoint()
            else:
                await self._at_random()

    async def relent(self) -> Life:
        """The last life, which nobody ends."""
        self._raging = False
        self._failpoints.disarm()
        return await self.start()

    async def start(self) -> Life:
        """A new life; a start that is refused is tried again."""
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
        raise BrokenStormError(f"the gateway does not start: {end_of(self._directory / 'gateway.log')}")

    async def stop(self) -> int | None:
        """End the last life in good order. Returns its exit status."""
        life = self._life
        if life is not None and not life.gone.is_set():
            os.kill(life.pid, signal.SIGTERM)
            await life.ends_within(30)
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        return life.status if life is not None else None

    async def _fork(self) -> Life:
        assert self._process is not None
        assert self._process.stdin is not None
        # The first life and the last one know what time it is.
        ahead = self._dice.choice(_CLOCKS) if self._raging else 0
        self._process.stdin.write(f"start {ahead}\n".encode())
        await self._process.stdin.drain()
        self.lives += 1
        return await self._forked.get()

    async def _at_random(self) -> None:
        """Kill some time after the fork: in the start, in the recovery, or in the work, also at length."""
        life = await self._fork()
        seconds = self._dice.choice(((0.02, 0.3), (0.02, 0.3), (0.5, 1.4), (0.5, 1.4), (1.4, 3.0)))
        await life.ends_within(self._dice.uniform(*seconds))
        await self._end(life)

    async def _at_a_failpoint(self, least: float = _PATIENCE) -> None:
        if not self._to_come:
            hits = self._failpoints.hits()
            points = [point for point in self._points if not hits[point]] or self._points
            self._to_come = self._dice.sample(points, len(points))
        point = self._to_come.pop()
        if point in _AT_START:
            self._failpoints.arm(point)
            life = await self._fork()
        else:
            life = await self.start()
            self._failpoints.arm(point)
        patience = max(least, min(_LONGEST_PATIENCE, _PATIENCE * (1 + self._missed[point])))
        self._missed[point] += not await life.ends_within(patience)
        self._failpoints.disarm()
        await self._end(life)

    async def _end(self, life: Life) -> None:
        if not life.gone.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(life.pid, signal.SIGKILL)
            await life.gone.wait()
        self._count(life)

    def _count(self, life: Life) -> None:
        if life.status == -signal.SIGKILL:
            self.kills += 1
        else:
            self.unexpected.append(f"exit {life.status}")


def end_of(log: Path) -> str:
    """The last lines of a log."""
    return log.read_text()[-2000:]
