"""The start of a keeper, as a process that has nothing in common with the gateway.

In: a launch on stdin. Out: ``ready`` on stdout once it listens and the program runs, or the reason why not.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys

from .server import Keeper
from .terminal import Launch


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


def main() -> None:
    """Read the launch, become a process of its own, report readiness, and run."""
    launch = Launch(sys.stdin.buffer.read())
    if os.fork():
        os._exit(0)
    try:
        keeper = Keeper(launch, _prepare(launch))
    except (OSError, ValueError) as error:
        os.write(1, os.fsencode(str(error)))
        os._exit(1)
    log = os.open("keeper.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(1, b"ready\n")
    null = os.open("/dev/null", os.O_RDWR)
    for old, new in ((null, 0), (null, 1), (log, 2)):
        os.dup2(old, new)
    keeper.run()
