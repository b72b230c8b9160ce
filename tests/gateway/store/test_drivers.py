"""The writer's drivers: transactions in one round trip, and what becomes of those that are cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Literal

import psycopg
import pytest
from sqlalchemy import Connection, make_url, select, text

from gateway.contract.errors import StoreError
from gateway.store import Store
from gateway.store import schema as t
from gateway.store.drivers import BEGIN, COMMIT, Driver, driver_of
from gateway.store.engine import open_engine
from gateway.store.writes import Statement, Write

PUT = Write("insert", 10, t.cursor, "channel account shard value", key="channel account shard")
NEW = Write("insert-new", 11, t.cursor, "channel account shard value", key="channel account shard")

PREPARED = Statement("SELECT statement FROM pg_prepared_statements", ())


def put(channel: str, value: str = "1") -> tuple[Write, tuple[str, ...]]:
    return PUT, (channel, "a", "", value)


async def channels(store: Store) -> set[str]:
    return await store.read(lambda c: set(c.execute(select(t.cursor.c.channel)).scalars()))


async def test_refusals_between_writes_leave_the_prepared_statements_usable(
    store: Store, fatal: list[BaseException]
):
    """The statements are prepared within a transaction that is refused, and within ones that are not."""
    for n in range(12):
        await store.write(put(f"{n}"))
        with pytest.raises(StoreError, match="refused"):
            await store.write(put(f"{n}"))
        assert await store.write((NEW, (f"{n}", "a", "", "1")), (NEW, (f"new {n}", "a", "", "1"))) == {
            f"new {n}"
        }
    assert await channels(store) == {f"{new}{n}" for n in range(12) for new in ("", "new ")}
    assert fatal == []


async def test_a_batch_larger_than_all_buffers_is_written_and_read_back(store: Store):
    """The server answers while it is still being sent to, and neither waits for the other."""
    value = "x" * 200_000
    units = [store.write((NEW, (f"{n} {'long key ' * 100}", "a", "", value))) for n in range(150)]
    assert len(frozenset[str]().union(*await asyncio.gather(*units))) == 150


def run(url: str, *, threshold: int | None) -> list[str]:
    """Run a transaction eight times. Return the prepared statements of the connection then."""
    engine = open_engine(url)
    with engine.connect() as connection:
        raw = connection.connection.driver_connection
        assert isinstance(raw, psycopg.Connection)
        raw.prepare_threshold = threshold
        driver = driver_of(connection)
        for n in range(8):
            assert driver.run([BEGIN, Statement("SELECT $1::text", (n,)), COMMIT]) == [str(n)]
        found = driver.run([PREPARED])
        connection.invalidate()
    engine.dispose()
    return found


@pytest.mark.parametrize(("threshold", "statements"), [(5, 3), (100, 0), (None, 0)])
def test_statements_are_prepared_as_often_as_psycopg_is_set_to(
    postgres_url: str, threshold: int | None, statements: int
):
    assert len(run(postgres_url, threshold=threshold)) == statements


def test_a_commit_that_the_server_does_not_confirm_is_an_error(postgres_url: str):
    engine = open_engine(postgres_url)
    with engine.connect() as connection:
        driver = driver_of(connection)
        driver.run([BEGIN])
        with pytest.raises(psycopg.errors.UndefinedTable):
            driver.run([Statement("SELECT 1 FROM nowhere", ())])
        with pytest.raises(psycopg.InternalError, match="ROLLBACK"):
            driver.run([COMMIT])
        connection.invalidate()
    engine.dispose()


Moment = Literal["in the request", "before the result", "in the result"]


class Cable:
    """A way to the server that is cut at a moment of the next transaction after ``cut_at`` is set."""

    def __init__(self, port: int) -> None:
        self.cut_at: Moment | None = None
        self._port = port

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on the bytes of one connection, both ways."""
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)

        def cut() -> None:
            for end in (writer, server_writer):
                end.transport.abort()

        def request(data: bytes) -> bytes:
            return data[: len(data) // 2] if self.cut_at == "in the request" else data

        def result(data: bytes) -> bytes:
            return data[: len(data) // 2] if self.cut_at == "in the result" else data

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pass_on(reader, server_writer, request, cut))
            tasks.create_task(self._pass_on(server_reader, writer, result, cut))

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        kept: Callable[[bytes], bytes],
        cut: Callable[[], None],
    ) -> None:
        is_result = kept.__name__ == "result"
        try:
            while data := await reader.read(1 << 20):
                if is_result and self.cut_at == "before the result":
                    cut()
                    return
                part = kept(data)
                writer.write(part)
                await writer.drain()
                if len(part) < len(data):
                    cut()
                    return
            writer.close()
        except ConnectionError:
            cut()


@asynccontextmanager
async def cabled(url: str) -> AsyncGenerator[tuple[Cable, str]]:
    """Run a cable to the server of a database. Yield it with the address of the database through it."""
    target = make_url(url)
    cable = Cable(target.port or 5432)
    server = await asyncio.start_server(cable.connect, "127.0.0.1", 0)
    async with server:
        through = target.set(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        yield cable, through.render_as_string(hide_password=False)


@pytest.mark.parametrize("moment", ["in the request", "before the result", "in the result"])
async def test_a_server_that_is_lost_within_a_commit_is_fatal_and_nothing_is_acknowledged(
    postgres_url: str, fatal: list[BaseException], moment: Moment
):
    async with cabled(postgres_url) as (cable, url):
        store = await Store.open_when_available(url, "full", fatal.append, 10, asyncio.Event())
        for n in range(8):
            await store.write(put(f"before {n}"))
        cable.cut_at = moment
        units = [store.submit([put(name)]) for name in ("a", "b")]
        outcomes = await asyncio.gather(*units, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StoreError, StoreError]
        assert len(fatal) == 1
        with pytest.raises(StoreError, match="the gateway stops writing"):
            await store.write(put("c"))
        await store.close()
    reopened = Store.open(postgres_url, "full", fatal.append)
    # It must not be reported as failed: the server had the whole transaction, and only its word was lost.
    expected = set[str]() if moment == "in the request" else {"a", "b"}
    assert await channels(reopened) - {f"before {n}" for n in range(8)} == expected
    await reopened.close()


async def test_a_backend_that_is_ended_within_a_commit_is_fatal(
    postgres_url: str, fatal: list[BaseException]
):
    store = Store.open(postgres_url, "full", fatal.append)
    engine = open_engine(postgres_url)

    def end_waiting(connection: Connection) -> None:
        """End the writer's backend as soon as it waits for a lock."""
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = :name"
        while not (pids := connection.execute(text(waiting), {"name": engine.url.database}).scalars().all()):
            pass
        connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pids[0]})

    # Each look is a separate transaction: within one, the server repeats what it answered first.
    looking = engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as holder, looking.connect() as connection:
        holder.execute(text("LOCK TABLE cursor IN ACCESS EXCLUSIVE MODE"))
        ending = asyncio.to_thread(end_waiting, connection)
        write = store.write(put("a"))
        outcomes = await asyncio.gather(ending, write, return_exceptions=True)
        holder.rollback()
    assert isinstance(outcomes[1], StoreError)
    assert [type(error).__name__ for error in fatal] == ["AdminShutdown"]
    engine.dispose()
    await store.close()


async def test_a_reader_whose_connection_was_ended_reads_again(postgres_url: str, fatal: list[BaseException]):
    store = Store.open(postgres_url, "full", fatal.append)
    await store.write(put("a"))
    pid = await store.read(lambda c: c.execute(text("SELECT pg_backend_pid()")).scalar_one())
    await store.write()
    engine = open_engine(postgres_url)
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
    engine.dispose()
    assert await channels(store) == {"a"}
    assert fatal == []
    await store.close()


async def test_a_reader_leaves_a_server_that_hangs(postgres_url: str, fatal: list[BaseException]):
    store = Store.open(postgres_url, "full", fatal.append)
    store.longest_wait = 0.05
    with pytest.raises(StoreError, match="exceeded the statement timeout"):
        await store.read(lambda c: c.execute(text("SELECT pg_sleep(60)")).scalar())
    assert await channels(store) == set()
    assert fatal == []
    await store.close()


async def test_a_query_of_a_reader_is_one_round_trip(postgres_url: str, fatal: list[BaseException]):
    """It runs outside of a transaction, so that it needs neither BEGIN nor ROLLBACK."""
    store = Store.open(postgres_url, "full", fatal.append)
    query = text("SELECT pg_current_xact_id_if_assigned(), now() = statement_timestamp()")
    for _ in range(3):
        [(_, alone)] = [tuple(row) for row in await store.read(lambda c: c.execute(query).all())]
        assert alone
    await store.close()


def test_each_engine_has_its_driver(database_url: str):
    engine = open_engine(database_url)
    with engine.connect() as connection:
        driver: Driver = driver_of(connection)
        assert driver.dialect.name == engine.dialect.name
        assert driver.run([BEGIN, Statement("SELECT 1 UNION ALL SELECT 2", ()), COMMIT]) in (
            [1, 2],
            ["1", "2"],
        )
        driver.rollback()
        connection.invalidate()
    engine.dispose()
