"""The background tasks of plugins: each fails alone, and ends with its plugin."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from typing import Any

import structlog

from gateway.contract.errors import CATCHABLE, InvalidStateError, is_cancellation_requested
from gateway.extensions.deadlines import without_deadline

log = structlog.get_logger("trunkline.registry")

_END_SECONDS = 2.5
"""Time for tasks to end after they were cancelled; then they are cancelled once more."""


class PluginTasks:
    """The tasks of one plugin, in the task group of all plugins."""

    def __init__(self, plugin: str, tasks: asyncio.TaskGroup) -> None:
        self._plugin = plugin
        self._tasks = tasks
        self._running: set[asyncio.Task[None]] = set()
        self._ended = False

    def create_task(self, work: Coroutine[Any, Any, object], *, name: str = "") -> asyncio.Task[None]:
        """Start a task; its failure is logged. Raises InvalidStateError once the plugin has ended."""
        if not inspect.iscoroutine(work):
            raise TypeError(f"a task of plugin {self._plugin!r} must be a coroutine, not {work!r}")
        name = name or work.__qualname__
        if self._ended:
            work.close()
            raise InvalidStateError(f"plugin {self._plugin!r} has ended, and cannot start the task {name!r}")
        # Without the time limit of the hook that starts it: the task outlives the hook.
        context = without_deadline()
        task = self._tasks.create_task(self._run(work, name), name=f"{self._plugin}: {name}", context=context)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        # One that is cancelled before its first step never awaits its coroutine.
        task.add_done_callback(lambda _: work.close())
        return task

    async def end(self) -> None:
        """Cancel the tasks and wait for their end, up to a limit; start no more."""
        self._ended = True
        # Twice, because a library may swallow the first cancellation.
        for _ in range(2):
            running = self._running - {asyncio.current_task()}
            for task in running:
                task.cancel()
            if not running or not (await asyncio.wait(running, timeout=_END_SECONDS))[1]:
                return
        names = sorted(task.get_name() for task in self._running)
        log.error("tasks of a plugin did not stop in time", plugin=self._plugin, tasks=names)

    async def _run(self, work: Coroutine[Any, Any, object], name: str) -> None:
        try:
            await work
        except CATCHABLE as error:
            if is_cancellation_requested(error):
                raise
            log.exception("a task of a plugin failed", plugin=self._plugin, task=name)
