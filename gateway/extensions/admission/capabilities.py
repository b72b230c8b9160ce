"""Capabilities: what a plugin declares that it needs, as grants that can be given and revoked one by one.

A grant is a text: ``llm``, or ``network:api.example.org`` for one value of a capability. A capability that
the manifest does not declare can never be granted; one that is declared can be used once it was granted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from msgspec import Struct, structs

Grant = str
"""A capability, or a capability and one of its values: ``filesystem.read:workspace``."""
FROM_CONFIG = "config:"
"""Begins an entry of an allow list that means a setting of the plugin, such as ``config:commands``."""


class FilesystemAccess(Struct, frozen=True, forbid_unknown_fields=True):
    """Access to files below folders. ``restricted`` are globs of paths that stay closed in them.

    A root is an absolute path, a path from ``~``, or ``workspace``: the gateway's working directory.
    """

    read: bool = False
    write: bool = False
    delete: bool = False
    roots: tuple[str, ...] = ("workspace",)
    restricted: tuple[str, ...] = ()


class NetworkAccess(Struct, frozen=True, forbid_unknown_fields=True):
    """Requests to hosts: ``api.example.org``, ``*.example.org:8443`` (subdomains); port 443 unless named.

    ``config:KEY`` is the host of an address in the plugin's settings.
    """

    enabled: bool = False
    allowlist: tuple[str, ...] = ()
    methods: tuple[str, ...] = ("GET", "HEAD")


class ExecAccess(Struct, frozen=True, forbid_unknown_fields=True):
    """Commands, word by word; a last ``*`` is any further arguments. ``config:KEY`` are those in settings."""

    enabled: bool = False
    allowlist: tuple[str, ...] = ()


class LlmAccess(Struct, frozen=True, forbid_unknown_fields=True):
    """Calls of models. ``budget`` is in US dollars for each session; None is without its own limit."""

    enabled: bool = False
    budget: float | None = None


class Capabilities(Struct, frozen=True, forbid_unknown_fields=True):
    """All that a manifest declares. ``storage_mb`` bounds the plugin's durable values.

    ``messages_last`` is the number of newest messages that a hook gets; 0 is all of them.
    """

    filesystem: FilesystemAccess = FilesystemAccess()
    network: NetworkAccess = NetworkAccess()
    exec: ExecAccess = ExecAccess()
    llm: LlmAccess = LlmAccess()
    messages: Literal["none", "read", "change"] = "none"
    tools: Literal["none", "block", "decide"] = "none"
    send: bool = False
    storage_mb: int = 0
    schedule: bool = False
    routes: Literal["none", "token", "public"] = "none"
    docker: bool = False
    messages_last: int = 0

    def grants(self) -> Iterator[Grant]:
        """Yield each grant that the plugin can be given, in the order of this class."""
        files = self.filesystem
        for verb, declared in (("read", files.read), ("write", files.write), ("delete", files.delete)):
            if declared:
                yield from (f"filesystem.{verb}:{root}" for root in files.roots)
        if self.network.enabled:
            yield from (f"network:{host}" for host in self.network.allowlist)
        if self.exec.enabled:
            yield from (f"exec:{command}" for command in self.exec.allowlist)
        if self.llm.enabled:
            yield "llm"
        for name, value in (("messages", self.messages), ("tools", self.tools), ("routes", self.routes)):
            if value != "none":
                yield f"{name}:{value}"
        alone = {
            "send": self.send,
            "storage": self.storage_mb > 0,
            "schedule": self.schedule,
            "docker": self.docker,
        }
        yield from (name for name, declared in alone.items() if declared)


def from_config(capabilities: Capabilities) -> set[str]:
    """Return the settings of the plugin that allow lists name, each by the first part of its key."""
    listed = (*capabilities.network.allowlist, *capabilities.exec.allowlist)
    keys = (entry.removeprefix(FROM_CONFIG) for entry in listed if entry.startswith(FROM_CONFIG))
    return {key.partition(".")[0] for key in keys}


def with_config(capabilities: Capabilities, config: Mapping[str, Any]) -> Capabilities:
    """Return capabilities with the settings that allow lists name replaced by their values."""
    hosts = _values(capabilities.network.allowlist, config, _host)
    commands = _values(capabilities.exec.allowlist, config, str.strip)
    return structs.replace(
        capabilities,
        network=structs.replace(capabilities.network, allowlist=tuple(hosts)),
        exec=structs.replace(capabilities.exec, allowlist=tuple(commands)),
    )


def granted_with(
    grants: Iterable[Grant], capabilities: Capabilities, config: Mapping[str, Any]
) -> Iterator[Grant]:
    """Yield grants with one for each value of a setting that they name.

    ``config`` is what the operator wrote: defaults are the author's, and may change with the next version.
    """
    for grant in grants:
        capability, _, value = grant.partition(":")
        if not value.startswith(FROM_CONFIG) or capability not in ("network", "exec"):
            yield grant
            continue
        access = structs.replace(getattr(capabilities, capability), allowlist=(value,))
        named = with_config(structs.replace(capabilities, **{capability: access}), config)
        yield from (f"{capability}:{entry}" for entry in getattr(named, capability).allowlist)


def _values(
    entries: Sequence[str], config: Mapping[str, Any], convert: Callable[[str], str]
) -> Iterator[str]:
    for entry in entries:
        key = entry.removeprefix(FROM_CONFIG)
        yield from (entry,) if key == entry else map(convert, _texts(config, key.split(".")))


def _texts(value: Any, path: Sequence[str]) -> Iterator[str]:
    """Yield texts of a setting: itself, or those directly in it. A path leads into each item of a list."""
    if isinstance(value, list | tuple):
        for item in cast("Sequence[Any]", value):
            yield from _texts(item, path)
    elif path:
        if isinstance(value, Mapping) and path[0] in value:
            yield from _texts(cast("Mapping[str, Any]", value)[path[0]], path[1:])
    elif isinstance(value, Mapping):
        yield from (text for text in cast("Mapping[str, Any]", value).values() if isinstance(text, str))
    elif isinstance(value, str) and value.strip():
        yield value


def _host(address: str) -> str:
    """Return the host of an address as an entry of an allow list; without a scheme it is https."""
    scheme, separator, rest = address.strip().lower().partition("://")
    host = (rest if separator else scheme).partition("/")[0].rpartition("@")[2]
    return f"http://{host}" if separator and scheme == "http" else host
