"""Sources of plugins: a package index, a git repository over https, a folder, a wheel.

Each is copied into a staging folder: ``plugin``, with its dependencies in ``plugin/site``. No code of it
runs: packages are wheels, and git neither checks out files nor runs hooks, filters or submodules.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from gateway.contract.errors import PluginError, TrunklineError
from gateway.extensions.admission.lock import Wheel
from gateway.extensions.admission.manifest import MANIFEST
from gateway.extensions.admission.packages.archive import Quota, unpack_wheel
from gateway.extensions.admission.packages.dependencies import (
    REQUIREMENTS,
    Dependencies,
    parse_requirements,
)
from gateway.extensions.admission.packages.program import run_program
from gateway.extensions.admission.tree import MOST_BYTES, SITE, check_path, files_of

if TYPE_CHECKING:
    from pydantic import IPvAnyNetwork

_GIT = re.compile(r"git\+(https://[\w.-]+(?::\d+)?/[\w./~-]+)@(\w[\w./-]*)")
_INDEX = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==([A-Za-z0-9.!+_-]+))?")
_PINNED = re.compile(r"(/.+|https?://.+)#sha256=([0-9a-f]{64})&size=(\d{1,9})")
_WHEEL = re.compile(r"[A-Za-z0-9_.+-]+\.whl")
_SECONDS = 120.0
"""Time limit for the download of a wheel."""
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_SOURCE_ARCHIVES = (".tar.gz", ".tgz", ".tar", ".tar.bz2", ".tar.xz", ".zip")
_GIT_SETTINGS = (
    "protocol.allow=never",
    "protocol.https.allow=always",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.attributesFile=/dev/null",
    "credential.helper=",
    "fetch.recurseSubmodules=false",
    "submodule.recurse=false",
    "http.followRedirects=initial",
    "gc.auto=0",
)
_PASSED = (
    "GIT_SSL_CAINFO",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTPS_PROXY",
    "https_proxy",
    "NO_PROXY",
    "no_proxy",
)
"""Variables that git gets: certificates and proxies."""


class Fetched(Struct, frozen=True):
    """A plugin in a staging folder. ``source`` is its exact origin, ``wheels`` are the packages used."""

    folder: Path
    source: str
    wheels: tuple[Wheel, ...] = ()


class Fetcher:
    """Copies the plugin of one source into an empty staging folder.

    ``networks`` are private ones in which the address of a wheel may be.
    """

    def __init__(
        self, staging: Path, environ: Mapping[str, str], networks: Sequence[IPvAnyNetwork] = ()
    ) -> None:
        self._networks = tuple(networks)
        self._staging = staging
        self._environ = environ
        self._quota = Quota()
        self._folder = staging / "plugin"
        self._downloads = staging / "downloads"
        self._downloads.mkdir()

    def fetch(self, source: str, wheels: Sequence[Wheel] = ()) -> Fetched:
        """Fetch a source; with ``wheels`` only these packages. Raises PluginError."""
        if source.startswith("git+"):
            return self._git(source, wheels)
        if matched := _PINNED.fullmatch(source):
            return self._pinned(matched[1], matched[2], int(matched[3]), wheels)
        # A bare name is one of the index, also if a folder has this name.
        if "/" in source or source.startswith((".", "~")) or source.endswith(".whl"):
            return self._local(Path(os.path.normpath(Path(source).expanduser().absolute())), wheels)
        return self._index(source, wheels)

    def _pinned(self, place: str, digest: str, size: int, wheels: Sequence[Wheel]) -> Fetched:
        """Fetch a wheel of a plugin index from its address or path, and check its hash."""
        name = place.rpartition("/")[2]
        if not _WHEEL.fullmatch(name):
            raise PluginError(f"{place} is not the address or path of a wheel")
        data = asyncio.run(self._content(place, min(size, MOST_BYTES)))
        found = hashlib.sha256(data).hexdigest()
        if found != digest:
            raise PluginError(f"{place} has the hash {found} instead of {digest}; it was changed or damaged")
        (self._downloads / name).write_bytes(data)
        return self._own_wheel(name, f"{place}#sha256={digest}&size={size}", wheels)

    async def _content(self, place: str, most: int) -> bytes:
        # At first use: the HTTP client takes 0.1 s.
        from gateway.fetching import Reach, fetch

        try:
            if "://" not in place:
                return await asyncio.to_thread(Path(place).read_bytes)
            return (await fetch(place, Reach(self._networks, most, _SECONDS))).data
        except (OSError, TrunklineError) as error:
            raise PluginError(f"{place} cannot be fetched: {error}") from None

    def _local(self, path: Path, wheels: Sequence[Wheel]) -> Fetched:
        if path.is_dir():
            self._copy(path)
            return self._with_requirements(str(path), wheels)
        if path.name.endswith(_SOURCE_ARCHIVES):
            raise PluginError(
                f"{path.name} is a source distribution, which runs code; give a wheel or a folder"
            )
        if path.suffix != ".whl" or not path.is_file():
            raise PluginError(f"{path} is neither a folder nor a wheel; give one of them")
        shutil.copyfile(path, self._downloads / path.name)
        return self._own_wheel(path.name, str(path), wheels)

    def _own_wheel(self, name: str, source: str, wheels: Sequence[Wheel]) -> Fetched:
        """Unpack a plugin's own wheel, which is downloaded, with its dependencies."""
        dependencies = Dependencies(self._downloads)
        others = [wheel for wheel in wheels if wheel.file != name]
        if not wheels:
            dependencies.resolve(())
        elif others:
            dependencies.restore(others)
        return self._unpacked(name, source, wheels, dependencies)

    def _index(self, source: str, wheels: Sequence[Wheel]) -> Fetched:
        from packaging.requirements import Requirement
        from packaging.utils import canonicalize_name
        from packaging.version import InvalidVersion, Version

        matched = _INDEX.fullmatch(source)
        try:
            version = Version(matched[2]) if matched and matched[2] else None
        except InvalidVersion:
            matched = version = None
        if matched is None:
            raise PluginError(
                f"{source!r} is not a source; give NAME or NAME==VERSION of the package index, "
                "git+https://HOST/REPOSITORY@REF, a folder or a wheel"
            )
        name, dependencies = canonicalize_name(matched[1]), Dependencies(self._downloads)
        if wheels:
            dependencies.restore(wheels)
        else:
            dependencies.resolve([Requirement(f"{name}=={version}" if version else name)])
        own = dependencies.find(name)
        if own is None:
            raise PluginError(f"the package index has no wheel of {name}")
        exact = f"{name}=={own.split('-')[1]}"
        return self._unpacked(own, exact, wheels, dependencies)

    def _git(self, source: str, wheels: Sequence[Wheel]) -> Fetched:
        matched = _GIT.fullmatch(source)
        if matched is None:
            raise PluginError(
                f"{source!r} must be git+https://HOST/REPOSITORY@REF, with a tag, branch or commit as REF, "
                "without credentials"
            )
        url, ref = matched.groups()
        git = _Git(self._staging / "repository", self._environ)
        commit = git.fetch(url, ref)
        for path, mode, content in git.files(commit):
            self._quota.take(1, len(content), path)
            file = self._folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            file.chmod(0o755 if mode == "100755" else 0o644)
        return self._with_requirements(f"git+{url}@{commit}", wheels)

    def _copy(self, folder: Path) -> None:
        """Copy a folder without repository data and compiled code."""
        for path, found in files_of(folder, compiled=True):
            self._quota.take(1, found.st_size, path)
            target = self._folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / path, target, follow_symlinks=False)
            target.chmod(0o755 if stat.S_IMODE(found.st_mode) & 0o111 else 0o644)

    def _with_requirements(self, source: str, wheels: Sequence[Wheel]) -> Fetched:
        """Unpack the dependencies that a folder lists."""
        file = self._folder / REQUIREMENTS
        if not file.is_file():
            return Fetched(self._folder, source)
        if (self._folder / SITE).exists():
            raise PluginError(f"{SITE} is for the dependencies in {REQUIREMENTS}; remove one of the two")
        wanted, hashes = parse_requirements(file.read_text(encoding="utf-8", errors="replace"))
        dependencies = Dependencies(self._downloads, hashes)
        if wheels:
            dependencies.restore(wheels)
        else:
            dependencies.resolve(wanted)
        return self._dependencies(source, wheels, dependencies, own="")

    def _unpacked(
        self, own: str, source: str, wheels: Sequence[Wheel], dependencies: Dependencies
    ) -> Fetched:
        """Unpack the plugin's own wheel, which has the manifest in its package, and its dependencies."""
        unpacked = self._staging / "unpacked"
        unpacked.mkdir()
        unpack_wheel(self._downloads / own, unpacked, self._quota)
        manifests = [*unpacked.glob(MANIFEST), *unpacked.glob(f"*/{MANIFEST}")]
        if len(manifests) != 1:
            raise PluginError(
                f"{own} has {len(manifests)} files {MANIFEST}; a plugin has one, in its package"
            )
        package = manifests[0].parent
        if (package / SITE).exists():
            raise PluginError(f"{own}: {SITE} is for dependencies; remove it from the package")
        shutil.copytree(package, self._folder)
        if package != unpacked:
            # Also below its own name, because its code may import itself by that.
            unpacked.rename(self._folder / SITE)
        return self._dependencies(source, wheels, dependencies, own)

    def _dependencies(
        self, source: str, wheels: Sequence[Wheel], dependencies: Dependencies, own: str
    ) -> Fetched:
        """Unpack all wheels but the plugin's own one."""
        used = dependencies.wheels()
        if wheels and set(used) != set(wheels):
            raise PluginError("the packages differ from those in the lock; run `trunkline plugin update`")
        site = self._folder / SITE
        for wheel in used:
            if wheel.file != own:
                site.mkdir(exist_ok=True)
                unpack_wheel(self._downloads / wheel.file, site, self._quota)
        return Fetched(self._folder, source, used)


class _Git:
    """A bare repository for one fetch."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        folder.mkdir()
        self._environ = {name: environ[name] for name in _PASSED if name in environ} | {
            "PATH": os.defpath,
            "HOME": str(folder),
            "GIT_DIR": str(folder),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "LC_ALL": "C",
        }
        self._run("init", "--quiet", "--bare", "--template=")

    def fetch(self, url: str, ref: str) -> str:
        """Fetch one commit. Return its id."""
        self._run("fetch", "--quiet", "--depth=1", "--no-tags", "--", url, ref)
        commit = self._run("rev-parse", "FETCH_HEAD^{commit}").decode().strip()
        if _COMMIT.fullmatch(ref) and commit != ref:
            raise PluginError(f"{url} returned commit {commit} instead of {ref}")
        return commit

    def files(self, commit: str) -> Iterator[tuple[str, str, bytes]]:
        """Yield path, mode and content of each file. Raises PluginError for links, submodules and sizes."""
        size, found = 0, list[tuple[str, str, str]]()
        for line in self._run("ls-tree", "-r", "-z", "-l", "--full-tree", commit).split(b"\0")[:-1]:
            about, _, name = line.partition(b"\t")
            mode, kind, blob, length = about.decode().split()
            path = os.fsdecode(name)
            check_path(path, "the repository")
            if kind != "blob" or mode not in ("100644", "100755"):
                raise PluginError(f"the repository: {path} is a link or a submodule; the plugin is not safe")
            size += int(length)
            found.append((path, mode, blob))
        Quota().take(len(found), size, "the repository")
        blobs = self._run("cat-file", "--batch", stdin="".join(f"{blob}\n" for _, _, blob in found).encode())
        at = 0
        for path, mode, blob in found:
            header, _, _ = blobs[at : at + 200].partition(b"\n")
            named, _, length = header.decode().split()
            if named != blob:
                raise PluginError(f"git returned {named} instead of {blob}")
            start = at + len(header) + 1
            at = start + int(length) + 1
            yield path, mode, blobs[start : at - 1]

    def _run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        git = shutil.which("git", path=os.defpath)
        if git is None:
            raise PluginError("git is not installed; install it, or give a folder or a wheel")
        settings = [part for setting in _GIT_SETTINGS for part in ("-c", setting)]
        argv = [git, *settings, *arguments]
        return run_program(argv, self._folder, self._environ, f"git {arguments[0]}", stdin)
