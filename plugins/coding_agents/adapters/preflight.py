"""The check of a program before its first session, and the files that a start needs in its home."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import stat
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from gateway.api import FOLDER, open_below
from plugins.coding_agents.adapters.contract import Adapter, Launch
from plugins.coding_agents.errors import FolderTrustError
from plugins.programs.environment import environment_for, find_program

_VERSION_SECONDS = 5
_VERSION = re.compile(r"\d+(?:\.\d+)+")
_MOST_STORED = 64 * 1024 * 1024
"""Size in bytes from which a file of a program is rewritten."""


class Preflight(Struct, frozen=True, kw_only=True):
    """The state of a program on this machine.

    ``known`` means that screens of this version are recorded; ``release_limit`` is the newest release that
    the installed Node.js can run, "" without a limit; ``logged_in`` is None if only the program knows.
    """

    agent: str
    title: str
    found: str
    version: str
    known: bool
    install: str
    logged_in: bool | None
    node: str = ""
    release_limit: str = ""
    problem: str = ""


async def check_program(
    adapter: Adapter, environ: Mapping[str, str], home: str, *, binary: str = ""
) -> Preflight:
    """Return the state of a program; it runs with ``--version`` only."""
    wanted = binary or adapter.program or adapter.binary
    found = await asyncio.to_thread(find_program, wanted, environ) or ""
    version = await program_version(found, environ) if found else ""
    node = await _node_version(environ) if adapter.min_node else ""
    major = int(node.partition(".")[0] or 0)
    limit = adapter.node_limits.get(major, "") if node and major < adapter.min_node else ""
    return Preflight(
        agent=adapter.name,
        title=adapter.title,
        found=found,
        version=version,
        known=bool(found) and is_known(adapter, version),
        install=adapter.install,
        logged_in=await asyncio.to_thread(adapter.logged_in, home, environ),
        node=node,
        release_limit=limit,
        problem=_problem(adapter, found, version, node, major, limit),
    )


async def program_version(
    program: str, environ: Mapping[str, str], *, seconds: float = _VERSION_SECONDS
) -> str:
    """Return the version that a program reports; "" if it reports none in time."""
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            "--version",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment_for(environ, (), {}),
            start_new_session=True,
        )
    except OSError:
        return ""
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate()
    except TimeoutError:
        return ""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    match = _VERSION.search(output.decode(errors="replace"))
    return match[0] if match else ""


def is_known(adapter: Adapter, version: str) -> bool:
    """Return whether screens of this version are recorded; an entry "1.18" means each 1.18.x."""
    return any(version == known or version.startswith(f"{known}.") for known in adapter.known_versions)


def prepare_home(home: Path, launch: Launch) -> None:
    """Write the files of a start below the program's home, for its user only.

    What could have permissions of an earlier session is removed first. JSON files keep what the program has
    in them otherwise; lists are extended. A link is never followed, not even to
    read: the program could have put it there, and would get what it must not read.
    """
    for name in launch.removed:
        with _folder_of(home, name) as (folder, file):
            _remove(folder, file)
    for name, values in launch.settings.items():
        with _folder_of(home, name) as (folder, file):
            stored = _stored(folder, file)
            if name in launch.kept:
                stored = _only(stored, launch.kept[name])
            _write(folder, file, json.dumps(_merged(stored, values), indent=2))
    for name, text in launch.files.items():
        with _folder_of(home, name) as (folder, file):
            _write(folder, file, text)


def check_folder(adapter: Adapter, workdir: str) -> None:
    """Refuse a folder, or a repository around it, with files that configure the program.

    Others may have written them. Raises FolderTrustError.
    """
    folder = Path(workdir)
    inner = next((at for at, one in enumerate(folder.parents, 1) if os.path.lexists(one / ".git")), 0)
    around = () if os.path.lexists(folder / ".git") else folder.parents[:inner]
    for place in (folder, *around):
        for name in adapter.configured_by:
            if os.path.lexists(place / name):
                raise FolderTrustError(
                    f"{place / name} configures {adapter.title}, and could let it run commands without a "
                    f"question; remove the file, or set agents.{adapter.name}.trust_folder = true if you "
                    "trust all who can write it"
                )


def with_instructions(adapter: Adapter, task: str, workdir: str) -> str:
    """Return a task that names the instructions in the folder, which the program does not load from there."""
    found = next((name for name in adapter.instructions if Path(workdir, name).is_file()), "")
    return f"{task}\n\nFollow the instructions in {found}." if task.strip() and found else task


async def _node_version(environ: Mapping[str, str]) -> str:
    node = await asyncio.to_thread(find_program, "node", environ)
    return await program_version(node, environ) if node else ""


def _problem(adapter: Adapter, found: str, version: str, node: str, major: int, limit: str) -> str:
    if not found:
        return f"{adapter.title} is not installed; install it with: {adapter.install}"
    if limit:
        return (
            f"Node.js {node} limits {adapter.title} to {limit}, and npm silently installs that version; "
            f"newer releases need Node.js {adapter.min_node}"
        )
    if node and major < adapter.min_node:
        return f"{adapter.title} needs Node.js {adapter.min_node}, and this is {node}"
    if not version:
        return f"{found} --version reported no version within {_VERSION_SECONDS} seconds"
    if not is_known(adapter, version):
        return f"no screens of {adapter.title} {version} are recorded: no question is answered without a user"
    return ""


def _remove(folder: int, name: str) -> None:
    """Remove a file, a link or a folder with all that is in it."""
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)


@contextmanager
def _folder_of(home: Path, name: str) -> Generator[tuple[int, str]]:
    """Yield a descriptor of the folder of a file below a home, and the file's name in it. Raises OSError."""
    path, root = home / name, home.resolve()
    real = path.parent.resolve()
    if not real.is_relative_to(root):
        raise OSError(f"{path} is not below {home}")
    real.mkdir(mode=0o700, parents=True, exist_ok=True)
    base = os.open(root, FOLDER)
    try:
        # A program of another session with this home may replace a folder by a link meanwhile.
        folder = open_below(base, real.relative_to(root).parts, FOLDER)
    finally:
        os.close(base)
    try:
        yield folder, path.name
    finally:
        os.close(folder)


def _stored(folder: int, name: str) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one for a link, a large file and anything else."""
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_STORED:
                return {}
            stored: Any = json.loads(file.read(_MOST_STORED))
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", stored) if isinstance(stored, dict) else {}


def _only(stored: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Return what is stored under some keys, such as ``ui``, or ``security.auth`` for one within a table."""
    found: dict[str, Any] = {}
    for table, _, inner in (key.partition(".") for key in keys):
        value = stored.get(table)
        if inner:
            within = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
            value = {inner: within[inner]} if inner in within else None
        if value is not None:
            found[table] = value
    return found


def _write(folder: int, name: str, text: str) -> None:
    fresh = f"{name}.trunkline"
    with suppress(FileNotFoundError):
        os.unlink(fresh, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(fresh, flags, 0o600, dir_fd=folder), "w") as file:
        file.write(text)
    os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for name, value in new.items():
        before = merged.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[name] = _merged(cast("dict[str, Any]", before), cast("dict[str, Any]", value))
        elif isinstance(before, list) and isinstance(value, list):
            items = cast("list[Any]", before)
            merged[name] = [*items, *(each for each in cast("list[Any]", value) if each not in items)]
        else:
            merged[name] = value
    return merged
