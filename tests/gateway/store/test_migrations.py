"""Migrations lead exactly to the schema, once, and never back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Engine, inspect, text

from gateway.contract.errors import StoreError
from gateway.store import migrate, open_locked
from gateway.store import schema as t
from gateway.store.engine import open_engine


@pytest.fixture
def engine(empty_database_url: str) -> Iterator[Engine]:
    made = open_engine(empty_database_url)
    yield made
    made.dispose()


Way = Callable[[Connection], None]

pytestmark = [
    pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index"),
    pytest.mark.filterwarnings("ignore:autogenerate skipping metadata-specified expression-based index"),
]

both_ways = pytest.mark.parametrize("way", [migrate.create_schema, migrate.run_migrations])


@both_ways
def test_both_ways_lead_exactly_to_the_schema(engine: Engine, way: Way):
    with engine.begin() as connection:
        way(connection)
    assert migrate.upgrade(engine) is False
    with engine.connect() as connection:
        # The index of words is made by its own statements.
        opts = {
            "compare_type": True,
            "include_name": lambda name, *_: not f"{name}".startswith("search_words"),
        }
        context = MigrationContext.configure(connection, opts=opts)
        assert compare_metadata(context, t.metadata) == []


@both_ways
def test_indices_and_constraints_are_those_of_the_schema(engine: Engine, way: Way):
    with engine.begin() as connection:
        way(connection)
    found = inspect(engine)
    expressions: set[str | None] = set()
    if engine.dialect.name == "sqlite":
        # SQLAlchemy does not list indexes of expressions there.
        with engine.connect() as connection:
            query = text("SELECT name FROM sqlite_master WHERE type = 'index' AND sql LIKE '%substr(%'")
            expressions |= set(connection.execute(query).scalars())
        assert expressions == {"inbox_tail", "outbox_tail"}
    for table in t.metadata.sorted_tables:
        names = {index["name"] for index in found.get_indexes(table.name)} | expressions
        unique = {constraint["name"] for constraint in found.get_unique_constraints(table.name)}
        assert {index.name for index in table.indexes} <= names
        assert {
            c.name for c in table.constraints if c.name and "PrimaryKey" not in type(c).__name__
        } <= unique


def test_upgrading_again_changes_nothing(engine: Engine):
    migrate.upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO cursor VALUES ('c', 'a', '', '7')"))
    assert migrate.upgrade(engine) is False
    with engine.connect() as connection:
        assert connection.execute(text("SELECT value FROM cursor")).scalar_one() == "7"


def test_004_T06_what_an_older_version_kept_is_still_there(engine: Engine):
    """A database as the first version made it, without what came later."""
    with engine.begin() as connection:
        migrate.run_migrations(connection, "0001")
        connection.execute(text("INSERT INTO cursor VALUES ('c', 'a', '', '7')"))
    assert not inspect(engine).has_table("member")
    assert migrate.upgrade(engine) is True
    assert migrate.current(engine) == migrate.head()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT value FROM cursor")).scalar_one() == "7"
        assert connection.execute(text("SELECT count(*) FROM member")).scalar_one() == 0


def test_004_T06_a_migration_that_fails_changes_nothing_and_names_the_way_back(engine: Engine):
    with engine.begin() as connection:
        migrate.run_migrations(connection, "0034")
        before = {column["name"] for column in inspect(connection).get_columns("file_change")}
        connection.execute(text("ALTER TABLE file_change ADD COLUMN seq INTEGER"))
    with pytest.raises(StoreError, match=r"migration of the database failed: .*seq.*; the database is as it"):
        migrate.upgrade(engine)
    assert migrate.current(engine) == "0034"
    found = {column["name"] for column in inspect(engine).get_columns("file_change")}
    assert found == {*before, "seq"}


def test_changes_of_files_that_an_older_version_recorded_keep_their_order(engine: Engine):
    names = [c.name for c in t.sessions.columns if not c.nullable and c.server_default is None]
    session = dict.fromkeys(names, 1)
    with engine.begin() as connection:
        migrate.run_migrations(connection, "0035")
        connection.execute(
            t.sessions.insert(),
            [
                {**session, **dict.fromkeys(("channel", "owner", "address", "title"), ""), "id": id_}
                for id_ in "st"
            ],
        )
        for id_, of in (("c", "s"), ("a", "s"), ("b", "t")):
            columns = "id, session, answer, path, added, removed, diff, note, at"
            row = f"'{id_}', '{of}', 'x', 'p', 1, 0, '', '', 1"
            connection.execute(text(f"INSERT INTO file_change ({columns}) VALUES ({row})"))
    migrate.upgrade(engine)
    with engine.connect() as connection:
        numbers = text("SELECT id, seq FROM file_change ORDER BY id")
        assert [tuple(row) for row in connection.execute(numbers)] == [("a", 1), ("b", 1), ("c", 2)]


def test_an_empty_database_is_at_no_revision_and_a_new_one_at_the_newest(engine: Engine):
    assert migrate.current(engine) is None
    migrate.upgrade(engine)
    assert migrate.current(engine) == migrate.head() == migrate.revisions()[-1]


def test_the_migrations_are_one_chain_named_by_their_numbers():
    folder = Path(migrate.__file__).parent / "migrations/versions"
    found = []
    for file in sorted(folder.glob("[0-9]*.py")):
        said = dict(re.findall(r"^(\w+revision|revision) = (.+)$", file.read_text(), re.MULTILINE))
        found.append((file.name.split("_")[0], said["revision"].strip('"'), said["down_revision"].strip('"')))
    numbers = [f"{n + 1:04}" for n in range(len(found))]
    assert found == list(zip(numbers, numbers, ["None", *numbers], strict=False))


def test_a_database_of_a_newer_version_is_refused(engine: Engine):
    migrate.upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9001'"))
    with pytest.raises(StoreError, match=r"at revision 9001.*a newer Trunkline made it"):
        migrate.upgrade(engine)


def test_a_refused_database_is_let_go(empty_database_url: str, engine: Engine):
    migrate.upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9001'"))
    for _ in range(2):
        with pytest.raises(StoreError, match="9001"), open_locked(empty_database_url) as base:
            migrate.upgrade(base.engine)


@both_ways
def test_what_fails_leaves_nothing_behind(engine: Engine, way: Way):
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE turn_step (id TEXT)"))
    with pytest.raises(Exception, match="turn_step"), engine.begin() as connection:
        way(connection)
    left = set(inspect(engine).get_table_names())
    assert left - {"alembic_version"} == {"turn_step"}
    assert migrate.current(engine) is None
