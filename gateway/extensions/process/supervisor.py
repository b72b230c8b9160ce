"""The supervisor of one plugin's process: it starts, watches, restarts and ends the process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import structlog
from msgspec import Struct

from gateway.contract.errors import PluginActivationError, PluginError
from gateway.extensions.admission.manifest import Admitted
from gateway.extensions.process import kernel
from gateway.extensions.process.frames import Connection, ProcessEnded, ProtocolViolation, Serve
from gateway.extensions.process.launcher import Child, Launcher
from gateway.extensions.process.profile import MIB, PluginTarget, ProcessLimits, Profile, plugin
from gateway.extensions.process.records import PluginRecord

log = structlog.get_logger("trunkline.plugins")

State = Literal["starting", "running", "restarting", "quarantined", "stopped"]

PAUSES = (0.1, 1.0, 5.0, 30.0)
"""Seconds before the first, second, third and any later restart."""
MOST_DEATHS, DEATH_SECONDS = 5, 300.0
"""The number of deaths within a time (s) that puts a plugin into quarantine."""

_METER_SECONDS = 1.0
_MINUTE = 60.0
_END_SECONDS = 5.0
_MOST_EXPIRED = 3
_SHOWN_STDERR = 500


class Runtime(Struct, frozen=True):
    """The module whose ``main(fd, folder, entry, site)`` runs a plugin, and the folder where it is found."""

    path: str
    module: str


SDK = Runtime(str(Path(__file__).parent.parent / "child"), "trunkline_plugin.runtime")


class ProcessEvent(Struct, frozen=True):
    """An event of a plugin's process, for the audit log. ``killed``: the gateway ended it for this reason."""

    plugin: str
    kind: Literal["started", "died", "killed", "quarantined", "stopped"]
    reason: str = ""
    pid: int = 0


class ProcessSupervisor:
    """Keeps the process of one plugin alive. ``serve`` answers its calls.

    ``on_start`` activates each new process; its failure counts as a death. ``audit`` gets each start and end.
    ``tasks`` is the group in which the supervisor runs. ``record`` takes deaths and stderr. ``check``
    raises PluginError if the plugin's files must not be started again.
    """

    def __init__(
        self,
        launcher: Launcher,
        admitted: Admitted,
        serve: Serve,
        *,
        on_start: Callable[[Connection], Awaitable[None]],
        audit: Callable[[ProcessEvent], None],
        tasks: asyncio.TaskGroup,
        runtime: Runtime = SDK,
        pauses: Sequence[float] = PAUSES,
        record: PluginRecord | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = admitted.manifest.name
        self.state: State = "stopped"
        self.reason = "it was not started"
        self.record = record or PluginRecord()
        self._check = check
        self._launcher = launcher
        self._limits = admitted.manifest.limits
        self._profile = _profile(admitted, runtime)
        self._target = _target(admitted, runtime)
        self._serve = serve
        self._on_start = on_start
        self._audit = audit
        self._tasks = tasks
        self._pauses = pauses
        self._task: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._child: Child | None = None
        self._recent: deque[float] = deque(maxlen=MOST_DEATHS)
        self._spent: dict[int, float] = {}
        self._calls = 0
        self._expired = 0

    @property
    def pid(self) -> int | None:
        """The process id; None while there is no process."""
        return self._child.pid if self._child is not None else None

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that confine the process."""
        return self._child.layers if self._child is not None else ()

    async def start(self, seconds: float) -> None:
        """Start the process and activate it within ``seconds``. Raises PluginActivationError.

        It also ends a quarantine.
        """
        if self._task is not None and not self._task.done():
            return
        self.state, self.reason = "starting", ""
        self._recent.clear()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = self._tasks.create_task(self._supervise(ready, seconds))
        try:
            await ready
        except asyncio.CancelledError:
            await self.stop()
            raise

    async def stop(self, reason: str = "it was stopped") -> None:
        """End the process, and do not start it again; ``reason`` says why."""
        if self._task is None:
            return
        task, self._task = self._task, None
        task.cancel()
        await asyncio.wait([task])
        if self.state != "quarantined":
            self.state, self.reason = "stopped", reason
        self._audit(ProcessEvent(self.name, "stopped", reason))

    async def call(self, method: str, params: Mapping[str, Any] | Struct, seconds: float) -> Any:
        """Call the plugin. Raises RemoteError, TimeoutError, or ProcessEnded at once if it is not running."""
        connection = self._connection
        if connection is None or self.state != "running":
            raise ProcessEnded(f"plugin {self.name} is {self.state}: {self.reason}")
        self._calls = number = self._calls + 1
        self._spent[number] = 0.0
        try:
            result = await connection.call(method, params, seconds)
        except TimeoutError:
            self._expired += 1
            if self._expired >= _MOST_EXPIRED:
                self.kill(f"it did not answer {_MOST_EXPIRED} calls in a row")
            raise
        finally:
            self._spent.pop(number, None)
        self._expired = 0
        return result

    def notify(self, method: str, params: Mapping[str, Any] | Struct) -> None:
        """Send an event; nothing happens while the process is not running."""
        if self._connection is not None and self.state == "running":
            self._connection.notify(method, params)

    def kill(self, reason: str) -> None:
        """End the process for a reason; it is restarted as after a crash."""
        if self._child is not None:
            self._child.kill(reason)

    async def _supervise(self, ready: asyncio.Future[None], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            reason, killed = await self._live(ready, seconds)
            self.reason = reason
            self.record.deaths += 1
            self._recent.append(loop.time())
            self._audit(ProcessEvent(self.name, "killed" if killed else "died", reason))
            log.warning("the process of a plugin ended", plugin=self.name, reason=reason)
            if not ready.done():
                self.state = "stopped"
                ready.set_exception(PluginActivationError(f"plugin {self.name} did not start: {reason}"))
                return
            if len(self._recent) == MOST_DEATHS and loop.time() - self._recent[0] <= DEATH_SECONDS:
                self.state = "quarantined"
                self.reason = (
                    f"it ended {MOST_DEATHS} times in {DEATH_SECONDS / 60:.0f} minutes; at last {reason}"
                )
                self._audit(ProcessEvent(self.name, "quarantined", self.reason))
                log.error("a plugin is in quarantine", plugin=self.name, reason=self.reason)
                return
            self.state = "restarting"
            recent = sum(loop.time() - death <= DEATH_SECONDS for death in self._recent)
            await asyncio.sleep(self._pauses[min(recent, len(self._pauses)) - 1])
            try:
                # The death gave no right to run other code: the files may have changed since the start.
                await asyncio.to_thread(self._check)
            except PluginError as error:
                self.state, self.reason = "stopped", str(error)
                log.error("a plugin is not started again", plugin=self.name, reason=self.reason)
                return

    async def _live(self, ready: asyncio.Future[None], seconds: float) -> tuple[str, bool]:
        """Run one process to its end. Return the reason of the end, and whether it was killed for it."""
        try:
            child = await self._launcher.spawn(self._profile, self._target)
        except PluginError as error:
            return str(error), False
        assert child.sock is not None
        connection = Connection(child.sock, self._serve, in_flight=self._limits.in_flight)
        self.record.hear(bytes(child.stderr))
        child.on_stderr = self.record.hear
        child.when_ended(lambda: connection.close(f"the process of plugin {self.name} ended"))
        self._child, self._connection, self._expired = child, connection, 0
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._talk(connection, child))
                meter = group.create_task(self._meter(child))
                if await self._activate(connection, child, seconds):
                    self.state, self.reason = "running", ""
                    self._audit(ProcessEvent(self.name, "started", pid=child.pid))
                    if not ready.done():
                        ready.set_result(None)
                await child.ended()
                meter.cancel()
            status = await child.wait()
        finally:
            self._connection = self._child = None
            connection.close(f"plugin {self.name} was stopped")
            child.close()
        # A process whose socket was closed for a violation may end before it is killed for that.
        broken = connection.violation and f"it broke the protocol: {connection.violation}"
        problem = child.problem or broken
        return problem or _ending(status, bytes(child.stderr)), bool(problem)

    async def _activate(self, connection: Connection, child: Child, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._on_start(connection)
        except TimeoutError:
            child.kill(f"it was not ready within {seconds:g} s")
        except ProcessEnded:
            pass  # with the reason of its end
        except PluginError as error:
            child.kill(str(error))
        else:
            return True
        return False

    async def _talk(self, connection: Connection, child: Child) -> None:
        """Run the connection. A process that breaks the protocol, or closes its end, is killed."""
        try:
            await connection.run()
        except ProtocolViolation as violation:
            child.kill(f"it broke the protocol: {violation}")
        if child.is_alive:
            # It may be exiting: an exit closes the socket first.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    await child.ended()
            child.kill("it closed its connection")

    async def _meter(self, child: Child) -> None:
        """Charge the processor time to the open calls, in equal shares, and to the last minute."""
        loop = asyncio.get_running_loop()
        limits = self._limits
        minute: deque[tuple[float, float]] = deque(((loop.time(), 0.0),))
        while True:
            await asyncio.sleep(_METER_SECONDS)
            try:
                used = kernel.cpu_seconds(child.pid)
            except OSError:
                return
            for number in self._spent:
                self._spent[number] += (used - minute[-1][1]) / len(self._spent)
            minute.append((loop.time(), used))
            while loop.time() - minute[0][0] > _MINUTE:
                minute.popleft()
            if max(self._spent.values(), default=0.0) > limits.cpu_seconds:
                child.kill(f"a call used more than {limits.cpu_seconds} s of the processor")
            elif used - minute[0][1] > _MINUTE * limits.cpu_percent / 100:
                child.kill(f"it used more than {limits.cpu_percent} % of the processor over a minute")


def _profile(admitted: Admitted, runtime: Runtime) -> Profile:
    folders = [admitted.folder, runtime.path, *([admitted.site] if admitted.site is not None else [])]
    return plugin(folders, ProcessLimits(memory=admitted.manifest.limits.memory_mb * MIB))


def _target(admitted: Admitted, runtime: Runtime) -> PluginTarget:
    site = str(admitted.site.resolve()) if admitted.site is not None else None
    entry = admitted.manifest.entry
    return PluginTarget(
        str(admitted.folder.resolve()), entry, site, runtime.module, str(Path(runtime.path).resolve())
    )


def _ending(status: int | None, stderr: bytes) -> str:
    """Return how a process ended, with the last line of its stderr."""
    if status is None:
        how = "it ended with the process that starts plugins"
    elif status == -signal.SIGSYS:
        how = "it made a forbidden system call"
    elif status < 0:
        how = f"it was ended by {signal.Signals(-status).name}"
    else:
        how = f"it ended with status {status}"
    last = stderr.decode(errors="replace").strip().rpartition("\n")[2][-_SHOWN_STDERR:]
    return f"{how}: {last}" if last else how
