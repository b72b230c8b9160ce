"""Loading sessions: together what is asked for together, and a failure reaches everybody who waits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import Connection, event

from gateway.channel import Address
from gateway.contract.errors import StoreError
from gateway.session.loader import SessionLoader
from gateway.session.log import SessionRow
from gateway.store import Store


def never(error: BaseException) -> None:
    raise error


@pytest.fixture
async def store(tmp_path: Path):
    store = Store.open(f"sqlite:///{tmp_path / 't.db'}", "full", never)
    yield store
    await store.close()


async def put(store: Store, *ids: str) -> None:
    rows = [SessionRow(id=i, channel="c", owner="o", address=Address("c"), created_at=1) for i in ids]
    await store.write(*[row.put() for row in rows])


async def test_many_at_once_are_one_query_for_each_table(store: Store) -> None:
    await put(store, "s-7", "s-8")
    asked: list[str] = []
    event.listen(store.engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
    loader = SessionLoader(store, 10)
    found = await asyncio.gather(*(loader.load(f"s-{n}") for n in (*range(150), 7)))
    assert [stored[0].id for stored in found if stored is not None] == ["s-7", "s-8", "s-7"]
    assert len(asked) == 4, "BEGIN, the sessions, the ends of their logs, messages for the next turns"


async def test_more_than_one_query_takes_are_all_answered(store: Store) -> None:
    await put(store, *(f"s-{n}" for n in range(450)))
    loader = SessionLoader(store, 10)
    found = await asyncio.gather(*(loader.load(f"s-{n}") for n in range(450)))
    assert [stored and stored[0].id for stored in found] == [f"s-{n}" for n in range(450)]


async def test_one_who_gives_up_does_not_take_it_from_the_others(store: Store) -> None:
    await put(store, "s")
    loader = SessionLoader(store, 10)
    async with asyncio.TaskGroup() as tasks:
        first, second = tasks.create_task(loader.load("s")), tasks.create_task(loader.load("s"))
        await asyncio.sleep(0)
        first.cancel()
    assert first.cancelled()
    assert second.result() is not None


async def test_a_failure_reaches_all_and_the_next_read_is_a_new_one(store: Store) -> None:
    await put(store, "s")
    loader = SessionLoader(store, 10)
    broken = True

    def fail(connection: Connection) -> None:
        if broken:
            raise OSError("the disk is gone")

    event.listen(store.engine, "begin", fail)
    results = await asyncio.gather(loader.load("s"), loader.load("t"), return_exceptions=True)
    assert [type(result) for result in results] in ([OSError, OSError], [StoreError, StoreError])
    broken = False
    assert await loader.load("s") is not None
