"""The built-in tools as one plugin: the time, a calculator, a slow counter, and questions to the user.

In: nothing. Out: four tools. Only the gateway's plugin loader and tests import it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from gateway import Plugin, Tool
from plugins.tools.builtin import tools
from plugins.tools.question import question_tool


class ToolsSettings(BaseModel):
    """The plugin has no settings."""


class BuiltinTools(Plugin):
    """The current time, a calculator, a slow counter that shows progress, and questions to the user."""

    name = "tools"
    settings_model = ToolsSettings

    def __init__(self) -> None:
        self._tools = (*tools(), question_tool())

    def tools(self) -> Sequence[Tool]:
        """Return the four tools."""
        return self._tools


def create() -> Plugin:
    """Make the plugin."""
    return BuiltinTools()
