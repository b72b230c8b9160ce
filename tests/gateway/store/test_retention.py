"""Settled rows leave the inbox after some days; what is open or recent stays."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, event, select, text
from structlog.testing import capture_logs

from gateway.channel import Address, InboundMessage, Sender
from gateway.contract.messages import now_ms
from gateway.store import Store
from gateway.store import schema as t
from gateway.store.inbox import Entry
from gateway.store.retention import Retention
from gateway.tables.clock import TrustedClock

DAY = 86_400_000


def entry(key: str, age_days: int, now: int) -> Entry:
    inbound = InboundMessage(
        session="s", dedup_key=key, address=Address("line"), sender=Sender("u"), text="hi"
    )
    made = Entry.of("line", inbound, 1, attempts=1)
    made.received_at = at = now - age_days * DAY
    made.id = f"{at >> 16:08x}-{at & 0xFFFF:04x}{made.id[13:]}"
    return made


def unexpected(error: BaseException) -> None:
    raise AssertionError(error)


async def test_only_old_settled_rows_are_removed(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/t.db", "full", unexpected)
    now = 100 * DAY
    settled, recent, open_ = entry("settled", 40, now), entry("recent", 2, now), entry("open", 40, now)
    await store.write(settled.accept(), recent.accept(), open_.accept())
    await store.write(*settled.settle_silently(), *recent.settle_silently())
    assert await Retention(store, days=30).clean(now) == 1
    left = await store.read(lambda c: set(c.execute(select(t.inbox.c.dedup_key)).scalars()))
    assert left == {"recent", "open"}
    await store.close()


async def test_more_rows_than_fit_in_one_chunk_are_removed(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/t.db", "full", unexpected)
    now = 100 * DAY
    entries = [entry(f"m{n}", 40, now) for n in range(1_203)]
    await store.write(*(e.accept() for e in entries))
    await store.write(*(op for e in entries for op in e.settle_silently()))
    assert await Retention(store, days=30).clean(now) == 1_203
    await store.close()


async def test_the_largest_tables_are_not_read_as_a_whole(store: Store) -> None:
    now = 100 * DAY
    entries = [entry(f"m{n}", n % 60, now) for n in range(2_000)]
    await store.write(*(e.accept("done") for e in entries))
    sqlite = store.engine.dialect.name == "sqlite"
    explain = "EXPLAIN QUERY PLAN " if sqlite else "EXPLAIN "
    plans: list[str] = []

    def note(c: Any, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if statement.startswith("SELECT inbox.id"):
            plans.extend(map(str, c.exec_driver_sql(explain + statement, parameters)))

    if not sqlite:
        await store.read(lambda c: c.execute(text("ANALYZE inbox")) and None)
    event.listen(store.engine, "before_cursor_execute", note)
    assert await Retention(store, days=58).clean(now) == 33
    assert plans
    assert not any("SCAN inbox" in plan or "Seq Scan on inbox" in plan for plan in plans), plans


async def test_a_query_that_takes_too_long_does_not_end_the_gateway(
    migrated_postgres_url: str, fatal: list[BaseException]
) -> None:
    engine = create_engine(migrated_postgres_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f'ALTER DATABASE "{engine.url.database}" SET statement_timeout = 100'))
    store = Store.open(migrated_postgres_url, "full", fatal.append)

    async def clock() -> int:
        return 100 * DAY

    with engine.connect() as other, capture_logs() as logs:
        other.execution_options(isolation_level="READ COMMITTED")
        other.execute(text("LOCK TABLE inbox"))
        running = asyncio.create_task(Retention(store, days=30).run(clock, first=0))
        while not (logs or running.done()):
            await asyncio.sleep(0.01)
        other.rollback()
    assert not running.done()
    assert "statement timeout" in logs[0]["reason"]
    running.cancel()
    await store.close()
    engine.dispose()
    assert fatal == []


async def test_a_gateway_that_never_runs_for_an_hour_cleans_up_too(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/t.db", "full", unexpected)
    old = entry("old", 40, now_ms())
    await store.write(old.accept(), entry("recent", 2, now_ms()).accept())
    await store.write(*old.settle_silently())
    async with asyncio.timeout(60):
        running = asyncio.create_task(Retention(store, days=30).run(TrustedClock(store).now, first=0))
        while await store.read(
            lambda c: c.execute(select(t.inbox.c.id).where(t.inbox.c.state == "done")).first()
        ):
            await asyncio.sleep(0.01)
        running.cancel()
    await store.close()


async def test_rooms_are_kept_for_a_year_after_their_last_message(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/t.db", "full", unexpected)
    now = 1_000 * DAY
    for chat, days in (("old", 366), ("recent", 364)):
        row = {"id": chat, "channel": "c", "account": "", "chat": chat, "title": "", "group": 1}
        with store.engine.begin() as connection:
            connection.execute(t.room.insert().values({**row, "seen_at": now - days * DAY}))
    assert await Retention(store, days=30).clean(now) == 1
    assert await store.read(lambda c: list(c.execute(select(t.room.c.id)).scalars())) == ["recent"]
    await store.close()
