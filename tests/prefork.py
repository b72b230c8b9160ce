"""Processes of the command line, and of scripts, forked from one that has imported the gateway already.

Importing the gateway takes 0.7 s of CPU time, and the tests run several hundred commands. A forked process
has what a started one has: a process id, a working directory, an environment, streams and its own exit
status, and it ends as an interpreter does. A test of the start itself, or of an option of the interpreter,
starts a real process.

The server, ``python -m tests.prefork``, reads requests from the socket that is its standard input: JSON, with
the descriptors of the streams of the new process and of a socket for the answers. These are its process id
and, later, its exit status. The server ends when its socket is closed, and kills what still runs.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import io
import json
import locale
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import aiohttp.connector

ROOT = Path(__file__).parents[1]
_REQUEST_BYTES = 1 << 17


class Popen(subprocess.Popen[Any]):
    """A ``subprocess.Popen`` for ``[python, "-m", "gateway", *arguments]``, or with the path of a script in
    place of the first two arguments, that forks instead of starting."""

    def _execute_child(
        self,
        args: Sequence[str],
        executable: object,
        preexec_fn: object,
        close_fds: object,
        pass_fds: object,
        cwd: str | os.PathLike[str] | None,
        env: Mapping[str, str] | None,
        startupinfo: object,
        creationflags: object,
        shell: object,
        *pipes: Any,
    ) -> None:
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = pipes[:6]
        streams = [own if given == -1 else given for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        arguments = [os.fspath(one) for one in args[1:]]
        script = "" if arguments[0] == "-m" else arguments[0]
        self._forked = server().fork(arguments[1 if script else 2 :], cwd, env, streams, script=script)
        self.pid = self._forked.pid
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        return self._finish(0)

    def _wait(self, timeout: float | None) -> int | None:
        if self._finish(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def _finish(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self.returncode = self._forked.status(timeout)
        return self.returncode


class Forked:
    """A forked process, as its user sees it. ``answers`` becomes readable when it has ended."""

    def __init__(self, answers: socket.socket) -> None:
        self.answers = answers
        self.pid = int(answers.recv(64))
        self._status: int | None = None

    def status(self, timeout: float | None) -> int | None:
        """Wait for its end. Returns its exit status, a signal's being negative, or None after the timeout."""
        if self._status is None and self.answers.fileno() == -1:
            # Garbage collection closed it, and keeps a Popen that nothing waited for in a list to poll.
            self._status = -signal.SIGKILL
        if self._status is None:
            self.answers.settimeout(timeout)
            with contextlib.suppress(TimeoutError, BlockingIOError):
                self._status = int(self.answers.recv(64) or -signal.SIGKILL)
                self.answers.close()
        return self._status


class Server:
    """The process that is forked, seen from the tests. ``forks``: it is a fork of this process itself, which
    must have no other threads."""

    def __init__(self, *, forks: bool = False) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: subprocess.Popen[bytes] | None = None
        if forks and os.fork() == 0:
            self._requests.close()
            _run(_serve(theirs), None)
        with theirs:
            if not forks:
                # In its own session, as a Ctrl-C for pytest is not for what is forked.
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.prefork"], cwd=ROOT, stdin=theirs, start_new_session=True
                )
        atexit.register(self.close)

    def close(self) -> None:
        """End it, and all that it forked."""
        self._requests.close()
        if self._process is not None:
            self._process.wait()

    def fork(
        self,
        arguments: Sequence[str],
        cwd: str | os.PathLike[str] | None,
        env: Mapping[str, str] | None,
        streams: Sequence[int],
        *,
        terminal: bool = False,
        script: str = "",
    ) -> Forked:
        """Run the gateway's command line, or a script, in a new process.

        ``terminal``: its input is to control it.
        """
        answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            environment = dict(os.environ if env is None else env)
            request = [list(arguments), os.fspath(cwd or Path.cwd()), environment, terminal, script]
            socket.send_fds(self._requests, [json.dumps(request).encode()], [*streams, theirs.fileno()])
        return Forked(answers)


@functools.cache
def server() -> Server:
    """Return the server of this process; the first call starts it."""
    return Server()


class _Job(NamedTuple):
    arguments: list[str]
    cwd: str
    environment: dict[str, str]
    terminal: bool
    script: str


def _serve(requests: socket.socket) -> _Job:
    """Fork a process for each request. Returns in the forked process, with what it has to run."""
    running: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not requests:
                    selector.unregister(key.fd)
                    pid, answers = running.pop(key.fd)
                    os.close(key.fd)
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    with answers, contextlib.suppress(OSError):
                        answers.send(str(status).encode())
                    continue
                data, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 4)
                if not data:
                    for pid, _ in running.values():
                        os.kill(pid, signal.SIGKILL)
                    os._exit(0)
                if (pid := os.fork()) == 0:
                    for number, descriptor in enumerate(descriptors[:3]):
                        os.dup2(descriptor, number)
                    return _Job(*json.loads(data))
                answers = socket.socket(fileno=descriptors[3])
                for descriptor in descriptors[:3]:
                    os.close(descriptor)
                answers.send(str(pid).encode())
                pidfd = os.pidfd_open(pid)
                running[pidfd] = pid, answers
                selector.register(pidfd, selectors.EVENT_READ)


def _warm_up() -> list[str]:
    """Import what commands import. Returns where modules are found when neither the directory nor the
    environment adds to it."""
    for module in pkgutil.walk_packages([str(ROOT / "gateway")], "gateway."):
        if not module.name.startswith(("gateway.testing", "gateway.__main__", "gateway.store.migrations")):
            # What cannot be imported fails in the command that needs it, as it would without this.
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    for name in ("sqlalchemy.dialects.sqlite.pysqlite", "uvloop", "rich.console"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    added = {os.fspath(ROOT), "", *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    return [sys.path[0], *(path for path in sys.path[1:] if path not in added)][1:]


def _run(job: _Job, path: Sequence[str] | None) -> NoReturn:
    """Run what is asked for, with the modules found in ``path``, or where this process finds them."""
    _become(job, path)
    try:
        if job.script:
            runpy.run_path(job.script, run_name="__main__")
        else:
            runpy.run_module("gateway", run_name="__main__", alter_sys=True)
        sys.exit()
    except SystemExit as end:
        _end(end)
        raise


def _end(end: SystemExit) -> None:
    """End the process without destroying what it has imported, which copies nearly all memory that it shares.

    Returns if there is more to do, such as printing: the interpreter ends it then.
    """
    if not isinstance(end.code, int | None):
        return
    # What the interpreter does before it destroys its modules.
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return
    os._exit((end.code or 0) & 0xFF)


def _become(job: _Job, path: Sequence[str] | None) -> None:
    """Take over what a started process would have been given."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    # A shell makes what it starts in the background ignore Ctrl-C; tests press it all the same.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if job.terminal:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    authorities = os.environ.get("SSL_CERT_FILE")
    os.environ.clear()
    os.environ.update(job.environment)
    if os.environ.get("SSL_CERT_FILE") != authorities:
        # aiohttp reads the authorities when it is imported.
        aiohttp.connector._SSL_CONTEXT_VERIFIED.set_default_verify_paths()  # pyright: ignore[reportPrivateUsage]
    os.chdir(job.cwd)
    time.tzset()
    locale.setlocale(locale.LC_CTYPE, "")
    added = [entry for entry in job.environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if path is not None:
        sys.path[:] = [str(Path(job.script).parent) if job.script else job.cwd, *added, *path]
        importlib.invalidate_caches()
    sys.argv = [job.script or "gateway", *job.arguments]
    unbuffered = bool(job.environment.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        own = getattr(sys, name)
        binary = open(number, "wb" if number else "rb", 0 if number and unbuffered else -1, closefd=False)  # noqa: SIM115
        stream = io.TextIOWrapper(
            binary,
            encoding=own.encoding,
            errors=own.errors,
            line_buffering=name == "stderr" or binary.isatty(),
            write_through=bool(number and unbuffered),
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    _path = _warm_up()
    _run(_serve(socket.socket(fileno=os.dup(0))), _path)
