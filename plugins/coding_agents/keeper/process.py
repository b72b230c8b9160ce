"""The start of a keeper, as a process that has nothing in common with the gateway.

In: a launch on stdin. Out: ``READY`` on stdout once it listens and the program runs, or the reason why not.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import os
import sys
import time

from .server import Keeper
from .terminal import Launch
from .wire import READY, RUNS


def _prepare(launch: Launch) -> int:
    """Leave the gateway's session, folder and file mode; adopt orphans. Return the old file mode mask."""
    os.setsid()
    os.chdir(launch.folder)
    about = os.stat(".")
    if about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "the folder is not private", launch.folder)
    # PR_SET_CHILD_SUBREAPER: a process whose parent ended becomes a child of this one, not of init.
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    return os.umask(0o077)


def _lock(name: str) -> int:
    """Open the log and lock it while this process lives. Raises BlockingIOError if another keeper has."""
    log = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for _ in range(20):
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return log
        except BlockingIOError:
            time.sleep(0.05)  # A keeper that was just killed holds the lock until the kernel has ended it.
    raise BlockingIOError


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        pass  # It was the one that listed the others.


def _report(text: bytes) -> None:
    try:
        os.write(1, text)
    except BrokenPipeError:
        pass  # The gateway was killed meanwhile; the next one attaches.


def main() -> None:
    """Read the launch, become a separate process, report readiness, and run."""
    # uvloop passes on all inheritable descriptors, also a second one of stdout, whose end the gateway awaits.
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            _close(int(name))
    launch = Launch(sys.stdin.buffer.read())
    if os.fork():
        os._exit(0)
    try:
        umask = _prepare(launch)
        null = os.open("/dev/null", os.O_RDWR)
        log = _lock("keeper.log")
        keeper = Keeper(launch, umask)
    except (OSError, ValueError) as error:
        _report(RUNS if isinstance(error, BlockingIOError) else os.fsencode(str(error)))
        os._exit(1)
    _report(READY)
    for old, new in ((null, 0), (null, 1), (log, 2)):
        os.dup2(old, new)
    os.close(null)
    # The compiler leaves 0.4 MB of free memory, where no compiled files are installed.
    gc.collect()
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
    keeper.run()
