"""All processes of one dispatch, found by a mark in their environment, which children inherit.

A process group is not enough: programs put what they start into groups and sessions of its own.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

MARK = "TRUNKLINE_DISPATCH"
"""The variable that holds the mark."""


def kill_family(mark: str) -> int:
    """Kill every process that carries the mark. Returns how many; 0 where the system does not tell."""
    wanted = f"{MARK}={mark}".encode()
    killed = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                killed += 1
        except OSError:
            continue
    return killed
