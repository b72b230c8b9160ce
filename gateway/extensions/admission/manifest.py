"""The manifest of a plugin, ``plugin.yml``: what it is, what it offers, and what it needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from gateway.extensions.admission.capabilities import Capabilities, Grant

Trust = Literal["sandbox", "full"]


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a plugin's process. ``cpu_seconds`` is for each call, ``cpu_percent`` over one minute.

    ``in_flight`` is the number of calls at once in each direction.
    """

    memory_mb: int = 256
    cpu_seconds: int = 10
    cpu_percent: int = 50
    in_flight: int = 64


class Schedule(Struct, frozen=True, forbid_unknown_fields=True):
    """A job: five fields of cron, in a time zone; ``config`` is the gateway's zone."""

    name: str
    cron: str
    timezone: str = "config"


class Manifest(Struct, frozen=True):
    """A checked manifest. ``tools`` and ``commands`` are None if the manifest does not name them.

    ``entry`` is "" for a bundle without code. ``config`` is a JSON Schema of the plugin's settings.
    """

    name: str
    version: str
    description: str = ""
    author: str = ""
    license: str = ""
    entry: str = "main.py"
    events: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None
    commands: tuple[str, ...] | None = None
    capabilities: Capabilities = Capabilities()
    config: Mapping[str, Any] = {}
    secrets: tuple[str, ...] = ()
    schedule: tuple[Schedule, ...] = ()
    limits: Limits = Limits()
    requires: str = ""


class Admitted(Struct, frozen=True):
    """A plugin that may be started: its manifest, its folder, the hash of its content, and its grants.

    ``site`` is the folder of its own dependencies. ``grants`` are those of the lock file; later ones are rows
    of the database. ``source`` names its origin.
    """

    manifest: Manifest
    folder: Path
    digest: str
    grants: frozenset[Grant] = frozenset()
    trust: Trust = "sandbox"
    site: Path | None = None
    source: str = ""
