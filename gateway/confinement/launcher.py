"""Launcher of a confined script: limits this process, then runs the script in it.

``run_confined`` runs this file by its path in an isolated interpreter. The arguments are the seconds of CPU
time, the bytes of memory, 1 if the script may start threads, the path of the script, and its own arguments.
"""

from __future__ import annotations

import resource
import runpy
import sys

_OPEN_FILES = 64


def limit_resources(seconds: int, memory: int, *, threads: bool) -> None:
    """Limit this process: CPU time, memory, open files; no written files, core dumps and new processes."""
    limits = [
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ]
    if not threads:
        limits.append((resource.RLIMIT_NPROC, 0))
    for name, value in limits:
        hard = resource.getrlimit(name)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(name, (most, most))
        except (ValueError, OSError):
            # macOS refuses a limit of the address space below what every process has reserved.
            if sys.platform.startswith("linux"):
                raise


if __name__ == "__main__":
    cpu_seconds, memory_bytes, may_start, *sys.argv = sys.argv[1:]
    limit_resources(int(cpu_seconds), int(memory_bytes), threads=may_start == "1")
    runpy.run_path(sys.argv[0], run_name="__main__")
