"""The gateway's own files: what no program or plugin with a folder of it may read or change.

In: the settings. Out: paths for the confinement of programs and for the files of plugins. They may be below a
folder that is granted, mostly the working directory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from gateway.settings.agents import FOLDER as AGENTS
from gateway.settings.layers.files import PROJECT, personal_folder, projects
from gateway.settings.sections import Settings

_HERE = Path(__file__).parents[3]


class OwnFiles(Struct, frozen=True):
    """Absolute paths. ``closed`` are not even read; ``guarded`` are not changed, nor made where they miss."""

    closed: tuple[Path, ...] = ()
    guarded: tuple[Path, ...] = ()


def own_files(settings: Settings, environ: Mapping[str, str]) -> OwnFiles:
    """Return the paths of the gateway's data and secrets, and of what its next start reads or runs."""
    closed = (settings.data_dir.absolute(), settings.file.absolute(), Path.cwd() / ".env")
    return OwnFiles(closed, tuple(dict.fromkeys(_guarded(settings, environ))))


def with_plugins(own: OwnFiles, settings: Settings) -> OwnFiles:
    """Return the files with those of the plugins that the settings name now, too."""
    return OwnFiles(own.closed, tuple(dict.fromkeys((*own.guarded, *_plugins(settings)))))


def _plugins(settings: Settings) -> Iterator[Path]:
    """Yield the files and folders of plugins that the settings name by their path."""
    for name, base in settings.origin.bases.items():
        if "/" in name or name.endswith(".py"):
            yield (base / Path(name).expanduser()).absolute()


def _guarded(settings: Settings, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders of settings, agents and skills, and the code of the gateway and its plugins."""
    here, beside = Path.cwd(), settings.file.absolute().parent
    yield from (here / "config", here / PROJECT, here / ".agents", beside / AGENTS, beside / "skills")
    yield from (folder / PROJECT for folder in projects(here, environ))
    if personal := personal_folder(environ):
        yield personal
    yield from _plugins(settings)
    yield from (_HERE / package for package in ("gateway", "channels", "plugins"))
    if sys.prefix != sys.base_prefix:
        yield Path(sys.prefix)
