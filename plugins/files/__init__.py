"""Files: tools that read, search and change the files in folders of the operator's choice.

In: ``[plugins.files]`` with at least one root, and the calls of models. Out: contents, diffs, and
changes that the gateway records. Only the gateway's plugin loader and tests import it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import structlog

from gateway import Plugin, PluginContext, SettingsError, Tool, ToolError
from plugins.files.places import Places
from plugins.files.search import load_engine
from plugins.files.settings import FilesSettings
from plugins.files.tools import FileTools

log = structlog.get_logger("trunkline.files")


class Files(Plugin):
    """The plugin. Before it is active with valid settings its tools refuse every call."""

    name = "files"
    settings_model = FilesSettings

    def __init__(self) -> None:
        # Offered from the start, so that duplicate names and the rules of permissions can be checked.
        self._settings = FilesSettings.model_construct(outside="deny")
        self._tools = FileTools(self._settings, Places((Path(os.devnull),))).tools()

    async def activate(self, ctx: PluginContext) -> None:
        """Read the settings and make the tools."""
        settings = self._settings = ctx.options(FilesSettings)
        own = await asyncio.to_thread(Path(ctx.cwd).resolve)
        if own in settings.roots:
            raise SettingsError(
                f"plugins.files.roots has {str(own)!r}, the data directory of the gateway; use a folder in it"
            )
        try:
            await asyncio.to_thread(load_engine)
        except ToolError as error:
            log.warning("searching in files is not possible", reason=str(error))
        self._tools = FileTools(settings, Places(settings.roots, (own,))).tools()

    async def find_problem(self) -> str:
        """Return which root cannot be used."""

        def find() -> str:
            need = os.R_OK | os.X_OK | (os.W_OK if self._settings.writable else 0)
            for root in self._settings.roots:
                if not root.is_dir():
                    return f"plugins.files.roots has {str(root)!r}, which is not a folder"
                if not os.access(root, need):
                    kind = "written" if os.access(root, need & ~os.W_OK) else "read"
                    return f"plugins.files.roots has {str(root)!r}, which cannot be {kind} by this user"
            return ""

        return await asyncio.to_thread(find)

    def tools(self) -> Sequence[Tool]:
        """Return the tools."""
        return self._tools


def create() -> Plugin:
    """Return the plugin."""
    return Files()
