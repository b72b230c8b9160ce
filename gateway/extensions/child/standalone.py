"""A launcher for programs that outlive the gateway: it confines itself, and runs the program.

It is a prefix of the program's own arguments: ``python -I -S -B standalone.py REQUEST PROGRAM ARGUMENT...``;
``gateway/extensions/process/standalone.py`` makes the request, which is JSON. There are three processes: the
outer one, which ends as the program ends and takes it along when it is killed; the first one of the pid
namespace, which collects orphans; and the program, which gets the terminal. SIGTSTP stops the program and all
that it started, SIGCONT resumes them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import select
import signal
import struct
import sys
import termios
from collections.abc import Mapping
from typing import Any, NoReturn

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import confine

CGROUPS = "/sys/fs/cgroup"
_REFUSED, _NOT_FOUND, _KILLED = 126, 127, 137
_PASSED_ON = frozenset(
    (
        *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2),
        *(signal.SIGTSTP, signal.SIGCONT),
    )
)
_WAITED_FOR = _PASSED_ON | {signal.SIGCHLD}
_ALL_STOP = {signal.SIGTSTP: signal.SIGSTOP, signal.SIGCONT: signal.SIGCONT}
_WATCH_SECONDS, _CLOSE_WATCH_SECONDS = 1.0, 0.1
_CPU_PERIOD = 100_000
_CONTROLLERS = ("memory", "pids", "cpu")
_LESS_URGENT = 5
_WATCHED = "counting"
_PAGE = resource.getpagesize()
_MIB = 1024 * 1024


class ControlGroup:
    """A cgroup (v2) with the limits of the program. ``is_used`` is False where none can be made."""

    def __init__(self, limits: Mapping[str, Any], root: str = CGROUPS) -> None:
        self._folder = ""
        self._processes = -1
        quota = int(limits["cpus"] * _CPU_PERIOD)
        self._values = {
            "memory.max": str(limits["memory"] or "max"),
            "pids.max": str(limits["processes"] or "max"),
            "cpu.max": f"{quota or 'max'} {_CPU_PERIOD}",
        }
        for parent in _own_groups():
            # The file distinguishes a cgroup from any other folder, such as the one that mounts version 1.
            folder = f"{root}{parent}"
            if os.path.exists(f"{folder}/cgroup.controllers") and self._make(
                f"{folder}/trunkline-{os.getpid()}"
            ):
                break

    @property
    def is_used(self) -> bool:
        """Return whether the kernel enforces the limits."""
        return self._processes >= 0

    def add(self, pid: int) -> None:
        """Move a process into the group."""
        try:
            if self.is_used:
                os.write(self._processes, str(pid).encode())
        except OSError:
            self.remove()

    def remove(self) -> None:
        """Remove the group. All of its processes have ended."""
        if self.is_used:
            os.close(self._processes)
            self._processes = -1
            with contextlib.suppress(OSError):
                os.rmdir(self._folder)

    def _make(self, folder: str) -> bool:
        try:
            os.mkdir(folder)
        except OSError:
            return False
        _pass_controllers(os.path.dirname(folder))
        try:
            for name, value in self._values.items():
                with open(f"{folder}/{name}", "w") as file:
                    file.write(value)
            # Opened before there is a user namespace: the kernel asks for the rights of the opener.
            self._processes = os.open(f"{folder}/cgroup.procs", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
        except OSError:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
            return False
        self._folder = folder
        return True


def _pass_controllers(parent: str) -> None:
    """Let groups below one have limits, which a service manager leaves to those it delegates a group to.

    The kernel refuses it for a group with its own processes; the gateway's are in a group beside.
    """
    with contextlib.suppress(OSError):
        with open(f"{parent}/cgroup.controllers") as file:
            offered = file.read().split()
        with open(f"{parent}/cgroup.subtree_control", "w") as file:
            file.write(" ".join(f"+{name}" for name in _CONTROLLERS if name in offered))


def _own_groups() -> tuple[str, ...]:
    """Return where a group may be made: beside this process's own one, as in a delegated unit, or below."""
    try:
        with open("/proc/self/cgroup") as file:
            own = next((line[3:].strip() for line in file if line.startswith("0::")), "")
    except OSError:
        own = ""
    return (os.path.dirname(own).rstrip("/"), own.rstrip("/")) if own else ()


class Inner:
    """The first process of the pid namespace: it is confined, and starts and watches the program."""

    def __init__(self, request: Mapping[str, Any], argv: list[str], *, terminal: bool) -> None:
        self._request = request
        self._argv = argv
        self._terminal = terminal
        self._cwd = os.getcwd()
        self._pause = _WATCH_SECONDS

    def run(self, kernel: confine.Kernel, ids: tuple[int, int], parent: int, limits: str) -> int:
        """Confine this process, run the program, and return its wait status. Ends where it cannot.

        ``limits`` is what enforces them: a cgroup, this process by counting, or the kernel for each process.
        """
        os.setsid()  # a signal to the group of the outer process would arrive twice
        names: list[str] = self._request["namespaces"]
        confinement = confine.Confinement(kernel, dict(self._request), names, ids)
        try:
            confinement.apply()
            # Changing credentials has cleared it, and the outer process may have ended before.
            confine.die_with_parent(kernel, parent)
        except confine.Failed as failed:
            _refuse(self._request, failed.layer, str(failed))
        if not self._argv:
            print(json.dumps({"layers": [*confinement.layers, limits]}), flush=True)  # noqa: T201
            return 0
        program = os.fork()
        if program == 0:
            self._become()
        return self._wait(program, watches=limits == _WATCHED)

    def _become(self) -> NoReturn:
        """Replace this process by the program, the leader of a session that has the terminal."""
        try:
            os.setsid()
            if self._terminal:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.chdir(self._cwd)
            os.execvp(self._argv[0], self._argv)
        except OSError as error:
            _say(f"{self._argv[0]} cannot be started in {self._cwd}: {error.strerror or error}")
        os._exit(_NOT_FOUND)

    def _wait(self, program: int, *, watches: bool) -> int:
        while True:
            got = (
                signal.sigtimedwait(_WAITED_FOR, self._pause) if watches else signal.sigwaitinfo(_WAITED_FOR)
            )
            if got is not None and got.si_signo in _PASSED_ON:
                self._pass_on(program, signal.Signals(got.si_signo))
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == program:
                    return ended[1]
            if watches and got is None and not self._is_within_limits():
                return _KILLED << 8

    def _pass_on(self, program: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if number in _ALL_STOP and os.getpid() == 1:
                os.kill(-1, _ALL_STOP[number])  # all of this namespace but this process
            else:
                os.killpg(program, number)

    def _is_within_limits(self) -> bool:
        """Return whether all processes together are within the limits, once the largest one is ended.

        The kernel limits the memory of each process alone, and no number of processes for root.
        """
        limits: Mapping[str, int] = self._request["profile"]["limits"]
        used = {int(name): _resident_bytes(name) for name in os.listdir("/proc") if name.isdigit()}
        if limits["processes"] and len(used) - 1 > limits["processes"]:
            _say(f"ended, because it had more than {limits['processes']} processes")
            return False
        most, now = limits["memory"], sum(used.values())
        if most and now > most:
            largest = max(used, key=lambda pid: used[pid] if pid != 1 else 0)
            _say(f"ended process {largest}, because all together used more than {most // _MIB} MB of memory")
            with contextlib.suppress(ProcessLookupError):
                os.kill(largest, signal.SIGKILL)
        self._pause = _CLOSE_WATCH_SECONDS if most and now > most // 2 else _WATCH_SECONDS
        return True


def _resident_bytes(pid: str) -> int:
    """Return the memory that a process holds, without pages of files; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            fields = file.read().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * _PAGE


def _give_up_terminal() -> bool:
    """Leave the controlling terminal, so that the program can have it. Return whether there was one."""
    if not os.isatty(0) or os.getsid(0) != os.getpid():
        return False
    # The kernel sends SIGHUP to the group in the foreground, which is this process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        fcntl.ioctl(0, termios.TIOCNOTTY)
    except OSError:
        return False
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    return True


def _run(request: Mapping[str, Any], argv: list[str]) -> int:
    """Start the inner process, pass signals on to it, and return the wait status of the program."""
    kernel = confine.Kernel()
    kernel.call("close_range", 3, 0x7FFFFFFF, 0)
    # A keeper that is killed takes its program along.
    kernel.call("prctl", 1, signal.SIGKILL, 0, 0, 0)
    inner = Inner(request, argv, terminal=bool(argv) and _give_up_terminal())
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    ids, parent = (os.getuid(), os.getgid()), os.pidfd_open(os.getpid())
    group = ControlGroup(request["profile"]["limits"])
    with contextlib.suppress(OSError):
        os.nice(_LESS_URGENT)
    flags = 0
    for name in request["namespaces"]:
        flags |= confine.NAMESPACES[name]
    try:
        if flags:
            kernel.call("unshare", flags)
    except OSError as error:
        _refuse(request, "namespaces", error.strerror or str(error))
    begin, start = os.pipe()
    ended, result = os.pipe()
    child = os.fork()
    if child == 0:
        limits = os.read(begin, 100).decode()
        os.write(result, struct.pack("i", inner.run(kernel, ids, parent, limits)))
        os._exit(0)
    os.close(result)
    group.add(child)
    counted = _WATCHED if "pid" in request["namespaces"] else "process"
    os.write(start, ("cgroup" if group.is_used else counted).encode())
    status = _wait_for(child)
    group.remove()
    data = os.read(ended, 4) if select.select([ended], [], [], 0)[0] else b""
    return struct.unpack("i", data)[0] if data else status


def _wait_for(child: int) -> int:
    """Wait for the inner process, and return its wait status."""
    while True:
        number = signal.sigwait(_WAITED_FOR)
        if number in _PASSED_ON:
            os.kill(child, number)
            continue
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status


def _say(text: str) -> None:
    os.write(2, f"trunkline: {text}\r\n".encode())


def _refuse(request: Mapping[str, Any], layer: str, error: str) -> NoReturn:
    """Say why nothing is started, and end: to the gateway if it only tries, otherwise on the terminal."""
    if request["probe"]:
        print(json.dumps({"layer": layer, "error": error}), flush=True)  # noqa: T201
    else:
        _say(f"the program was not started, because it cannot be confined: {layer}: {error}")
    os._exit(_REFUSED)


def main() -> None:
    """Run the launcher. Arguments: the request, and the program with its arguments; none only to try."""
    request, *argv = sys.argv[1:]
    code = os.waitstatus_to_exitcode(_run(json.loads(request), argv))
    if code < 0:
        # End as the program did: by the same signal, and without a core dump of this process.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
