"""What the kernel knows of another process: its processor time and its memory."""

from __future__ import annotations

import os
import time
from pathlib import Path

_CPUCLOCK_SCHED = 2
_PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Seconds of processor a process has used, in all its threads, in user code and in the kernel."""
    # /proc/<pid>/stat counts in steps of 10 ms; this is what clock_getcpuclockid() returns.
    return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)


def rss_bytes(pid: int) -> int:
    """Bytes of memory a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def pss_bytes(pid: int) -> int:
    """Bytes of memory a process holds; of memory that it shares, its share."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(rollup.split("\nPss:")[1].split()[0]) * 1024
