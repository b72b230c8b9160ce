"""Writes: many rows in one statement, the same on both engines."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import select

from gateway.contract.errors import InvalidRequestError, StoreError
from gateway.store import Store
from gateway.store import schema as t
from gateway.store.writes import BulkStatement, Row, Write

INSERT = Write("insert", 10, t.cursor, "channel account shard value", key="channel account shard")
NEW = Write("insert-new", 11, t.cursor, "channel account shard value", key="channel account shard")
UPSERT = Write("upsert", 12, t.cursor, "channel account shard value", key="channel account shard")
UPDATE = Write("update", 13, t.cursor, "channel account shard value", key="channel account shard")
DELETE = Write("delete", 14, t.cursor, "channel", key="channel")
BREAK = Write("update", 15, t.cursor, "channel value", key="channel")


async def rows(store: Store) -> dict[str, str]:
    """Values by channel."""
    query = select(t.cursor.c.channel, t.cursor.c.value).order_by(t.cursor.c.channel)
    return await store.read(lambda c: {row.channel: row.value for row in c.execute(query)})


def row(channel: str, value: str) -> Row:
    return (channel, "a", "", value)


async def test_rows_are_added_changed_and_removed(store: Store):
    await store.write(*((INSERT, row(name, "1")) for name in "abc"))
    await store.write((UPDATE, row("a", "2")), (UPDATE, row("nobody", "2")), (UPSERT, row("d", "1")))
    await store.write((UPSERT, row("d", "3")), (DELETE, ("b",)))
    assert await rows(store) == {"a": "2", "c": "1", "d": "3"}


async def test_of_several_changes_to_one_row_the_last_counts(store: Store):
    await store.write(*((UPSERT, row("a", str(n))) for n in range(5)))
    assert await rows(store) == {"a": "4"}
    await store.write(*((UPDATE, row("a", str(n))) for n in range(9)))
    assert await rows(store) == {"a": "8"}


async def test_a_bulk_statement_reads_many_rows_with_their_types(store: Store):
    columns = {"channel": "TEXT", "value": "BIGINT"}
    added = "UPDATE cursor SET value = CAST(given.value + 1 AS TEXT) FROM given"
    add = BulkStatement(13, t.cursor, columns, f"{added} WHERE cursor.channel = given.channel")
    await store.write(*((INSERT, row(str(n), "")) for n in range(70)))
    await store.write(*((add, (str(n), n)) for n in range(69)))
    assert await rows(store) == {**{str(n): str(n + 1) for n in range(69)}, "69": ""}


async def test_insert_new_tells_which_rows_went_in(store: Store):
    assert await store.write((NEW, row("a", "1")), (NEW, row("a", "2"))) == {"a"}
    assert await store.write((NEW, row("a", "3")), (NEW, row("b", "1"))) == {"b"}
    assert await rows(store) == {"a": "1", "b": "1"}


async def test_in_one_commit_writes_run_by_rank(store: Store):
    await store.write((DELETE, ("a",)), (UPDATE, row("a", "2")), (INSERT, row("a", "1")))
    assert await rows(store) == {}


async def test_changes_of_one_commit_are_made_together_or_not_at_all(store: Store):
    await store.write((INSERT, row("a", "1")))
    with pytest.raises(StoreError):
        await store.write((UPDATE, row("a", "2")), (BREAK, ("a", None)))
    assert await rows(store) == {"a": "1"}


HARD_TEXTS = [
    "",
    "null",
    "12",
    '["a", {"b": "\\u0000"}]',
    "quotes ' \" and \\ backslash \\u0000 \\ud800",
    "line\nbreaks\r\nand\ttabs \x01\x1f\x7f",
    "ünïcødé 👩‍👩‍👧‍👦 𝄞 \u2028\u2029\ufeff",
    "x" * 1_000_000,
    "👋" * 250_000,
]


async def test_any_text_comes_back_as_it_was(store: Store):
    texts = {str(n): text for n, text in enumerate(HARD_TEXTS)}
    await store.write(*((INSERT, row(name, text)) for name, text in texts.items()))
    assert await rows(store) == texts


async def test_what_no_database_holds_is_stored_with_replacements(store: Store):
    broken = ["nul \0 inside", "\0", "half \ud83d of it", "\udcff", "\0\\u0000\ud800"]
    await store.write(*((INSERT, row(str(n), text)) for n, text in enumerate(broken)))
    await store.write((UPSERT, row("0", broken[0])))
    found = (await rows(store)).values()
    assert list(found) == [
        "nul \ufffd inside",
        "\ufffd",
        "half \ufffd of it",
        "\ufffd",
        "\ufffd\\u0000\ufffd",
    ]


SESSION: dict[str, Any] = {
    "id": "s",
    "channel": "c",
    "owner": "o",
    "address": "{}",
    "title": "",
    "model": None,
    "seq": 2**53,
    "messages": 2**31 - 1,
    "input_tokens": 2**62,
    "output_tokens": 0,
    "context_from": 0,
    "created_at": 1,
    "updated_at": 1,
    "agent": None,
    "titled": None,
    "mode": None,
    "parent": None,
    "parent_message": None,
    "root": None,
    "call_id": None,
    "indexed_title": "",
    "pinned_at": None,
    "undone_at": 0,
}


async def test_numbers_and_nothing_come_back_as_they_were(store: Store):
    put = Write("upsert", 0, t.sessions, " ".join(SESSION))
    await store.write((put, tuple(SESSION.values())))
    found = await store.read(lambda c: dict(c.execute(select(t.sessions)).mappings().one()))
    assert found == SESSION


async def test_a_number_beyond_all_columns_is_refused_alone(store: Store, fatal: list[BaseException]):
    put = Write("upsert", 0, t.sessions, " ".join(SESSION))
    units = [{**SESSION, "id": "a"}, {**SESSION, "id": "b", "seq": 2**70}, {**SESSION, "id": "c"}]
    outcomes = await asyncio.gather(
        *(store.submit([(put, tuple(unit.values()))]) for unit in units), return_exceptions=True
    )
    assert [isinstance(outcome, StoreError) for outcome in outcomes] == [False, True, False]
    assert await store.read(lambda c: set(c.execute(select(t.sessions.c.id)).scalars())) == {"a", "c"}
    assert fatal == []


async def test_any_number_of_rows_goes_in(store: Store):
    for count in (1, 63, 64, 65, 200, 511):
        await store.write(*((INSERT, row(str(n), str(n))) for n in range(count)))
        await store.write(*((UPDATE, row(str(n), f"{n}!")) for n in range(count)))
        assert await rows(store) == {str(n): f"{n}!" for n in range(count)}
        await store.write(*((DELETE, (str(n),)) for n in range(count)))
        assert await rows(store) == {}


@pytest.mark.parametrize("value", ["nul \0", "half \ud83d"])
async def test_a_lookup_of_an_impossible_id_is_not_a_database_failure(
    store: Store, fatal: list[BaseException], value: str
):
    query = select(t.cursor.c.value).where(t.cursor.c.channel == value)
    try:
        assert await store.read(lambda c: c.execute(query).all()) == []
    except InvalidRequestError as error:
        assert "characters that the database cannot store" in str(error)  # noqa: PT017 - either way is right
    assert fatal == []
