"""The audit log of confined plugins."""

from __future__ import annotations

import asyncio
import contextlib

from gateway.plugin_services import PluginActions
from gateway.store import Store

PLUGIN = ("weather", "1.0", "hash")


async def test_001_28_each_use_is_one_row_without_its_arguments(store: Store) -> None:
    actions = PluginActions(store)
    actions.record(PLUGIN, "exec", "ls -l", ("ls", "-l"), microseconds=7)
    actions.record(PLUGIN, "kv", "a", {"key": "a"}, allowed=False)
    actions.record(("other", "1", "h"), "kv", "a")
    await actions.flush()
    first, second = await actions.latest("weather")
    assert (first.action, first.value, first.allowed, first.risk, first.microseconds) == (
        "exec",
        "ls -l",
        True,
        100,
        7,
    )
    assert (second.action, second.allowed, second.risk) == ("kv", False, 50)
    assert len(first.arguments) == 64
    assert first.arguments != second.arguments


async def test_what_is_noted_is_written_in_the_background_and_at_the_end(store: Store) -> None:
    actions = PluginActions(store)
    running = asyncio.create_task(actions.run())
    actions.record(PLUGIN, "exec", "one", object())
    while not await actions.latest("weather"):
        await asyncio.sleep(0.01)
    actions.record(PLUGIN, "exec", "two")
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert [one.value for one in await actions.latest("weather")] == ["one", "two"]
    assert [one.value for one in await actions.latest("weather", limit=1)] == ["two"]
