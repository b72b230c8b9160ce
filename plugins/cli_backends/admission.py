"""Admission of dispatches: a limit on conversations, and one dispatch at a time in each, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from msgspec import Struct

from plugins.cli_backends.failures import BackendError

QUEUE = 10
"""Dispatches of one conversation that may wait behind the one that runs."""


class _Waiting(Struct, frozen=True, eq=False):
    task_id: str
    turn: asyncio.Future[None]


class Admission:
    """The admission queue of one backend."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._queues: dict[str, deque[_Waiting]] = {}

    @property
    def inside(self) -> int:
        """The number of conversations with a running dispatch."""
        return len(self._queues)

    @asynccontextmanager
    async def enter(self, conversation: str, task_id: str, most: int) -> AsyncGenerator[None]:
        """Wait behind earlier dispatches of the same conversation, and be alone in it.

        Raises BackendError: CONCURRENCY_LIMIT if ``most`` conversations are served already or too many
        wait in this one, ABORTED if it is aborted while it waits.
        """
        queue = self._queues.get(conversation)
        if queue is None:
            if len(self._queues) >= most:
                raise BackendError(
                    "CONCURRENCY_LIMIT", self._backend, f"busy with {most} other conversations; try again"
                )
            self._queues[conversation] = deque()
        else:
            await self._wait(queue, conversation, task_id)
        try:
            yield
        finally:
            self._next(conversation)

    def abort(self, task_id: str) -> bool:
        """Abort a queued dispatch. Return whether there was one."""
        for queue in self._queues.values():
            for waiting in queue:
                if waiting.task_id == task_id:
                    return self._refuse(waiting)
        return False

    def abort_conversation(self, conversation: str) -> int:
        """Abort all queued dispatches of a conversation. Return their number."""
        return sum(self._refuse(waiting) for waiting in tuple(self._queues.get(conversation, ())))

    async def _wait(self, queue: deque[_Waiting], conversation: str, task_id: str) -> None:
        if len(queue) >= QUEUE:
            raise BackendError("CONCURRENCY_LIMIT", self._backend, f"{QUEUE} tasks wait here already")
        waiting = _Waiting(task_id, asyncio.get_running_loop().create_future())
        queue.append(waiting)
        try:
            await waiting.turn
        except BaseException:
            if waiting in queue:
                queue.remove(waiting)
            elif waiting.turn.done() and not waiting.turn.cancelled() and not waiting.turn.exception():
                # It was given the place in the moment in which it gave up.
                self._next(conversation)
            raise

    def _next(self, conversation: str) -> None:
        """Hand the place to the next one, or give it back."""
        queue = self._queues[conversation]
        while queue:
            waiting = queue.popleft()
            if not waiting.turn.done():
                waiting.turn.set_result(None)
                return
        del self._queues[conversation]

    def _refuse(self, waiting: _Waiting) -> bool:
        if waiting.turn.done():
            return False
        waiting.turn.set_exception(BackendError("ABORTED", self._backend, "stopped before it began"))
        return True
