"""The built-in tools as one plugin: the time, a calculator, and a slow counter.

In: nothing. Out: three tools. Only the gateway's plugin loader and tests import it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway import Plugin, Tool
from plugins.tools.builtin import tools


class BuiltinTools(Plugin):
    """The current time, a calculator, and a slow counter that shows progress."""

    name = "tools"

    def __init__(self) -> None:
        self._tools = tuple(tools())

    def tools(self) -> Sequence[Tool]:
        """Return the three tools."""
        return self._tools


def create() -> Plugin:
    """Make the plugin."""
    return BuiltinTools()
