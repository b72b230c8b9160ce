"""Locations of plugins with a manifest: four, of which the first one that has a name wins.

Finding them reads manifests, and imports and runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Literal

from msgspec import Struct

from gateway.api.owned_files import may_exist
from gateway.contract.errors import PluginError
from gateway.extensions.admission.lock import Lock
from gateway.extensions.admission.manifest import MANIFEST, Manifest, is_name, read_manifest

ENTRY_POINTS = "trunkline.plugins"
PREFIXES = ("trunkline-plugin-", "mimir-plugin-")
"""Names of packages and folders that hold a plugin."""
INSTALLED = "plugins"
"""Folder of installed plugins in the data directory: ``plugins/NAME/HASH/``."""
SHIPPED_SOURCE = "shipped:"
"""Begins the source of a plugin that comes with Trunkline; enabling it grants what it declares."""
SHIPPED = Path(__file__).parents[3] / "plugins"

Location = Literal["path", "project", "user", "installed", "environment", "shipped"]


class Found(Struct, frozen=True):
    """A folder with a manifest. ``manifest`` is None if it has mistakes, which ``problem`` lists.

    ``alias`` is the name of its package or folder, if that begins with one of the usual prefixes.
    """

    location: Location
    folder: Path
    manifest: Manifest | None
    problem: str = ""
    alias: str = ""

    @property
    def name(self) -> str:
        """The name in the manifest; that of the folder if the manifest has mistakes."""
        return self.manifest.name if self.manifest else self.folder.name

    def has_name(self, name: str) -> bool:
        """Return whether an entry of ``plugins.enabled`` denotes this plugin."""
        # Most plugins have an empty alias, which is not a name.
        return bool(name) and name in (self.name, self.alias)


class Locations:
    """The locations of one gateway. ``home`` is the user's home directory, or None."""

    def __init__(self, cwd: Path, home: Path | None, data_dir: Path) -> None:
        self.cwd = cwd
        self.home = home
        self.installed = data_dir / INSTALLED

    def at(self, folder: Path) -> Found:
        """Return the plugin in a folder that the settings name."""
        return _found("path", folder)

    def discover(self, lock: Lock) -> Iterator[Found]:
        """Yield all plugins, those of earlier locations first."""
        yield from _below("project", self.cwd / ".trunkline/plugins")
        if self.home is not None:
            yield from _below("user", self.home / ".trunkline/plugins")
        for name, locked in lock.plugins.items():
            folder = self.folder(name, locked.digest)
            if may_exist(folder / MANIFEST):
                yield _found("installed", folder)
        yield from _environment()
        yield from _below("shipped", SHIPPED)

    def folder(self, name: str, digest: str) -> Path:
        """Return the folder of an installed plugin with this content. Raises PluginError for a wrong name."""
        return self.versions(name) / digest.removeprefix("sha256:")[:32]

    def versions(self, name: str) -> Path:
        """Return the folder of all versions of an installed plugin. Raises PluginError for a wrong name."""
        if not is_name(name):
            raise PluginError(
                f"{name!r} is not the name of a plugin; write one like audit-log or @scope/name"
            )
        # One level for all names; no name has a plus sign.
        return self.installed / name.replace("/", "+")


def first(found: Sequence[Found], name: str) -> Found | None:
    """Return the plugin with this name in the earliest location; by its manifest, or else by its folder."""
    exact = (each for each in found if each.name == name)
    return next(exact, None) or next((each for each in found if each.has_name(name)), None)


def _below(location: Location, folder: Path) -> Iterator[Found]:
    """Yield the plugins in the folders of a location."""
    try:
        names = sorted(each.name for each in folder.iterdir() if may_exist(each / MANIFEST))
    except OSError:
        return
    for name in names:
        yield _found(location, folder / name)


def _found(location: Location, folder: Path, package: str = "") -> Found:
    alias = next((name for name in (package, folder.name) if name.startswith(PREFIXES)), "")
    try:
        return Found(location, folder, read_manifest(folder), alias=alias)
    except PluginError as error:
        return Found(location, folder, None, str(error), alias)


def _environment() -> Iterator[Found]:
    """Yield the plugins among the packages of the gateway's environment, without importing them."""
    seen: set[Path] = set()
    for each in distributions():
        name = str(each.name or "").lower().replace("_", "-").replace(".", "-")
        for folder in _folders(each, name):
            if folder not in seen and (folder / MANIFEST).is_file():
                seen.add(folder)
                yield _found("environment", folder, name)


def _folders(package: Distribution, name: str) -> Iterator[Path]:
    """Yield the folders of a package that may have a manifest: those of its entry points, and its own."""
    for entry in package.entry_points:
        if entry.group == ENTRY_POINTS:
            yield Path(str(package.locate_file(entry.value.partition(":")[0].strip().replace(".", "/"))))
    if name.startswith(PREFIXES):
        yield Path(str(package.locate_file(name.replace("-", "_"))))
