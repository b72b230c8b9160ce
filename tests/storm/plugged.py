"""Confined plugins in the gateway that gets killed. One crashes, one hangs, one blocks, one observes, and one
runs a job each minute; all are replaced again and again.

The blocking one must block each call of the tool that it forbids, whatever happens to its process. No turn
may end because a plugin was replaced. The others may fail as they like.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from model import FORBID, TOOLS
from record import Record
from verdict import Verdict

from gateway.contract.errors import PluginError
from gateway.contract.messages import ErrorPart, ToolCallPart, ToolResultPart
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.packages.installer import Installer
from gateway.extensions.confined.events import DECIDING, EVENTS
from gateway.extensions.process import kernel
from gateway.settings import Settings
from gateway.settings.sections import Origin

_FOLDER = "plugins"
_EXCHANGED, _TICKS = "exchanged", "ticks"
_BLOCKED = "the plugin 'blocker'"
"""Text in the result of a call that it blocked, also by failing."""
_EVERY = 0.7
"""Seconds between two exchanges."""
PATIENCE = "20s"
"""Time limit of calls that must not fail, on a machine that is busy with a storm."""

_MESSAGES = """
import os, re, time
from trunkline_plugin import plugin

@plugin
def storm(ctx):
    def message(event):
        found = re.search(r"q\\d+x(\\d+)", event.text)
        if found and int(found[1]) % 5 == WHEN:
            WHAT
    return {"on": {"chat.message": message}}
"""
_BLOCKING = """
from trunkline_plugin import Block, plugin

@plugin
def storm(ctx):
    def before(event):
        if event.tool == TOOL:
            raise Block("nothing that is forbidden is done here")
    return {"on": {"tool.execute.before": before}}
"""
_OBSERVING = """
from trunkline_plugin import plugin

@plugin
def storm(ctx):
    async def seen(event):
        if event.event == "session.idle":
            await ctx.kv.set(event.session_id, event.turns)

    def unchanged(value, turn):
        return None
    # If one of them fails, the turn ends with the error. The second is called before each call of the model.
    hooks = dict.fromkeys(("transform_system_prompt", "filter_tools"), unchanged)
    return {"on": dict.fromkeys(OBSERVED, seen), "hooks": hooks}
"""
_TICKING = """
from trunkline_plugin import plugin

@plugin
def storm(ctx):
    async def tick(run):
        await ctx.fs.write(f"FOLDER/{run.due}", run.key)
    return {"schedule": {"tick": tick}}
"""
_OBSERVED = tuple(name for name in EVENTS if name not in DECIDING)

PLUGINS: Mapping[str, tuple[str, str]] = {
    "crasher": (
        _MESSAGES.replace("WHEN", "1").replace("WHAT", "os._exit(1)"),
        "events: [chat.message]\ncapabilities: {messages: change}",
    ),
    "hanger": (
        _MESSAGES.replace("WHEN", "3").replace("WHAT", "time.sleep(3600)"),
        "events: [chat.message]\ncapabilities: {messages: change}",
    ),
    "blocker": (
        _BLOCKING.replace("TOOL", repr(TOOLS[FORBID])),
        "events: [tool.execute.before]\ncapabilities: {tools: block}",
    ),
    "observer": (
        _OBSERVING.replace("OBSERVED", repr(_OBSERVED)),
        f"events: [{', '.join(_OBSERVED)}]\nhooks: [transform_system_prompt, filter_tools]\n"
        "capabilities: {messages: change, tools: block, storage_mb: 1}",
    ),
    "ticker": (
        _TICKING,
        'schedule: [{name: tick, cron: "* * * * *"}]\n'
        "capabilities: {schedule: true, filesystem: {write: true, roots: [FOLDER]}}",
    ),
}
"""The code and the manifest of each, by name. ``FOLDER`` is where the last one writes when it is due."""


def why_not() -> str:
    """Return why no plugin can be confined here; empty if it is possible."""
    return "; ".join(kernel.missing(kernel.layers(), strict=False))


def write_plugins(directory: Path) -> None:
    """Write all plugins, and approve them with all that they declare."""
    settings = settle(Settings(data_dir=directory), directory)
    ticks = directory / _TICKS
    ticks.mkdir()
    for name, texts in PLUGINS.items():
        code, manifest = (text.replace("FOLDER", str(ticks)) for text in texts)
        folder = directory / _FOLDER / name
        folder.mkdir(parents=True)
        (folder / "main.py").write_text(code)
        (folder / "plugin.yml").write_text(f"api: 1\nname: {name}\nversion: 1.0.0\n{manifest}\n")
        admission = Admission(settings)
        found = admission.find(str(folder)).manifest
        assert found is not None
        Installer(admission, {}).approve(str(folder), tuple(found.capabilities.grants()), "cli:storm")


def settle(settings: Settings, directory: Path) -> Settings:
    """Return settings whose lock file is in the directory."""
    return settings.with_origin(Origin(file=directory / "storm.toml"))


def tables(directory: Path) -> dict[str, Any]:
    """Return the settings of the plugins."""
    short = {"hook_timeout_ms": "200ms"}  # a message waits for it
    limits = {name: {"activate_timeout_ms": PATIENCE, "hook_timeout_ms": PATIENCE} for name in PLUGINS}
    limits["crasher"] |= short
    limits["hanger"] |= short
    return {"enabled": [str(directory / _FOLDER / name) for name in PLUGINS], **limits}


async def exchange(replace: Callable[[str, str], Awaitable[None]], directory: Path) -> None:
    """Replace one plugin after the other by a new instance, until cancelled.

    ``replace`` takes a plugin's name and its folder.
    """
    for name in itertools.cycle(PLUGINS):
        await asyncio.sleep(_EVERY)
        with contextlib.suppress(PluginError):  # a plugin that starts too slowly is not used
            await replace(name, str(directory / _FOLDER / name))
            with (directory / _EXCHANGED).open("a") as exchanged:
                exchanged.write(f"{name}\n")


def check_plugins(verdict: Verdict, record: Record, directory: Path) -> tuple[int, int, int]:
    """Check that no forbidden call ran, and no answer failed because of a plugin.

    Return how many calls were blocked, how often a plugin was replaced, and at how many times a job ran.
    """
    verdict.channel = "plugins"
    done = directory / TOOLS[FORBID]
    for word in done.read_text().split() if done.exists() else ():
        verdict.add("wrong", f"what {word} asked for was not blocked")
    blocked = 0
    for message in record.messages():
        calls = {
            part.tool_call_id
            for part in message.parts
            if isinstance(part, ToolCallPart) and part.tool_name == TOOLS[FORBID]
        }
        for part in message.parts:
            if isinstance(part, ErrorPart) and any(f"plugin '{name}'" in part.message for name in PLUGINS):
                verdict.add("wrong", f"{message.id} failed: {part.message}")
            if not isinstance(part, ToolResultPart):
                continue
            is_blocked, is_forbidden = _BLOCKED in part.output, part.tool_call_id in calls
            blocked += is_blocked and is_forbidden
            if is_blocked != is_forbidden and message.metadata.stop_reason != "cancelled":
                verdict.add("wrong", f"{message.id} has the result {part.output!r}")
    verdict.channel = ""
    exchanged, ticks = directory / _EXCHANGED, len([*(directory / _TICKS).iterdir()])
    return blocked, len(exchanged.read_text().split()) if exchanged.exists() else 0, ticks
