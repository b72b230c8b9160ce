"""Checks of the machine: Python, kernel, limit of open files, clock."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import resource
import sys
import time
from pathlib import Path

from gateway.cli.doctor.finding import Finding, ok, warn

_ENOUGH_FILES = 4_096
_CREATE_RULESET, _ASK_VERSION = 444, 1
_DAY = 86_400.0


def python() -> Finding:
    """Report the version of the interpreter."""
    threads = "" if sys.implementation.name == "cpython" else f" ({sys.implementation.name})"
    return ok("python", f"{platform.python_version()}{threads}, {platform.system()} {platform.machine()}")


def kernel() -> Finding:
    """Report the features of the kernel that confine plugins. A missing one is no failure."""
    if not sys.platform.startswith("linux"):
        return ok(
            "kernel", f"{platform.system()}: no Landlock, seccomp or user namespaces to confine plugins"
        )
    abi = landlock_abi()
    features = {
        f"Landlock ABI {abi}" if abi else "Landlock": abi > 0,
        "seccomp": "Seccomp:" in _read("/proc/self/status"),
        "user namespaces": _has_user_namespaces(),
    }
    there = [name for name, has in features.items() if has]
    missing = [f"no {name}" for name, has in features.items() if not has]
    return ok("kernel", f"{platform.release()}: {', '.join([*there, *missing])}")


def landlock_abi() -> int:
    """Return the Landlock ABI of the kernel; 0 without Landlock."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    return max(0, int(version))


def documents() -> Finding:
    """Report whether PDF and Word documents can be read. That they cannot is no failure."""
    missing = [library for library in ("pypdf", "docx") if importlib.util.find_spec(library) is None]
    if missing:
        return ok("documents", "PDF and Word documents cannot be read: install trunkline[documents]")
    return ok("documents", "PDF and Word documents that users send are read")


def open_files() -> Finding:
    """Check the limit of open files, which limits the number of clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _ENOUGH_FILES:
        return ok("open files", f"{soft:,} at once" if soft != resource.RLIM_INFINITY else "no limit")
    return warn(
        "open files",
        f"{soft:,} at once; each client needs one",
        f"raise the limit before the start: ulimit -n {min(hard, 65_536) if hard > 0 else 65_536}",
    )


def clock(now: float | None = None) -> Finding:
    """Check that the clock is not before the installation of this file."""
    now = time.time() if now is None else now
    shown = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    if now < Path(__file__).stat().st_mtime - _DAY:
        return warn(
            "clock",
            f"{shown} is before the installation of Trunkline",
            "set the clock: times of messages, certificates and prices depend on it",
        )
    return ok("clock", shown)


def _has_user_namespaces() -> bool:
    most = _read("/proc/sys/user/max_user_namespaces").strip()
    allowed = _read("/proc/sys/kernel/unprivileged_userns_clone").strip()
    held_back = _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").strip()
    return most not in ("", "0") and allowed != "0" and held_back != "1"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
