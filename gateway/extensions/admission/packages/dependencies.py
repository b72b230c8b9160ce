"""The dependencies of a plugin: wheels of the package index, found without running any code.

pip downloads single wheels; which ones are needed is read from their metadata here. If pip followed
dependencies itself, one with an address (``name @ https://…``) could be a source distribution, whose build
runs code in spite of ``--only-binary``.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.contract.errors import PluginError
from gateway.extensions.admission.lock import Wheel
from gateway.extensions.admission.packages.archive import headers_of
from gateway.extensions.admission.packages.program import run_program

if TYPE_CHECKING:
    from packaging.requirements import Requirement

REQUIREMENTS = "requirements.txt"
"""Dependencies of a folder or repository; those of a package are in its metadata."""
_MOST_ROUNDS = 30
_HASH = re.compile(r"--hash=sha256:([0-9a-f]+)")


class Dependencies:
    """Wheels in a folder, with all that they require. ``hashes`` are the allowed ones by name, if any."""

    def __init__(self, folder: Path, hashes: Mapping[str, Sequence[str]] | None = None) -> None:
        self._folder = folder
        self._hashes = hashes or {}
        self._wanted: dict[str, Requirement] = {}

    def resolve(self, wanted: Iterable[Requirement]) -> None:
        """Download what is wanted and all that it requires. Raises PluginError."""
        for each in wanted:
            self._want(each, REQUIREMENTS)
        for _ in range(_MOST_ROUNDS):
            found = self._found()
            for name, wheel in found.items():
                for each in _required(wheel, self._wanted[name].extras if name in self._wanted else ()):
                    self._want(each, wheel.name)
            missing = [name for name in self._wanted if not self._fits(name, found.get(name))]
            if not missing:
                return
            for name in missing:
                if name in found:
                    found[name].unlink()
            self._download([f"{name}{self._wanted[name].specifier}" for name in missing])
        raise PluginError(f"the dependencies do not fit together; pin their versions in {REQUIREMENTS}")

    def restore(self, wheels: Sequence[Wheel]) -> None:
        """Download exactly these wheels, with their hashes. Raises PluginError."""
        listed = self._folder / "locked.txt"
        listed.write_text("".join(f"{_pinned(wheel)}\n" for wheel in wheels), encoding="utf-8")
        self._download(["--require-hashes", "--requirement", str(listed)])

    def wheels(self) -> tuple[Wheel, ...]:
        """Return the wheels in the folder, sorted by name."""
        files = sorted(self._folder.glob("*.whl"))
        return tuple(Wheel(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files)

    def find(self, name: str) -> str | None:
        """Return the file name of a package's wheel, or None."""
        found = self._found().get(name)
        return found.name if found else None

    def _want(self, requirement: Requirement, by: str) -> None:
        from packaging.utils import canonicalize_name

        if requirement.url is not None:
            raise PluginError(f"{by}: {requirement.name} has an address; only the index is used")
        name = canonicalize_name(requirement.name)
        known = self._wanted.setdefault(name, requirement)
        known.specifier &= requirement.specifier
        known.extras |= requirement.extras

    def _fits(self, name: str, wheel: Path | None) -> bool:
        """Return whether a wheel has a version that is wanted. Raises PluginError for a wrong hash."""
        from packaging.utils import parse_wheel_filename

        if wheel is None:
            return False
        allowed = self._hashes.get(name)
        if allowed and hashlib.sha256(wheel.read_bytes()).hexdigest() not in allowed:
            raise PluginError(f"{wheel.name} has another hash than in {REQUIREMENTS}")
        version = parse_wheel_filename(wheel.name)[1]
        return self._wanted[name].specifier.contains(version, prereleases=True)

    def _found(self) -> dict[str, Path]:
        from packaging.utils import InvalidWheelFilename, parse_wheel_filename

        try:
            return {parse_wheel_filename(file.name)[0]: file for file in sorted(self._folder.glob("*.whl"))}
        except InvalidWheelFilename as error:
            raise PluginError(f"the name of a wheel is wrong: {error}") from None

    def _download(self, what: Sequence[str]) -> None:
        options = ["--only-binary=:all:", "--no-deps", "--no-input", "--disable-pip-version-check", "--quiet"]
        # In isolated mode, because a module in the working directory could have the name of one of pip's.
        argv = [sys.executable, "-I", "-m", "pip", "download", *options, "--dest", str(self._folder), *what]
        run_program(argv, self._folder, None, "pip download")


def parse_requirements(text: str) -> tuple[list[Requirement], dict[str, list[str]]]:
    """Return the lines of a requirements file, and the hashes by name.

    Raises PluginError for anything but packages of the index: addresses and options could bring other code.
    """
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    found: list[Requirement] = []
    hashes: dict[str, list[str]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        plain = re.sub(r"(^|\s)#.*", "", line)
        wanted = _HASH.sub(" ", plain).strip()
        if not wanted:
            continue
        try:
            requirement = Requirement(wanted)
        except InvalidRequirement:
            raise PluginError(f"{REQUIREMENTS}: {wanted!r} must be a package like name==1.0") from None
        if requirement.url is not None:
            raise PluginError(f"{REQUIREMENTS}: {requirement.name} has an address; only the index is used")
        if requirement.marker is None or requirement.marker.evaluate():
            found.append(requirement)
        hashes.setdefault(canonicalize_name(requirement.name), []).extend(_HASH.findall(plain))
    return found, hashes


def _required(wheel: Path, extras: Iterable[str]) -> Iterator[Requirement]:
    """Yield what a wheel requires on this machine, with some of its extras."""
    from packaging.requirements import InvalidRequirement, Requirement

    for line in headers_of(wheel).get_all("Requires-Dist", []):
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            raise PluginError(f"{wheel.name}: Requires-Dist: {error}") from None
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def _pinned(wheel: Wheel) -> str:
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        name, version, _, _ = parse_wheel_filename(wheel.file)
    except InvalidWheelFilename as error:
        raise PluginError(f"the lock has a wrong wheel: {error}") from None
    return f"{name}=={version} --hash=sha256:{wheel.sha256}"
