"""Opening a database: its settings, its durability, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from gateway.errors import StoreError, WeakDurabilityError
from gateway.store import Store
from gateway.store.engine import open_engine


def unexpected(error: BaseException) -> None:
    raise AssertionError from error


def pragmas(engine: Engine) -> dict[str, object]:
    with engine.connect() as connection:
        return {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = open_engine(f"sqlite:///{tmp_path}/t.db")
    yield made
    made.dispose()


FULL, NORMAL = 2, 1


def test_sqlite_syncs_every_commit_keeps_a_log_and_holds_to_foreign_keys(engine: Engine):
    assert pragmas(engine) == {
        "journal_mode": "wal",
        "synchronous": FULL,
        "foreign_keys": 1,
        "busy_timeout": 5_000,
    }


def test_every_connection_of_the_pool_has_them(engine: Engine):
    connections = [engine.connect() for _ in range(4)]
    try:
        levels = [c.exec_driver_sql("PRAGMA synchronous").scalar() for c in connections]
        keys = [c.exec_driver_sql("PRAGMA foreign_keys").scalar() for c in connections]
    finally:
        for connection in connections:
            connection.close()
    assert (levels, keys) == ([FULL] * 4, [1] * 4)


def test_relaxed_durability_syncs_less(tmp_path: Path):
    engine = open_engine(f"sqlite:///{tmp_path}/t.db", "relaxed")
    assert pragmas(engine)["synchronous"] == NORMAL
    engine.dispose()


def test_the_directory_of_the_file_is_made(tmp_path: Path):
    engine = open_engine(f"sqlite:///{tmp_path}/a/b/t.db")
    engine.connect().close()
    engine.dispose()
    assert (tmp_path / "a/b/t.db").is_file()


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("nonsense", "not a database address"),
        ("", "not a database address"),
        ("mysql://localhost/x", "'mysql' is not supported; use sqlite or postgresql"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("sqlite:////proc/nowhere/t.db", "cannot make the directory of /proc/nowhere/t.db"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(url: str, complaint: str):
    with pytest.raises(StoreError, match=complaint):
        open_engine(url)


async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path):
    path = tmp_path / "t.db"
    path.write_bytes(b"these are somebody's notes, and no database at all\n" * 100)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="file is not a database"):
        Store.open(f"sqlite:///{path}", "full", unexpected)
    assert path.read_bytes() == before


async def test_a_directory_that_cannot_be_written_is_refused():
    with pytest.raises(StoreError, match=r"cannot write /proc/t.db.lock"):
        Store.open("sqlite:////proc/t.db", "full", unexpected)


async def test_a_directory_in_the_place_of_the_file_is_refused(tmp_path: Path):
    (tmp_path / "t.db").mkdir()
    with pytest.raises(StoreError, match="unable to open database file"):
        Store.open(f"sqlite:///{tmp_path}/t.db", "full", unexpected)


def test_a_server_that_is_not_there_is_named_without_its_password():
    with pytest.raises(StoreError, match="cannot open") as refused:
        open_engine("postgresql://me:hunter2@127.0.0.1:1/db")
    assert "hunter2" not in str(refused.value)
    assert "127.0.0.1:1" in str(refused.value)


@pytest.mark.parametrize("how", ["database", "address"])
def test_a_server_that_may_lose_what_it_acknowledged_is_refused(postgres_url: str, how: str):
    weak = weakened(postgres_url, how)
    with pytest.raises(WeakDurabilityError, match=r"synchronous_commit = off.*relaxed"):
        open_engine(weak)
    open_engine(weak, "relaxed").dispose()


@pytest.mark.parametrize("level", ["local", "on", "remote_write"])
def test_a_server_that_syncs_its_own_disk_is_accepted(postgres_url: str, level: str):
    open_engine(weakened(postgres_url, "database", level)).dispose()


async def test_a_weak_server_can_be_used_when_that_is_accepted(postgres_url: str):
    store = Store.open(weakened(postgres_url, "database"), "relaxed", unexpected)
    assert await store.read(lambda c: c.execute(text("SHOW synchronous_commit")).scalar()) == "off"
    await store.close()


def weakened(url: str, how: str, level: str = "off") -> str:
    """The address of a database whose commits are acknowledged before they are on disk."""
    target = make_url(url)
    if how == "address":
        options = {"options": f"-csynchronous_commit={level}"}
        return target.update_query_dict(options).render_as_string(hide_password=False)
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"ALTER DATABASE {target.database} SET synchronous_commit = {level}"))
    engine.dispose()
    return url
