"""Coding programs: how each is started and read.

In: a request, or a rendered screen. Out: a launch, or a reading. The session and its machine import this. A
new program is one file with an ``Adapter`` and an entry point in the group ``trunkline.coding_agents``; the
modules of the shipped ones are loaded when the first session starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

import structlog

from plugins.coding_agents.adapters.contract import Adapter
from plugins.coding_agents.errors import UnknownAgentError

log = structlog.get_logger("trunkline.coding_agents")

GROUP = "trunkline.coding_agents"
SHIPPED = ("claude", "codex", "gemini", "opencode", "aider", "pi", "shell")


@cache
def adapters() -> Mapping[str, Adapter]:
    """Return all adapters by name: the shipped ones, and those of installed distributions."""
    shipped = [import_module(f"{__name__}.{name}").ADAPTER for name in SHIPPED]
    found: dict[str, Adapter] = {adapter.name: adapter for adapter in shipped}
    for entry in entry_points(group=GROUP):
        adapter = entry.load()
        if isinstance(adapter, Adapter) and adapter.name not in found:
            found[adapter.name] = adapter
        else:
            log.warning("adapter ignored: not an Adapter, or its name is taken", entry_point=entry.name)
    return found


def find_adapter(name: str) -> Adapter:
    """Return the adapter with this name or alias; raise UnknownAgentError, which lists the known names."""
    wanted = name.strip().lower().replace("_", "-").replace(" ", "-")
    for adapter in adapters().values():
        if wanted in (adapter.name, *adapter.aliases):
            return adapter
    known = ", ".join(sorted(adapters()))
    raise UnknownAgentError(f"there is no coding agent {name!r}; known ones: {known}")
