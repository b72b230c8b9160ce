"""Writes: statements that take many rows at once.

A batch of rows reaches the database as few statements, each with the values of up to 64 rows. The driver lets
go of the interpreter lock for every statement it steps, and the writer thread has to win it back from a
busy event loop; statement by statement, row after row, that would cost far more than the rows themselves.
The rows of a statement are a power of two, so that a handful of texts serves every batch and stays prepared.

Row values are text, whole numbers, floats, None. Lone surrogates and the character NUL (PostgreSQL refuses
both) are stored as U+FFFD.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from sqlalchemy import Connection, Dialect, Table

from gateway.messages import sound

Value = str | int | float | None
Row = Sequence[Value]
Kind = Literal["insert", "insert-new", "upsert", "update", "delete"]

LARGEST = 64
"""Rows of one statement, at most; a power of two."""


class Write:
    """One way to write rows of one table.

    ``insert`` adds rows; ``insert-new`` leaves out rows that already exist and tells which went in (their
    first column); ``upsert`` adds or changes, ``update`` changes and ``delete`` removes by ``key``.
    In a batch, writes run in the order of their ``rank``.
    """

    def __init__(self, kind: Kind, rank: int, table: Table, columns: str, key: str = "id") -> None:
        self.kind = kind
        self.rank = rank
        self.table = table
        self.columns = columns.split()
        self.key = key.split()
        self._texts: dict[tuple[str, int], str] = {}

    def run(self, connection: Connection, rows: Sequence[Row]) -> Sequence[Any]:
        """Write the rows. For ``insert-new``, the first column of those that were inserted."""
        if self.kind in ("upsert", "update"):
            rows = self._last_of_each(rows)
        inserted: list[Any] = []
        for chunk in chunks(rows):
            text = self._text(connection.dialect, len(chunk))
            result = connection.exec_driver_sql(text, values_of(chunk))
            if self.kind == "insert-new":
                inserted.extend(result.scalars())
        return inserted

    def _last_of_each(self, rows: Sequence[Row]) -> Sequence[Row]:
        """One row for each key: a statement may not change the same row twice, and the last one counts."""
        at = [self.columns.index(name) for name in self.key]
        return list({tuple(row[i] for i in at): row for row in rows}.values())

    def _text(self, dialect: Dialect, count: int) -> str:
        text = self._texts.get((dialect.name, count))
        if text is None:
            text = self._texts[dialect.name, count] = self._written(dialect, count)
        return text

    def _written(self, dialect: Dialect, count: int) -> str:
        quote = dialect.identifier_preparer.quote
        table, key = quote(self.table.name), [quote(name) for name in self.key]
        columns = ", ".join(quote(name) for name in self.columns)
        marks = ", ".join([f"({', '.join(self._marks(dialect))})"] * count)
        changed = [quote(name) for name in self.columns if name not in self.key]
        if self.kind == "delete":
            return f"DELETE FROM {table} WHERE {key[0]} IN ({marks})"  # noqa: S608 - our own names
        if self.kind == "update":
            matches = " AND ".join(f"{table}.{name} = given.{name}" for name in key)
            settings = ", ".join(f"{name} = given.{name}" for name in changed)
            given = f"WITH given ({columns}) AS (VALUES {marks})"
            return f"{given} UPDATE {table} SET {settings} FROM given WHERE {matches}"  # noqa: S608
        text = f"INSERT INTO {table} ({columns}) VALUES {marks}"  # noqa: S608
        if self.kind == "insert-new":
            return f"{text} ON CONFLICT DO NOTHING RETURNING {quote(self.columns[0])}"
        if self.kind == "upsert":
            settings = ", ".join(f"{name} = excluded.{name}" for name in changed)
            return f"{text} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {settings}"
        return text

    def _marks(self, dialect: Dialect) -> list[str]:
        """A row's placeholders. Where PostgreSQL has no column to tell a type from, they are cast."""
        if dialect.name != "postgresql":
            return ["?"] * len(self.columns)
        if self.kind != "update":
            return ["%s"] * len(self.columns)
        types = [self.table.c[name].type.compile(dialect) for name in self.columns]
        return [f"CAST(%s AS {kind})" for kind in types]


def chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """The rows in pieces whose lengths are powers of two, the largest first."""
    start, size = 0, LARGEST
    while start < len(rows):
        while size > len(rows) - start:
            size //= 2
        yield rows[start : start + size]
        start += size


def values_of(rows: Sequence[Row]) -> tuple[Value, ...]:
    """All values, row after row, with texts that both databases take."""
    values = tuple([value for row in rows for value in row])
    texts = "".join([value for value in values if type(value) is str])
    if "\0" in texts or sound(texts) is not texts:
        return tuple(_storable(value) for value in values)
    return values


def _storable(value: Value) -> Value:
    return sound(value).replace("\0", "\ufffd") if isinstance(value, str) else value
