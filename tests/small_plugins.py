"""Plugins that several files of tests share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway import Plugin, PluginContext, Tool, tool_from


class Brings(Plugin):
    """Registers channels of a test."""

    name = "brings"

    def __init__(self, *channels: Any) -> None:
        self._channels = channels

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.channels is not None
        for channel in self._channels:
            ctx.channels.register(channel)


class Shell(Plugin):
    """A tool that runs nothing and remembers what it was asked to run."""

    name = "shell"

    def __init__(self) -> None:
        self.ran: list[str] = []

        async def shell(command: str) -> str:
            """Run a command."""
            self.ran.append(command)
            return f"ran {command}"

        self._tools = [tool_from(shell, match_key=lambda arguments: arguments["command"])]

    def tools(self) -> Sequence[Tool]:
        return self._tools
