"""Loading: find the sources of settings and merge them; a later source overrides an earlier one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from msgspec.structs import replace
from pydantic import ValidationError

from gateway.api.owned_files import exists
from gateway.contract.errors import SettingsError
from gateway.settings.agents import FOLDER, SUFFIX, agent_files
from gateway.settings.documents import SUFFIXES, read_document
from gateway.settings.entries import ENABLED, Entry, Layer, flat, merged, resolved, split_plugin_entry
from gateway.settings.layers.environment import FILE_VARIABLE, read_variables
from gateway.settings.layers.files import (
    PROJECT,
    SettingsFile,
    cache_folder,
    check_project,
    files_in,
    personal_folder,
    projects,
    shown,
    trusted_folders,
)
from gateway.settings.layers.policy import joined, read_policy
from gateway.settings.layers.remote import Copy, RemoteFile
from gateway.settings.layers.rules import (
    TRUSTED,
    check_references,
    check_size,
    misplaced,
    operators_own,
    refused,
)
from gateway.settings.sections import Origin, RemoteFields, Settings, Source
from gateway.settings.validation import known_entries, validated

T = TypeVar("T")

_DEFAULT_TABLES: Mapping[str, Any] = {"channels": {"websocket": {"enabled": True}}}
"""Default tables that stay in effect when the settings add further tables beside them."""

_NOT_FILES: Mapping[Layer, str] = {"environment": "variables TRUNKLINE_…", "flags": "command line"}


def load_settings(
    path: Path | None = None,
    *,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    refresh: bool = False,
) -> Settings:
    """Read the settings, each source over the one before it:

    1. the defaults;
    2. the file of the organization, at the https address that ``organization`` names;
    3. ``~/.config/trunkline/trunkline.toml`` (or below ``XDG_CONFIG_HOME``);
    4. ``.trunkline/trunkline.toml`` of the working directory and of those above it, the nearest one last;
    5. ``config/trunkline.toml`` in the working directory;
    6. variables like ``TRUNKLINE_SERVER__PORT``;
    7. ``flags``, nested like the settings; None means not given.

    ``agents/*.md`` beside each file are agents; see ``gateway/settings/agents.py``. The files of 2 and 4 may
    set only some keys; see ``gateway/settings/layers/rules.py``.

    ``path``, or else the variable ``TRUNKLINE_CONFIG``, names one file to read instead of 3 to 5. Files may
    be ``.toml``, ``.json``, ``.jsonc`` or ``.json5``. A copy of 2 is used if there is one, unless ``refresh``
    is true. Raises SettingsError with every mistake and its place.
    """
    environ = os.environ if environ is None else environ
    cwd = cwd or Path.cwd()
    reread = partial(load_settings, path, flags=flags, environ=environ, cwd=cwd)
    return _Loading(environ, cwd).run(path, flags or {}, reread, refresh=refresh)


async def refresh_organization(settings: Settings) -> str | None:
    """Fetch the organization's file for the next start. Return a message if it changed or is unavailable."""
    remote = settings.origin.remote
    if remote is None:
        return None
    before = remote.copied(_checked)
    try:
        now = await remote.refresh(_checked)
    except SettingsError as error:
        return _outdated(str(error), before.copy.age) if before else str(error)
    if before and before.copy.text != now.copy.text:
        return f"{now.copy.url} has changed; the next start applies it"
    return now.warning or None


class _Loading:
    """One reading of all sources; it collects entries and complaints."""

    def __init__(self, environ: Mapping[str, str], cwd: Path) -> None:
        self._environ = environ
        self._cwd = cwd
        self._complaints: list[str] = []
        self._warnings: list[str] = []
        self._sources: list[Source] = []

    def run(
        self, path: Path | None, flags: Mapping[str, Any], reread: Callable[[], Settings], *, refresh: bool
    ) -> Settings:
        """Read all sources. Raises SettingsError."""
        local = self._files(path)
        variables, about_variables = read_variables(Settings, self._environ, self._cwd)
        self._complaints += about_variables
        local += self._known([replace(entry, layers=("environment",)) for entry in variables])
        local += self._known(_from_flags(flags, self._cwd))
        remote = self._remote(local)
        entries = [*(self._organization(remote, refresh=refresh) if remote else ()), *local]
        self._complaints += refused(entries)
        single = self._collected(entries, split_plugin_entry)
        self._complaints += operators_own(single)
        found = self._collected(merged(single), self._resolved)
        given = {layer for entry in entries for layer in entry.layers}
        self._sources += [Source(layer, name) for layer, name in _NOT_FILES.items() if layer in given]
        origin = Origin(
            tuple(found),
            _bases(single),
            tuple(self._sources),
            tuple(self._warnings),
            remote,
            self._operators_file(path),
            reread,
        )
        return self._with_policy(_build(origin, self._complaints, self._cwd), refresh=refresh)

    def _with_policy(self, settings: Settings, *, refresh: bool) -> Settings:
        """Return the settings with the rules of the team's policy. Raises SettingsError."""
        teams = settings.teams
        if teams.policy is None:
            return settings
        folder = cache_folder(self._environ, self._cwd / settings.data_dir)
        found = read_policy(teams.policy, self._cwd, folder, settings.fetch.allow, refresh=refresh)
        teams = teams.model_copy(update={"plugins": joined(teams.plugins, found.rules)})
        origin = settings.origin
        warnings = (*origin.warnings, *([found.warning] if found.warning else ()))
        ruled = settings.model_copy(update={"teams": teams})
        return ruled.with_origin(replace(origin, warnings=warnings))

    def _named(self, path: Path | None) -> Path | None:
        """Return the only settings file to read, if one is named."""
        named = path or (Path(self._environ[FILE_VARIABLE]) if self._environ.get(FILE_VARIABLE) else None)
        return self._cwd / named.expanduser() if named else None

    def _operators_file(self, path: Path | None) -> Path | None:
        """Return the operator's settings file; that of the user if there is none in the working directory."""
        if file := self._named(path):
            return file
        personal = personal_folder(self._environ)
        folders = [self._cwd / "config", *((personal,) if personal else ())]
        files = (folder / f"trunkline{suffix}" for folder in folders for suffix in SUFFIXES)
        return next((file for file in files if exists(file)), None)

    def _files(self, path: Path | None) -> list[Entry]:
        """Read the files of this machine, in the order of their layers."""
        if file := self._named(path):
            listed = [file, *agent_files(file.parent / FOLDER)]
            return self._read([SettingsFile("operator", each, shown(each, self._cwd)) for each in listed])
        folder = personal_folder(self._environ)
        personal = self._read(self._listed(folder, "personal")) if folder else []
        trusted = {*self._trusted(personal)}
        entries = [*personal]
        for project in projects(self._cwd, self._environ):
            layer: Layer = "trusted project" if project in trusted else "project"
            entries += self._read(self._listed(project / PROJECT, layer, project))
        return entries + self._read(self._listed(self._cwd / "config", "operator"))

    def _listed(self, folder: Path, layer: Layer, project: Path | None = None) -> list[SettingsFile]:
        try:
            return files_in(folder, layer, self._cwd, project)
        except SettingsError as error:
            self._complaints.append(str(error))
            return []

    def _read(self, sources: Sequence[SettingsFile]) -> list[Entry]:
        entries: list[Entry] = []
        for source in sources:
            entries += self._collected([source], _read_file)
        documents = [source for source in sources if source.file.suffix != SUFFIX]
        # Without a settings file, the folder of the agent files is named.
        self._sources += [
            Source(each.layer, each.shown if documents else str(Path(each.shown).parent))
            for each in (documents or sources)[:1]
        ]
        return self._known(entries)

    def _known(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the entries with a known key in snake_case, without those in the wrong layer."""
        known, about_keys = known_entries(Settings, entries)
        self._complaints += about_keys
        for entry in known:
            if complaint := misplaced(entry):
                # The operator may set everything, so the key is only useless there.
                harmless = entry.layers[0] in ("operator", "environment", "flags")
                (self._warnings if harmless else self._complaints).append(complaint)
        return [entry for entry in known if not misplaced(entry)]

    def _trusted(self, personal: Sequence[Entry]) -> Iterator[Path]:
        for entry in merged(personal):
            if entry.path == TRUSTED and isinstance(entry.value, list):
                yield from trusted_folders(cast("list[object]", entry.value))

    def _remote(self, local: Sequence[Entry]) -> RemoteFile | None:
        """Return the organization's file that the files of this machine name."""
        values: dict[str, Any] = {}
        for entry in merged([entry for entry in local if entry.layers != ("project",)]):
            if entry.path in (("organization",), ("data_dir",), ("fetch", "allow")):
                with contextlib.suppress(SettingsError):  # a missing reference is reported later
                    values["_".join(entry.path)] = resolved(entry, self._environ).value
        try:
            given = RemoteFields(**values)
        except ValidationError:  # reported later, with its place
            return None
        if not given.organization:
            return None
        folder = cache_folder(self._environ, self._cwd / given.data_dir)
        return RemoteFile(given.organization, folder, given.fetch_allow)

    def _organization(self, remote: RemoteFile, *, refresh: bool) -> list[Entry]:
        """Return the entries of the organization's file, or of its copy."""
        found = remote.copied(_checked)
        if found is None or refresh:
            try:
                found = remote.fetch(_checked)
            except SettingsError as error:
                if found is None:
                    self._complaints.append(f"{error}; there is no copy of it yet")
                    return []
                self._warnings.append(_outdated(str(error), found.copy.age))
        if found.warning:
            self._warnings.append(found.warning)
        self._sources.insert(0, Source("organization", f"{found.copy.url} (fetched {found.copy.age} ago)"))
        return found.entries

    def _resolved(self, entry: Entry) -> list[Entry]:
        return [resolved(entry, self._environ)]

    def _collected(self, items: Iterable[T], read: Callable[[T], list[Entry]]) -> list[Entry]:
        """Read all items; collect the errors of those that cannot be read."""
        entries: list[Entry] = []
        for item in items:
            try:
                entries += read(item)
            except SettingsError as error:
                self._complaints.append(str(error))
        return entries


def _outdated(reason: str, age: str) -> str:
    return f"{reason}; the copy in use is {age} old"


def _checked(copy: Copy) -> list[Entry]:
    """Return the entries of an organization's file. Raises SettingsError with every mistake."""
    known, complaints = known_entries(Settings, copy.entries())
    complaints += refused(known)
    complaints += [complaint for entry in known if (complaint := misplaced(entry))]
    validated(Settings, merged(known), complaints)
    return known


def _read_file(source: SettingsFile) -> list[Entry]:
    """Read a file of this machine. Raises SettingsError."""
    if source.project is not None:
        check_project(source)
    entries = [replace(each, layers=(source.layer,)) for each in read_document(source.file, source.shown)]
    if source.project is not None and source.layer == "project":
        check_size(entries, source.shown)
        for entry in entries:
            check_references(entry, source.project)
    return entries


def _bases(entries: Iterable[Entry]) -> dict[str, Path]:
    """Return the folder of the settings file that lists each plugin."""
    return {
        name: entry.base
        for entry in entries
        if entry.path == ENABLED and isinstance(entry.value, list)
        for name in cast("list[Any]", entry.value)
        if isinstance(name, str)
    }


def _build(origin: Origin, complaints: list[str], cwd: Path) -> Settings:
    defaults = [
        Entry(path=path, value=value, place="default", base=cwd) for path, value in flat(_DEFAULT_TABLES)
    ]
    settings = validated(Settings, merged([*defaults, *origin.entries]), complaints)
    return settings.with_origin(origin)


def _from_flags(flags: Mapping[str, Any], cwd: Path) -> list[Entry]:
    return [
        Entry(path=path, value=value, place="command line", base=cwd, layers=("flags",))
        for path, value in flat(flags)
        if value is not None and value != {}
    ]
