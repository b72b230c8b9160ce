"""Reproducible packing: the same plugin folder always gives a wheel with the same bytes."""

from __future__ import annotations

import base64
import hashlib
import re
import stat
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile, ZipInfo

from gateway.contract.errors import PluginError
from gateway.extensions.admission.locations import ENTRY_POINTS, PREFIXES
from gateway.extensions.admission.manifest import Manifest, read_manifest
from gateway.extensions.admission.packages.dependencies import REQUIREMENTS, parse_requirements
from gateway.extensions.admission.tree import SITE, files_of

_MOMENT = (1980, 1, 1, 0, 0, 0)


def pack_folder(folder: Path, target: Path) -> Path:
    """Write the wheel of a plugin into the folder ``target``. Return its path. Raises PluginError."""
    manifest = read_manifest(folder)
    package = _package(manifest.name)
    entries: dict[str, tuple[bytes, int]] = {}
    for path, found in files_of(folder, compiled=True):
        if path.startswith(f"{SITE}/"):
            raise PluginError(f"{folder} has {SITE}/; list the dependencies in {REQUIREMENTS} instead")
        mode = 0o755 if stat.S_IMODE(found.st_mode) & 0o111 else 0o644
        entries[f"{package}/{path}"] = ((folder / path).read_bytes(), mode)
    about = f"{package}-{manifest.version}.dist-info"
    entries |= {
        f"{about}/METADATA": (_metadata(manifest, package, folder), 0o644),
        f"{about}/WHEEL": (
            b"Wheel-Version: 1.0\nGenerator: trunkline\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            0o644,
        ),
        f"{about}/entry_points.txt": (f"[{ENTRY_POINTS}]\n{package} = {package}\n".encode(), 0o644),
    }
    record = "".join(f"{path},{_hash(data)},{len(data)}\n" for path, (data, _) in sorted(entries.items()))
    entries[f"{about}/RECORD"] = (f"{record}{about}/RECORD,,\n".encode(), 0o644)
    wheel = target / f"{package}-{manifest.version}-py3-none-any.whl"
    try:
        target.mkdir(parents=True, exist_ok=True)
        # Stored, because compressed bytes depend on the version of zlib.
        with ZipFile(wheel, "w", ZIP_STORED) as archive:
            for path, (data, mode) in sorted(entries.items()):
                entry = ZipInfo(path, _MOMENT)
                entry.create_system = 3
                entry.external_attr = (stat.S_IFREG | mode) << 16
                archive.writestr(entry, data)
    except OSError as error:
        raise PluginError(f"{wheel} cannot be written: {error.strerror}") from None
    return wheel


def _package(name: str) -> str:
    """Return the name of the package: with the prefix by which packages of plugins are found."""
    plain = re.sub(r"[^a-z0-9]+", "-", name).strip("-")
    return (plain if plain.startswith(PREFIXES) else f"{PREFIXES[0]}{plain}").replace("-", "_")


def _metadata(manifest: Manifest, package: str, folder: Path) -> bytes:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {package.replace('_', '-')}",
        f"Version: {manifest.version}",
        f"Summary: {' '.join(manifest.description.split())}",
        f"Author: {manifest.author}",
        f"License: {manifest.license}",
        *(f"Requires-Dist: {each}" for each in _requirements(folder)),
    ]
    readme = folder / "README.md"
    text = readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else ""
    kind = ["Description-Content-Type: text/markdown"] if text else []
    return "\n".join([*lines, *kind, "", text]).encode()


def _requirements(folder: Path) -> list[str]:
    file = folder / REQUIREMENTS
    if not file.is_file():
        return []
    # Hashes are in the lock of who installs it; the metadata of a package has none.
    return [str(each) for each in parse_requirements(file.read_text(encoding="utf-8"))[0]]


def _hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"
