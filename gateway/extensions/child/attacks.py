"""Attacks on the machine from inside a confined process, and what such a process must be able to do.

``gateway/extensions/process/attacks.py`` runs this file under the profile ``plugin``. Each line of its output
is the name of an attack, the attempts that succeeded, and the reasons why the others failed, as JSON.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import importlib
import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import syscalls

Facts = Mapping[str, Any]
Attempt = Callable[[Facts], object]

_NUMBERS = syscalls.numbers()
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
_SIGCHLD, _NEWUSER, _X32 = 17, 0x10000000, 0x40000000
_TIOCSTI, _MOST_FORKS = 0x5412, 30
_OWN = os.path.dirname(os.path.abspath(__file__))


def call(name: str, *arguments: int | bytes | None) -> int:
    """Make a system call by its name. Raises OSError."""
    return _raw(_NUMBERS[name], *arguments)


def _raw(number: int, *arguments: int | bytes | None) -> int:
    wide = (ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)
    result = int(_LIBC.syscall(ctypes.c_long(number), *wide))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(1)


def _list(path: str) -> list[str]:
    return os.listdir(path)


def _kill(pid: int) -> None:
    if pid == os.getpid():  # in a container's namespace and in its own it may have the same small number
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    os.kill(pid, 0)


def _write(path: str) -> None:
    with open(path, "ab") as file:
        file.write(b"x")


def _connect(family: int, kind: int, address: Any) -> None:
    with socket.socket(family, kind) as sock:
        sock.settimeout(1)
        sock.connect(address)
        if kind == socket.SOCK_DGRAM:
            sock.send(b"x")


def _listen(_: Facts) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()


def _fork(_: Facts) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _fork_bomb(_: Facts) -> None:
    children: list[int] = []
    try:
        while len(children) < _MOST_FORKS:
            child = os.fork()
            if child == 0:
                time.sleep(1)
                os._exit(0)
            children.append(child)
    finally:
        for child in children:
            os.waitpid(child, 0)


def _thread(_: Facts) -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def _execute(_: Facts) -> None:
    """Call ``execve`` without a path: only a filter refuses that with EPERM."""
    try:
        call("execve", None, None, None)
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise


def _spawn(_: Facts) -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    if os.waitpid(child, 0)[1]:
        raise OSError(errno.EACCES, "the program did not run")


def _clone3(_: Facts) -> None:
    arguments = struct.pack("8Q", 0, 0, 0, 0, _SIGCHLD, 0, 0, 0)
    child = call("clone3", arguments, len(arguments))
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _push_back(_: Facts) -> None:
    """Push a character into the input of a terminal. Without a terminal only a filter refuses with EPERM."""
    try:
        call("ioctl", 0, _TIOCSTI, b"x")
    except OSError as error:
        if error.errno == errno.EPERM:
            raise


def _handle(_: Facts) -> None:
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    number = ctypes.c_int()
    arguments = (ctypes.c_long(-100), b"/", handle, ctypes.byref(number), ctypes.c_long(0))
    if _LIBC.syscall(ctypes.c_long(_NUMBERS["name_to_handle_at"]), *arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _bpf(_: Facts) -> None:
    # An array of one element.
    call("bpf", 0, struct.pack("IIIII", 2, 4, 4, 1, 0) + bytes(100), 120)


def _crash(_: Facts) -> None:
    ctypes.string_at(0)


def _perf(_: Facts) -> None:
    attributes = struct.pack("IIQ", 1, 112, 0) + bytes(24) + struct.pack("Q", 1 << 5 | 1 << 6) + bytes(64)
    call("perf_event_open", attributes, 0, -1, -1, 0)


def _vm_read(facts: Facts) -> None:
    there = ctypes.create_string_buffer(8)
    vector = struct.pack("PN", ctypes.addressof(there), 8)
    call("process_vm_readv", facts["pid"], vector, 1, vector, 1, 0)


ATTACKS: Mapping[str, tuple[Attempt, ...]] = {
    "read passwd": (lambda _: _read("/etc/passwd"),),
    "read home": (lambda facts: _list(facts["home"]),),
    "read database": (lambda facts: _read(facts["database"]),),
    "read settings": (lambda facts: _read(facts["settings"]),),
    "parent's environ and memory": (
        lambda facts: _read(f"/proc/{facts['pid']}/environ"),
        lambda facts: _read(f"/proc/{facts['pid']}/mem"),
        lambda facts: _read(f"/proc/{facts['zygote']}/environ"),
    ),
    "stat": (lambda facts: os.stat(facts["settings"]), lambda _: os.stat("/etc/passwd")),
    "listing": (
        lambda facts: _list(facts["folder"]),
        lambda _: _list("/"),
        lambda _: _list("/proc"),
    ),
    "write": (
        lambda facts: _write(f"{facts['folder']}/new"),
        lambda facts: _write(facts["settings"]),
        lambda _: _write("/tmp/trunkline-attack"),
        lambda _: _write(f"{_OWN}/new"),
    ),
    "chmod": (lambda facts: os.chmod(facts["settings"], 0o600), lambda _: os.chmod(__file__, 0o644)),
    "link": (
        lambda facts: os.symlink("/etc/passwd", f"{facts['folder']}/soft"),
        lambda facts: os.link(facts["settings"], f"{facts['folder']}/hard"),
    ),
    "standard library": (lambda _: _write(os.__file__),),
    "TCP": (lambda facts: _connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", facts["tcp"])), _listen),
    "UDP": (lambda facts: _connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", facts["udp"])),),
    "unix": (lambda facts: _connect(socket.AF_UNIX, socket.SOCK_STREAM, facts["unix"]),),
    "abstract": (lambda facts: _connect(socket.AF_UNIX, socket.SOCK_STREAM, facts["abstract"]),),
    "netlink": (lambda _: _connect(socket.AF_NETLINK, socket.SOCK_RAW, (0, 0)),),
    "exec and posix_spawn": (_execute, _spawn),
    "fork": (_fork,),
    "thread and fork bomb": (_thread, _fork_bomb),
    "ptrace and process_vm": (lambda facts: call("ptrace", 16, facts["pid"], 0, 0), _vm_read),
    "kill": (
        lambda facts: _kill(facts["pid"]),
        lambda facts: _kill(facts["zygote"]),
        lambda _: _kill(-1),
    ),
    "pidfd": (
        lambda facts: call("pidfd_open", facts["pid"], 0),
        lambda _: call("pidfd_open", os.getpid(), 0),
    ),
    "keyring": (
        lambda _: call("add_key", b"user", b"trunkline", b"x", 1, -2),
        lambda _: call("keyctl", 0, -3, 1),
    ),
    "shm and mqueue": (
        lambda _: call("shmget", 0, 4096, 0o1600),
        lambda _: call("mq_open", b"trunkline", 0o102, 0o600, None),
        lambda _: _write("/dev/shm/trunkline-attack"),
    ),
    "perf": (_perf,),
    "userfaultfd": (lambda _: call("userfaultfd", 1),),
    "io_uring": (lambda _: call("io_uring_setup", 4, bytes(120)),),
    "bpf": (_bpf,),
    "mount": (
        lambda facts: call("mount", b"none", facts["folder"].encode(), b"tmpfs", 0, None),
        lambda _: call("open_tree", -100, b"/", 1),
    ),
    "clone3": (_clone3,),
    "memfd": (lambda _: call("memfd_create", b"x", 0),),
    "open_by_handle": (_handle,),
    "setuid": (lambda _: os.setuid(os.getuid()), lambda _: os.setuid(12345)),
    "TIOCSTI": (_push_back,),
    "set the clock": (
        lambda _: time.clock_settime(time.CLOCK_REALTIME, time.time()),
        lambda _: call("settimeofday", None, bytes(8)),
    ),
    "x32": (lambda _: _raw(_X32 + 39),),
    "user namespace": (lambda _: call("unshare", _NEWUSER),),
    "null pointer": (_crash,),
}
"""Each attack has the attempts of which none may succeed. The last ones may end or change the process."""


def _imports(_: Facts) -> None:
    for name in ("asyncio", "json", "sqlite3", "ssl", "zoneinfo", "decimal", "hashlib", "re"):
        importlib.import_module(name)


def _loop(_: Facts) -> None:
    async def wait() -> None:
        await asyncio.sleep(0.001)

    asyncio.run(wait())


def _descriptors(_: Facts) -> None:
    here = [number for number in range(64) if _is_open(number)]
    if not {0, 1, 2} <= set(here) <= {0, 1, 2, 3}:
        raise OSError(errno.EBADF, f"open descriptors: {here}")


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


CONTROLS: Mapping[str, tuple[Attempt, ...]] = {
    "imports": (_imports,),
    "asyncio": (_loop,),
    "own folder": (lambda _: _list(_OWN), lambda _: _read(__file__)),
    "own descriptors": (_descriptors,),
}
"""All attempts must succeed."""


def main(arguments: list[str]) -> int:
    """Run the named attacks and controls, with the facts on stdin."""
    facts: Facts = json.loads(sys.stdin.buffer.read())
    for name in arguments:
        succeeded: list[int] = []
        reasons: list[str] = []
        for at, attempt in enumerate({**ATTACKS, **CONTROLS}[name]):
            try:
                attempt(facts)
                succeeded.append(at)
            except Exception as error:  # noqa: BLE001 - any failure is what the host wants to know
                reasons.append(f"{type(error).__name__}: {error}")
        print(json.dumps({"name": name, "succeeded": succeeded, "reasons": reasons}), flush=True)  # noqa: T201
    return 0
