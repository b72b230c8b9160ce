"""Rate limits of the platform, and its responses to calls that exceed them."""

from __future__ import annotations

import math

from msgspec import Struct

from channels.telegram.fake.calls import Refused, Request
from gateway.testing.fake_platform import Clock, Patience, Window

COUNTED = ("send", "edit", "copy", "forward")
"""Prefixes of the methods that count: edits and drafts count like messages."""

FREE = ("sendChatAction",)


class Rate(Struct, frozen=True):
    """A maximum number of calls in a number of seconds."""

    calls: int
    seconds: float


class Figures(Struct, frozen=True, kw_only=True):
    """Rate limits: a message a second in a chat, 20 a minute in a group, 30 a second in total.

    The platform allows short bursts and does not publish their length; here it is five seconds.
    """

    chat: Rate = Rate(5, 5)
    group: Rate = Rate(20, 60)
    all: Rate = Rate(30, 1)


class Limits:
    """Rate limiter with sliding windows. Counts calls while it is ``on``; a call before the end of a wait is
    a problem."""

    def __init__(self, clock: Clock, *, on: bool, figures: Figures | None = None) -> None:
        self.on = on
        self.figures = figures or Figures()
        self._clock = clock
        self._patience = Patience(clock)
        self._windows: dict[str, Window] = {}

    def check(self, request: Request) -> None:
        """Raise Refused (429) for a call that exceeds a limit, or comes before the end of a wait."""
        key = limit_key(request)
        if (left := self._patience.left(key)) > 0:
            raise _too_many(left, f"called {left:.1f} s before the end of the wait")
        if self.on and counts(request.method):
            self._count(key, cost=len(request.get("media", ".")) if "Group" in request.method else 1)

    def forgive(self, request: Request) -> None:
        """Undo the count of a call that did not reach its chat."""
        if self.on and counts(request.method):
            for window in self._windows_of(limit_key(request)):
                window.forgive()

    def slow_down(self, request: Request, seconds: int) -> Refused:
        """Refuse calls about the chat for this many seconds. Returns the refusal."""
        self._patience.ask(limit_key(request), seconds)
        return _too_many(seconds)

    def _count(self, key: str, cost: int) -> None:
        windows = [self._window("", self.figures.all), *self._windows_of(key)]
        wait = max(window.wait(cost) for window in windows)
        if wait > 0:
            self._patience.ask(key, math.ceil(wait))
            raise _too_many(wait)
        for window in windows:
            window.count(cost)

    def _windows_of(self, key: str) -> list[Window]:
        windows = [self._window(f"{key} chat", self.figures.chat)]
        if key.startswith("-"):
            windows.append(self._window(f"{key} group", self.figures.group))
        return windows

    def _window(self, name: str, rate: Rate) -> Window:
        window = self._windows.setdefault(name, Window(self._clock, rate.calls, rate.seconds))
        window.most, window.seconds = rate.calls, rate.seconds  # tests may change the figures at any time
        return window


def counts(method: str) -> bool:
    """Return whether calls of a method are counted."""
    return method.startswith(COUNTED) and method not in FREE


def limit_key(request: Request) -> str:
    """Return the key of a limit: the chat, or the method of a call without one."""
    chat = request.get("chat_id")
    return str(chat) if chat is not None and counts(request.method) else request.method


def _too_many(seconds: float, problem: str | None = None) -> Refused:
    wait = max(1, math.ceil(seconds))
    return Refused(f"Too Many Requests: retry after {wait}", 429, problem=problem, retry_after=wait)
