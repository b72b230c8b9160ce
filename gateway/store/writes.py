"""Writes: statements that take many rows at once, and the audit log.

A batch of rows reaches the database as few statements, each with the values of up to 64 rows. SQLite's driver
releases the interpreter lock for every statement it steps, and the writer thread has to win it back from a
busy event loop; one statement per row costs far more than the rows themselves. The number of rows in a
statement is a power of two, so that a handful of statement texts serves every batch and stays prepared.

Row values are text, integers, floats and None. Lone surrogates and the character NUL (PostgreSQL refuses
both) are stored as U+FFFD.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Literal, NamedTuple

from sqlalchemy import Dialect, Table

from gateway.contract.messages import new_id, now_ms, sound
from gateway.store import schema as t

Value = str | int | float | None
Row = Sequence[Value]


class Statement(NamedTuple):
    """A statement with its values, as the database's driver takes it."""

    text: str
    values: tuple[Value, ...]


Kind = Literal["insert", "insert-new", "upsert", "update", "delete"]

MAX_ROWS = 64
"""Maximum number of rows in one statement; a power of two."""


class Write:
    """A kind of write to one table.

    ``insert`` adds rows; ``insert-new`` skips rows that already exist and returns the first column of those
    it inserted; ``upsert`` adds or changes, ``update`` changes and ``delete`` removes rows by ``key``. In a
    batch, writes run in the order of their ``rank``.
    """

    def __init__(self, kind: Kind, rank: int, table: Table, columns: str, key: str = "id") -> None:
        self.kind = kind
        self.rank = rank
        self.table = table
        self.columns = columns.split()
        self.key = key.split()
        self._texts: dict[tuple[str, int], str] = {}

    def statements(self, dialect: Dialect, rows: Sequence[Row]) -> Iterator[Statement]:
        """Yield the statements that write the rows."""
        if len(rows) > 1 and self.kind in ("upsert", "update"):
            rows = self._keep_latest(rows)
        for chunk in split(rows):
            yield Statement(self._text(dialect, len(chunk)), flatten(chunk))

    def _keep_latest(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the last row of each key: one statement may not change a row twice."""
        at = [self.columns.index(name) for name in self.key]
        return list({tuple(row[i] for i in at): row for row in rows}.values())

    def _text(self, dialect: Dialect, rows: int) -> str:
        text = self._texts.get((dialect.name, rows))
        if text is None:
            text = self._texts[dialect.name, rows] = self._build(dialect, rows)
        return text

    def _build(self, dialect: Dialect, rows: int) -> str:
        quote = dialect.identifier_preparer.quote
        table, key = quote(self.table.name), [quote(name) for name in self.key]
        columns = ", ".join(quote(name) for name in self.columns)
        numbers = count(1)
        marks = ", ".join(f"({', '.join(self._placeholders(dialect, numbers))})" for _ in range(rows))
        changed = [quote(name) for name in self.columns if name not in self.key]
        if self.kind == "delete":
            return f"DELETE FROM {table} WHERE {key[0]} IN ({marks})"  # noqa: S608 - table and column names of the schema
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

    def _placeholders(self, dialect: Dialect, numbers: Iterator[int]) -> list[str]:
        """Return a row's placeholders, cast where PostgreSQL has no column to infer a type from."""
        if dialect.name != "postgresql":
            return ["?"] * len(self.columns)
        if self.kind != "update":
            return [f"${next(numbers)}" for _ in self.columns]
        types = [self.table.c[name].type.compile(dialect) for name in self.columns]
        return [f"CAST(${next(numbers)} AS {kind})" for kind in types]


class OwnStatement(Write):
    """A separate statement for each row, such as a copy inside the database.

    ``?1`` is the first value of the row; the text has to use all of them and to suit both databases.
    """

    def __init__(self, rank: int, table: Table, text: str) -> None:
        super().__init__("update", rank, table, "")
        self._own = text

    def statements(self, dialect: Dialect, rows: Sequence[Row]) -> Iterator[Statement]:
        """Yield the statement for each row."""
        text = self._own if dialect.name == "sqlite" else self._own.replace("?", "$")
        yield from (Statement(text, flatten([row])) for row in rows)


class BulkStatement(Write):
    """A separate statement for many rows, which it reads from ``given``.

    ``columns`` are those of ``given``, each with its SQL type, which PostgreSQL cannot infer.
    """

    def __init__(self, rank: int, table: Table, columns: Mapping[str, str], text: str) -> None:
        super().__init__("insert", rank, table, " ".join(columns))
        self._types = columns.values()
        self._own = text

    def _build(self, dialect: Dialect, rows: int) -> str:
        numbers = count(1)
        marks = ", ".join(f"({', '.join(self._placeholders(dialect, numbers))})" for _ in range(rows))
        return f"WITH given ({', '.join(self.columns)}) AS (VALUES {marks}) {self._own}"

    def _placeholders(self, dialect: Dialect, numbers: Iterator[int]) -> list[str]:
        if dialect.name != "postgresql":
            return ["?"] * len(self.columns)
        return [f"CAST(${next(numbers)} AS {kind})" for kind in self._types]


def split(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Yield the rows in chunks with lengths that are powers of two, largest first."""
    start, size = 0, MAX_ROWS
    while start < len(rows):
        while size > len(rows) - start:
            size //= 2
        yield rows[start : start + size]
        start += size


def flatten(rows: Sequence[Row]) -> tuple[Value, ...]:
    """Return all values, row after row, with texts that both databases accept."""
    values = tuple([value for row in rows for value in row])
    # One scan of the joined text instead of one for each value: broken text is rare.
    texts = "".join([value for value in values if type(value) is str])
    if "\0" in texts or sound(texts) is not texts:
        return tuple(_clean(value) for value in values)
    return values


def _clean(value: Value) -> Value:
    return sound(value).replace("\0", "\ufffd") if isinstance(value, str) else value


Op = tuple[Write, Row]

AUDIT = Write("insert", 60, t.audit, "id at actor action subject detail")
"""Grants and revocations for the operator to look up. Rows are only ever added."""


def audit_op(actor: str, action: str, subject: str, detail: str | None = None) -> Op:
    """Return the write that records an action; commit it together with the action itself."""
    return AUDIT, (new_id(), now_ms(), actor, action, subject, detail)
