"""The tasks of plugins: each fails alone, and all end with their plugin."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from gateway import Plugin, PluginContext
from gateway.contract.errors import InvalidStateError
from gateway.contract.services import TaskService
from gateway.extensions.deadlines import is_limited
from gateway.testing.chat import chatting


class Worker(Plugin):
    """A plugin that keeps its task service."""

    name = "worker"

    def __init__(self) -> None:
        self.notes: list[str] = []

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.tasks is not None
        self.tasks: TaskService = ctx.tasks
        self.tasks.create_task(self.wait("of activate"))

    async def deactivate(self) -> None:
        self.notes.append("deactivated")

    async def wait(self, name: str) -> None:
        """Wait until cancelled, without the time limit of the hook that started it."""
        assert not is_limited()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.notes.append(f"{name} ended")


async def test_004_t02_tasks_end_before_their_plugin(tmp_path: Path) -> None:
    worker = Worker()
    async with chatting(tmp_path, worker) as chat:
        worker.tasks.create_task(worker.wait("second"))
        await chat.say("hi")
        assert worker.notes == []
    assert sorted(worker.notes[:2]) == ["of activate ended", "second ended"]
    assert worker.notes[2:] == ["deactivated"]


async def test_a_removed_plugin_has_no_tasks(tmp_path: Path) -> None:
    worker = Worker()
    async with chatting(tmp_path, worker) as chat:
        await asyncio.sleep(0)
        await chat.gateway.registry.unregister("worker")
        assert worker.notes == ["of activate ended", "deactivated"]
        with pytest.raises(
            InvalidStateError, match="plugin 'worker' has ended, and cannot start the task 'late'"
        ):
            worker.tasks.create_task(worker.wait("late"), name="late")


@pytest.mark.parametrize("failure", [ValueError("broken"), SystemExit(3), asyncio.CancelledError()])
async def test_a_task_that_fails_is_logged_and_fails_alone(
    tmp_path: Path, failure: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail() -> None:
        raise failure

    worker = Worker()
    async with chatting(tmp_path, worker) as chat:
        await asyncio.wait([worker.tasks.create_task(fail(), name="failing")])
        assert (await chat.say("hi")).text == "You said: hi"
        assert worker.notes == []
    logged = capsys.readouterr().out
    assert "a task of a plugin failed" in logged
    assert "plugin=worker" in logged
    assert "task=failing" in logged


async def test_a_task_that_ignores_its_end_is_cancelled_again(tmp_path: Path) -> None:
    cancelled: list[int] = []

    async def stubborn() -> None:
        while len(cancelled) < 2:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                cancelled.append(1)

    worker = Worker()
    async with chatting(tmp_path, worker):
        worker.tasks.create_task(stubborn())
        await asyncio.sleep(0)
    assert cancelled == [1, 1]


async def test_the_tasks_of_a_plugin_that_fails_to_activate_end(tmp_path: Path) -> None:
    class Failing(Worker):
        async def activate(self, ctx: PluginContext) -> None:
            await super().activate(ctx)
            await asyncio.sleep(0)
            raise ValueError("no")

    worker = Failing()
    with pytest.raises(Exception, match="no"):
        async with chatting(tmp_path, worker):
            pass
    assert worker.notes == ["of activate ended"]


async def test_only_a_coroutine_is_a_task(tmp_path: Path) -> None:
    worker = Worker()
    async with chatting(tmp_path, worker):
        with pytest.raises(TypeError, match="must be a coroutine"):
            worker.tasks.create_task(sys.exit)  # type: ignore[arg-type]
