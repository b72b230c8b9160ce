"""How fast the bot may write: so many calls in so many seconds, and what the platform asked it to wait.

The platform publishes round figures only: about one message a second in a room with short bursts, twenty a
minute in a group, thirty a second altogether. Windows are a little longer than that: calls travel.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

from msgspec import Struct

_MARGIN = 1.1
_MOST_IDLE = 1000


class Rate(Struct, frozen=True):
    """So many calls within so many seconds."""

    calls: int
    seconds: float


ALL, ROOM, GROUP = Rate(30, 1.0), Rate(5, 5.0), Rate(20, 60.0)


class _Waiter(Struct, frozen=True):
    rank: tuple[bool, int]
    chat: str
    turn: asyncio.Future[None]


class Pace:
    """Gives turns: what is urgent first, else in the order of asking; nobody waits for another's room."""

    def __init__(self) -> None:
        self._made: dict[str, deque[float]] = {}
        self._held: dict[str, float] = {}
        self._waiting: list[_Waiter] = []
        self._asked = 0
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def turn(self, chat: str, *, urgent: bool = False) -> AsyncGenerator[None]:
        """Wait until a call about a room may be made."""
        self._asked += 1
        waiter = _Waiter((not urgent, self._asked), chat, asyncio.get_running_loop().create_future())
        insort(self._waiting, waiter, key=lambda one: one.rank)
        self._give()
        try:
            await waiter.turn
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
        yield

    def hold(self, chat: str, seconds: float) -> None:
        """The platform wants no more about this room for so long."""
        self._held[chat] = max(self._held.get(chat, 0.0), _now() + seconds)

    def held(self, chat: str) -> float:
        """Seconds until the room may be written to again, as the platform asked."""
        return max(0.0, self._held.get(chat, 0.0) - _now())

    def _give(self) -> None:
        """Give a turn to everybody who may have one, and come back when the next one may."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        soonest: float | None = None
        left: list[_Waiter] = []
        for waiter in self._waiting:
            wait = max(self.held(waiter.chat), *(self._wait(*limit) for limit in _limits(waiter.chat)))
            if wait > 0:
                soonest = wait if soonest is None else min(soonest, wait)
                left.append(waiter)
            elif not waiter.turn.done():
                for key, _ in _limits(waiter.chat):
                    self._made[key].append(_now())
                waiter.turn.set_result(None)
        self._waiting = left
        if soonest is not None:
            self._timer = asyncio.get_running_loop().call_later(soonest, self._give)
        elif len(self._made) > _MOST_IDLE:
            self._forget()

    def _wait(self, key: str, rate: Rate) -> float:
        """Seconds until there is room for one more call."""
        made = self._made.setdefault(key, deque())
        span = rate.seconds * _MARGIN
        while made and made[0] <= _now() - span:
            made.popleft()
        return made[0] + span - _now() if len(made) >= rate.calls else 0.0

    def _forget(self) -> None:
        """Drop what is known of rooms that were quiet for long."""
        old = _now() - GROUP.seconds * _MARGIN
        self._made = {key: made for key, made in self._made.items() if made and made[-1] > old}
        self._held = {chat: until for chat, until in self._held.items() if until > _now()}


def _limits(chat: str) -> Iterable[tuple[str, Rate]]:
    yield "", ALL
    yield chat, ROOM
    if chat.startswith("-"):
        yield f"{chat}/", GROUP


def _now() -> float:
    return asyncio.get_running_loop().time()
