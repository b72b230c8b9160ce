"""The tables: what they refuse by themselves, on both engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import CheckConstraint, Connection, Engine, insert, inspect, select, text
from sqlalchemy.exc import IntegrityError

from gateway.store import Store
from gateway.store import schema as t

SESSION = {
    "id": "s",
    "channel": "websocket",
    "owner": "owner",
    "address": "{}",
    "title": "",
    "seq": 0,
    "messages": 0,
    "input_tokens": 0,
    "output_tokens": 0,
    "context_from": 0,
    "created_at": 1,
    "updated_at": 1,
}
MESSAGE = {"id": "m", "session_id": "s", "seq": 1, "role": "user", "metadata": "{}", "created_at": 1}
PART = {"id": "m.0", "message_id": "m", "type": "text", "content": "{}", "index": 0, "created_at": 1}


def fill(engine: Engine, *rows: tuple[Any, dict[str, Any]]) -> None:
    with engine.begin() as connection:
        for table, values in rows:
            connection.execute(insert(table).values(values))


@pytest.fixture
def engine(store: Store) -> Engine:
    fill(store.engine, (t.sessions, SESSION), (t.messages, MESSAGE), (t.parts, PART))
    return store.engine


def test_004_04_the_parts_table_has_the_columns_that_were_promised(engine: Engine):
    columns = {column["name"]: str(column["type"]) for column in inspect(engine).get_columns("parts")}
    assert columns == {
        "id": "TEXT",
        "message_id": "TEXT",
        "type": "TEXT",
        "content": "TEXT",
        "index": "INTEGER",
        "created_at": "BIGINT",
    }
    assert inspect(engine).get_pk_constraint("parts")["constrained_columns"] == ["id"]


def test_004_04_a_part_belongs_to_a_message_that_exists(engine: Engine):
    with pytest.raises(IntegrityError):
        fill(engine, (t.parts, {**PART, "id": "x", "message_id": "nobody"}))


def test_004_04_an_index_is_taken_once_in_a_message(engine: Engine):
    with pytest.raises(IntegrityError):
        fill(engine, (t.parts, {**PART, "id": "m.0 again"}))
    fill(engine, (t.parts, {**PART, "id": "m.1", "index": 1}))


def test_004_04_the_column_index_is_quoted_so_that_parts_can_be_ordered_by_it(engine: Engine):
    query = select(t.parts.c.id).order_by(t.parts.c.index.desc())
    assert '"index"' in str(query.compile(engine))
    fill(engine, (t.parts, {**PART, "id": "m.1", "index": 1}))
    with engine.connect() as connection:
        assert connection.execute(query).scalars().all() == ["m.1", "m.0"]


@pytest.mark.parametrize(
    ("drop", "left"),
    [("DELETE FROM messages", ["sessions"]), ("DELETE FROM sessions", [])],
)
def test_parts_go_with_their_message_and_messages_with_their_session(
    engine: Engine, drop: str, left: list[str]
):
    with engine.begin() as connection:
        connection.execute(text(drop))
    with engine.connect() as connection:
        filled = [name for name in ("sessions", "messages", "parts") if rows(connection, name)]
    assert filled == left


def rows(connection: Connection, table: str) -> int:
    return len(connection.execute(select(t.metadata.tables[table])).all())


INBOX = {
    "id": "i",
    "channel": "c",
    "account": "a",
    "dedup_key": "d",
    "alt_key": "alt",
    "session": "s",
    "ord": 1,
    "seq": 1,
    "answer_id": "x",
    "payload": "{}",
    "state": "new",
    "attempts": 0,
    "not_before": 0,
    "received_at": 1,
}


@pytest.mark.parametrize(
    ("change", "accepted"),
    [
        ({"dedup_key": "d", "alt_key": "other"}, False),
        ({"dedup_key": "other", "alt_key": "alt"}, False),
        ({"dedup_key": "other", "alt_key": None}, True),
        ({"account": "b"}, True),
        ({"channel": "b"}, True),
    ],
)
def test_a_message_is_known_by_either_key_within_channel_and_account(
    store: Store, change: dict[str, Any], accepted: bool
):
    fill(store.engine, (t.inbox, INBOX))
    again: Callable[[], None] = lambda: fill(store.engine, (t.inbox, {**INBOX, "id": "j", **change}))  # noqa: E731
    if accepted:
        again()
    else:
        with pytest.raises(IntegrityError):
            again()


def test_the_schema_has_no_checks_that_only_one_engine_enforces():
    checks = [
        c for table in t.metadata.tables.values() for c in table.constraints if isinstance(c, CheckConstraint)
    ]
    assert checks == []
