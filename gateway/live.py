"""Live: a platform's room sees an answer while it is made.

While a turn runs its state is shown as often as the platform allows: always the newest, whatever was skipped.
None of it is needed for the answer to arrive; what goes wrong here is made good by the final one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import structlog

from gateway.channel import PlacementDeferred, PlacementRefused, PlacementUncertain, Streaming
from gateway.frames import Event
from gateway.painter import Painter
from gateway.session import Turn

log = structlog.get_logger("trunkline.live")

_TYPING_AFTER, _TYPING_EVERY = 0.25, 4.0
"""Seconds. What is answered at once needs no sign of being made, and platforms count every one."""
_AGAIN = 0.25
"""Seconds after which what could not be shown is shown again, where the platform says nothing of it."""


class Bell:
    """Rings when something of a session was shown; it reads along like a feed, and keeps nothing."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self.ended = False

    def offer(self, _event: Event) -> None:
        """Ring."""
        self._rung.set()

    async def wait(self) -> None:
        """Wait until it has rung since the last time."""
        await self._rung.wait()
        self._rung.clear()

    def ring(self) -> None:
        """Ring although nothing new was shown: what there is has yet to be seen."""
        self._rung.set()


class Live:
    """Shows running turns. Its tasks live in the group it is given."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks

    @asynccontextmanager
    async def showing(self, turn: Turn, painter: Painter | None) -> AsyncGenerator[None]:
        """Show the turn in its room as long as the block runs."""
        if painter is None or not (painter.types or painter.streaming):
            yield
            return
        bell = Bell()
        turn.session.watch(bell)
        typing = self._tasks.create_task(_type(painter))
        tasks = [typing]
        if (streaming := painter.streaming) is not None:
            tasks.append(self._tasks.create_task(_show(turn, painter, streaming, bell)))
            tasks[-1].add_done_callback(lambda _: typing.cancel())
        try:
            yield
        finally:
            turn.session.unfollow(bell)
            bell.ended = True
            if not painter.placing:
                tasks[-1].cancel()
            await asyncio.wait(tasks)


async def _show(turn: Turn, painter: Painter, streaming: Streaming, bell: Bell) -> None:
    try:
        await _stream(turn, painter, streaming, bell)
    except PlacementRefused as refused:
        log.info("an answer is not shown while it is made", reason=str(refused))
    except Exception:
        log.exception("an answer could not be shown while it is made", session=turn.session.id)


async def _type(painter: Painter) -> None:
    await asyncio.sleep(_TYPING_AFTER)
    while True:
        await painter.typing()
        await asyncio.sleep(_TYPING_EVERY)


async def _stream(turn: Turn, painter: Painter, streaming: Streaming, bell: Bell) -> None:
    while not bell.ended:
        await bell.wait()
        pause = streaming.every
        try:
            if streaming.kind == "draft":
                await painter.draft(turn.assembler.preview())
            else:
                await painter.show(turn.assembler.preview(), final=False)
        except PlacementDeferred as deferred:
            pause = max(pause, _AGAIN if deferred.seconds is None else deferred.seconds)
            bell.ring()
        except PlacementUncertain:
            log.debug("what is shown of an answer is uncertain", session=turn.session.id)
            pause = max(pause, _AGAIN)
            bell.ring()
        if not bell.ended:
            await asyncio.sleep(pause)
