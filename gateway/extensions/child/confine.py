"""Confinement of the current process, before it reads any code of a plugin.

The process has one thread and was cloned by ``zygote.py``. The order counts: each step needs rights that a
later one takes away. Only the standard library; system calls go through ctypes.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import syscalls

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
NAMESPACES = {
    "user": CLONE_NEWUSER,
    "pid": CLONE_NEWPID,
    "net": CLONE_NEWNET,
    "ipc": CLONE_NEWIPC,
    "uts": CLONE_NEWUTS,
    "mount": CLONE_NEWNS,
}

_REPORT = 4
"""The descriptor that receives one line of JSON: the layers, or the error."""
_SIGKILL = 9
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 24, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION = 0x20080522
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, 0o2000000
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MS_REC, _MS_PRIVATE, _MNT_DETACH = 0x4000, 1 << 18, 2
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
_FSCONFIG_SET_STRING, _FSCONFIG_CREATE = 1, 6
_LANDLOCK_VERSION, _LANDLOCK_PATH = 1, 1
_ABI_OF_NETWORK, _ABI_OF_SCOPES = 4, 6
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15
_IOCTL_DEV = 1 << 15
_SPECIAL_FILES = 1 << 6 | 1 << 11 | 1 << 15  # making devices, and device commands
_SECCOMP_SET_FILTER = 1
_LINKS = ("/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_TERMINAL, _TERMINALS, _SHARED_MEMORY = "/dev/tty", "/dev/pts", "/dev/shm"
_ROOT_BYTES = 1 << 20
_EMPTY = "/.empty"
_SIOCSIFFLAGS, _IFF_UP_AND_RUNNING = 0x8914, 0x41


class Failed(Exception):
    """A layer that could not be applied."""

    def __init__(self, layer: str, error: OSError) -> None:
        super().__init__(f"{error.strerror or error}")
        self.layer = layer


class Kernel:
    """System calls by name. Errors are OSError."""

    def __init__(self) -> None:
        self._numbers = syscalls.numbers()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.syscall.restype = ctypes.c_long

    def call(self, name: str, *arguments: int | bytes | ctypes.Array[Any] | None) -> int:
        """Make a system call. Integers are 64 bits wide."""
        wide = (ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)
        result: int = self._libc.syscall(ctypes.c_long(self._numbers[name]), *wide)
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")
        return result


def landlock_abi(kernel: Kernel) -> int:
    """Return the Landlock ABI of the kernel; 0 without Landlock."""
    try:
        return kernel.call("landlock_create_ruleset", None, 0, _LANDLOCK_VERSION)
    except OSError:
        return 0


class Confinement:
    """The layers of one process, applied in order. ``request`` is the host's; see ``launcher.py`` there.

    ``namespaces`` are those that the process was cloned into, ``ids`` its user and group outside of them.
    """

    def __init__(
        self, kernel: Kernel, request: dict[str, Any], namespaces: Sequence[str], ids: tuple[int, int]
    ) -> None:
        self._ids = ids
        self._kernel = kernel
        self._profile: dict[str, Any] = request["profile"]
        self._without = frozenset(self._profile["without"])
        self._namespaces = frozenset(namespaces)
        self.layers: list[str] = []

    def apply(self) -> None:
        """Apply all layers. Raises Failed."""
        steps = (
            ("limits", self._limit, True),
            ("user", self._map_ids, "user" in self._namespaces),
            ("loopback", self._raise_loopback, "net" in self._namespaces and self._profile["interactive"]),
            ("root", self._change_root, "mount" in self._namespaces),
            ("capabilities", self._drop_capabilities, True),
            ("landlock", self._landlock, True),
            ("seccomp", self._seccomp, True),
        )
        for layer, step, wanted in steps:
            if not wanted or layer in self._without:
                continue
            try:
                step()
            except OSError as error:
                raise Failed(layer, error) from None
            self.layers.append(layer)
        self.layers += (f"{name} namespace" for name in sorted(self._namespaces))

    def _limit(self) -> None:
        limits = self._profile["limits"]
        files: int = limits["files"]
        most = [
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_NOFILE, files),
            (resource.RLIMIT_FSIZE, limits["file_bytes"]),
            (resource.RLIMIT_MSGQUEUE, 0),
        ]
        if limits["processes"]:
            most.append((resource.RLIMIT_NPROC, limits["processes"]))
        if limits["cpu_seconds"]:
            most.append((resource.RLIMIT_CPU, limits["cpu_seconds"]))
        if limits["memory"] and self._profile["syscalls"] == "plugin":
            # The address space of the interpreter is there already. It also counts shared memory.
            most.append((resource.RLIMIT_AS, limits["memory"] + _address_space()))
        elif limits["memory"] and not (self._profile["interactive"] and "pid" in self._namespaces):
            # Many programs reserve far more addresses than they use. Some, such as Bun, even reserve them as
            # data and crash under this limit; what is watched from its pid namespace does not need it.
            most.append((resource.RLIMIT_DATA, limits["memory"]))
        for name, value in most:
            hard = resource.getrlimit(name)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(name, (value, value))
        try:
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("500")  # the kernel shall end this before the gateway
        except OSError:
            pass

    def _map_ids(self) -> None:
        """Keep the numbers of user and group: files of the plugin and of the interpreter stay readable."""
        uid, gid = self._ids
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
        if "uts" in self._namespaces:
            # The seccomp profile of a container may refuse it; that name says nothing about the machine.
            with suppress(PermissionError):
                self._kernel.call("sethostname", b"confined", 8)

    def _raise_loopback(self) -> None:
        """Switch on the loopback device of the new network namespace, the only one that it has."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP_AND_RUNNING))

    def _change_root(self) -> None:
        """Make its own root: a small tmpfs in which only the mounts of the profile are visible."""
        call = self._kernel.call
        call("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None)
        # Taken before anything is mounted over them; the new mounts are in no tree yet.
        mounts = [(path, write, self._copy_of(path)) for path, write in self._mounts()]
        devices = [(path, self._copy_of(path)) for path in self._devices()]
        links = [(path, os.readlink(path)) for path in _LINKS if os.path.islink(path)]
        aliases = sorted(self._aliases())
        proc = self._new_proc()
        root = self._new_tmpfs(_ROOT_BYTES)
        place = next(path for path in ("/tmp", "/mnt", "/proc") if os.path.isdir(path))
        call("move_mount", root, b"", _AT_FDCWD, place.encode(), _MOVE_MOUNT_F_EMPTY_PATH)
        os.close(root)
        os.chdir(place)
        call("pivot_root", b".", b".")
        call("umount2", b".", _MNT_DETACH)
        os.chdir("/")
        for path, target in links:
            os.symlink(target, path)
        if self._profile["tmp_bytes"]:  # before the mounts, which may be below it
            self._attach(self._new_tmpfs(self._profile["tmp_bytes"]), "/tmp", _NOSUID | _NODEV)
        self._attach_mounts(mounts)
        for path, real in aliases:
            if not os.path.lexists(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.symlink(real, path)
        for path, tree in devices:
            self._attach(tree, path, _NOSUID | _NOEXEC)
        if self._profile["interactive"]:
            self._add_terminals()
        if proc is not None:
            self._attach(proc, "/proc", _NOSUID | _NODEV | _NOEXEC | _RDONLY)
        self._set_flags(_AT_FDCWD, b"/", _RDONLY | _NOSUID | _NODEV | _NOEXEC, 0)

    def _attach_mounts(self, mounts: Sequence[tuple[str, bool, int]]) -> None:
        """Attach the mounts of the profile; hide what is closed in them, and protect what is guarded."""
        closed = set(self._profile["closed"]).difference(path for path, _, _ in mounts)
        writable = [path for path, write, _ in mounts if write]
        hidden: list[str] = []
        for path, write, tree in sorted((*mounts, *((path, False, -1) for path in closed))):
            if tree >= 0:
                self._attach(tree, path, _NOSUID | _NODEV | (0 if write else _RDONLY))
            elif not os.path.islink(path) and os.path.exists(path):
                self._hide(path, writable)
                hidden.append(path)
        for path in filter(os.path.isdir, hidden):
            self._set_flags(_AT_FDCWD, path.encode(), _RDONLY, 0)  # what is mounted below it is there now
        for path in filter(os.path.exists, sorted(self._profile["guarded"])):
            self._pin(path, writable)
            self._attach(self._copy_of(path), path, _NOSUID | _NODEV | _RDONLY)

    def _devices(self) -> Iterator[str]:
        if self._profile["devices"]:
            yield from _DEVICES
        if self._profile["interactive"] and os.path.exists(_TERMINAL):
            yield _TERMINAL

    def _add_terminals(self) -> None:
        """Mount its own terminals, for programs that start others in one, and shared memory."""
        self._attach(self._new_mount(b"devpts", {b"ptmxmode": b"0666"}), _TERMINALS, _NOSUID | _NOEXEC)
        os.symlink("pts/ptmx", "/dev/ptmx")
        for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
            os.symlink(f"/proc/self/fd{target}", f"/dev/{name}")
        self._attach(self._new_tmpfs(self._profile["tmp_bytes"]), _SHARED_MEMORY, _NOSUID | _NODEV)

    def _mounts(self) -> Iterator[tuple[str, bool]]:
        """Yield the folders and files that exist, with whether they can be written to."""
        for mount in self._profile["mounts"]:
            path = os.path.realpath(mount["path"])
            if os.path.exists(path):
                yield path, mount["write"]

    def _aliases(self) -> Iterator[tuple[str, str]]:
        """Yield the paths of mounts that lead through links, with those at which they are mounted."""
        for mount in self._profile["mounts"]:
            path, real = os.path.normpath(mount["path"]), os.path.realpath(mount["path"])
            if path != real and os.path.exists(real):
                yield path, real

    def _copy_of(self, path: str) -> int:
        flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE
        return self._kernel.call("open_tree", _AT_FDCWD, path.encode(), flags)

    def _new_tmpfs(self, size: int) -> int:
        return self._new_mount(
            b"tmpfs", {b"size": str(size).encode(), b"mode": b"0755", b"nr_inodes": b"20000"}
        )

    def _new_proc(self) -> int | None:
        """Return a mount of the processes of this namespace; None if the kernel does not allow it."""
        if not self._profile["devices"] or "pid" not in self._namespaces:
            return None
        try:
            return self._new_mount(b"proc", {})
        except OSError:
            return None  # in a container that hides its own parts

    def _new_mount(self, kind: bytes, options: dict[bytes, bytes]) -> int:
        call = self._kernel.call
        context = call("fsopen", kind, 1)
        try:
            for name, value in options.items():
                call("fsconfig", context, _FSCONFIG_SET_STRING, name, value, 0)
            call("fsconfig", context, _FSCONFIG_CREATE, None, None, 0)
            return call("fsmount", context, 1, 0)
        finally:
            os.close(context)

    def _attach(self, tree: int, path: str, flags: int) -> None:
        """Mount a tree at a path below the new root."""
        if stat.S_ISDIR(os.fstat(tree).st_mode):
            os.makedirs(path, exist_ok=True)
        elif not os.path.lexists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        self._set_flags(tree, b"", flags, _AT_EMPTY_PATH | _AT_RECURSIVE)
        self._kernel.call("move_mount", tree, b"", _AT_FDCWD, path.encode(), _MOVE_MOUNT_F_EMPTY_PATH)
        os.close(tree)

    def _hide(self, path: str, writable: Sequence[str]) -> None:
        """Put something empty in the place of a folder or a file."""
        self._pin(path, writable)
        if os.path.isdir(path):
            self._attach(self._new_tmpfs(_ROOT_BYTES), path, _NOSUID | _NODEV)
            return
        os.close(os.open(_EMPTY, os.O_CREAT | os.O_RDONLY, 0o400))
        self._attach(self._copy_of(_EMPTY), path, _NOSUID | _NODEV | _RDONLY)

    def _pin(self, path: str, writable: Sequence[str]) -> None:
        """Mount each writable folder above a path onto itself.

        The kernel refuses to rename a mount. Without it a program could replace the folder by one of its own.
        """
        for folder in (path[:at] for at, letter in enumerate(path) if letter == "/" and at):
            if any(folder.startswith(f"{one}/") for one in writable):
                self._attach(self._copy_of(folder), folder, _NOSUID | _NODEV)

    def _set_flags(self, at: int, path: bytes, flags: int, how: int) -> None:
        attributes = struct.pack("QQQQ", flags, 0, 0, 0)
        self._kernel.call("mount_setattr", at, path, how, attributes, len(attributes))

    def _drop_capabilities(self) -> None:
        """Drop every capability permanently. The user stays: another one could not read the interpreter."""
        call = self._kernel.call
        call("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
        for capability in range(64):
            try:
                call("prctl", _PR_CAPBSET_DROP, capability, 0, 0, 0)
            except OSError:
                break  # without the right to drop them there are none; or this was the last one
        call("capset", struct.pack("Ii", _CAPABILITY_VERSION, 0), bytes(24))
        call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        # A change of credentials may have cleared it.
        call("prctl", _PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)

    def _landlock(self) -> None:
        """Allow what the mounts allow, by path, and nothing else: no TCP and no abstract sockets either."""
        call = self._kernel.call
        call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        abi = landlock_abi(self._kernel)
        if abi == 0:
            raise OSError(38, "the kernel has no Landlock")
        rights = (1 << (13 + (abi >= 2) + (abi >= 3) + (abi >= 5))) - 1
        attributes = struct.pack("Q", rights)
        if abi >= _ABI_OF_NETWORK:
            has_loopback = self._profile["interactive"] and "net" in self._namespaces
            attributes += struct.pack("Q", 0 if self._profile["network"] or has_loopback else 3)
        if abi >= _ABI_OF_SCOPES:
            attributes += struct.pack("Q", 3)
        rules = call("landlock_create_ruleset", attributes, len(attributes), 0)
        for path, allowed in self._rights(rights):
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                allowed &= _FILE_RIGHTS
            rule = struct.pack("=Qi", allowed & rights, descriptor)
            call("landlock_add_rule", rules, _LANDLOCK_PATH, rule, 0)
            os.close(descriptor)
        call("landlock_restrict_self", rules, 0)
        os.close(rules)

    def _rights(self, every: int) -> Iterator[tuple[str, int]]:
        execute = _EXECUTE if self._profile["syscalls"] == "program" else 0
        for path, write in self._mounts():
            allowed = (every & ~_SPECIAL_FILES) | _EXECUTE if write else _READ_FILE | _READ_DIR | execute
            guarded = [one for one in self._profile["guarded"] if write and "mount" not in self._namespaces]
            yield from ((each, allowed) for each in self._beside(path, (*self._closed(), *guarded)))
            for one in guarded:
                yield from (
                    (each, _READ_FILE | _READ_DIR | execute) for each in self._beside(one, self._closed())
                )
        if self._profile["devices"]:
            yield from ((path, _READ_FILE | _WRITE_FILE) for path in self._devices())
            if "mount" in self._namespaces and os.path.isdir("/proc/self"):
                yield "/proc", _READ_FILE | _READ_DIR
        if self._profile["interactive"] and os.path.exists(_TERMINAL):
            yield _TERMINAL, _READ_FILE | _WRITE_FILE | _IOCTL_DEV
        if self._profile["interactive"] and "mount" in self._namespaces:
            yield _TERMINALS, _READ_FILE | _WRITE_FILE | _READ_DIR | _IOCTL_DEV
            yield _SHARED_MEMORY, every & ~_SPECIAL_FILES
        if self._profile["syscalls"] == "program" and "mount" in self._namespaces:
            yield "/", _READ_DIR
        if self._profile["tmp_bytes"] and "mount" in self._namespaces:
            yield "/tmp", (every & ~_SPECIAL_FILES) | _EXECUTE

    def _closed(self) -> Sequence[str]:
        """Return the closed paths, where no mount hides them."""
        return () if "mount" in self._namespaces else self._profile["closed"]

    def _beside(self, path: str, closed: Sequence[str]) -> Iterator[str]:
        """Yield a folder, or what is beside the closed paths in it."""
        if not any(each == path or each.startswith(f"{path}/") for each in closed):
            yield path
        elif path not in closed:
            for name in os.listdir(path):
                below = f"{path}/{name}"
                if not os.path.islink(below):
                    yield from self._beside(below, closed)

    def _seccomp(self) -> None:
        if self._profile["syscalls"] == "plugin":
            code = self._plugin_filter()
        else:
            code = syscalls.program_filter(self._families())
        self._kernel.call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        array = ctypes.create_string_buffer(code, len(code))
        program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(array))
        self._kernel.call("seccomp", _SECCOMP_SET_FILTER, 0, program)

    def _plugin_filter(self) -> bytes:
        pid = os.getpid()
        return (
            syscalls.plugin_filter(pid, threads=True)
            if self._profile["threads"]
            else syscalls.plugin_filter(pid)
        )

    def _families(self) -> tuple[int, ...]:
        """Return the families of sockets: unix ones only where no socket of the machine can be reached."""
        unix = (1,) if "mount" in self._namespaces else ()
        network = self._profile["network"] or "net" in self._namespaces
        return (*unix, 2, 10, 16) if network else unix


def report(value: dict[str, Any]) -> None:
    """Send one line to the host."""
    os.write(_REPORT, json.dumps(value).encode() + b"\n")


def take_descriptors(kernel: Kernel, given: Sequence[int]) -> None:
    """Make the given descriptors 0, 1, 2 and so on, and close all others. -1 stands for /dev/null.

    The last one is for the report.
    """
    # Copies above all others, so that no target is a source.
    null = _above(os.open("/dev/null", os.O_RDWR))
    high = [_above(null if one < 0 else one) for one in given]
    for target, source in enumerate((*high[:-1], *[null] * (_REPORT - len(high) + 1))):
        os.dup2(source, target)
    os.dup2(high[-1], _REPORT)
    os.set_inheritable(_REPORT, False)
    kernel.call("close_range", _REPORT + 1, 0x7FFFFFFF, 0)


def _above(descriptor: int) -> int:
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 100)


def die_with_parent(kernel: Kernel, parent: int) -> None:
    """End this process when its parent ends. ``parent`` is a pidfd of it: it may have ended already."""
    import select

    kernel.call("prctl", _PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if select.select([parent], [], [], 0)[0]:
        os._exit(1)


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
