"""How often the bot may write: the platform's figures, and what it does about those that pass them."""

from __future__ import annotations

import math
from collections import deque

from msgspec import Struct

from channels.telegram.fake.clock import Clock
from channels.telegram.fake.refusal import Refused
from channels.telegram.fake.request import Request

COUNTED = ("send", "edit", "copy", "forward")
"""What a method that counts begins with: edits and drafts count like messages."""

FREE = ("sendChatAction",)


class Rate(Struct, frozen=True):
    """So many calls within so many seconds."""

    calls: int
    seconds: float


class Figures(Struct, frozen=True, kw_only=True):
    """One message a second in a chat with short bursts, twenty a minute in a group, thirty a second
    altogether.

    How long a burst may be is not published; here it is as much as five seconds allow.
    """

    chat: Rate = Rate(5, 5)
    group: Rate = Rate(20, 60)
    all: Rate = Rate(30, 1)


class Limits:
    """Counts calls in sliding windows while it is ``on``. Whoever was told to wait and does not is found
    out."""

    def __init__(self, clock: Clock, *, on: bool, figures: Figures | None = None) -> None:
        self.on = on
        self.figures = figures or Figures()
        self._clock = clock
        self._made: dict[str, deque[float]] = {}
        self._closed: dict[str, float] = {}

    def check(self, request: Request) -> None:
        """Raises Refused (429) for a call too many, and for one before the wait that was asked for is
        over."""
        room = room_of(request)
        now = self._clock.now()
        until = self._closed.get(room, 0)
        if now < until:
            early = f"{until - now:.1f} s before the wait that was asked for was over"
            raise _too_many(until - now, early)
        if self.on and counts(request.method):
            self._count(room, now, cost=len(request.get("media", ".")) if "Group" in request.method else 1)

    def forgive(self, request: Request) -> None:
        """A call that was counted did not come as far as its room."""
        if self.on and counts(request.method):
            for kind in ("chat", "group"):
                if made := self._made.get(f"{room_of(request)} {kind}"):
                    made.pop()

    def slow_down(self, request: Request, seconds: int) -> Refused:
        """The answer that closes a room to the bot for so long."""
        self._closed[room_of(request)] = self._clock.now() + seconds
        return _too_many(seconds)

    def _count(self, room: str, now: float, cost: int) -> None:
        rates = [("", self.figures.all), (f"{room} chat", self.figures.chat)]
        if room.startswith("-"):
            rates.append((f"{room} group", self.figures.group))
        wait = max(self._wait(name, rate, now, cost) for name, rate in rates)
        if wait > 0:
            self._closed[room] = now + math.ceil(wait)
            raise _too_many(wait)
        for name, _ in rates:
            self._made[name].extend([now] * cost)

    def _wait(self, name: str, rate: Rate, now: float, cost: int) -> float:
        """Seconds until there is room for a call; 0 or less if there is."""
        made = self._made.setdefault(name, deque())
        while made and made[0] <= now - rate.seconds:
            made.popleft()
        over = len(made) + min(cost, rate.calls) - rate.calls
        return made[over - 1] + rate.seconds - now if over > 0 else 0


def counts(method: str) -> bool:
    """Whether a method counts."""
    return method.startswith(COUNTED) and method not in FREE


def room_of(request: Request) -> str:
    """What a limit is kept for: the room, or the method where there is none."""
    chat = request.get("chat_id")
    return str(chat) if chat is not None and counts(request.method) else request.method


def _too_many(seconds: float, mistake: str | None = None) -> Refused:
    wait = max(1, math.ceil(seconds))
    return Refused(f"Too Many Requests: retry after {wait}", 429, mistake=mistake, retry_after=wait)
