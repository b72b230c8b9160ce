"""Tables of plugins: durable, apart, and changed only if they are as expected."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gateway import Plugin, PluginContext
from gateway.channel import InvalidRequestError
from gateway.store import Store
from gateway.store import schema as t
from gateway.tables import PluginTable, PluginTables
from gateway.testing.chat import chatting
from gateway.testing.database import place_database


@pytest.fixture
def table(store: Store) -> PluginTable:
    return PluginTables(store).open("notes", "pages")


async def test_what_was_put_is_there_in_the_next_process(tmp_path: Path) -> None:
    place_database(tmp_path / "t.db")
    value = {"list": [1, 2.5, None, "ü\ud800\0"], "nested": {"b": True}}
    for process in range(2):
        store = Store.open(f"sqlite:///{tmp_path}/t.db", "full", lambda _: None)
        table = PluginTables(store).open("notes", "pages")
        if process == 0:
            assert await table.put("key", value)
        else:
            assert await table.get("key") == value
        await store.close()


async def test_entries_are_listed_by_prefix_in_the_order_of_their_keys(table: PluginTable) -> None:
    for key in ("b", "a%2", "A%3", "a%1", "ä"):
        await table.put(key, key.upper())
    assert await table.keys() == ["A%3", "a%1", "a%2", "b", "ä"]
    assert await table.keys("a") == ["a%1", "a%2"]
    assert await table.items("a%") == [("a%1", "A%1"), ("a%2", "A%2")]
    assert await table.delete("a%1")
    assert not await table.delete("a%1")
    assert await table.get("a%1") is None


async def test_a_write_needs_the_expected_value(table: PluginTable) -> None:
    assert await table.put("key", {"a": 1, "b": 2}, expected=None)
    assert not await table.put("key", "other", expected=None)
    assert not await table.put("key", "other", expected={"a": 1})
    assert await table.put("key", True, expected={"b": 2, "a": 1})
    assert not await table.put("key", "other", expected=1)
    assert not await table.delete("key", expected=False)
    assert await table.get("key") is True
    assert await table.delete("key", expected=True)
    assert await table.delete("key", expected=None) is False


async def test_writers_that_compare_lose_no_step(table: PluginTable) -> None:
    async def count() -> None:
        for _ in range(10):
            while True:
                last = await table.get("n")
                if await table.put("n", (last or 0) + 1, expected=last):
                    break

    async with asyncio.TaskGroup() as tasks:
        for _ in range(5):
            tasks.create_task(count())
    assert await table.get("n") == 50


async def test_a_writer_that_is_cancelled_leaves_the_entry_usable(table: PluginTable) -> None:
    async with asyncio.TaskGroup() as tasks:
        writer = tasks.create_task(table.put("key", 1, expected=None))
        await asyncio.sleep(0)
        writer.cancel()
    assert await table.put("key", 2)
    assert await table.get("key") == 2


async def test_tables_and_plugins_are_apart(store: Store) -> None:
    tables = PluginTables(store)
    await tables.open("notes", "pages").put("key", 1)
    assert await tables.open("notes", "page").get("key") is None
    assert await tables.open("note", "pages").items() == []


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("", 1, "is not a text of 1 to 512 printable characters"),
        ("k" * 513, 1, "is not a text of 1 to 512 printable characters"),
        ("a\nb", 1, "is not a text of 1 to 512 printable characters"),
        ("key", None, "is None, which means no entry; delete it"),
        ("key", object(), "cannot be stored as JSON: Object of type object"),
        ("key", math.nan, "cannot be stored as JSON: Out of range float"),
        ("key", "x" * 262_144, "has 262,146 bytes as JSON, and at most 262,144 can be stored"),
    ],
)
async def test_what_cannot_be_stored_is_refused(
    table: PluginTable, key: str, value: Any, complaint: str
) -> None:
    with pytest.raises(InvalidRequestError, match=complaint):
        await table.put(key, value)
    assert await table.items() == []


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "a\n"])
async def test_a_table_needs_a_name(store: Store, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="needs a name of 1 to 64 letters"):
        PluginTables(store).open("notes", name)


async def test_plugins_write_into_the_audit_log(tmp_path: Path) -> None:
    class Door(Plugin):
        name = "door"

        async def activate(self, ctx: PluginContext) -> None:
            assert ctx.audit is not None
            await ctx.audit("door.open", "front", "for an hour", actor="home:ada")
            await ctx.audit("door.close", "front")

    async with chatting(tmp_path, Door()) as chat:
        query = select(t.audit.c.actor, t.audit.c.action, t.audit.c.subject, t.audit.c.detail)
        rows = await chat.gateway.parts.store.read(lambda c: [tuple(row) for row in c.execute(query)])
    assert rows == [
        ("home:ada", "door.open", "front", "for an hour"),
        ("plugin door", "door.close", "front", ""),
    ]
