"""Opening of files below a folder, so that no part of their path can lead out of it.

The kernel refuses links, also those that are made meanwhile (``openat2``, ``RESOLVE_BENEATH``). Where it does
not have that call, each part is opened separately, without following a link.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags to open a folder, but not a link to one."""

_SYS_OPENAT2 = 437
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_RETRIES = 20
"""openat2 reports EAGAIN if a folder is renamed during the call."""


def open_below(base: int, parts: Sequence[str], flags: int, mode: int = 0) -> int:
    """Open a path below a folder; no part of it may be a link. Raises OSError.

    ``mode`` has the permission bits of a file that O_CREAT creates.
    """
    if not parts:
        return os.open(".", flags, dir_fd=base)
    if not _has_openat2():
        return _open_stepwise(base, parts, flags, mode)
    for _ in range(_RETRIES):
        try:
            return _openat2(base, "/".join(parts), flags, mode)
        except BlockingIOError:
            continue
    return _open_stepwise(base, parts, flags, mode)


def _open_stepwise(base: int, parts: Sequence[str], flags: int, mode: int) -> int:
    """Open a path one part after the other, for systems without openat2."""
    opened = os.dup(base)
    try:
        for part in parts[:-1]:
            following = os.open(part, FOLDER, dir_fd=opened)
            os.close(opened)
            opened = following
        return os.open(parts[-1], flags | os.O_NOFOLLOW, mode, dir_fd=opened)
    finally:
        os.close(opened)


class _How(ctypes.Structure):
    """``struct open_how`` of openat2(2)."""

    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _openat2(base: int, path: str, flags: int, mode: int) -> int:
    how = _How(flags, mode, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS)
    call = _library().syscall
    call.restype = ctypes.c_long
    descriptor: int = call(
        ctypes.c_long(_SYS_OPENAT2),
        ctypes.c_int(base),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return descriptor


@cache
def _has_openat2() -> bool:
    """Return whether the kernel has openat2 and a sandbox allows it."""
    if not hasattr(os, "O_PATH"):
        return False
    base = os.open("/", FOLDER)
    try:
        os.close(_openat2(base, ".", FOLDER, 0))
    except OSError:
        return False
    finally:
        os.close(base)
    return True
