"""MCP servers of plugins: tables in the file ``mcp.toml`` of a plugin's folder.

A server is named ``PLUGIN-NAME`` and confined like those of the settings, but it only reads the plugin's own
folder and has no network. Its command, or the host of its address, must be a grant of the plugin.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import structlog
from msgspec import Struct
from pydantic import ValidationError

from gateway.contract.errors import PluginError
from gateway.contract.services import Unregister
from gateway.extensions.admission.capabilities import Grant
from gateway.extensions.admission.manifest import MANIFEST, Admitted, Manifest
from gateway.settings import McpServerSettings
from gateway.skills import read_below

log = structlog.get_logger("trunkline.plugins")

FILE = "mcp.toml"
"""File in a plugin's folder."""
_KEYS = ("command", "url", "env", "tools", "timeout", "memory_mb", "processes")
"""The settings of a server that a plugin may give; its rights are grants, and the rest is the operator's."""
_NAME = re.compile(r"[A-Za-z0-9_]{1,32}")
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
_MOST = 16


class PluginServer(Struct, frozen=True):
    """A server of a plugin. ``what`` it runs or reaches, and the grant that this needs."""

    name: str
    what: str
    grant: Grant
    settings: McpServerSettings


class PluginServers:
    """The servers of the plugins that run. ``on_change`` is called when there are others."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._added: list[tuple[str, Mapping[str, McpServerSettings]]] = []

    @property
    def settings(self) -> Mapping[str, McpServerSettings]:
        """The servers by name. While a plugin is replaced, its later entry counts."""
        of_plugins = dict(self._added).values()
        return {name: server for servers in of_plugins for name, server in servers.items()}

    def add(self, plugin: str, servers: Mapping[str, McpServerSettings]) -> Unregister:
        """Start the servers of a plugin at their first use."""
        one = (plugin, servers)
        self._added.append(one)
        self.on_change()

        def remove() -> None:
            self._added[:] = [each for each in self._added if each is not one]
            self.on_change()

        return remove


def read_servers(folder: Path) -> tuple[PluginServer, ...]:
    """Return the servers of a plugin's folder, by name. Raises PluginError for a mistake."""
    file = folder / FILE
    if not file.exists():
        return ()
    try:
        tables = tomllib.loads(read_below(folder, FILE).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PluginError(f"{file}: {error}") from None
    if len(tables) > _MOST:
        raise PluginError(f"{file}: has {len(tables)} servers; at most {_MOST} are allowed")
    return tuple(_server(file, name, tables[name]) for name in sorted(tables))


def granted_servers(
    admitted: Admitted, servers: tuple[PluginServer, ...], holds: Callable[[Grant], bool]
) -> Iterator[tuple[str, McpServerSettings]]:
    """Yield the servers that the plugin may have now, by their names in the gateway; others are logged."""
    for server in servers:
        name = _FOREIGN.sub("-", f"{admitted.manifest.name}-{server.name}").strip("-")[-32:]
        if holds(server.grant):
            yield name, server.settings
        else:
            log.warning(
                "an MCP server of a plugin is not started before it is granted",
                server=name,
                grant=f"trunkline plugin approve {admitted.manifest.name} --allow '{server.grant}'",
            )


def check_servers(manifest: Manifest, servers: tuple[PluginServer, ...]) -> None:
    """Raise PluginError unless the manifest declares what the servers need."""
    declared, capabilities = {*manifest.capabilities.grants()}, manifest.capabilities
    for server in servers:
        if server.grant not in declared:
            kind, _, value = server.grant.partition(":")
            raise PluginError(
                f"{FILE}: the server {server.name!r} needs {value!r} in capabilities.{kind}.allowlist of "
                f"{MANIFEST}; add it"
            )
        if server.settings.url and "POST" not in capabilities.network.methods:
            raise PluginError(
                f"{FILE}: the server {server.name!r} needs POST in capabilities.network.methods of {MANIFEST}"
            )


def _server(file: Path, name: str, table: object) -> PluginServer:
    where = f"{file}: {name}"
    if not _NAME.fullmatch(name) or not isinstance(table, dict):
        raise PluginError(f"{where}: write a table like [notes], named with up to 32 letters, digits and _")
    given = cast("dict[str, Any]", table)
    if unknown := next((key for key in given if key not in _KEYS), None):
        raise PluginError(f"{where}.{unknown}: a server of a plugin has {', '.join(_KEYS)} only")
    folder = str(file.parent)
    try:
        settings = McpServerSettings.model_validate(
            {**given, "capabilities": {"filesystem": {"roots": [folder]}}}
        )
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(each) for each in first["loc"])
        raise PluginError(f"{where}.{key}: {first['msg']}".replace("..", ".")) from None
    if settings.url is not None:
        host = urlsplit(settings.url).netloc
        return PluginServer(name, f"connects to {host}", f"network:{host}", settings)
    written = shlex.join(settings.command)
    # A file of the plugin is written as ./NAME, because only its installation decides on the folder.
    words = [f"{folder}/{word[2:]}" if word.startswith("./") else word for word in settings.command]
    here = settings.model_copy(update={"command": tuple(words)})
    return PluginServer(name, f"runs {written}", f"exec:{written}", here)
