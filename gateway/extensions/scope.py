"""The scope of an activated plugin: its registrations and background tasks, removed when it ends."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar, cast

import structlog

from gateway.contract.errors import CATCHABLE, InvalidStateError, is_cancellation_requested
from gateway.contract.services import Unregister
from gateway.extensions.deadlines import Calls, without_deadline

log = structlog.get_logger("trunkline.registry")

_END_SECONDS = 2.5
"""Time for tasks to end after they were cancelled; then they are cancelled once more."""


S = TypeVar("S")


class Scope:
    """Registrations and background tasks of one plugin.

    An open scope registers at once. A closed one keeps what is to be registered until it is opened; so a
    plugin can be activated while another one still has its names. After ``retire`` it ignores registrations:
    a turn may still run code of a plugin that has ended.
    """

    def __init__(self, plugin: str, tasks: asyncio.TaskGroup | None = None, *, is_open: bool = True) -> None:
        self.tasks = None if tasks is None else PluginTasks(plugin, tasks)
        """Its tasks; None if the gateway does not run."""
        self.calls = Calls()
        self._plugin = plugin
        self._open = is_open
        self._retired = False
        self._entries: dict[object, _Entry] = {}
        self._ends: list[Callable[[], None]] = []

    def add(self, register: Callable[..., Unregister], *args: Any, **kwargs: Any) -> Unregister:
        """Call ``register``, which returns how to undo it. The result does that, once."""
        return self._put(object(), partial(register, *args, **kwargs))

    def put(self, key: str, register: Callable[..., Unregister], *args: Any) -> None:
        """Call ``register`` in place of an earlier call with this key."""
        self._put(key, partial(register, *args))

    def _put(self, key: object, register: Callable[[], Unregister]) -> Unregister:
        entry = _Entry(register)
        if self._retired:
            return entry.remove
        if self._open:
            entry.add()
        self._entries[key] = entry

        def unregister() -> None:
            if self._entries.get(key) is entry:
                del self._entries[key]
                entry.remove()

        return unregister

    def on_end(self, release: Callable[[], None]) -> None:
        """Call ``release`` after the plugin was deactivated."""
        self._ends.append(release)

    def open(self) -> None:
        """Register everything, in order. Raises the error of the first registration that fails."""
        self._open = True
        for entry in self._entries.values():
            entry.add()

    def close(self) -> None:
        """Remove everything that is registered, the latest first."""
        self._open = False
        for entry in reversed(self._entries.values()):
            try:
                entry.remove()
            except CATCHABLE:  # the registry may be one that a plugin published
                log.exception("a contribution of a plugin could not be removed", plugin=self._plugin)

    def retire(self) -> None:
        """Remove everything permanently."""
        self.close()
        self._retired = True
        self._entries.clear()

    async def end_tasks(self) -> None:
        """Cancel the tasks and wait for their end, up to a limit."""
        if self.tasks is not None:
            await self.tasks.end()

    def release(self) -> None:
        """Release what the plugin could use until it was deactivated."""
        for release in self._ends:
            release()
        self._ends.clear()


class _Entry:
    """One registration."""

    def __init__(self, register: Callable[[], Unregister]) -> None:
        self._register = register
        self._unregister: Unregister | None = None

    def add(self) -> None:
        if self._unregister is None:
            self._unregister = self._register()

    def remove(self) -> None:
        unregister, self._unregister = self._unregister, None
        if unregister is not None:
            unregister()


def owned(service: S, scope: Scope, *methods: str) -> S:
    """Return a service as one plugin sees it: its scope owns what these methods register."""
    return cast("S", _Owned(service, scope, methods))


class _Owned:
    def __init__(self, service: object, scope: Scope, methods: tuple[str, ...]) -> None:
        self._service = service
        for name in methods:
            setattr(self, name, partial(scope.add, getattr(service, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)


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
