"""Loading: find the sources of settings and merge them; a later source overrides an earlier one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from gateway.contract.errors import SettingsError
from gateway.settings.agents import FOLDER, agent_files
from gateway.settings.documents import SUFFIXES, read_document
from gateway.settings.entries import ENABLED, Entry, flat, merged, resolved, split_plugin_entry
from gateway.settings.environment import FILE_VARIABLE, read_variables
from gateway.settings.sections import Settings
from gateway.settings.validation import known_entries, validated

T = TypeVar("T")

_DEFAULT_TABLES: Mapping[str, Any] = {"channels": {"websocket": {"enabled": True}}}
"""Default tables that stay in effect when the settings add further tables beside them."""


def load_settings(
    path: Path | None = None,
    *,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Settings:
    """Read the settings, each source over the one before it:

    1. the defaults;
    2. ``config/trunkline.toml`` in the working directory;
    3. ``~/.config/trunkline/trunkline.toml`` (or below ``XDG_CONFIG_HOME``);
    4. variables like ``TRUNKLINE_SERVER__PORT``;
    5. ``flags``, nested like the settings; None means not given.

    ``agents/*.md`` beside each file are agents; see ``gateway/settings/agents.py``.

    ``path``, or else the variable ``TRUNKLINE_CONFIG``, names one file to read instead of 2 and 3. Files may
    be ``.toml``, ``.json``, ``.jsonc`` or ``.json5``. Raises SettingsError with every mistake and its place.
    """
    environ = os.environ if environ is None else environ
    cwd = cwd or Path.cwd()
    entries, complaints = _collected(
        _files(path, environ, cwd), lambda file: read_document(file, _shown(file, cwd))
    )
    from_variables, about_variables = read_variables(Settings, environ, cwd)
    entries += from_variables + _from_flags(flags or {}, cwd)
    known, about_keys = known_entries(Settings, entries)
    single, about_plugins = _collected(known, split_plugin_entry)
    found, about_references = _collected(merged(single), lambda entry: [resolved(entry, environ)])
    complaints += [*about_variables, *about_keys, *about_plugins, *about_references]
    return _build(found, complaints, cwd, _bases(single))


def _bases(entries: Iterable[Entry]) -> dict[str, Path]:
    """Return the folder of the settings file that lists each plugin."""
    return {
        name: entry.base
        for entry in entries
        if entry.path == ENABLED and isinstance(entry.value, list)
        for name in cast("list[Any]", entry.value)
        if isinstance(name, str)
    }


def _build(entries: list[Entry], complaints: list[str], cwd: Path, bases: Mapping[str, Path]) -> Settings:
    defaults = [
        Entry(path=path, value=value, place="default", base=cwd) for path, value in flat(_DEFAULT_TABLES)
    ]
    settings = validated(Settings, merged([*defaults, *entries]), complaints)
    return settings.with_places(entries, bases)


def _files(path: Path | None, environ: Mapping[str, str], cwd: Path) -> list[Path]:
    named = path or (Path(environ[FILE_VARIABLE]) if environ.get(FILE_VARIABLE) else None)
    if named:
        file = cwd / named.expanduser()
        return [file, *agent_files(file.parent / FOLDER)]
    return [
        file
        for directory in _directories(environ, cwd)
        for file in (*_only_file(directory, cwd), *agent_files(directory / FOLDER))
    ]


def _directories(environ: Mapping[str, str], cwd: Path) -> list[Path]:
    home = environ.get("HOME")
    personal = environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    return [cwd / "config", *([Path(personal, "trunkline")] if personal else [])]


def _only_file(directory: Path, cwd: Path) -> list[Path]:
    found = [file for suffix in SUFFIXES if (file := directory / f"trunkline{suffix}").is_file()]
    if len(found) > 1:
        names = ", ".join(_shown(file, cwd) for file in found)
        raise SettingsError(f"{names}: only one settings file is allowed; remove the others")
    return found


def _shown(file: Path, cwd: Path) -> str:
    return str(file.relative_to(cwd) if file.is_relative_to(cwd) else file)


def _from_flags(flags: Mapping[str, Any], cwd: Path) -> list[Entry]:
    return [
        Entry(path=path, value=value, place="command line", base=cwd)
        for path, value in flat(flags)
        if value is not None and value != {}
    ]


def _collected(items: Iterable[T], read: Callable[[T], list[Entry]]) -> tuple[list[Entry], list[str]]:
    """Read all items; return the entries, and the errors of items that cannot be read."""
    entries: list[Entry] = []
    complaints: list[str] = []
    for item in items:
        try:
            entries += read(item)
        except SettingsError as error:
            complaints.append(str(error))
    return entries, complaints
