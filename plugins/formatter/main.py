"""Formats each file that a tool has written, with the command for its ending."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any
from weakref import WeakValueDictionary

from trunkline_plugin import Context, Data, plugin

SECONDS = 25.0
"""Less than a handler of file events may take."""


@plugin
def formatter(ctx: Context) -> Mapping[str, Any]:
    """Run the formatter of the settings in the gateway's working directory; programs see no other folder."""
    commands = {ending.lower(): shlex.split(command) for ending, command in ctx.config["commands"].items()}
    locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def modified(event: Data) -> None:
        path = PurePath(event.path)
        command = commands.get(path.suffix.lower())
        if command is None or not path.is_relative_to(ctx.project.root):
            return
        # Two formatters at once would write the same file.
        lock = locks.setdefault(event.path, asyncio.Lock())
        async with lock:
            done = await ctx.exec(command[0], [*command[1:-1], str(path)], timeout=SECONDS)
        if done.exit_code:
            said = (done.stderr or done.stdout).strip()[:1000]
            ctx.log.warning(f"{command[0]} did not format {path} (status {done.exit_code}): {said}")

    return {"on": {"file.modified": modified}}
