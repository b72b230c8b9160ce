"""Time limits of plugin calls. The clock stops while a call waits for an approval or a nested run."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from types import TracebackType
from typing import Any, Self

import structlog
from msgspec import Struct

log = structlog.get_logger("trunkline.hooks")

BLOCKING_SECONDS = 0.1
"""Log a plugin that blocks the event loop for this long, because every other chat waits for it."""


class Deadline:
    """A time limit around an ``async with`` block, which ``paused`` can stop.

    ``asyncio.timeout`` alone cannot be paused and resumed with the remaining time.
    """

    __slots__ = ("_left", "_pauses", "_timeout", "_token")

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._pauses = 0
        self._timeout = asyncio.timeout(seconds)

    @property
    def missed(self) -> bool:
        """Return whether the deadline passed."""
        return self._timeout.expired()

    def pause(self) -> None:
        """Stop the clock; several tasks of one call may pause it at once."""
        when = self._timeout.when()
        if self._pauses == 0 and when is not None and not self.missed:
            self._left = when - asyncio.get_running_loop().time()
            self._timeout.reschedule(None)
        self._pauses += 1

    def resume(self) -> None:
        """Restart the clock after the last pause ends."""
        self._pauses -= 1
        if self._pauses == 0 and not self.missed:
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._left)

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._token = _current.set(self)
        gathered = _gathered.get()
        if gathered is not None:
            gathered.append(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.reset(self._token)
        # A task that outlives the call may resume later; the extra pause keeps it from rescheduling.
        self._pauses += 1
        await self._timeout.__aexit__(kind, error, trace)


_current: ContextVar[Deadline | None] = ContextVar("deadline", default=None)
_gathered: ContextVar[list[Deadline] | None] = ContextVar("gathered", default=None)


@contextmanager
def paused() -> Generator[None]:
    """Stop the clock of the current plugin call, if there is one."""
    deadline = _current.get()
    if deadline is None:
        yield
        return
    deadline.pause()
    try:
        yield
    finally:
        deadline.resume()


@contextmanager
def gathering() -> Generator[list[Deadline]]:
    """Yield the clock of the current plugin call, and those that begin within the block.

    Another task can pause them: one that works for the call in another process.
    """
    outer = _current.get()
    clocks = [] if outer is None else [outer]
    token = _gathered.set(clocks)
    try:
        yield clocks
    finally:
        _gathered.reset(token)


def is_limited() -> bool:
    """Return whether this is part of a plugin call with a time limit."""
    return _current.get() is not None


def without_deadline() -> Context:
    """Return the current context without the clock of a plugin call, for a task that outlives the call."""
    context = copy_context()
    context.run(_current.set, None)
    return context


class Calls:
    """The number of a plugin's calls that run. ``on_end`` is called when one ends."""

    __slots__ = ("on_end", "running")

    def __init__(self) -> None:
        self.running = 0
        self.on_end: Callable[[], None] | None = None


class Limit(Struct, frozen=True):
    """The time limit of a plugin function. ``hook`` names it in the log; ``calls`` counts its calls."""

    plugin: str
    hook: str
    seconds: float
    calls: Calls | None = None

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a sync or async function and return its result. Raises TimeoutError past the limit."""
        begun = time.perf_counter()
        try:
            result = function(*args)
        finally:
            self.note(time.perf_counter() - begun)
        if not inspect.isawaitable(result):
            return result
        if self.calls is None:
            return await self._await(result)
        self.calls.running += 1
        try:
            return await self._await(result)
        finally:
            self.calls.running -= 1
            if self.calls.on_end is not None:
                self.calls.on_end()

    async def _await(self, result: Awaitable[Any]) -> Any:
        deadline = Deadline(self.seconds)
        try:
            async with deadline:
                return await _Timed(result, self)
        except TimeoutError:
            if not deadline.missed:
                raise
            raise TimeoutError(f"no result within {self.seconds:g} s") from None

    def note(self, seconds: float) -> None:
        """Log a step that blocked the event loop."""
        if seconds >= BLOCKING_SECONDS:
            milliseconds = round(seconds * 1000)
            log.warning(
                "a plugin blocked the event loop", plugin=self.plugin, hook=self.hook, ms=milliseconds
            )


class _Timed:
    """An awaitable that measures each step of another awaitable between two suspensions."""

    __slots__ = ("_limit", "_steps")

    def __init__(self, awaited: Awaitable[Any], limit: Limit) -> None:
        self._steps: Generator[Any, Any, Any] = awaited.__await__()
        self._limit = limit

    def __await__(self) -> Self:
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self._measured(next, self._steps)

    def send(self, value: Any) -> Any:
        return self._measured(self._steps.send, value)

    def throw(self, *error: Any) -> Any:
        return self._measured(self._steps.throw, *error)

    def close(self) -> None:
        self._steps.close()

    def _measured(self, step: Callable[..., Any], *args: Any) -> Any:
        begun = time.perf_counter()
        try:
            return step(*args)
        finally:
            self._limit.note(time.perf_counter() - begun)
