"""Capabilities: what a plugin declares that it needs, as grants that can be given and revoked one by one.

A grant is a text: ``llm``, or ``network:api.example.org`` for one value of a capability. A capability that
the manifest does not declare can never be granted; one that is declared can be used once it was granted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

Grant = str
"""A capability, or a capability and one of its values: ``filesystem.read:workspace``."""


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
    """Requests to hosts: ``api.example.org``, ``*.example.org:8443`` (subdomains); port 443 unless named."""

    enabled: bool = False
    allowlist: tuple[str, ...] = ()
    methods: tuple[str, ...] = ("GET", "HEAD")


class ExecAccess(Struct, frozen=True, forbid_unknown_fields=True):
    """Commands, word by word; a last ``*`` is any further arguments."""

    enabled: bool = False
    allowlist: tuple[str, ...] = ()


class LlmAccess(Struct, frozen=True, forbid_unknown_fields=True):
    """Calls of models. ``budget`` is in US dollars for each session; None is without a limit of its own."""

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
