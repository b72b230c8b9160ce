"""A machine with plugins in its locations, and wheels made by hand."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.packages.installer import Installer
from gateway.settings import Settings, load_settings

MANIFEST = "name: {name}\nversion: {version}\n{more}"


class Desk:
    """An operator's directories, and what can be done there."""

    def __init__(self, root: Path) -> None:
        self.cwd = root / "work"
        self.home = root / "home"
        self.data = root / "data"
        self.config = self.cwd / "config/trunkline.toml"
        self.config.parent.mkdir(parents=True)
        self.home.mkdir()
        self.set()

    def set(self, text: str = "") -> None:
        self.config.write_text(f'data_dir = "{self.data}"\n{text}')

    @property
    def settings(self) -> Settings:
        return load_settings(environ={"HOME": str(self.home)}, cwd=self.cwd)

    @property
    def admission(self) -> Admission:
        return Admission(self.settings, self.cwd, self.home)

    @property
    def installer(self) -> Installer:
        return Installer(self.admission, {})

    def plugin(self, folder: Path, name: str = "audit", more: str = "", version: str = "1.0") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "plugin.yml").write_text(MANIFEST.format(name=name, version=version, more=more))
        (folder / "main.py").write_text("raise SystemExit('nothing may run this')\n")
        return folder

    def project(self, folder: str = "audit", **options: Any) -> Path:
        return self.plugin(self.cwd / ".trunkline/plugins" / folder, **options)

    def user(self, folder: str = "audit", **options: Any) -> Path:
        return self.plugin(self.home / ".trunkline/plugins" / folder, **options)

    def install(self, source: str | Path) -> str:
        """Install without grants; returns the name."""
        installer = self.installer
        with installer.prepare(str(source)) as prepared:
            installer.place(prepared, (), "operator")
            return prepared.manifest.name

    def wheel(
        self,
        files: Mapping[str, str | bytes],
        package: str = "trunkline_plugin_audit",
        requires: str = "",
        folder: Path | None = None,
    ) -> Path:
        """A wheel with these files."""
        file = (folder or self.cwd) / f"{package}-1.0-py3-none-any.whl"
        file.parent.mkdir(parents=True, exist_ok=True)
        metadata = f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: 1.0\n{requires}"
        about = {
            f"{package}-1.0.dist-info/METADATA": metadata,
            f"{package}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
            f"{package}-1.0.dist-info/RECORD": "",
        }
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in {**files, **about}.items():
                archive.writestr(name, content)
        return file

    def left(self) -> list[str]:
        """The names below the folder of installed plugins."""
        folder = self.data / "plugins"
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)
