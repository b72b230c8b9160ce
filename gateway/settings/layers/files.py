"""The settings files of this machine, and which of them are safe to read.

A folder of settings holds ``trunkline.toml`` (or ``.json``, ``.jsonc``, ``.json5``) and agent files in
``agents/``. There are three kinds: ``config/`` in the working directory is the operator's,
``~/.config/trunkline/`` is the user's own, and ``.trunkline/`` in the working directory and in those above it
belongs to a project. The files of a project may come from anywhere, for example with a cloned repository.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from gateway.api.owned_files import exists
from gateway.contract.errors import SettingsError
from gateway.settings.agents import FOLDER as AGENTS
from gateway.settings.agents import agent_files
from gateway.settings.documents import SUFFIXES
from gateway.settings.entries import Layer

PROJECT = ".trunkline"
"""Folder of the settings of a project."""

MOST_BYTES = 128 * 1024
"""Largest file of a project that is not trusted, and of an organization: parsing takes time."""


class SettingsFile(Struct, frozen=True):
    """A settings file or agent file. ``shown`` is its name in messages, ``project`` the project's folder."""

    layer: Layer
    file: Path
    shown: str
    project: Path | None = None


def personal_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of the user's own settings, or None without a home directory."""
    home = environ.get("HOME")
    parent = environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    return Path(parent, "trunkline") if parent else None


def cache_folder(environ: Mapping[str, str], data_dir: Path) -> Path:
    """Return the folder for copies of remote files: the user's, or one in the data directory."""
    home = environ.get("HOME", "/")
    # Services often have / or a directory that does not exist.
    parent = environ.get("XDG_CACHE_HOME") or (
        f"{home}/.cache" if home != "/" and Path(home).is_dir() else ""
    )
    return Path(parent, "trunkline") if parent else data_dir / "cache"


def files_in(folder: Path, layer: Layer, cwd: Path, project: Path | None = None) -> list[SettingsFile]:
    """Return the settings file of a folder, if there is one, and its agent files. Raises SettingsError."""
    try:
        found = [file for suffix in SUFFIXES if exists(file := folder / f"trunkline{suffix}")]
        agents = agent_files(folder / AGENTS)
    except OSError as error:
        raise SettingsError(f"{shown(folder, cwd)}: cannot be read: {error.strerror}") from None
    if len(found) > 1:
        names = ", ".join(shown(file, cwd) for file in found)
        raise SettingsError(f"{names}: only one settings file is allowed; remove the others")
    return [SettingsFile(layer, file, shown(file, cwd), project) for file in (*found, *agents)]


def projects(cwd: Path, environ: Mapping[str, str]) -> list[Path]:
    """Return the directories with settings of a project, the nearest one last.

    The search goes up from the working directory to the home directory, or to the root outside of it.
    """
    start, home = cwd.resolve(), environ.get("HOME")
    upward = [start, *start.parents]
    last = Path(home).resolve() if home else None
    if last in upward:
        upward = upward[: upward.index(last) + 1]
    # Not Path.is_dir: that raises for a folder whose parent must not be searched.
    return [folder for folder in reversed(upward) if os.path.isdir(folder / PROJECT)]  # noqa: PTH112


def check_project(source: SettingsFile) -> None:
    """Raise SettingsError unless only the user, or the root user, can have written a project's file.

    Files of a trusted project may belong to another user. Otherwise a file must also be small and inside of
    its project: a link to any other file would make its text the prompt of an agent.
    """
    assert source.project is not None
    for path in dict.fromkeys((source.project, source.project / PROJECT, source.file.parent, source.file)):
        if complaint := _unsafe(path, source):
            raise SettingsError(f"{source.shown}: {complaint}")
    if source.layer == "project":
        check_inside(source.file, source.project, source.shown)


def check_inside(file: Path, project: Path, where: str) -> None:
    """Raise SettingsError unless a path leads to a regular, small file inside of a project."""
    real = _real(file)
    if real is None or not real.is_relative_to(project.resolve()):
        raise SettingsError(f"{where}: {file} leads out of {project}; {trust(project)}")
    try:
        found = real.stat()
    except OSError as error:
        raise SettingsError(f"{where}: {file} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise SettingsError(f"{where}: {file} is not a regular file")
    if found.st_size > MOST_BYTES:
        raise SettingsError(f"{where}: {file} has more than {MOST_BYTES} bytes; {trust(project)}")


def trust(project: Path) -> str:
    """Return the advice to trust a project."""
    return f'or add "{project}" to trusted_projects in your personal settings'


def shown(file: Path, cwd: Path) -> str:
    """Return the name of a file in messages: relative if it is below the working directory."""
    return str(file.relative_to(cwd) if file.is_relative_to(cwd) else file)


def trusted_folders(values: Iterable[object]) -> Iterator[Path]:
    """Yield the folders of ``trusted_projects`` that are absolute and without links.

    The owner of a link could lead it to another folder later. The settings report the other values.
    """
    for value in values:
        if isinstance(value, str) and (path := Path(value)).is_absolute() and _real(path) == path:
            yield path


def _real(path: Path) -> Path | None:
    """Return a path without links, or None if there can be no such path."""
    try:
        return Path(os.path.realpath(path))  # Path.resolve raises for a loop of links
    except ValueError:  # a zero byte
        return None


def _unsafe(path: Path, source: SettingsFile) -> str | None:
    """Return a complaint if other users can write to a path."""
    try:
        found = path.stat()
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if found.st_mode & stat.S_IWOTH and not sticky:
        return f"every user can write to {path}, so the settings are not read; run chmod o-w {path}"
    # Anyone may own the folder: only what is in `.trunkline` is read, and that must be the user's own.
    foreign = path != source.project and found.st_uid not in (os.geteuid(), 0)
    if foreign and source.layer == "project":
        return f"{path} belongs to another user; become its owner, {trust(source.project or path)}"
    return None
