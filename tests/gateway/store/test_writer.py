"""The writer: commits in groups, fails one by one, and says when the database is gone."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event, make_url, select, text

from gateway.contract.channel import Address, InboundMessage, Sender
from gateway.contract.errors import StoreError
from gateway.store import Store, Writer, migrate
from gateway.store import schema as t
from gateway.store.engine import open_engine
from gateway.store.inbox import Entry
from gateway.store.writer import WriteMonitor
from gateway.store.writes import Write
from tests.gateway.clock import Time

PUT = Write("insert", 10, t.cursor, "channel account shard value", key="channel account shard")
PUT_PART = Write("insert", 11, t.parts, "id message_id type content index created_at")


def put(channel: str) -> tuple[Write, tuple[str, ...]]:
    return PUT, (channel, "a", "", "1")


async def channels(store: Store) -> set[str]:
    return await store.read(lambda c: set(c.execute(select(t.cursor.c.channel)).scalars()))


def accepted(key: str, alt: str | None = None) -> Entry:
    inbound = InboundMessage(
        session="s", dedup_key=key, alt_key=alt, address=Address("c", "acc"), sender=Sender("u"), text="Hi"
    )
    return Entry.of("c", inbound, 1)


async def test_what_was_written_can_be_read_at_once(store: Store):
    await store.write(put("a"))
    assert await channels(store) == {"a"}


async def test_what_waits_is_committed_together(store: Store):
    count = 400
    await asyncio.gather(*(store.write(put(str(n))) for n in range(count)))
    assert store.writer.units == count
    assert store.writer.commits < count / 4
    assert len(await channels(store)) == count


async def test_004_T06_a_unit_is_written_whole_or_not_at_all(store: Store):
    with pytest.raises(StoreError):
        await store.write(put("a"), put("b"), put("a"))
    assert await channels(store) == set()


async def test_a_unit_that_is_refused_does_not_spoil_the_others_of_its_batch(store: Store):
    orphan = (PUT_PART, ("p", "nobody", "text", "{}", 0, 1))
    units = [[put("a")], [put("b"), orphan], [put("c")], [put("a")], [put("d")]]
    outcomes = await asyncio.gather(*map(store.submit, units), return_exceptions=True)
    assert [isinstance(outcome, StoreError) for outcome in outcomes] == [False, True, False, True, False]
    assert await channels(store) == {"a", "c", "d"}


async def test_the_writer_continues_after_a_refusal(store: Store, fatal: list[BaseException]):
    await store.write(put("a"))
    with pytest.raises(StoreError, match="refused"):
        await store.write(put("a"))
    await store.write(put("b"))
    assert (await channels(store), fatal) == ({"a", "b"}, [])


async def test_a_value_that_the_driver_or_an_index_cannot_hold_is_refused_alone(
    store: Store, fatal: list[BaseException]
):
    """SQLite has no size limit of a key, and PostgreSQL gets every value as text."""
    bad: object = uuid.uuid4() if store.engine.dialect.name == "sqlite" else secrets.token_hex(10_000)
    units = [[put("a")], [(PUT, (bad, "a", "", "1"))], [put("b")]]
    outcomes = await asyncio.gather(*map(store.submit, units), return_exceptions=True)
    assert [isinstance(outcome, StoreError) for outcome in outcomes] == [False, True, False]
    assert (await channels(store), fatal) == ({"a", "b"}, [])


async def test_the_same_message_is_accepted_once_in_one_batch_and_in_the_next(store: Store):
    first, again, later = accepted("k"), accepted("k"), accepted("k")
    in_one = await asyncio.gather(store.write(first.accept()), store.write(again.accept()))
    assert (first.id in in_one[0], again.id in in_one[1]) == (True, False)
    assert await store.write(later.accept(), accepted("other").accept()) != frozenset()
    assert later.id not in await store.write(later.accept())


async def test_the_other_key_of_a_message_names_it_too(store: Store):
    first = accepted("k", "alt")
    assert await store.write(first.accept(), accepted("l", "alt").accept()) == {first.id}
    assert await store.write(accepted("m", "alt").accept()) == frozenset()


async def test_a_reader_sees_nothing_of_what_is_refused(store: Store):
    seen: set[str] = set()
    refused = [store.submit([put(f"{n}"), put(f"{n}")]) for n in range(20)]
    while not all(future.done() for future in refused):
        seen |= await channels(store)
    await asyncio.gather(*refused, return_exceptions=True)
    assert seen == set()


async def test_what_was_handed_in_before_the_end_is_written(database_url: str, fatal: list[BaseException]):
    store = Store.open(database_url, "full", fatal.append)
    waiting = [store.submit([put(str(n))]) for n in range(100)]
    await store.close()
    await asyncio.gather(*waiting)
    store = Store.open(database_url, "full", fatal.append)
    assert len(await channels(store)) == 100
    await store.close()


async def test_a_waiter_that_left_does_not_stop_the_write(store: Store):
    future = store.submit([put("a")])
    future.cancel()
    await store.write(put("b"))
    assert await channels(store) == {"a", "b"}


# --- the database as a whole fails ---------------------------------------------------------------------


async def test_a_full_disk_ends_the_writer_and_is_reported(tmp_path: Path, fatal: list[BaseException]):
    engine = open_engine(f"sqlite:///{tmp_path}/t.db")
    event.listen(engine, "connect", lambda c, _: c.execute("PRAGMA max_page_count = 200"))
    migrate.upgrade(engine)
    writer = Writer(engine.connect, fatal.append)
    await writer.write(put("a"))
    big = (PUT, ("big", "a", "", "x" * 1_000_000))
    units = [writer.submit([op]) for op in (big, put("b"))]
    outcomes = await asyncio.gather(*units, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreError, StoreError]
    assert reasons(fatal) == ["database or disk is full"]
    with pytest.raises(StoreError, match="the gateway stops writing"):
        await writer.write(put("c"))
    writer.close()
    with engine.connect() as connection:
        assert connection.execute(select(t.cursor.c.channel)).scalars().all() == ["a"]
    engine.dispose()


def reasons(errors: list[BaseException]) -> list[str]:
    """What the database's own driver said."""
    return [str(error) for error in errors if isinstance(error, sqlite3.Error)]


async def test_a_server_that_is_gone_ends_the_writer_and_is_reported(
    migrated_postgres_url: str, fatal: list[BaseException]
):
    store = Store.open(migrated_postgres_url, "full", fatal.append)
    await store.write(put("a"))
    end_connections(migrated_postgres_url)
    with pytest.raises(StoreError):
        await store.write(put("b"))
    assert len(fatal) == 1
    await store.close()


def end_connections(url: str) -> None:
    target = make_url(url)
    engine = create_engine(target.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
        connection.execute(text(query), {"name": target.database})
    engine.dispose()


async def test_a_database_that_another_process_locks_ends_the_writer_and_is_reported(
    tmp_path: Path, fatal: list[BaseException]
):
    store = Store.open(f"sqlite:///{tmp_path}/t.db?timeout=0.1", "full", fatal.append)
    intruder = sqlite3.connect(tmp_path / "t.db", isolation_level=None)
    intruder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError):
        await store.write(put("a"))
    assert reasons(fatal) == ["database is locked"]
    intruder.close()
    await store.close()


async def test_a_server_that_is_gone_is_noticed_without_a_write(
    migrated_postgres_url: str, fatal: list[BaseException]
):
    """The lock that keeps a second gateway out is gone with its connection."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_fatal(error: BaseException) -> None:
        fatal.append(error)
        loop.call_soon_threadsafe(told.set)

    store = Store.open(migrated_postgres_url, "full", on_fatal)
    end_connections(migrated_postgres_url)
    await told.wait()
    assert len(fatal) == 1
    await store.close()


@contextlib.contextmanager
def blocked(url: str) -> Iterator[None]:
    """Another client of the database holds a lock that no write gets past."""
    target = make_url(url)
    if target.get_backend_name() == "sqlite":
        intruder = sqlite3.connect(target.database, isolation_level=None)
        intruder.execute("BEGIN IMMEDIATE")
        yield
        intruder.close()
    else:
        engine = create_engine(target)
        with engine.connect() as connection:
            connection.execute(text("LOCK TABLE cursor IN ACCESS EXCLUSIVE MODE"))
            yield
        engine.dispose()


async def test_a_write_that_is_not_committed_is_seen_after_5_seconds_and_fatal_after_30(
    database_url: str, fatal: list[BaseException]
):
    engine, time = open_engine(database_url), Time()
    migrate.upgrade(engine)
    writer = Writer(engine.connect, fatal.append, clock=time.time)
    watch = WriteMonitor(writer, fatal.append)
    try:
        with blocked(database_url):
            done = [writer.submit([put("a")])]
            await asyncio.sleep(0)
            for passed in range(30):
                assert watch.age == passed
                assert watch.health()[0] == (passed <= 5)
                watch.check()
                done.append(writer.submit([put(f"younger {passed}")]))
                time.now += 1
            assert watch.health() == (False, "a write has been waiting for 30 s")
            assert fatal == []
            time.now += 1
            watch.check()
            assert str(fatal[0]) == "the database has not committed a write for 31 s"
        await asyncio.gather(*done)
        assert watch.health() == (True, "")
    finally:
        await asyncio.to_thread(writer.close)
        engine.dispose()


async def test_time_in_which_the_process_was_suspended_is_not_counted(
    tmp_path: Path, fatal: list[BaseException]
):
    url, time = f"sqlite:///{tmp_path}/t.db", Time()
    engine = open_engine(url)
    migrate.upgrade(engine)
    writer = Writer(engine.connect, fatal.append, clock=time.time)
    watch = WriteMonitor(writer, fatal.append)
    with blocked(url):
        done = writer.submit([put("a")])
        time.now += 3_600
        watch.check()
        assert (watch.age, fatal) == (0, [])
    await done
    await asyncio.to_thread(writer.close)
    engine.dispose()


async def test_a_file_that_was_damaged_under_the_reader_is_reported(
    tmp_path: Path, fatal: list[BaseException]
):
    store = Store.open(f"sqlite:///{tmp_path}/t.db", "full", fatal.append)
    with pytest.raises(StoreError, match="the database failed"):
        await store.read(lambda c: c.execute(text("SELECT * FROM nowhere")).all())
    assert len(fatal) == 1
    await store.close()
