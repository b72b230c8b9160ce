"""The audit log of confined plugins."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from gateway.access.grants import PluginGrant, PluginGrants
from gateway.plugin_services import Decision, PluginActions
from gateway.plugin_services.jobs import ADD_JOB
from gateway.store import Store
from gateway.store import schema as t
from gateway.tables import PluginTables

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


async def test_arguments_that_json_has_no_form_for_have_a_digest(store: Store) -> None:
    actions = PluginActions(store)
    for arguments in ({"path": "\udcff"}, {"path": "\udcfe"}, {("a", "b"): 1}):
        actions.record(PLUGIN, "mcp.call", "read", arguments)
    await actions.flush()
    assert len({one.arguments for one in await actions.latest("weather")}) == 3


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


async def test_the_log_has_the_number_of_actions_that_it_had_no_room_for(store: Store) -> None:
    actions = PluginActions(store)
    for n in range(10_003):
        actions.record(PLUGIN, "kv", str(n))
    await actions.flush()
    [last] = await actions.latest("weather", limit=1)
    assert (last.action, last.value) == ("audit.gap", "3 actions")
    assert {one.action: one.allowed for one in await actions.totals("weather", 0)} == {
        "audit.gap": 1,
        "kv": 10_000,
    }


async def test_001_28_what_an_operator_decides_is_in_the_log(store: Store) -> None:
    actions = PluginActions(store)
    await actions.decide(
        Decision("weather", "install", "cli:ada", "1.0", "hash", "./weather", ("exec:ls *", "send"))
    )
    rows = await actions.latest("weather")
    assert [(row.action, row.value, row.risk) for row in rows] == [
        ("plugin.install", "./weather by cli:ada", 50),
        ("plugin.grant", "exec:ls * by cli:ada", 100),
        ("plugin.grant", "send by cli:ada", 75),
    ]
    assert {(row.plugin, row.version, row.content) for row in rows} == {("weather", "1.0", "hash")}


@pytest.mark.parametrize("purge", [False, True])
async def test_a_removed_plugin_keeps_no_grant_and_purged_nothing(store: Store, purge: bool) -> None:
    tables, grants = PluginTables(store), PluginGrants(store)
    for name in ("weather", "other"):
        await tables.open(name, "kv").put("a", 1)
        await store.write(PluginGrant(name, "send", True, "web:ada", 1).put())
        await store.write((ADD_JOB, (f"{name}\nnews", name, "news", "0 8 * * * UTC", 1, "", 0)))
    await PluginActions(store).decide(Decision("weather", "uninstall", "cli:ada", purge=purge))
    assert [one.plugin for one in await grants.all()] == ["other"]
    kept = ["other"] if purge else ["other", "weather"]
    for table in (t.plugin_entry, t.plugin_job):
        query = table.select().with_only_columns(table.c.plugin).order_by(table.c.plugin)
        assert await store.read(lambda c, query=query: list(c.execute(query).scalars())) == kept
