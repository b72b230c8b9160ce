"""Writes: statements that take any number of rows as one JSON document.

A batch of rows reaches the database as a single bound parameter, and the database unpacks it
(``json_each`` on SQLite, ``json_array_elements`` on PostgreSQL). So a batch is one call into the driver
however many rows it has: the writer thread does not have to win the interpreter lock back for every row,
which under load costs far more than the rows themselves.

Row values are what JSON has: text, whole numbers, floats, true, false, None. Lone surrogates and the
character NUL (PostgreSQL refuses both, SQLite would cut a text at NUL) are stored as U+FFFD.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from sqlalchemy import (
    JSON,
    Connection,
    Dialect,
    Table,
    bindparam,
    cast,
    delete,
    func,
    insert,
    literal_column,
    select,
    true,
    update,
)
from sqlalchemy.sql import Executable
from sqlalchemy.sql.expression import ColumnElement, FromClause

from gateway.messages import to_json

Row = Sequence[str | int | float | bool | None]
Kind = Literal["insert", "insert-new", "upsert", "update", "delete"]


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
        self._statements: dict[str, Executable] = {}

    def run(self, connection: Connection, rows: Sequence[Row]) -> Sequence[Any]:
        """Write the rows. For ``insert-new``, the first column of those that were inserted."""
        statement = self._statement(connection.dialect)
        if self.kind in ("upsert", "update"):
            rows = self._last_of_each(rows)
        result = connection.execute(statement, {"rows": document(rows)})
        return result.scalars().all() if self.kind == "insert-new" else ()

    def _last_of_each(self, rows: Sequence[Row]) -> Sequence[Row]:
        """One row for each key: a statement may not change the same row twice, and the last one counts."""
        at = [self.columns.index(name) for name in self.key]
        return list({tuple(row[i] for i in at): row for row in rows}.values())

    def _statement(self, dialect: Dialect) -> Executable:
        statement = self._statements.get(dialect.name)
        if statement is None:
            statement = self._statements[dialect.name] = self._build(dialect)
        return statement

    def _build(self, dialect: Dialect) -> Executable:
        source, values = unpacked(dialect, self.table, self.columns)
        if self.kind == "update":
            return self._update(source, values)
        if self.kind == "delete":
            return delete(self.table).where(
                self.table.c[self.key[0]].in_(select(values[0]).select_from(source))
            )
        rows = select(*values).select_from(source).where(true())
        if self.kind == "insert":
            return insert(self.table).from_select(self.columns, rows)
        statement = _insert_for(dialect)(self.table).from_select(self.columns, rows)
        if self.kind == "insert-new":
            return statement.on_conflict_do_nothing().returning(self.table.c[self.columns[0]])
        changed = {name: statement.excluded[name] for name in self.columns if name not in self.key}
        return statement.on_conflict_do_update(index_elements=self.key, set_=changed)

    def _update(self, source: FromClause, values: Sequence[ColumnElement[Any]]) -> Executable:
        given = select(*values).select_from(source).subquery("given")
        matches = [self.table.c[name] == given.c[name] for name in self.key]
        changed = {name: given.c[name] for name in self.columns if name not in self.key}
        return update(self.table).values(changed).where(*matches)


def document(rows: Sequence[Row]) -> str:
    """The rows as a JSON document whose texts both databases take."""
    text = to_json(rows).decode()
    if "\\u0000" not in text:
        return text
    return to_json([[_without_nul(value) for value in row] for row in rows]).decode()


def _without_nul(value: str | float | None) -> str | float | None:
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


def _insert_for(dialect: Dialect) -> Callable[[Table], Any]:
    """The dialect's own insert, which knows ON CONFLICT. Each dialect is only loaded where it is used."""
    if dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert as specific
    else:
        from sqlalchemy.dialects.sqlite import insert as specific
    return specific


def unpacked(
    dialect: Dialect, table: Table, columns: Sequence[str]
) -> tuple[FromClause, list[ColumnElement[Any]]]:
    """The rows of the bound JSON document ``rows`` as something to select from, with typed columns."""
    if dialect.name == "postgresql":
        document = func.json_array_elements(cast(bindparam("rows"), JSON)).table_valued(
            "value", name="given_rows"
        )
        return document, [
            cast(literal_column(f"given_rows.value ->> {i}"), table.c[name].type).label(name)
            for i, name in enumerate(columns)
        ]
    document = func.json_each(bindparam("rows")).table_valued("value", name="given_rows")
    return document, [
        literal_column(f"given_rows.value ->> {i}", table.c[name].type).label(name)
        for i, name in enumerate(columns)
    ]
