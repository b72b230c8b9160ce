"""Only the owner of the gateway commits: each transaction checks its epoch, under a lock."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, create_engine, make_url, text

from gateway.app import Gateway
from gateway.cluster import certificate
from gateway.cluster.link import ANY_PORT, Link
from gateway.cluster.membership import GATEWAY, SETTLED_SECONDS, Membership
from gateway.contract.channel import Address
from gateway.contract.errors import SettingsError, StoreError, StoreUnavailableError
from gateway.contract.messages import Message, TextPart
from gateway.pacing import Limit, Pacer
from gateway.session import Session, Sessions
from gateway.session.feed import Feed
from gateway.session.frames import Replayed
from gateway.store import Fence, Op, Store
from gateway.store.drivers import BEGIN, FencedError
from gateway.store.engine import lock, open_engine
from gateway.store.writer import boot_time
from gateway.store.writes import audit_op
from tests.gateway.cluster.nodes import settings_of

pytestmark = pytest.mark.postgres
BROKER = "rabbit@one"


class Nodes:
    """Members of one cluster, and their stores."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        self._joined: list[Membership] = []
        self._links: list[Link] = []
        self._stores: list[Store] = []
        self.fatal: list[BaseException] = []

    async def join(
        self,
        name: str,
        broker: str = BROKER,
        clock: Callable[[], float] = time.time,
        address: str = ANY_PORT,
    ) -> Membership:
        member = Membership(settings_of(self._folder, self._url, name), clock)
        self._joined.append(member)
        link = Link(address)
        self._links.append(link)
        await member.join(broker, link)
        return member

    async def open(self, fence: Fence) -> Store:
        stop = asyncio.Event()
        store = await Store.open_when_available(self._url, "full", self.fatal.append, 0, stop, fence)
        self._stores.append(store)
        return store

    def audited(self) -> list[str]:
        engine = create_engine(self._url)
        with engine.connect() as connection:
            found = connection.execute(text("SELECT action FROM audit ORDER BY action")).scalars().all()
        engine.dispose()
        return list(found)

    async def close(self) -> None:
        for store in self._stores:
            await store.close()
        for link in self._links:
            link.close()
        for member in self._joined:
            await member.close()


@pytest.fixture
async def nodes(tmp_path: Path, postgres_url: str) -> AsyncIterator[Nodes]:
    made = Nodes(tmp_path, postgres_url)
    yield made
    await made.close()


def note(action: str) -> Op:
    return audit_op("test", action, "")


async def session_of(sessions: Sessions) -> Session:
    return await sessions.get_or_create("s", channel="test", owner="", address=Address("test", "", ""))


async def test_an_owner_commits_until_another_node_takes_over(nodes: Nodes) -> None:
    first, second = await nodes.join("one"), await nodes.join("two")
    old = await nodes.open(await first.take())
    await old.write(note("before"))
    new = await nodes.open(await second.take())
    with pytest.raises(StoreError):
        await old.write(note("after"))
    assert [type(error) for error in nodes.fatal] == [FencedError]
    await new.write(note("new"))
    assert nodes.audited() == ["before", "new"]


async def test_an_idle_owner_notices_that_another_node_took_over(nodes: Nodes) -> None:
    first, second = await nodes.join("one"), await nodes.join("two")
    await nodes.open(await first.take())
    await second.take()
    async with asyncio.timeout(30):
        while not nodes.fatal:
            await asyncio.sleep(0.05)
    assert isinstance(nodes.fatal[0], FencedError)


@pytest.mark.parametrize("loaded", [False, True])
async def test_a_reader_gets_no_number_from_a_node_that_was_followed(nodes: Nodes, *, loaded: bool) -> None:
    first, second = await nodes.join("one"), await nodes.join("two")
    old = await nodes.open(await first.take())
    stale = await session_of(Sessions(old))
    new = await nodes.open(await second.take())
    await (await session_of(Sessions(new))).save()
    if loaded:  # with later numbers than the other node has
        stale = await session_of(Sessions(old))
    feed = Feed()
    with pytest.raises(StoreError):
        await stale.follow(feed, 0)
    feed.close(StoreError("closed"))
    with pytest.raises(StoreError, match="closed"):
        await feed.take()


async def test_a_reader_gets_no_number_of_the_node_that_took_over(nodes: Nodes) -> None:
    first, second = await nodes.join("one"), await nodes.join("two")
    old = await nodes.open(await first.take())
    made = await session_of(Sessions(old))
    message = Message(session_id="s", role="user", parts=(TextPart("hi"),))
    await made.add_message(message, [])
    stale, feed = await Sessions(old).find("s"), Feed()
    await stale.follow(feed, made.seq)
    assert [event.frame for event in await feed.take()] == [Replayed()]
    new = await nodes.open(await second.take())
    working = await Sessions(new).find("s")
    await working.replace_message(replace(message, parts=(TextPart("hello"),)), [])
    await stale.follow(feed, made.seq)
    shown = await feed.take()
    assert [event.frame for event in shown] == [Replayed()]
    assert shown[0].seq < working.seq


async def test_a_platform_is_called_only_after_a_recent_commit_as_the_owner(nodes: Nodes) -> None:
    first, second = await nodes.join("one"), await nodes.join("two")
    store = await nodes.open(await first.take())
    await store.confirm_owner()
    commits = store.writer.commits
    await store.confirm_owner()
    assert store.writer.commits == commits
    # As after a freeze.
    store.writer.confirmed_at -= 3
    await store.confirm_owner()
    assert store.writer.commits == commits + 1
    await second.take()
    store.writer.confirmed_at -= 3
    with pytest.raises(StoreError):
        await store.confirm_owner()


async def test_a_node_that_froze_while_it_took_over_calls_no_platform(nodes: Nodes) -> None:
    """It woke before its first commit as the owner, and another node took over meanwhile."""
    first, second = await nodes.join("one"), await nodes.join("two")
    taken = await first.take()
    await second.take()
    store = await nodes.open(taken)
    with pytest.raises(StoreError):
        await store.confirm_owner()


async def test_a_call_that_waited_for_a_rate_limit_is_not_made_after_a_takeover(
    nodes: Nodes, tmp_path: Path, postgres_url: str
) -> None:
    first, second = await nodes.join("one"), await nodes.join("two")
    gateway = Gateway(settings_of(tmp_path, postgres_url, "one"), on_fatal=nodes.fatal.append)
    gateway.fence = await first.take()
    pacer, made = Pacer({"all": Limit(1, 0.5)}), list[str]()

    async def call() -> None:
        async with pacer.turn("all"):
            made.append("call")

    async with gateway.running():
        await call()
        waiting = asyncio.create_task(call())
        await second.take()
        gateway.parts.store.writer.confirmed_at -= 3
        with pytest.raises(StoreError):
            await waiting
    assert made == ["call"]


async def test_an_owner_that_writes_nothing_learns_that_another_node_took_over(nodes: Nodes) -> None:
    """Else its clients see what there was before, until a message is written to it."""
    first, second = await nodes.join("one"), await nodes.join("two")
    store = await nodes.open(await first.take())
    watching = asyncio.create_task(store.watch_owner())
    await second.take()
    async with asyncio.timeout(60):
        await watching
    assert [type(error) for error in nodes.fatal] == [FencedError]


async def test_a_gateway_of_a_cluster_watches_its_ownership(
    nodes: Nodes, tmp_path: Path, postgres_url: str
) -> None:
    gateway = Gateway(settings_of(tmp_path, postgres_url, "one"))
    gateway.fence = await (await nodes.join("one")).take()
    async with gateway.running():
        names = [task.get_name() for task in asyncio.all_tasks()]
    assert "ownership" in names


@asynccontextmanager
async def commit_under_way(url: str, fence: Fence) -> AsyncIterator[Connection]:
    """A transaction of the owner that has checked its epoch and is not committed yet."""
    statement = fence.statement.text.replace("$1", "%s").replace("$2", "%s")
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(statement, fence.statement.values)
        yield connection
    engine.dispose()


async def until_it_waits(taking: asyncio.Task[Fence], url: str) -> None:
    """Return once a takeover waits for a lock. It fails if the takeover does not wait."""
    waiting = create_engine(url)
    query = text(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    with waiting.connect() as connection:
        while not taking.done() and not connection.execute(query).scalar_one():
            connection.rollback()
            await asyncio.sleep(0.01)
    waiting.dispose()
    assert not taking.done()


async def test_a_takeover_waits_for_a_commit_of_the_owner(nodes: Nodes, postgres_url: str) -> None:
    first, second = await nodes.join("one"), await nodes.join("two")
    async with commit_under_way(postgres_url, await first.take()):
        taking = asyncio.create_task(second.take())
        await until_it_waits(taking, postgres_url)
    assert (await taking).statement.values == (GATEWAY, 2)


async def test_a_node_does_not_take_over_from_one_that_has_just_migrated_the_database(
    nodes: Nodes, postgres_url: str
) -> None:
    newer, older = await nodes.join("one"), await nodes.join("two")
    async with commit_under_way(postgres_url, await newer.take()) as migrating:
        taking = asyncio.create_task(older.take())
        await until_it_waits(taking, postgres_url)
        migrating.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreUnavailableError, match="a newer version has migrated the database"):
        await taking
    assert (await older.find_owner()).name == "one"


async def test_a_node_that_freezes_within_a_transaction_frees_its_lock(postgres_url: str) -> None:
    engine = open_engine(postgres_url)
    for locking, limit in (("shared", "5s"), ("exclusive", "0")):
        held = lock(engine, locking)
        with held.connect() as connection:
            found = connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one()
            connection.rollback()
        assert found == limit
        held.release()
    engine.dispose()


async def test_calls_of_an_owner_that_did_not_leave_are_waited_for(nodes: Nodes) -> None:
    first, second = await nodes.join("one"), await nodes.join("two")
    assert (await first.take()).settled_at <= boot_time()
    begun = boot_time()
    store = await nodes.open(await second.take())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await store.wait_for_earlier_owner()
    assert begun + SETTLED_SECONDS <= (await first.take()).settled_at <= boot_time() + SETTLED_SECONDS
    # It leaves in order, but so soon that calls of the one before may still be under way.
    await first.leave()
    assert (await second.take()).settled_at > boot_time()


async def test_calls_of_an_owner_that_left_in_order_are_not_waited_for(nodes: Nodes) -> None:
    first, second = await nodes.join("one"), await nodes.join("two")
    await first.take()
    await first.leave()
    assert (await second.take()).settled_at <= boot_time()


async def test_half_a_commit_of_a_frozen_owner_does_not_prevent_a_takeover(
    nodes: Nodes, postgres_url: str
) -> None:
    first, second = await nodes.join("one"), await nodes.join("two")
    fence = await first.take()
    address = make_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with closing(psycopg.connect(address)) as half, closing(psycopg.connect(address)) as backup:
        backup.execute("SELECT FROM ownership")
        half.pgconn.enter_pipeline_mode()
        for statement in (BEGIN, fence.statement):
            values = [str(value).encode() for value in statement.values]
            half.pgconn.send_query_params(statement.text.encode(), values)
        while half.pgconn.flush():
            await asyncio.sleep(0.01)
        async with asyncio.timeout(25):
            while True:
                # Not at once: a commit that is slow to arrive is waited for.
                with suppress(StoreUnavailableError):
                    taken = await second.take()
                    break
        backup.execute("SELECT FROM ownership")
    assert taken.statement.values == (GATEWAY, 2)


async def test_one_node_replaces_a_lost_token_and_none_while_the_owner_lives(nodes: Nodes) -> None:
    first, second = await nodes.join("one"), await nodes.join("two")
    assert [await first.may_republish(), await second.may_republish()] == [True, False]
    await first.take()
    assert not await second.may_republish()


@pytest.mark.parametrize("age", [0.0, 3.0])
async def test_a_node_joins_again_although_a_heartbeat_of_its_killed_process_was_under_way(
    nodes: Nodes, postgres_url: str, age: float
) -> None:
    killed = await nodes.join("one")
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        # Later it is so old that the process no longer counts as live.
        connection.execute(text(f"UPDATE node SET heartbeat_at = clock_timestamp() - interval '{age} s'"))
    engine.dispose()
    joining = asyncio.create_task(nodes.join("one"))
    if not age:
        await asyncio.sleep(1)
        assert await killed.beat()
    assert await (await joining).beat()
    assert not await killed.beat()


async def test_the_first_node_may_take_its_time_to_make_the_certificate(
    nodes: Nodes, postgres_url: str
) -> None:
    engine = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    idle = text(
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' "
        "AND datname = current_database() AND state_change < clock_timestamp() - interval '6 s'"
    )
    joining = asyncio.create_task(nodes.join("one"))
    while (maker := process_of(certificate.__file__)) is None:
        await asyncio.sleep(0.005)
    os.kill(maker, signal.SIGSTOP)
    with engine.connect() as connection:
        while not joining.done() and not connection.execute(idle).scalar_one():
            await asyncio.sleep(0.05)
    os.kill(maker, signal.SIGCONT)
    assert await (await joining).beat()
    engine.dispose()


def process_of(file: str) -> int | None:
    """The child of this process that runs a file."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (folder / "cmdline").read_bytes().split(b"\0")
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if file.encode() in command and int(parent) == os.getpid():
                return int(folder.name)
    return None


async def test_a_joining_node_whose_connection_ends_may_try_again(nodes: Nodes, postgres_url: str) -> None:
    await nodes.join("one")
    engine = create_engine(postgres_url)
    watching = engine.execution_options(isolation_level="AUTOCOMMIT")
    end = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    with engine.connect() as locking, watching.connect() as connection:
        locking.execute(text("LOCK TABLE alembic_version"))
        joining = asyncio.create_task(nodes.join("two"))
        while not joining.done() and connection.execute(end).first() is None:
            await asyncio.sleep(0.01)
        with pytest.raises(StoreUnavailableError):
            await joining
    engine.dispose()


async def test_live_nodes_need_one_broker(nodes: Nodes) -> None:
    await nodes.join("one")
    with pytest.raises(SettingsError, match=r"cluster\.url: leads to the RabbitMQ 'rabbit@other'.*\(one\)"):
        await nodes.join("two", "rabbit@other")


async def test_a_node_whose_clock_differs_is_refused(nodes: Nodes) -> None:
    with pytest.raises(SettingsError, match="the clock of this machine is 30 s apart"):
        await nodes.join("one", clock=lambda: time.time() + 30)


async def test_a_lost_connection_is_reopened(nodes: Nodes, postgres_url: str) -> None:
    member = await nodes.join("one")
    engine = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
    engine.dispose()
    with pytest.raises(StoreError):
        await member.beat()
    assert await member.beat()
