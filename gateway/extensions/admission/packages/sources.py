"""Sources of plugins: a package index, a git repository over https, a folder, a wheel.

Each is copied into a staging folder: ``plugin``, with its dependencies in ``plugin/site``. No code of it
runs: packages are wheels, and git neither checks out files nor runs hooks, filters or submodules.
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from gateway.contract.errors import PluginError
from gateway.extensions.admission.lock import Wheel
from gateway.extensions.admission.manifest import MANIFEST
from gateway.extensions.admission.packages.archive import Room, requirements_of, unpack_wheel
from gateway.extensions.admission.tree import MOST_BYTES, SITE, check_path, files_of

REQUIREMENTS = "requirements.txt"
"""Dependencies of a folder or repository; those of a package are in its metadata."""
_GIT = re.compile(r"git\+(https://[\w.-]+(?::\d+)?/[\w./~-]+)@(\w[\w./-]*)")
_INDEX = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==([A-Za-z0-9.!+_-]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_SOURCE_ARCHIVES = (".tar.gz", ".tgz", ".tar", ".tar.bz2", ".tar.xz", ".zip")
_SECONDS = 600
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
    """Copies the plugin of one source into an empty staging folder."""

    def __init__(self, staging: Path, environ: Mapping[str, str]) -> None:
        self._staging = staging
        self._environ = environ
        self._room = Room()
        self._folder = staging / "plugin"
        self._downloads = staging / "downloads"
        self._downloads.mkdir()

    def fetch(self, source: str, wheels: Sequence[Wheel] = ()) -> Fetched:
        """Fetch a source; with ``wheels`` only these packages. Raises PluginError."""
        if source.startswith("git+"):
            return self._git(source, wheels)
        # A bare name is one of the index, also if a folder has this name.
        if "/" in source or source.startswith((".", "~")) or source.endswith(".whl"):
            return self._local(Path(source).expanduser().absolute(), wheels)
        return self._index(source, wheels)

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
        wanted = [str(path)] if requirements_of(path) else []
        if not wanted or wheels:
            shutil.copyfile(path, self._downloads / path.name)
        self._download(wanted, [wheel for wheel in wheels if wheel.file != path.name])
        return self._unpacked(path.name, str(path), wheels)

    def _index(self, source: str, wheels: Sequence[Wheel]) -> Fetched:
        from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

        matched = _INDEX.fullmatch(source)
        if matched is None:
            raise PluginError(
                f"{source!r} is not a source; give NAME or NAME==VERSION of the package index, "
                "git+https://HOST/REPOSITORY@REF, a folder or a wheel"
            )
        self._download([source], wheels)
        name = canonicalize_name(matched[1])
        for file in sorted(self._downloads.glob("*.whl")):
            with suppress(InvalidWheelFilename):
                found, version, _, _ = parse_wheel_filename(file.name)
                if found == name:
                    return self._unpacked(file.name, f"{name}=={version}", wheels)
        raise PluginError(f"the package index has no wheel of {name}")

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
            self._room.take(1, len(content), path)
            file = self._folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            file.chmod(0o755 if mode == "100755" else 0o644)
        return self._with_requirements(f"git+{url}@{commit}", wheels)

    def _copy(self, folder: Path) -> None:
        """Copy a folder without repository data and compiled code."""
        for path, found in files_of(folder, compiled=True):
            self._room.take(1, found.st_size, path)
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
        check_requirements(file.read_text(encoding="utf-8", errors="replace"))
        self._download(["--requirement", str(file)], wheels)
        return self._dependencies(source, wheels, done=())

    def _unpacked(self, own: str, source: str, wheels: Sequence[Wheel]) -> Fetched:
        """Unpack the plugin's own wheel, which has the manifest in its package, and its dependencies."""
        unpacked = self._staging / "unpacked"
        unpacked.mkdir()
        unpack_wheel(self._downloads / own, unpacked, self._room)
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
        return self._dependencies(source, wheels, done=(own,))

    def _dependencies(self, source: str, wheels: Sequence[Wheel], done: Sequence[str]) -> Fetched:
        site = self._folder / SITE
        files = sorted(self._downloads.glob("*.whl"))
        for file in files:
            if file.name not in done:
                site.mkdir(exist_ok=True)
                unpack_wheel(file, site, self._room)
        used = tuple(Wheel(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files)
        if wheels and set(used) != set(wheels):
            raise PluginError("the packages differ from those in the lock; run `trunkline plugin update`")
        return Fetched(self._folder, source, used)

    def _download(self, wanted: Sequence[str], wheels: Sequence[Wheel]) -> None:
        """Download wheels with pip, which runs no code of them: all that is wanted, or these with hashes."""
        arguments = ["--only-binary=:all:", "--no-input", "--quiet", "--dest", str(self._downloads)]
        if wheels:
            listed = self._staging / "locked.txt"
            listed.write_text("".join(f"{_pinned(wheel)}\n" for wheel in wheels), encoding="utf-8")
            arguments += ["--require-hashes", "--no-deps", "--requirement", str(listed)]
        elif wanted:
            arguments += wanted
        else:
            return
        # In isolated mode, because a module in the working directory could have the name of one of pip's.
        argv = [sys.executable, "-I", "-m", "pip", "download", "--disable-pip-version-check", *arguments]
        _run(argv, self._downloads, None, "pip download")


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
        Room().take(len(found), size, "the repository")
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
        return _run([git, *settings, *arguments], self._folder, self._environ, f"git {arguments[0]}", stdin)


def check_requirements(text: str) -> list[str]:
    """Return the lines of a requirements file that lack hashes.

    Raises PluginError for anything but packages of the index: addresses and options could bring other code.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    unpinned: list[str] = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        plain = [word for word in words if not word.startswith("--hash=sha256:")]
        try:
            requirement = Requirement(" ".join(plain))
        except InvalidRequirement:
            raise PluginError(f"{REQUIREMENTS}: {line.strip()!r} must be a package like name==1.0") from None
        if requirement.url is not None:
            raise PluginError(
                f"{REQUIREMENTS}: {requirement.name} has an address; name a package of the index"
            )
        if len(plain) == len(words):
            unpinned.append(str(requirement))
    return unpinned


def _pinned(wheel: Wheel) -> str:
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        name, version, _, _ = parse_wheel_filename(wheel.file)
    except InvalidWheelFilename as error:
        raise PluginError(f"the lock has a wrong wheel: {error}") from None
    return f"{name}=={version} --hash=sha256:{wheel.sha256}"


def _run(
    argv: Sequence[str], folder: Path, environ: Mapping[str, str] | None, what: str, stdin: bytes = b""
) -> bytes:
    """Run a program. Return its output. Raises PluginError."""
    try:
        with subprocess.Popen(  # noqa: S603 - fixed programs, without a shell
            argv,
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                if hasattr(resource, "prlimit"):
                    # No server may fill the disk.
                    with suppress(OSError, ValueError):
                        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (2 * MOST_BYTES, 2 * MOST_BYTES))
                output, errors = process.communicate(stdin, _SECONDS)
            except BaseException:
                process.kill()
                raise
    except subprocess.TimeoutExpired:
        raise PluginError(f"{what} took more than {_SECONDS} s") from None
    except OSError as error:
        raise PluginError(f"{what} cannot be started: {error.strerror}") from None
    if process.returncode:
        lines = [line for line in errors.decode(errors="replace").splitlines() if line.strip()]
        said = next(
            (line for line in lines if line.startswith(("ERROR:", "fatal:"))), lines[-1] if lines else ""
        )
        raise PluginError(f"{what} failed: {said.strip()[:300] or 'no output'}")
    return output
