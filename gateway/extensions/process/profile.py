"""Profiles: mounts, system calls, network and limits of a confined process, as data.

The launcher passes a profile on to the child's side, which applies it. A further kind of process is a further
function here; it needs no change of the launcher.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

MIB = 1024 * 1024

_LIBRARY_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
_MACHINES = ("x86_64-linux-gnu", "aarch64-linux-gnu")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt")
_CONFIGURATION = (
    *("alternatives", "ca-certificates", "group", "ld.so.cache", "localtime", "mime.types", "nsswitch.conf"),
    *("passwd", "pki", "ssl", "timezone"),
)
_NETWORK_CONFIGURATION = ("host.conf", "hosts", "protocols", "resolv.conf", "services")
_BESIDE_PROGRAMS = ("bin", "sbin", "lib", "lib64", "libexec", "include", "pyvenv.cfg")
_MOST_LINKS = 8
_SHEBANG_BYTES = 256


class Mount(Struct, frozen=True):
    """A folder or file of the machine, seen at its own path. One that does not exist is left out."""

    path: str
    write: bool = False


class ProcessLimits(Struct, frozen=True):
    """Resource limits of one process. 0 means no limit of this kind.

    ``memory`` is in bytes, for each process beyond the interpreter itself; ``file_bytes`` is the size of a
    file that it writes. ``cpu_seconds`` is over its life. ``processes`` is their number at once; the kernel
    does not hold root to it, so that the launcher counts, too. ``cpus`` is for all processes together, and
    counts only for programs in a cgroup.
    """

    memory: int = 256 * MIB
    files: int = 64
    file_bytes: int = 64 * MIB
    processes: int = 0
    cpu_seconds: int = 0
    cpus: float = 0.0


class Profile(Struct, frozen=True):
    """The confinement of one process.

    ``syscalls`` names the list of system calls, to which ``threads`` adds threads. ``network`` leaves out the
    network namespace. ``devices``
    adds ``/dev/null`` and its like and ``/proc``; ``tmp_bytes`` is the size of a ``/tmp`` of its own.
    ``interactive`` adds terminals, ``/dev/shm`` and the loopback device, for programs that a user works in.
    ``closed`` are real paths in the mounts: folders and files that are empty, or cannot be opened.
    ``guarded`` are real paths in writable mounts that can only be read.
    ``without`` switches layers off, by their names in ``child/confine.py`` or ``net namespace`` and so on.
    Only tests use it, to show that an attack can succeed; no setting reaches it.
    """

    name: str
    mounts: tuple[Mount, ...]
    syscalls: Literal["plugin", "program"]
    threads: bool = False
    network: bool = False
    devices: bool = False
    tmp_bytes: int = 0
    interactive: bool = False
    limits: ProcessLimits = ProcessLimits()
    environ: Mapping[str, str] = {}
    closed: tuple[str, ...] = ()
    guarded: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


class PluginTarget(Struct, frozen=True, tag_field="kind", tag="plugin"):
    """The code of a plugin, run by ``main(fd, folder, entry, site)`` of the module ``runtime``.

    ``runtime_path`` is the folder in which that module is found.
    """

    folder: str
    entry: str
    site: str | None
    runtime: str
    runtime_path: str


class ScriptTarget(Struct, frozen=True, tag_field="kind", tag="script"):
    """A file with a function ``main(arguments)`` that reads stdin, writes stdout and returns its exit status.

    ``site`` are folders of modules that it imports.
    """

    path: str
    arguments: tuple[str, ...] = ()
    site: tuple[str, ...] = ()


class ProgramTarget(Struct, frozen=True, tag_field="kind", tag="program"):
    """An executable by its absolute path, its arguments, and its working directory.

    ``stdin``, ``stdout`` and ``stderr`` are descriptors; -1 is ``/dev/null``. The launcher keeps none open.
    Without ``stderr`` it keeps the end of what the program writes there.
    """

    argv: tuple[str, ...]
    cwd: str
    stdin: int = -1
    stdout: int = -1
    stderr: int | None = -1


Target = PluginTarget | ScriptTarget | ProgramTarget


def plugin(
    readable: Iterable[str | Path],
    limits: ProcessLimits = ProcessLimits(),  # noqa: B008 - frozen
    *,
    threads: bool = False,
) -> Profile:
    """Return the profile ``plugin``: Python code with its own folders; no processes, network or exec."""
    mounts = (*interpreter_mounts(), *(Mount(str(path)) for path in readable))
    return Profile("plugin", mounts, "plugin", threads=threads, limits=limits)


def program(
    mounts: Iterable[Mount],
    limits: ProcessLimits,
    *,
    network: bool = False,
    environ: Mapping[str, str],
    interactive: bool = False,
) -> Profile:
    """Return the profile ``program``: foreign executables with the system's programs and the given mounts."""
    names = (*_CONFIGURATION, *_NETWORK_CONFIGURATION) if network else _CONFIGURATION
    system = (*(Mount(path) for path in _SYSTEM), *(Mount(f"/etc/{name}") for name in names))
    return Profile(
        "program",
        (*system, *mounts),
        "program",
        network=network,
        devices=True,
        tmp_bytes=256 * MIB,
        interactive=interactive,
        limits=limits,
        environ=environ,
    )


def interpreter_mounts() -> Iterator[Mount]:
    """Yield the standard library, and the folders of shared libraries that its modules are linked to."""
    paths = {
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib", vars={"platbase": sys.base_prefix}),
    }
    yield from (Mount(path) for path in sorted(paths))
    for folder in _LIBRARY_FOLDERS:
        yield from (Mount(f"{folder}/{machine}") for machine in _MACHINES)
        # Distributions without such folders have their libraries in this one, beside other things.
        if Path(folder, "libc.so.6").exists() and not Path(folder).is_symlink():
            yield Mount(folder)
    yield Mount("/etc/ld.so.cache")


def program_mounts(paths: Iterable[str], closed: Sequence[Path] = ()) -> Iterator[Mount]:
    """Yield what programs need to start, for folders of programs and single executables.

    It follows links and the interpreters of scripts. Of a folder ``bin`` it adds the libraries beside it,
    never the whole folder above, which may be a home. ``closed`` are folders that are mounted already.
    """
    seen: set[str] = set()
    for path in paths:
        for found in _chain(path):
            folder = found if os.path.isdir(found) else os.path.dirname(found)  # noqa: PTH112, PTH120
            if folder in seen or folder == "/" or is_below(folder, (*_SYSTEM, *map(str, closed))):
                continue
            seen.add(folder)
            if os.path.basename(folder) in ("bin", "sbin", "libexec"):  # noqa: PTH119
                above = os.path.dirname(folder)  # noqa: PTH120
                yield from (Mount(f"{above}/{name}") for name in _BESIDE_PROGRAMS)
            else:
                yield Mount(folder if os.path.isdir(found) else found)  # noqa: PTH112


def around(mounts: Iterable[Mount], closed: Sequence[str], *, named: bool = False) -> Iterator[Mount]:
    """Yield mounts without the closed folders: a mount that has one in it is replaced by what is beside it.

    A mount in a closed folder is left out, unless it was ``named`` for this program. Links are left out where
    a folder is replaced: they may lead to anywhere.
    """
    for mount in mounts:
        path = os.path.realpath(mount.path)
        if is_below(path, closed):
            if named and path not in closed:
                yield mount
        elif next(closed_in(path, closed), None) is None:
            yield mount
        else:
            beside = (f"{path}/{name}" for name in sorted(os.listdir(path)))  # noqa: PTH208
            yield from around((Mount(p) for p in beside if not os.path.islink(p)), closed)  # noqa: PTH114


def closed_in(path: str, closed: Iterable[str]) -> Iterator[str]:
    """Yield the closed folders that a folder contains, or is."""
    real = os.path.realpath(path)
    yield from (folder for folder in closed if is_below(folder, (real.rstrip("/"),)))


def _chain(path: str) -> Iterator[str]:
    """Yield a path, what it links to, and the interpreters that it names, as absolute paths."""
    for _ in range(_MOST_LINKS):
        yield path
        if os.path.islink(path):  # noqa: PTH114
            path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))  # noqa: PTH115, PTH118, PTH120
            continue
        interpreter = _interpreter_of(path)
        if not interpreter:
            return
        path = interpreter


def _interpreter_of(path: str) -> str:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            line = file.read(_SHEBANG_BYTES).split(b"\n", 1)[0]
    except OSError:
        return ""
    words = line[2:].split() if line.startswith(b"#!") else []
    found = os.fsdecode(words[0]) if words else ""
    return found if found.startswith("/") else ""


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Return whether a path is one of the folders, or in one."""
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
