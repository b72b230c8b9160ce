"""A gateway in the test's process with one plugin that has a manifest, confined as users run it.

::

    async with running(FOLDER, tmp_path) as chat:
        assert (await chat.say("/greet Ada")).text == "Hello, Ada!"
"""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import tomlkit

from gateway.app import Gateway
from gateway.contract.plugin import Plugin
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.capabilities import Grant
from gateway.extensions.admission.consent import chosen
from gateway.extensions.admission.manifest import read_manifest
from gateway.extensions.admission.packages.installer import Installer
from gateway.settings import Settings, load_settings
from gateway.testing.chat import Chat, chatting

_NOT_COPIED = ("__pycache__", ".pytest_cache", ".git", ".venv")


@asynccontextmanager
async def running(
    folder: Path,
    place: Path,
    *plugins: Plugin,
    allow: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    edited: bool = False,
    **settings: Any,
) -> AsyncGenerator[Chat]:
    """Run a gateway with a copy of the plugin in a folder, and a scripted model, for as long as the block.

    ``place`` is an empty folder for the copy and the gateway's data. ``allow`` are the grants, as
    ``trunkline plugin approve --allow`` takes them; by default all that the manifest declares.
    ``options`` are the plugin's own settings, ``settings`` those of the gateway. ``edited`` has them in a
    TOML file, which the gateway changes, instead of a JSON file.
    """
    copy = place / "plugin"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(*_NOT_COPIED))
    manifest = read_manifest(copy)
    granted = tuple(manifest.capabilities.grants()) if allow is None else chosen(manifest, allow)
    written = {
        "data_dir": str(place / "data"),
        "model": "script/one",
        "permissions": {"*": "allow"},
        **settings,
        "plugins": {"enabled": [str(copy)], manifest.name: dict(options or {})},
    }
    file = place / ("trunkline.toml" if edited else "trunkline.json")
    file.write_text(tomlkit.dumps(written) if edited else json.dumps(written), encoding="utf-8")
    (place / "data").mkdir()
    loaded = load_settings(file, environ={}, cwd=place)
    approve(loaded, copy, granted)

    def kind(_settings: Settings, plugins: Sequence[Plugin]) -> Gateway:
        return Gateway(loaded, plugins=plugins)

    async with chatting(place / "data", *plugins, kind=cast("type[Gateway]", kind)) as chat:
        yield chat


def approve(settings: Settings, folder: Path, grants: Sequence[Grant] = ()) -> None:
    """Approve the present content of a plugin's folder, with further grants."""
    Installer(Admission(settings), {}).approve(str(folder), grants, "test")
