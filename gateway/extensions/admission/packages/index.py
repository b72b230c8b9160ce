"""Indexes of plugins: files at addresses of the settings that list versions with their hashes.

An index is pinned by its hash, or signed: a mirror, or an attacker between, can neither add a version nor
hide that one was withdrawn. The last good copy of each is kept, so that no start of a
gateway waits for the network.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urljoin, urlsplit

import msgspec
from msgspec import Meta, Struct

from gateway.api.owned_files import replace_file
from gateway.contract.errors import PluginError, TrunklineError
from gateway.extensions.admission.capabilities import Grant
from gateway.extensions.admission.manifest import Manifest, is_name
from gateway.settings import Settings
from gateway.settings.plugins import PluginIndex

SIGNATURE = ".sig"
"""Added to the address of an index: the address of its signature."""
_FOLDER = "plugin_indexes"
_MOST_BYTES = 16 * 1024 * 1024
_SECONDS = 30.0

_Text = Annotated[str, Meta(max_length=2_000)]
_Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Review(Struct, frozen=True):
    """A completed review: who did it, on which day (ISO 8601), and the hash of the wheel that was read."""

    reviewer: Annotated[str, Meta(min_length=1, max_length=200)]
    date: Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    sha256: _Sha256


class Release(Struct, frozen=True):
    """A version of a plugin: a wheel with its hash and its size in bytes.

    ``url`` may be relative to the index. ``capabilities`` are all grants that the manifest declares.
    ``withdrawn`` is the reason if the version must not run any more.
    """

    version: Annotated[str, Meta(min_length=1, max_length=100)]
    url: Annotated[str, Meta(min_length=1, max_length=2_000)]
    sha256: _Sha256
    size: Annotated[int, Meta(gt=0, le=100_000_000)]
    capabilities: tuple[Grant, ...] = ()
    withdrawn: _Text = ""
    review: Review | None = None

    @property
    def is_reviewed(self) -> bool:
        """Return whether a completed review is of exactly this content."""
        return self.review is not None and self.review.sha256 == self.sha256


class Advisory(Struct, frozen=True):
    """A warning about some versions, such as ``<1.2``."""

    id: Annotated[str, Meta(min_length=1, max_length=100)]
    versions: _Text
    summary: _Text
    url: _Text = ""

    def concerns(self, version: str) -> bool:
        """Return whether a version is among those that the warning is about; unreadable ones are."""
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        try:
            return SpecifierSet(self.versions).contains(version, prereleases=True)
        except InvalidSpecifier:
            return True


class Ratings(Struct, frozen=True):
    """Ratings by users: their average, from 1 to 5, and their number."""

    average: Annotated[float, Meta(ge=0, le=5)] = 0.0
    count: Annotated[int, Meta(ge=0)] = 0


class ListedPlugin(Struct, frozen=True):
    """A plugin of an index."""

    name: Annotated[str, Meta(max_length=130)]
    versions: tuple[Release, ...]
    description: _Text = ""
    author: _Text = ""
    license: _Text = ""
    official: bool = False
    ratings: Ratings = Ratings()
    advisories: tuple[Advisory, ...] = ()

    @property
    def newest(self) -> Release | None:
        """The newest version that was not withdrawn; pre-releases only if there is no other."""
        from packaging.version import Version

        current = [each for each in self.versions if not each.withdrawn]
        stable = [each for each in current if not Version(each.version).is_prerelease]
        return max(stable or current, key=lambda each: Version(each.version), default=None)

    def is_official(self, release: Release) -> bool:
        """Return whether a version is official: marked so, and with a completed review of its content."""
        return self.official and release.is_reviewed


class IndexFile(Struct, frozen=True):
    """The content of an index. ``serial`` grows with each change: no older file replaces a newer one."""

    format: Literal[1]
    serial: Annotated[int, Meta(ge=0)]
    plugins: tuple[ListedPlugin, ...] = ()


class _Copy(Struct, frozen=True):
    """A fetched index with its signature, as it is kept."""

    data: bytes
    signature: bytes = b""


class Offer(Struct, frozen=True):
    """A version of a plugin in an index. ``source`` is the wheel with its hash, to install it from."""

    index: str
    plugin: ListedPlugin
    release: Release

    @property
    def source(self) -> str:
        """The address or path of the wheel, with its hash and size."""
        is_address = bool(urlsplit(self.index).scheme)
        base = self.index if is_address else str(Path(self.index).expanduser().absolute())
        place = urljoin(base, self.release.url)
        return f"{place}#sha256={self.release.sha256}&size={self.release.size}"

    @property
    def warnings(self) -> list[str]:
        """The advisories about this version."""
        concerned = (each for each in self.plugin.advisories if each.concerns(self.release.version))
        return [f"{each.id}: {each.summary} {each.url}".strip() for each in concerned]

    def check(self, manifest: Manifest) -> None:
        """Raise PluginError unless the wheel is what the index describes."""
        text = f"{self.index} lists {self.plugin.name} {self.release.version}"
        if (manifest.name, manifest.version) != (self.plugin.name, self.release.version):
            raise PluginError(
                f"{text}, but the wheel has {manifest.name} {manifest.version}; tell its author"
            )
        for grant in manifest.capabilities.grants():
            if grant not in self.release.capabilities:
                raise PluginError(f"{text} without the capability {grant}, which its manifest declares")


class PluginIndexes:
    """The indexes of the settings, with their copies. An earlier index wins where two have a name."""

    def __init__(self, settings: Settings) -> None:
        self.listed: Sequence[PluginIndex] = settings.plugins.indexes
        self._folder = settings.data_dir / _FOLDER
        self._allow = settings.fetch.allow
        self._read: dict[str, tuple[_Copy, IndexFile]] = {}

    def copies(self, *, required: bool = False) -> Iterator[tuple[str, IndexFile]]:
        """Yield the address and the last good copy of each index that has one.

        Raises PluginError if signatures cannot be checked on this machine; with ``required`` also for a copy
        that cannot be read.
        """
        for index in self.listed:
            file = self._file(index)
            try:
                copy = msgspec.msgpack.decode(file.read_bytes(), type=_Copy)
            except FileNotFoundError:
                continue  # it was never fetched
            except (OSError, msgspec.MsgspecError) as error:
                if required:
                    said = f"{file}, the copy of the index {index.url}, cannot be read: {error}"
                    raise PluginError(f"{said}; run `trunkline plugin search`, or delete it") from None
                continue  # the next check replaces it
            known = self._read.get(index.url)
            if known is None or known[0] != copy:
                try:
                    known = copy, _opened(index, copy)
                except PluginError:
                    _need_cryptography(index)
                    continue
                self._read[index.url] = known
            yield index.url, known[1]

    async def refresh(self) -> list[str]:
        """Fetch all indexes and keep the good ones. Return what is wrong with the others."""
        problems: list[str] = []
        for index in self.listed:
            try:
                await self._refresh(index)
            except TrunklineError as error:
                problems.append(f"{index.url}: {error}; its last good copy is used, if there is one")
        return problems

    async def check(self) -> list[tuple[PluginIndex, str]]:
        """Fetch each index and keep none. Return what is wrong with it, "" if nothing is."""
        found: list[tuple[PluginIndex, str]] = []
        for index in self.listed:
            problem = ""
            try:
                copy = await self._take(index)
                await asyncio.to_thread(_opened, index, copy)
            except TrunklineError as error:
                problem = str(error)
            found.append((index, problem))
        return found

    def search(self, words: Sequence[str]) -> Iterator[Offer]:
        """Yield the newest version of each plugin that has all words in its name, description or author."""
        seen: set[str] = set()
        for url, index in self.copies():
            for plugin in index.plugins:
                text = f"{plugin.name} {plugin.description} {plugin.author}".casefold()
                if plugin.name in seen or not all(word.casefold() in text for word in words):
                    continue
                seen.add(plugin.name)
                if (release := plugin.newest) is not None:
                    yield Offer(url, plugin, release)

    def find(self, name: str, version: str | None = None) -> Offer | None:
        """Return a version of a plugin, the newest by default; None if no index has the name.

        Raises PluginError for a version that was withdrawn, or that is not listed.
        """
        url, plugin = next(
            ((url, each) for url, index in self.copies() for each in index.plugins if each.name == name),
            ("", None),
        )
        if plugin is None:
            return None
        if version is None:
            release = plugin.newest
            if release is None:
                raise PluginError(f"all versions of {name!r} were withdrawn from {url}")
            return Offer(url, plugin, release)
        found = next((each for each in plugin.versions if each.version == version), None)
        if found is None:
            listed = ", ".join(each.version for each in plugin.versions)
            raise PluginError(f"{url} has no version {version} of {name!r}; it has {listed}")
        if found.withdrawn:
            raise PluginError(f"{name} {version} was withdrawn from {url}: {found.withdrawn}")
        return Offer(url, plugin, found)

    def withdrawal(self, hashes: Sequence[str]) -> str | None:
        """Return why a version with one of these wheels must not run, or None.

        Raises PluginError if a copy that may say so cannot be read.
        """
        for url, index in self.copies(required=True):
            for plugin in index.plugins:
                for release in plugin.versions:
                    if release.withdrawn and release.sha256 in hashes:
                        return f"was withdrawn from {url}: {release.withdrawn}"
        return None

    async def _refresh(self, index: PluginIndex) -> None:
        await asyncio.to_thread(self._accept, index, await self._take(index))

    async def _take(self, index: PluginIndex) -> _Copy:
        data = await self._fetch(index.url)
        return _Copy(data, b"" if index.key is None else await self._fetch(f"{index.url}{SIGNATURE}"))

    def _accept(self, index: PluginIndex, copy: _Copy) -> None:
        opened = _opened(index, copy)
        before = next((each for url, each in self.copies() if url == index.url), None)
        if before is not None and opened.serial < before.serial:
            raise PluginError(f"its serial {opened.serial} is older than {before.serial} of the copy")
        self._keep(index, copy)
        self._read[index.url] = copy, opened

    async def _fetch(self, url: str) -> bytes:
        if not urlsplit(url).scheme:
            try:
                return await asyncio.to_thread(_read, url)
            except OSError as error:
                raise PluginError(f"{url} cannot be read: {error.strerror}") from None
        # At first use: the HTTP client takes 0.1 s.
        from gateway.fetching import Reach, fetch

        return (await fetch(url, Reach(self._allow, _MOST_BYTES, _SECONDS))).data

    def _file(self, index: PluginIndex) -> Path:
        return self._folder / f"{hashlib.sha256(index.url.encode()).hexdigest()[:32]}.copy"

    def _keep(self, index: PluginIndex, copy: _Copy) -> None:
        """Replace the copy; a crash leaves the old or the new one."""
        file = self._file(index)
        try:
            replace_file(file, msgspec.msgpack.encode(copy))
        except OSError as error:
            raise PluginError(f"{file} cannot be written: {error.strerror}") from None


def _read(path: str) -> bytes:
    return Path(path).expanduser().read_bytes()


def _opened(index: PluginIndex, copy: _Copy) -> IndexFile:
    """Return the content of an index. Raises PluginError unless hash or signature and all of it are right."""
    if index.sha256 is not None and hashlib.sha256(copy.data).hexdigest() != index.sha256:
        raise PluginError("it has another hash than sha256 in plugins.indexes; read it, then change sha256")
    if index.key is not None:
        _check_signature(index, copy)
    try:
        found = msgspec.json.decode(copy.data, type=IndexFile)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise PluginError(f"it is not an index: {error}") from None
    for plugin in found.plugins:
        if not is_name(plugin.name):
            raise PluginError(f"it is not an index: {plugin.name!r} is not the name of a plugin")
        for release in plugin.versions:
            _check_version(plugin.name, release.version)
    return found


def _check_version(name: str, version: str) -> None:
    from packaging.version import InvalidVersion, Version

    try:
        if str(Version(version)) == version:
            return
    except InvalidVersion:
        pass
    raise PluginError(f"it is not an index: {version!r} of {name} is not a version like 1.2.0")


def _check_signature(index: PluginIndex, copy: _Copy) -> None:
    """Raise PluginError unless the signature is of these bytes and this key (Ed25519)."""
    _need_cryptography(index)
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    try:
        key = load_der_public_key(base64.b64decode(index.key or "", validate=True))
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError("another algorithm")
    except (ValueError, UnsupportedAlgorithm) as error:
        raise PluginError(f"the key in plugins.indexes is not a public key of Ed25519: {error}") from None
    try:
        key.verify(copy.signature, copy.data)
    except InvalidSignature:
        raise PluginError("its signature is not of the key in plugins.indexes") from None


def _need_cryptography(index: PluginIndex) -> None:
    """Raise PluginError if the signature of an index cannot be checked on this machine."""
    if index.key is not None and find_spec("cryptography") is None:
        raise PluginError(
            "signed indexes need the package cryptography: pip install 'trunkline[interactions]'"
        )


def notes(offer: Offer) -> list[str]:
    """Return what an installer prints about an offer before it asks."""
    lines = [
        f"from {offer.index}: {'official' if offer.plugin.is_official(offer.release) else 'not official'}"
    ]
    if offer.plugin.official and not offer.release.is_reviewed:
        lines.append("marked as official, but without a completed review of this content")
    return lines + [f"advisory {each}" for each in offer.warnings]
