"""The launcher: starts confined processes through the zygote.

One for each gateway. The zygote starts with the first process and ends with the gateway, even if that is
killed: it reads the end of their socket, and the kernel ends each child with the zygote.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import structlog

from gateway.contract.errors import PluginError
from gateway.extensions.process import kernel
from gateway.extensions.process.profile import PluginTarget, Profile, ProgramTarget, Target
from gateway.extensions.process.records import STDERR_BYTES

log = structlog.get_logger("trunkline.plugins")

Mode = Literal["strict", "standard"]

_ZYGOTE = Path(__file__).parent.parent / "child" / "zygote.py"
_NAMESPACES = ("user", "pid", "net", "ipc", "uts", "mount")
_START_SECONDS = 10.0
_STATUS_SECONDS = 1.0
_WATCH_SECONDS = 0.2
_PAUSE_SECONDS = 0.05
_CHUNK = 65_536
LATER = frozenset(("namespaces", "user", "root"))
"""Layers whose failure has another try with fewer namespaces, in the mode ``standard``."""
_HELP = {
    "namespaces": "allow user namespaces (sysctl user.max_user_namespaces, seccomp profile of the container)",
    "user": "allow user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0)",
    "root": "allow mounts in user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0, seccomp"
    " profile of the container)",
    "landlock": "use a kernel from 5.13 on with Landlock, and a container runtime that allows it",
    "seccomp": "use a kernel with CONFIG_SECCOMP_FILTER, and a container runtime that allows it",
}


class ConfinementError(PluginError):
    """A process that was not started. ``layer`` is the missing one, or ``exec`` for the program itself."""

    def __init__(self, layer: str, reason: str) -> None:
        advice = _HELP.get(layer, "")
        layer_of = "" if layer == "exec" else f"{layer}: "
        super().__init__(f"{layer_of}{reason}" + (f"; {advice}" if advice else ""))
        self.layer = layer


class Child:
    """A confined process. ``sock`` is the host's end of its socket; None for a program.

    ``layers`` are those that confine it.
    """

    def __init__(
        self,
        pid: int,
        pidfd: int,
        sock: socket.socket | None,
        stderr: int,
        profile: Profile,
        status: asyncio.Future[int],
    ) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.sock = sock
        self.layers: tuple[str, ...] = ()
        self.stderr = bytearray()
        """The end of what it wrote to stderr, 64 KiB."""
        self.on_stderr: Callable[[bytes], None] | None = None
        self.problem = ""
        """Why the launcher ended it, if it did."""
        self._stderr = stderr
        self._profile = profile
        self._loop = asyncio.get_running_loop()
        self._status = status
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._watch: asyncio.TimerHandle | None = None
        self._loop.add_reader(pidfd, self._died)
        if stderr >= 0:
            os.set_blocking(stderr, False)
            self._loop.add_reader(stderr, self._hear)
        if profile.syscalls == "program":
            self._measure()

    @property
    def is_alive(self) -> bool:
        """Return whether the process has not ended."""
        return not self._ended.done()

    def kill(self, problem: str = "") -> None:
        """End the process at once, and all that it started if it has a namespace of process ids."""
        if self.is_alive:
            self.problem = self.problem or problem
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def terminate(self) -> None:
        """Ask a program to end."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call this as soon as the process has ended."""
        self._ended.add_done_callback(lambda _: callback())

    async def ended(self) -> None:
        """Wait until the process has ended."""
        await asyncio.shield(self._ended)

    async def wait(self) -> int | None:
        """Wait for the end, and return the status as ``subprocess`` has it; None if the zygote ended, too."""
        await self.ended()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STATUS_SECONDS):
                return await asyncio.shield(self._status)
        return None

    def close(self) -> None:
        """End the process, and close all descriptors."""
        self.kill()
        self._died()
        if self.sock is not None:
            self.sock.close()

    def _died(self) -> None:
        if self._ended.done():
            return
        self._loop.remove_reader(self.pidfd)
        if self._watch is not None:
            self._watch.cancel()
        while self._stderr >= 0 and self._read():
            pass
        os.close(self.pidfd)
        self._close_stderr()
        self._ended.set_result(None)

    def _hear(self) -> None:
        """Read stderr. A flood has to wait: reading it would cost the gateway as much as the process."""
        if self._read() and self._stderr >= 0:
            self._loop.remove_reader(self._stderr)
            self._loop.call_later(_PAUSE_SECONDS, self._listen)

    def _listen(self) -> None:
        if self._stderr >= 0:
            self._loop.add_reader(self._stderr, self._hear)

    def _read(self) -> bool:
        """Read stderr once. Return whether there may be more."""
        try:
            data = os.read(self._stderr, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._close_stderr()
            return False
        self.stderr += data
        del self.stderr[:-STDERR_BYTES]
        if self.on_stderr is not None:
            self.on_stderr(data)
        return len(data) == _CHUNK

    def _close_stderr(self) -> None:
        if self._stderr >= 0:
            self._loop.remove_reader(self._stderr)
            os.close(self._stderr)
            self._stderr = -1

    def _measure(self) -> None:
        """End a program that has too much memory or too many processes: the kernel limits each alone."""
        limits = self._profile.limits
        pids = list(kernel.family(self.pid))
        # The first process is the one that waits for the program.
        if limits.processes and len(pids) - 1 > limits.processes:
            self._end_family(pids, f"it had more than {limits.processes} processes")
        elif limits.memory and sum(map(kernel.resident_bytes, pids)) > limits.memory:
            self._end_family(pids, f"it used more than {limits.memory // (1024 * 1024)} MB of memory")
        else:
            self._watch = self._loop.call_later(_WATCH_SECONDS, self._measure)

    def _end_family(self, pids: Sequence[int], problem: str) -> None:
        self.kill(problem)
        if "pid namespace" not in self.layers:
            for pid in pids[1:]:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


class Launcher:
    """Starts confined processes. ``preload`` are modules that the zygote imports, each with its folder.

    ``probe`` returns what the kernel has.
    """

    def __init__(
        self,
        mode: Mode = "standard",
        *,
        preload: Sequence[tuple[Path, str]] = (),
        probe: Callable[[], kernel.Layers] = kernel.layers,
    ) -> None:
        self.mode: Mode = mode
        self._preload = preload
        self._probe = probe
        self._missing: list[str] | None = None
        self._control: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._numbers = 0
        self._requests: dict[int, asyncio.Future[tuple[int, int]]] = {}
        self._exits: dict[int, asyncio.Future[int]] = {}
        self._level = 0

    @property
    def zygote(self) -> int | None:
        """The zygote's process id; None while there is none."""
        return self._process.pid if self._process is not None and self._control is not None else None

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces of new processes, as known from earlier ones."""
        return self.levels()[self._level]

    def missing_layers(self) -> list[str]:
        """Return why nothing can be confined here, each reason with its remedy; [] if it is possible."""
        if self._missing is None:
            self._missing = kernel.missing(self._probe(), strict=self.mode == "strict")
        return self._missing

    async def spawn(self, profile: Profile, target: Target) -> Child:
        """Start a confined process; it is confined when this returns. Raises ConfinementError."""
        missing = self.missing_layers()
        if missing:
            raise ConfinementError("confinement is impossible here", "; ".join(missing))
        levels = self.levels()
        while True:
            names = tuple(name for name in levels[self._level] if f"{name} namespace" not in profile.without)
            if profile.network:
                names = tuple(name for name in names if name != "net")
            try:
                return await self._start(profile, target, names)
            except ConfinementError as error:
                if error.layer not in LATER or self._level + 1 >= len(levels):
                    raise
                self._level += 1
                log.info(
                    "confined processes have fewer namespaces",
                    namespaces=levels[self._level],
                    reason=str(error),
                )

    async def close(self) -> None:
        """End the zygote and all confined processes."""
        self._lose_zygote()
        if self._process is not None:
            await self._process.wait()
            self._process = None

    def levels(self) -> tuple[tuple[str, ...], ...]:
        """Return the namespaces to try, in order."""
        if self.mode == "strict":
            return (_NAMESPACES,)
        as_root = (_NAMESPACES[1:],) if os.geteuid() == 0 else ()
        return (_NAMESPACES, *as_root, ())

    async def _start(self, profile: Profile, target: Target, namespaces: Sequence[str]) -> Child:
        ends = _Ends(target)
        try:
            pid, pidfd = await self._request(profile, target, namespaces, ends.given)
        except BaseException:
            ends.close()
            raise
        finally:
            for descriptor in ends.given:
                os.close(descriptor)
        child = Child(pid, pidfd, ends.sock, ends.stderr, profile, self._exits[pid])
        try:
            child.layers = await _confirmed(ends.report, child)
        except BaseException:
            child.close()
            raise
        finally:
            os.close(ends.report)
        return child

    async def _request(
        self, profile: Profile, target: Target, namespaces: Sequence[str], descriptors: Sequence[int]
    ) -> tuple[int, int]:
        """Let the zygote clone a process. Return its id and a pidfd."""
        control = await self._started()
        self._numbers += 1
        number = self._numbers
        data = msgspec.json.encode(
            {"id": number, "profile": profile, "target": target, "namespaces": namespaces}
        )
        reply: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        self._requests[number] = reply
        try:
            # A packet is sent as a whole or not at all; the zygote reads each within milliseconds.
            socket.send_fds(control, [data], descriptors)
            async with asyncio.timeout(_START_SECONDS):
                return await reply
        except (TimeoutError, OSError) as error:
            raise ConfinementError("zygote", f"it does not answer: {error}") from None
        finally:
            del self._requests[number]
            if asyncio.current_task().cancelling() and reply.done() and not reply.cancelled():  # pyright: ignore[reportOptionalMemberAccess]
                with contextlib.suppress(ConfinementError):
                    _discard(reply.result()[1])

    async def _started(self) -> socket.socket:
        """Return the socket of the zygote, which is started if there is none."""
        async with self._starting:
            if self._control is None:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                preload = [word for folder, module in self._preload for word in (str(folder), module)]
                with contextlib.ExitStack() as undo, theirs:
                    undo.enter_context(ours)
                    self._process = await asyncio.create_subprocess_exec(
                        *(sys.executable, "-I", "-S", "-B", str(_ZYGOTE), str(theirs.fileno()), *preload),
                        stdin=asyncio.subprocess.DEVNULL,
                        stdout=asyncio.subprocess.DEVNULL,
                        env={},
                        cwd="/",
                        pass_fds=(theirs.fileno(),),
                        start_new_session=True,
                    )
                    undo.pop_all()
                ours.setblocking(False)
                self._control = ours
                asyncio.get_running_loop().add_reader(ours.fileno(), self._hear)
            return self._control

    def _hear(self) -> None:
        """Take one packet of the zygote."""
        assert self._control is not None
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, _CHUNK, 1)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            log.error("the zygote of the plugins ended")
            self._lose_zygote()
            return
        frame: dict[str, Any] = msgspec.json.decode(data)
        if "exit" in frame:
            self._exits.pop(frame["exit"]).set_result(frame["status"])
            return
        if "pid" in frame:
            self._exits[frame["pid"]] = asyncio.get_running_loop().create_future()
        reply = self._requests.get(frame["id"])
        if reply is None or reply.done():
            for descriptor in descriptors:
                _discard(descriptor)
        elif "error" in frame:
            reply.set_exception(ConfinementError(frame["layer"], frame["error"]))
        else:
            reply.set_result((frame["pid"], descriptors[0]))

    def _lose_zygote(self) -> None:
        """Forget a zygote; the kernel ends its children with it, and the next process starts another one."""
        if self._control is None:
            return
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()
        self._control = None
        self._exits.clear()
        for reply in self._requests.values():
            if not reply.done():
                reply.set_exception(ConfinementError("zygote", "it ended"))


class _Ends:
    """The descriptors of a new process: those for it, in the zygote's order, and ours.

    The last one given is for one line of JSON: the layers, or the one that failed.
    """

    def __init__(self, target: Target) -> None:
        self.sock: socket.socket | None = None
        self.stderr = -1
        self.report, reporting = os.pipe()
        if isinstance(target, ProgramTarget):
            if target.stderr is None:
                self.stderr, writing = os.pipe()
            else:
                writing = _copy(target.stderr)
            streams = [_copy(target.stdin), _copy(target.stdout), writing]
        else:
            self.sock, theirs = socket.socketpair()
            self.sock.setblocking(False)
            self.stderr, writing = os.pipe()
            end = theirs.detach()
            # A script has one socket for its input and its output.
            streams = [end, writing] if isinstance(target, PluginTarget) else [end, os.dup(end), writing]
        self.given = [*streams, reporting]

    def close(self) -> None:
        """Close our ends."""
        os.close(self.report)
        if self.sock is not None:
            self.sock.close()
        if self.stderr >= 0:
            os.close(self.stderr)


def _copy(descriptor: int) -> int:
    return os.open("/dev/null", os.O_RDWR) if descriptor < 0 else os.dup(descriptor)


def _discard(pidfd: int) -> None:
    """End a process that is not wanted any more."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)


async def _confirmed(report: int, child: Child) -> tuple[str, ...]:
    """Wait for the line of a new process, and return its layers. Raises ConfinementError."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        if not line.done():
            line.set_result(os.read(report, _CHUNK))

    loop.add_reader(report, read)
    try:
        async with asyncio.timeout(_START_SECONDS):
            data = await line
    except TimeoutError:
        raise ConfinementError("start", f"it took more than {_START_SECONDS:.0f} s") from None
    finally:
        loop.remove_reader(report)
    if not data:
        await child.ended()
        raise ConfinementError("start", f"it ended: {child.stderr[-1000:].decode(errors='replace').strip()}")
    frame: dict[str, Any] = msgspec.json.decode(data)
    if "error" in frame:
        raise ConfinementError(frame["layer"], frame["error"])
    return tuple(frame["layers"])
