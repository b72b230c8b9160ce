"""OpenCode, which speaks the Agent Client Protocol and routes to many providers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from plugins.cli_backends.adapters.acp import AcpAdapter
from plugins.cli_backends.adapters.cli import Cli
from plugins.programs.catalog import OPENCODE

CONFIG = "OPENCODE_CONFIG_CONTENT"
"""Settings that override those in files, so that a workspace cannot allow itself anything."""

_READ_ONLY_TOOLS = ("glob", "grep", "list", "lsp", "question", "read", "skill", "todoread", "todowrite")
_RULES = {"*": "ask", **dict.fromkeys(_READ_ONLY_TOOLS, "allow"), "external_directory": "ask"}


class OpenCodeAdapter(AcpAdapter):
    """One dispatch."""

    def arguments(self) -> list[str]:
        """Return the arguments for the Agent Client Protocol."""
        return ["acp"]


def extra_variables(model: str, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return its settings: the given ones, the model, and permission rules that allow only reading."""
    given: dict[str, Any] = {}
    try:
        known: object = msgspec.json.decode(environment.get(CONFIG, "{}"))
        given = cast("dict[str, Any]", known) if isinstance(known, dict) else {}
    except msgspec.DecodeError:
        given = {}
    whole = {"permission": _RULES, "autoupdate": False, "share": "disabled", **given}
    if model:
        whole["model"] = model
    return {CONFIG: msgspec.json.encode(whole).decode()}


def find_autorun(folder: str, home: str) -> str:
    """Return the plugins in a folder or above it, which OpenCode runs at its start; "" if none.

    Plugins in the home folder are the user's own.
    """
    start = Path(folder)
    for place in (start, *start.parents):
        if str(place) == home:
            continue
        for inner in (place, place / ".opencode"):
            for name in ("plugin", "plugins"):
                if inner != place and any((inner / name).glob("*.[jt]s")):
                    return str(inner / name)
            for name in ("opencode.json", "opencode.jsonc"):
                if _names_plugins(inner / name):
                    return f"the plugins in {inner / name}"
    return ""


def _names_plugins(file: Path) -> bool:
    try:
        return '"plugin' in file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


CLI = Cli(
    name="opencode",
    program=OPENCODE,
    # Settings of the folder could allow tools and run programs.
    fixed={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_PROJECT_CONFIG": "1"},
    extra_variables=extra_variables,
    find_autorun=find_autorun,
    adapter=OpenCodeAdapter,
)
