"""Admission: decides whether a plugin with a manifest may be started, from its content and the lock."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from msgspec import structs

from gateway.api.owned_files import may_exist
from gateway.contract.errors import PluginError
from gateway.extensions.admission.capabilities import Grant, from_config, granted_with, with_config
from gateway.extensions.admission.config_schema import plugin_config
from gateway.extensions.admission.locations import SHIPPED, Found, Locations, first
from gateway.extensions.admission.lock import LOCK, Lock, Locked
from gateway.extensions.admission.manifest import MANIFEST, Admitted, Manifest, Trust, is_name
from gateway.extensions.admission.packages.index import PluginIndexes
from gateway.extensions.admission.tree import SITE, tree_digest
from gateway.settings import Settings

IN_PLACE = "path:"
"""Begins the source of a plugin that was approved where it is."""


class Admission:
    """The plugins with a manifest that the settings and the lock allow.

    ``home`` is the user's home directory, whose plugins are found after those of the working directory.
    """

    def __init__(self, settings: Settings, cwd: Path | None = None, home: Path | None = None) -> None:
        self.lock_file = settings.file.parent / LOCK
        self.networks = settings.fetch.allow
        self.locations = Locations(cwd or Path.cwd(), home, settings.data_dir)
        self.indexes = PluginIndexes(settings)
        self._settings = settings
        self._failures: dict[str, str] = {}

    def lock(self) -> Lock:
        """Return the lock as it is now. Raises PluginError."""
        return Lock.read(self.lock_file)

    def discover(self) -> list[Found]:
        """Return all plugins with a manifest, those of earlier locations first. Raises PluginError."""
        return list(self.locations.discover(self.lock()))

    def owns(self, entry: str) -> bool:
        """Return whether an entry of ``plugins.enabled`` denotes a plugin with a manifest, not a module.

        A module keeps its name although a folder of this name appears, unless the operator approved that.
        """
        if entry.startswith("@"):
            return True
        if "/" in entry:
            return not entry.endswith(".py") and self._owns_folder(self._folder(entry))
        if not is_name(entry):
            return False
        if (SHIPPED / entry / MANIFEST).is_file() or "-" in entry:
            return True
        if self.lock().get(entry) is not None:
            return True
        return not is_module(entry) and self._named(entry) is not None

    def _owns_folder(self, folder: Path) -> bool:
        """Return whether a folder is a plugin with a manifest, or was one when the operator approved it."""
        if may_exist(folder / MANIFEST) or not (folder / "main.py").exists():
            return True
        # Whatever way the folder was written: a match that is missed gives its code all rights.
        sources = (locked.source for locked in self.lock().plugins.values())
        approved = (each.removeprefix(IN_PLACE) for each in sources if each.startswith(IN_PLACE))
        return os.path.realpath(folder) in map(os.path.realpath, approved)

    def _folder(self, entry: str) -> Path:
        folder = self._settings.plugin_base(entry) / Path(entry).expanduser()
        return Path(os.path.normpath(folder.absolute()))

    def entry_of(self, name: str) -> str:
        """Return the path in ``plugins.enabled`` of the plugin with this name, or else the name."""
        paths = (each for each in self._settings.plugins.enabled if "/" in each and self.owns(each))
        found = ((each, self._path(each)) for each in paths)
        return next((entry for entry, plugin in found if plugin and plugin.has_name(name)), name)

    def find(self, entry: str) -> Found:
        """Return the plugin that an entry of ``plugins.enabled`` denotes, or that has this name.

        Raises PluginError.
        """
        found = self._path(entry) or self._named(entry) or self._path(self.entry_of(entry))
        if found is None:
            text = f"plugin {entry!r} is not installed"
            if (reason := self._failures.get(entry)) is not None:
                raise PluginError(f"{text}: {reason}")
            if not self.owns(entry) and is_installed(entry, self._settings.plugin_base(entry)):
                raise PluginError(f"plugin {entry!r} is a module, without the manifest plugin.yml")
            listed = entry in self._settings.plugins.enabled
            advice = "remove it from plugins.enabled" if listed else "see `trunkline plugin list`"
            raise PluginError(f"{text}; run `trunkline plugin install`, or {advice}")
        return found

    def admit(self, entry: str) -> Admitted:
        """Return the plugin that may be started for an entry of ``plugins.enabled``.

        Compares its folder with the lock. Raises PluginError, which names the command that approves it.
        """
        found = self.find(entry)
        manifest = checked(found)
        self.check_team(manifest.name, entry)
        # What comes with Trunkline or was installed beside it may have been compiled by its installer.
        digest = tree_digest(found.folder, compiled=found.location in ("environment", "shipped"))
        locked = self.lock().get(manifest.name)
        wheels = tuple(wheel.sha256 for wheel in locked.wheels) if locked else ()
        if reason := self.withdrawal(manifest, wheels):
            raise PluginError(reason)
        if found.location != "shipped":
            self._check(found, manifest, digest, locked)
        given = {each.grant for each in locked.grants} if locked else set[Grant]()
        if from_config(needs := manifest.capabilities):
            names = tuple(dict.fromkeys((entry, manifest.name)))
            config = plugin_config(self._settings, names, manifest.config)
            given = set(granted_with(given, needs, self._settings.plugins.of(*names).options))
            manifest = structs.replace(manifest, capabilities=with_config(needs, config))
        site = found.folder / SITE
        return Admitted(
            manifest=manifest,
            folder=found.folder,
            digest=digest,
            grants=frozenset(given & {*manifest.capabilities.grants()}),
            trust=self._settings.plugins.of(entry, manifest.name).trust,
            site=site if site.is_dir() else None,
            source=locked.source if locked else f"{found.location}:{found.folder}",
            wheels=wheels,
        )

    def check_team(self, *names: str) -> None:
        """Raise PluginError if the rules of the team refuse a plugin with these names."""
        if reason := self._settings.teams.plugins.refusal(*names):
            raise PluginError(reason)

    def withdrawal(self, manifest: Manifest, wheels: Sequence[str]) -> str | None:
        """Return why a plugin with these wheels must not run, as the copies of the indexes say, or None.

        Raises PluginError.
        """
        name = manifest.name
        reason = self.indexes.withdrawal(wheels) if wheels else None
        advice = f"run `trunkline plugin update {name}`, or disable it"
        return reason and f"plugin {name!r} {manifest.version} {reason}; {advice}"

    def install_missing(self, entries: Iterable[str], environ: Mapping[str, str]) -> None:
        """Install plugins that are locked, but not on this machine; nothing else is installed.

        Takes as long as the downloads. ``admit`` raises the failures.
        """
        lock = self.lock()
        for entry in entries:
            locked = lock.get(entry)
            if locked is None or locked.source.startswith(IN_PLACE) or self._named(entry) is not None:
                continue
            # At first use: most starts install nothing.
            from gateway.extensions.admission.packages.installer import Installer

            try:
                Installer(self, environ).restore(entry, locked)
            except PluginError as error:
                self._failures[entry] = str(error)

    def _path(self, entry: str) -> Found | None:
        """Return the plugin in the folder that an entry names, or None for a name."""
        return self.locations.at(self._folder(entry)) if "/" in entry and not is_name(entry) else None

    def _named(self, name: str) -> Found | None:
        return first(self.discover(), name)

    def _check(self, found: Found, manifest: Manifest, digest: str, locked: Locked | None) -> None:
        """Raise PluginError unless the lock has this content."""
        name, approve = manifest.name, _approve(found, manifest)
        if locked is None:
            raise PluginError(f"plugin {name!r} in {found.folder} is not approved; {approve}")
        if locked.digest == digest:
            return
        approved = self._approved_folder(name, locked)
        if approved is not None and approved != found.folder:
            raise PluginError(
                f"plugin {name!r} in {found.folder} hides the approved one in {approved}; "
                f"remove that folder, or {approve}"
            )
        raise PluginError(
            f"plugin {name!r} in {found.folder} was changed after its approval "
            f"({locked.approved_at}); {approve}"
        )

    def _approved_folder(self, name: str, locked: Locked) -> Path | None:
        if locked.source.startswith(IN_PLACE):
            return Path(locked.source.removeprefix(IN_PLACE))
        folder = self.locations.folder(name, locked.digest)
        return folder if folder.is_dir() else None


def checked(found: Found) -> Manifest:
    """Return the manifest of a plugin. Raises PluginError with its mistakes."""
    if found.manifest is None:
        raise PluginError(found.problem)
    return found.manifest


def rights(trust: Trust) -> str:
    """Return the rights of a plugin in words."""
    return "all rights of the gateway" if trust == "full" else "confined"


def _approve(found: Found, manifest: Manifest) -> str:
    target = str(found.folder) if found.location == "path" else manifest.name
    shown = f"'{target}'" if " " in target else target
    return f"read it, then run `trunkline plugin approve {shown}`"


def is_path(entry: str) -> bool:
    """Return whether an entry of ``plugins.enabled`` is the path of a folder or a Python file."""
    return "/" in entry or entry.endswith(".py")


def is_installed(entry: str, base: Path) -> bool:
    """Return whether there is what an entry names: a path, which is relative to ``base``, or a module."""
    return (base / Path(entry).expanduser()).exists() if is_path(entry) else is_module(entry)


def is_module(name: str) -> bool:
    """Return whether a name is a plugin module: one of ours, or one that Python finds. Does not import it."""
    return _has_module(f"plugins.{name}") or _has_module(name)


def _has_module(name: str) -> bool:
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return False
    # A folder without code has no origin.
    return spec is not None and spec.origin is not None
