"""Installation: a plugin is fetched into a staging folder, checked, approved, and moved to its place.

A failure at any moment leaves no files: the next installation removes what a killed one left.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from msgspec import Struct

from gateway.api.owned_files import keep_owner_of_tree, owned_folder, sync_folder
from gateway.contract.errors import PluginError
from gateway.extensions.admission.admission import IN_PLACE, Admission, checked
from gateway.extensions.admission.capabilities import Grant
from gateway.extensions.admission.locations import PREFIXES, Found
from gateway.extensions.admission.lock import Granted, Locked, editing, granted, now
from gateway.extensions.admission.manifest import Manifest, is_name, read_manifest
from gateway.extensions.admission.packages.claude import convert
from gateway.extensions.admission.packages.index import Offer
from gateway.extensions.admission.packages.sources import Fetched, Fetcher
from gateway.extensions.admission.secrets import PluginSecrets
from gateway.extensions.admission.tree import tree_digest

_STAGING = ".staging-"
_PLACING = ".placing"
"""File with the folder that an installation is moving a plugin to."""


class Prepared(Struct, frozen=True):
    """A plugin in a staging folder, with its manifest and hash. ``before`` is its entry in the lock.

    ``offer`` is what an index says about it, if it is from one. ``notes`` list what the conversion of a
    plugin of Claude Code left out.
    """

    manifest: Manifest
    fetched: Fetched
    digest: str
    requested: str
    before: Locked | None
    offer: Offer | None = None
    notes: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[Granted, ...]:
        """The grants of the version before that the manifest still declares."""
        return kept_grants(self.manifest, self.before)


class Installer:
    """Installs, approves and removes plugins of one gateway. ``environ`` has certificates and proxies."""

    def __init__(self, admission: Admission, environ: Mapping[str, str]) -> None:
        self._admission = admission
        self._folder = admission.locations.installed
        self._environ = environ

    @contextmanager
    def prepare(self, source: str, *, from_index: bool = False) -> Generator[Prepared]:
        """Fetch a plugin and yield it for consent; ``place`` installs it within the block.

        With ``from_index`` the source must be in an index of the settings. Raises PluginError if the plugin
        is not safe, or not allowed.
        """
        with self._staging() as staging:
            offer = self._offer(source, from_index=from_index)
            fetched = self._fetcher(staging).fetch(offer.source if offer else source)
            notes = convert(fetched.folder)
            manifest = read_manifest(fetched.folder)
            if offer is not None:
                offer.check(manifest)
            self._admission.check_team(manifest.name)
            digest = tree_digest(fetched.folder)
            before = self._admission.lock().get(manifest.name)
            requested = fetched.source if offer is None and fetched.source.startswith("/") else source
            yield Prepared(manifest, fetched, digest, requested, before, offer, tuple(notes))

    def place(self, prepared: Prepared, grants: Sequence[Granted], by: str) -> None:
        """Move a prepared plugin to its place and write the lock; both are durable afterwards."""
        name = prepared.manifest.name
        place = self._admission.locations.folder(name, prepared.digest)
        (self._folder / _PLACING).write_text(str(place), encoding="utf-8")
        self._move(prepared.fetched.folder, place, prepared.digest)
        locked = Locked(
            version=prepared.manifest.version,
            source=prepared.fetched.source,
            digest=prepared.digest,
            approved_by=by,
            approved_at=now(),
            requested=prepared.requested,
            grants=tuple(grants),
            wheels=prepared.fetched.wheels,
        )
        with editing(self._admission.lock_file) as lock:
            lock.put(name, locked)
        (self._folder / _PLACING).unlink()
        # A running gateway may still use the version before.
        before = self._admission.locations.folder(name, prepared.before.digest) if prepared.before else None
        for other in place.parent.iterdir():
            if other not in (place, before):
                shutil.rmtree(other, ignore_errors=True)

    def put_back(self, name: str, before: Locked) -> None:
        """Make the version before an update the installed one again; its files are still there."""
        with editing(self._admission.lock_file) as lock:
            lock.put(name, before)

    def restore(self, name: str, locked: Locked) -> None:
        """Install a plugin as the lock describes it. Raises PluginError if its content is another one."""
        with self._staging() as staging:
            fetched = self._fetcher(staging).fetch(locked.source, locked.wheels)
            convert(fetched.folder)
            if read_manifest(fetched.folder).name != name or tree_digest(fetched.folder) != locked.digest:
                raise PluginError(
                    f"the content of {locked.source} differs from the approved one; "
                    f"run `trunkline plugin update {name}`"
                )
            place = self._admission.locations.folder(name, locked.digest)
            self._move(fetched.folder, place, locked.digest)

    def approve(self, entry: str, grants: Sequence[Grant], by: str, shown: str = "") -> Manifest:
        """Approve the present content of a plugin where it is, with further grants. Raises PluginError.

        ``shown`` is the hash of the content that was asked about; other content is not approved.
        """
        found = self._admission.find(entry)
        manifest = checked(found)
        self._admission.check_team(manifest.name)
        digest = self.digest_of(found)
        if shown not in ("", digest):
            raise PluginError(f"the files in {found.folder} changed meanwhile; read them, and approve again")
        with editing(self._admission.lock_file) as lock:
            before = lock.get(manifest.name)
            locked = Locked(
                version=manifest.version,
                source=f"{IN_PLACE}{found.folder.absolute()}",
                digest=digest,
                approved_by=by,
                approved_at=now(),
                grants=(*kept_grants(manifest, before), *granted(grants, by)),
            )
            lock.put(manifest.name, locked)
        return manifest

    def digest_of(self, found: Found) -> str:
        """Return the hash of a plugin's present content."""
        return tree_digest(found.folder, compiled=found.location == "environment")

    def remove(self, name: str, *, purge: bool) -> bool:
        """Remove an installed plugin, its approval and grants; with ``purge`` also its secrets.

        Return whether there was one.
        """
        with editing(self._admission.lock_file) as lock:
            known = lock.get(name) is not None
            lock.remove(name)
        folder = self._admission.locations.versions(name)
        known = known or folder.exists()
        shutil.rmtree(folder, ignore_errors=True)
        if purge:
            PluginSecrets(self._folder.parent).forget(name)
        return known

    def _fetcher(self, staging: Path) -> Fetcher:
        return Fetcher(staging, self._environ, self._admission.networks)

    def _offer(self, source: str, *, from_index: bool) -> Offer | None:
        """Return what the indexes of the settings offer for a bare name; None for any other source.

        With an index, a name that is in none is refused, unless it is clearly a package: else the first to
        publish a package of that name would be installed.
        """
        name, _, version = source.partition("==")
        indexes, is_path = self._admission.indexes, "/" in name or name.startswith((".", "~"))
        bare = is_name(name) or not (is_path or name.endswith(".whl"))
        if not from_index and not (indexes.listed and bare):
            return None
        problems = asyncio.run(indexes.refresh())
        offer = indexes.find(name, version or None)
        if offer is None and (from_index or not name.startswith(PREFIXES)):
            text = f"no index in plugins.indexes has a plugin {name!r}"
            raise PluginError("; ".join((text, *problems, f"a package is named {PREFIXES[0]}NAME")))
        return offer

    def _move(self, folder: Path, place: Path, digest: str) -> None:
        """Move a folder to its place, unless that has the same content: a running gateway may use it."""
        with suppress(PluginError):
            if place.is_dir() and tree_digest(place) == digest:
                return
        try:
            owned_folder(place.parent, 0o755)
            keep_owner_of_tree(folder, place.parent)
            shutil.rmtree(place, ignore_errors=True)
            os.sync()
            folder.rename(place)
            sync_folder(place.parent)
        except OSError as error:
            raise PluginError(f"{place} cannot be written: {error.strerror}") from None

    @contextmanager
    def _staging(self) -> Generator[Path]:
        """Yield an empty folder, and remove it. Only one process installs at a time."""
        try:
            owned_folder(self._folder, 0o755)
            descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise PluginError(f"{self._folder} cannot be written: {error.strerror}") from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise PluginError("another installation is running; wait until it has ended") from None
            self._sweep()
            staging = Path(mkdtemp(prefix=_STAGING, dir=self._folder))
            try:
                yield staging
            finally:
                shutil.rmtree(staging, ignore_errors=True)
        finally:
            os.close(descriptor)

    def _sweep(self) -> None:
        """Remove what killed installations left."""
        for folder in self._folder.glob(f"{_STAGING}*"):
            shutil.rmtree(folder, ignore_errors=True)
        mark = self._folder / _PLACING
        with suppress(FileNotFoundError):
            place = Path(mark.read_text(encoding="utf-8"))
            names = {
                self._admission.locations.folder(n, e.digest)
                for n, e in self._admission.lock().plugins.items()
            }
            if place.is_relative_to(self._folder) and place not in names:
                shutil.rmtree(place, ignore_errors=True)
                with suppress(OSError):
                    place.parent.rmdir()
            mark.unlink()


def kept_grants(manifest: Manifest, before: Locked | None) -> tuple[Granted, ...]:
    """Return the grants of an earlier version that the manifest still declares."""
    declared = {*manifest.capabilities.grants()}
    return tuple(each for each in before.grants if each.grant in declared) if before else ()
