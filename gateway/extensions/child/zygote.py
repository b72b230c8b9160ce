"""The zygote: a clean interpreter that clones the processes of plugins, each directly into its namespaces.

The gateway runs this file by its path, with an empty environment and one socket, a packet for each request:
JSON with the descriptors of the process. It answers with the process id and a pidfd, and reports each exit.
It never holds a secret and reads no code of a plugin.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

HERE = str(Path(__file__).resolve().parent)
sys.path.insert(0, HERE)

import confine  # noqa: E402 - an isolated interpreter does not find files beside its script

_MOST_REQUEST, _MOST_DESCRIPTORS = 1 << 20, 8
_CLONE_PIDFD = 0x1000
_PLUGIN_DESCRIPTOR = 3
_EXEC_FAILED = 127


class Zygote:
    """The loop: requests, and exits of children. ``control`` is the gateway's socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._kernel = confine.Kernel()
        self._ids = os.getuid(), os.getgid()
        confine.syscalls.plugin_filter(1)  # computed once, for all children that are process 1
        self._self = os.pidfd_open(os.getpid())
        self._ended, wakeup = os.pipe()
        os.set_blocking(self._ended, False)
        os.set_blocking(wakeup, False)
        signal.signal(signal.SIGCHLD, _nothing)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the gateway closes its end, which is also how its death is noticed."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._ended, select.POLLIN)
        gc.collect()
        gc.freeze()  # so that a child's collections do not copy the pages of what is there already
        while True:
            ready = dict(poll.poll())
            if self._ended in ready:
                os.read(self._ended, 4096)
                self._reap()
            if self._control.fileno() in ready and not self._serve():
                return

    def _serve(self) -> bool:
        """Answer one request. Return False at the end of the socket."""
        data, descriptors, _, _ = socket.recv_fds(self._control, _MOST_REQUEST, _MOST_DESCRIPTORS)
        if not data:
            return False
        request = json.loads(data)
        try:
            pid, pidfd = self._clone(request, descriptors)
        except OSError as error:
            self._send({"id": request["id"], "layer": "namespaces", "error": error.strerror or str(error)})
        else:
            self._send({"id": request["id"], "pid": pid}, [pidfd])
            os.close(pidfd)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _send(self, value: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self._control, [json.dumps(value).encode()], list(descriptors))

    def _clone(self, request: dict[str, Any], descriptors: Sequence[int]) -> tuple[int, int]:
        """Clone this process into the namespaces of the request. Return the child's id and a pidfd."""
        names: list[str] = request["namespaces"]
        flags = _CLONE_PIDFD | signal.SIGCHLD
        for name in names:
            flags |= confine.NAMESPACES[name]
        pidfd = ctypes.c_int(-1)
        # The interpreter's own fork() has no flags. Its hooks around it are public, and the lock of the
        # interpreter must be held throughout, which PyDLL does.
        python = ctypes.pythonapi
        python.PyOS_BeforeFork()
        pid = _raw_clone(flags, ctypes.addressof(pidfd))
        if pid == 0:
            python.PyOS_AfterFork_Child()
            try:
                self._become(request, descriptors, names)
            finally:
                os._exit(1)
        python.PyOS_AfterFork_Parent()
        if pid < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"clone: {os.strerror(number)}")
        return pid, pidfd.value

    def _become(self, request: dict[str, Any], descriptors: Sequence[int], names: Sequence[str]) -> None:
        """Be the child: confine this process, and run its code. Never returns."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        confine.die_with_parent(self._kernel, self._self)
        target: dict[str, Any] = request["target"]
        given = [-1, -1, descriptors[1], descriptors[0], descriptors[2]]
        if target["kind"] != "plugin":
            given = list(descriptors)
        confine.take_descriptors(self._kernel, given)
        confinement = confine.Confinement(self._kernel, request, names, self._ids)
        try:
            confinement.apply()
        except confine.Failed as failed:
            confine.report({"layer": failed.layer, "error": str(failed)})
            os._exit(1)
        ready = {"layers": confinement.layers}
        status = 1
        try:
            status = _RUN[target["kind"]](target, request["profile"]["environ"], ready)
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:  # noqa: BLE001 - the last one of this process, which its stderr reports
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._send({"exit": pid, "status": os.waitstatus_to_exitcode(status)})


def _raw_clone(flags: int, pidfd: int) -> int:
    """Call ``clone`` without letting go of the interpreter's lock. Return -1 for an error, with errno."""
    number = confine.syscalls.numbers()["clone"]
    wide = [ctypes.c_long(value) for value in (number, flags, 0, pidfd, 0, 0)]
    return int(_LIBC.syscall(*wide))


_LIBC = ctypes.PyDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


def _run_plugin(target: dict[str, Any], _environ: dict[str, str], ready: dict[str, Any]) -> int:
    """Run the code of a plugin: the runtime module gets the socket."""
    sys.path[:0] = [target["runtime_path"]]
    runtime = importlib.import_module(target["runtime"])
    _finish_report(ready)
    runtime.main(_PLUGIN_DESCRIPTOR, target["folder"], target["entry"], target["site"])
    return 0


def _run_script(target: dict[str, Any], _environ: dict[str, str], ready: dict[str, Any]) -> int:
    """Run the function ``main`` of a file with its arguments. Its result is the exit status."""
    import importlib.util

    sys.path += target["site"]
    specification = importlib.util.spec_from_file_location("script", target["path"])
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["script"] = module
    _finish_report(ready)
    os.close(_PLUGIN_DESCRIPTOR)
    specification.loader.exec_module(module)
    return int(module.main(target["arguments"]))


def _run_program(target: dict[str, Any], environ: dict[str, str], ready: dict[str, Any]) -> int:
    """Run an executable as a child of this process, which stays to collect its orphans.

    The first process of a pid namespace ignores signals that it does not handle, so a program must not be it.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.chdir(target["cwd"])
            os.execve(target["argv"][0], target["argv"], environ)
        except OSError as error:
            os.write(writing, (error.strerror or str(error)).encode())
        finally:
            os._exit(_EXEC_FAILED)
    os.close(writing)
    signal.signal(signal.SIGTERM, lambda _number, _frame: _pass_on(child, signal.SIGTERM))
    problem = os.read(reading, 4096).decode()
    if problem:
        confine.report({"layer": "exec", "error": problem})
        return _EXEC_FAILED
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    _finish_report(ready)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _pass_on(child: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, number)


def _finish_report(ready: dict[str, Any]) -> None:
    confine.report(ready)
    os.close(4)


_RUN = {"plugin": _run_plugin, "script": _run_script, "program": _run_program}


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Handle SIGCHLD: the signal only has to wake the loop."""


def main() -> None:
    """Run the zygote. Arguments: the descriptor of the socket, and folder and name of modules to import."""
    control = socket.socket(fileno=int(sys.argv[1]))
    # The death of the gateway closes the socket; this is for a gateway that has passed it on.
    confine.Kernel().call("prctl", 1, signal.SIGKILL, 0, 0, 0)
    importlib.import_module("asyncio")  # what every plugin needs is imported once, before cloning
    for folder, module in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
        sys.path.insert(0, folder)
        importlib.import_module(module)
        sys.path.remove(folder)
    zygote = Zygote(control)
    with contextlib.suppress(ConnectionError):
        zygote.run()


if __name__ == "__main__":
    main()
