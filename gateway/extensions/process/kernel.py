"""The kernel, asked from outside: which layers of confinement it has, and what a process uses."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

MACHINES = ("x86_64", "aarch64")
"""Architectures with a table of system calls, in ``child/syscalls.py``."""

_CREATE_RULESET, _ASK_VERSION = 444, 1
_SCHEDULED_CLOCK = 2
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Layers(Struct, frozen=True):
    """Confinement that this kernel supports. ``landlock`` is its ABI version; 0 means unsupported."""

    system: str
    machine: str
    landlock: int
    seccomp: bool
    user_namespaces: bool


def layers() -> Layers:
    """Return the layers of this machine's kernel. A container's own filter may still refuse namespaces."""
    if not sys.platform.startswith("linux"):
        return Layers(platform.system(), platform.machine(), 0, seccomp=False, user_namespaces=False)
    return Layers(
        platform.system(),
        platform.machine(),
        landlock_abi(),
        "Seccomp:" in _read("/proc/self/status"),
        has_user_namespaces(),
    )


def missing(found: Layers, *, strict: bool) -> list[str]:
    """Return the layers without which nothing is confined, each with how to get it; [] if it is possible."""
    if found.system != "Linux":
        return [
            f"{found.system} has no Landlock and seccomp; run the gateway on Linux, or in a Linux container"
        ]
    problems: list[str] = []
    if found.machine not in MACHINES:
        problems.append(f"the architecture {found.machine}; {' and '.join(MACHINES)} are supported")
    if not found.landlock:
        problems.append(
            "Landlock: use a kernel from 5.13 on that is started with landlock in its parameter lsm="
            " (cat /sys/kernel/security/lsm), and a container runtime that allows it (gVisor does not)"
        )
    if not found.seccomp:
        problems.append("seccomp: use a kernel with CONFIG_SECCOMP_FILTER")
    if strict and not found.user_namespaces:
        problems.append(
            "user namespaces: set the sysctls user.max_user_namespaces above 0,"
            " kernel.unprivileged_userns_clone to 1 and kernel.apparmor_restrict_unprivileged_userns to 0"
            ' where they exist, or set plugins.sandbox = "standard"'
        )
    return problems


def landlock_abi() -> int:
    """Return the Landlock ABI of the kernel; 0 without Landlock."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    return max(0, int(version))


def has_user_namespaces() -> bool:
    """Return whether the settings of the kernel allow user namespaces."""
    most = _read("/proc/sys/user/max_user_namespaces").strip()
    allowed = _read("/proc/sys/kernel/unprivileged_userns_clone").strip()
    held_back = _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").strip()
    return most not in ("", "0") and allowed != "0" and held_back != "1"


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process, with its threads. Raises OSError when it is gone."""
    # What clock_getcpuclockid() returns; one system call, where /proc counts in steps of 10 ms.
    return time.clock_gettime(~pid << 3 | _SCHEDULED_CLOCK)


def family(pid: int) -> Iterator[int]:
    """Yield a process and all that descend from it."""
    waiting = [pid]
    while waiting:
        found = waiting.pop()
        yield found
        for task in _tasks(found):
            waiting += map(int, _read(f"/proc/{found}/task/{task}/children").split())


def resident_bytes(pid: int) -> int:
    """Return the memory that a process holds, without pages of files; 0 when it is gone."""
    fields = _read(f"/proc/{pid}/statm").split()
    return (int(fields[1]) - int(fields[2])) * _PAGE if fields else 0


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - names only, several times a second
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
