"""Opening a database: its settings, its durability, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.exc import DatabaseError

from gateway.contract.errors import StoreError, StoreUnavailableError, WeakDurabilityError
from gateway.store import Store
from gateway.store.engine import connect, open_engine, open_error
from gateway.store.schema import metadata


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
        "busy_timeout": 30_000,
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
        ("sqlite:////proc/nowhere/t.db", "cannot create the directory of /proc/nowhere/t.db"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(url: str, complaint: str):
    with pytest.raises(StoreError, match=complaint):
        open_engine(url)


async def test_a_file_that_is_not_a_database_is_refused_and_left_alone(tmp_path: Path):
    path = tmp_path / "t.db"
    path.write_bytes(b"these are somebody's notes, and no database at all\n" * 100)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="file is not a database"):
        Store.open(f"sqlite:///{path}", "full", unexpected)
    assert path.read_bytes() == before


async def test_a_file_of_0_bytes_is_refused_and_left_alone(tmp_path: Path):
    path = tmp_path / "t.db"
    path.touch()
    with pytest.raises(StoreError, match=r"t.db has 0 bytes.*trunkline restore") as refused:
        Store.open(f"sqlite:///{path}", "full", unexpected)
    assert not refused.value.retryable
    assert path.stat().st_size == 0


async def test_a_log_of_a_file_that_is_gone_is_refused_and_left_alone(tmp_path: Path):
    (tmp_path / "t.db-wal").write_bytes(b"frames")
    with pytest.raises(StoreError, match=r"t.db is missing, but t.db-wal"):
        Store.open(f"sqlite:///{tmp_path}/t.db", "full", unexpected)
    assert not (tmp_path / "t.db").exists()


async def test_a_new_file_has_its_name_only_with_its_tables(tmp_path: Path):
    """What an interrupted start left is replaced; the log of it does not get into the new file."""
    for name in ("t.db.new", "t.db.new-wal"):
        (tmp_path / name).write_bytes(b"the start of something")
    seen = set[tuple[str, ...]]()
    watched = threading.Thread(target=_watch, args=(tmp_path / "t.db", seen))
    watched.start()
    store = Store.open(f"sqlite:///{tmp_path}/t.db", "full", unexpected)
    watched.join()
    await store.close()
    assert seen == {tuple(sorted([*metadata.tables, "alembic_version"]))}
    assert not await asyncio.to_thread(lambda: list(tmp_path.glob("*.new*")))
    assert (tmp_path / "t.db").stat().st_mode & 0o777 == 0o600


def _watch(path: Path, seen: set[tuple[str, ...]]) -> None:
    """See which tables a file has as soon as it is there."""
    while not path.exists():
        pass
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        # The tables of the full-text index belong to SQLite.
        seen.add(tuple(name for (name,) in tables if not name.startswith("search_words")))


async def test_a_database_whose_tables_are_gone_is_refused(database_url: str):
    store = Store.open(database_url, "full", unexpected)
    await store.close()
    engine = open_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE inbox"))
    for _ in range(2):
        with pytest.raises(StoreError, match=r"lacks inbox; restore a backup") as refused:
            Store.open(database_url, "full", unexpected)
    assert not refused.value.retryable
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM alembic_version"))
    with pytest.raises(StoreError, match="has an empty alembic_version"):
        Store.open(database_url, "full", unexpected)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE alembic_version"))
    with pytest.raises(StoreError, match="but no alembic_version"):
        Store.open(database_url, "full", unexpected)
    engine.dispose()


async def test_a_directory_that_cannot_be_written_is_refused():
    with pytest.raises(StoreError, match=r"cannot write /proc/t.db.lock"):
        Store.open("sqlite:////proc/t.db", "full", unexpected)


async def test_a_directory_in_the_place_of_the_file_is_refused(tmp_path: Path):
    (tmp_path / "t.db").mkdir()
    with pytest.raises(StoreError, match="it is a directory"):
        Store.open(f"sqlite:///{tmp_path}/t.db", "full", unexpected)


def test_a_server_that_is_not_there_is_named_without_its_password():
    with pytest.raises(StoreError, match="cannot open") as refused:
        open_engine("postgresql://me:hunter2@127.0.0.1:1/db")
    assert "hunter2" not in str(refused.value)
    assert "127.0.0.1:1" in str(refused.value)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_store_every_text_is_refused(postgres_url: str, encoding: str):
    target = make_url(postgres_url)
    name = f"{target.database}_other"
    server = create_engine(target, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(
            text(
                f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
            )
        )
        try:
            url = target.set(database=name).render_as_string(hide_password=False)
            with pytest.raises(StoreError, match=f"{name} has the encoding {encoding}.*ENCODING 'UTF8'"):
                connect(open_engine(url, "relaxed"))
        finally:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    server.dispose()


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


async def test_a_query_that_takes_too_long_is_refused_and_ends_nothing(
    postgres_url: str, fatal: list[BaseException]
):
    target = make_url(postgres_url).update_query_dict({"options": "-cstatement_timeout=50"})
    store = Store.open(target.render_as_string(hide_password=False), "full", fatal.append)
    with pytest.raises(StoreError, match="exceeded the statement timeout"):
        await store.read(lambda c: c.execute(text("SELECT pg_sleep(60)")).scalar())
    assert await store.read(lambda c: c.execute(text("SELECT 1")).scalar()) == 1
    assert fatal == []
    await store.close()


def test_a_server_that_does_not_answer_is_not_waited_for_without_end(postgres_url: str):
    engine = open_engine(postgres_url)
    with engine.connect() as connection:
        assert connection.execute(text("SHOW statement_timeout")).scalar() == "30s"
        assert connection.execute(text("SHOW jit")).scalar() == "off"
        parameters = connection.connection.dbapi_connection.info.get_parameters()
    assert (parameters["connect_timeout"], parameters["tcp_user_timeout"]) == ("5", "3000")
    engine.dispose()


def test_a_transaction_in_which_the_process_did_not_run_may_be_tried_again(postgres_url: str):
    engine = open_engine(postgres_url)
    with engine.connect() as connection, engine.connect() as other:
        connection.execute(text("SET idle_in_transaction_session_timeout = '10ms'"))
        own = connection.execute(text("SELECT pg_backend_pid()")).scalar()
        alive = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
        while other.execute(alive, {"pid": own}).scalar():
            other.rollback()
        with pytest.raises(DatabaseError) as ended:
            connection.execute(text("SELECT 1"))
    assert isinstance(open_error(engine, ended.value), StoreUnavailableError)
    engine.dispose()


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


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def use(file: Path) -> None:
    """Open a database, and write to it."""
    engine = open_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS x (y)"))
        connection.execute(text("INSERT INTO x VALUES (1)"))
        beside = [file.with_name(f"{file.name}{end}") for end in ("", "-wal", "-shm")]
        assert [mode(each) for each in beside] == [0o600] * 3
    engine.dispose()


def test_other_users_cannot_read_the_database_nor_its_new_folder(tmp_path: Path):
    use(tmp_path / "data/trunkline.db")
    assert mode(tmp_path / "data") == 0o700


def test_an_open_folder_and_database_of_an_older_version_are_closed(tmp_path: Path):
    use(tmp_path / "data/trunkline.db")
    (tmp_path / "data").chmod(0o755)
    (tmp_path / "data/trunkline.db").chmod(0o644)
    use(tmp_path / "data/trunkline.db")
    assert mode(tmp_path / "data") == 0o700


def test_a_folder_with_other_files_keeps_its_mode(tmp_path: Path):
    tmp_path.chmod(0o755)
    (tmp_path / "notes.txt").write_text("not ours")
    use(tmp_path / "trunkline.db")
    assert mode(tmp_path) == 0o755


async def test_a_server_that_is_lost_while_the_database_is_opened_counts_as_unavailable(
    postgres_url: str,
) -> None:
    target = make_url(postgres_url)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, far = await asyncio.open_connection(target.host, target.port or 5432)

        async def ask() -> None:
            while b"SHOW" not in (data := await reader.read(1 << 16)):
                far.write(data)
            writer.transport.abort()
            far.transport.abort()

        async def answer() -> None:
            while data := await there.read(1 << 16):
                writer.write(data)

        await asyncio.gather(ask(), answer())

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
        through = target.set(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        url = through.update_query_dict({"sslmode": "disable"}).render_as_string(hide_password=False)
        with pytest.raises(StoreUnavailableError):
            await asyncio.to_thread(open_engine, url)
