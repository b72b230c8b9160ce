"""The tables of a cluster: which nodes live, and which of them owns the gateway.

PostgreSQL alone decides ownership. Each change of owner raises the epoch, and each commit of the owner checks
its epoch under a row lock. All times are the server's.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
import structlog
from msgspec import Struct
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    DateTime,
    Engine,
    Float,
    Integer,
    MetaData,
    Row,
    Table,
    Text,
    inspect,
    text,
)
from sqlalchemy.exc import DatabaseError
from sqlalchemy.schema import CreateColumn

from gateway.cluster.certificate import Certificate, new_certificate
from gateway.cluster.fingerprint import Fingerprint, differences, fingerprint
from gateway.cluster.link import Link, is_local
from gateway.contract.errors import SettingsError, StoreError, StoreLockedError, StoreUnavailableError
from gateway.settings import Settings
from gateway.store import Fence, migrate, open_locked
from gateway.store import engine as engines
from gateway.store.writer import boot_time
from gateway.store.writes import Statement
from gateway.version import VERSION

T = TypeVar("T")

log = structlog.get_logger("trunkline.cluster")

_REVISIONS = tuple(migrate.revisions())
"""The revisions that this process can use. Read now: another version may be installed while it runs."""

metadata = MetaData()
_CLUSTER = Table(
    "cluster",
    metadata,
    Column("one", Integer, primary_key=True),
    Column("id", Text, nullable=False),
    Column("broker", Text, nullable=False),
    Column("certificate", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("other_certificate", Text, nullable=False, server_default=""),
    Column("other_key", Text, nullable=False, server_default=""),
    Column("step", Integer, nullable=False, server_default="0"),
)
"""``step`` counts the steps of all rotations of the certificate; see ``advance_rotation``."""
_NODE = Table(
    "node",
    metadata,
    Column("name", Text, primary_key=True),
    Column("start_id", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("machine", Text, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False),
    Column("heartbeat_at", DateTime(timezone=True), nullable=False),
    Column("address", Text, nullable=False),
    Column("settings", Text, nullable=False),
    Column("revision", Text, nullable=False, server_default=""),
    Column("boot_id", Text, nullable=False, server_default=""),
    Column("certificate_step", Integer),
    Column("clock_seconds", Float, nullable=False, server_default="0"),
)
"""``revision`` is the newest schema that a node can work with, ``boot_id`` names its machine until that is
started again. ``certificate_step`` is the last step of a rotation that a node has done; older versions know
none. ``clock_seconds`` is how far a wrong clock is ahead of the database's, and 0 for one that is right. A
column that is added needs a default, or to be nullable."""
_OWNERSHIP = Table(
    "ownership",
    metadata,
    Column("name", Text, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("node", Text),
    Column("start_id", Text),
    Column("address", Text),
    Column("since", DateTime(timezone=True), nullable=False),
    Column("released", Boolean, nullable=False),
    Column("republished_at", DateTime(timezone=True), nullable=False),
)
"""Owners by what they own; so far that is the whole gateway."""
_DRAIN = Table(
    "drain",
    metadata,
    Column("start_id", Text, primary_key=True),
    Column("done", Boolean, nullable=False),
)
"""Processes that are to hand over, or have done so, and do not take over again. A restart ends that, since it
changes the start id."""
_SUBSCRIBER = Table("subscriber", metadata, Column("start_id", Text, primary_key=True))
"""Processes that hold the token or wait for it. The broker does not show those that wait."""
_TAKEOVER = Table(
    "takeover",
    metadata,
    Column("name", Text, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("seconds", Float, nullable=False),
)
"""The last takeover after which the gateway was ready, and how long it took."""

GATEWAY = "gateway"
HEARTBEAT_SECONDS = 1.0
LIVE_SECONDS = 5.0
"""Age of the last heartbeat up to which a node counts as live."""
SETTLED_SECONDS = 13.0
"""Seconds after which no call of an earlier owner can reach a platform: a call begins within 2 s of a commit,
and lasts 10 s at most."""
MOST_CLOCK_SECONDS = 2.0
"""Seconds that a node's clock and the database's may be apart. Beyond, it neither joins nor takes over."""
JOINING = 0x636C7573746572
"""Advisory lock that is held while a node joins; see ``lock_requests``."""
_STEPS = 3
"""Steps of a rotation of the certificate."""
_ID_FILE = "cluster.id"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LIVE = f"heartbeat_at > clock_timestamp() - interval '{LIVE_SECONDS} s'"
_FENCE = (
    "SELECT 1 FROM (SELECT 1/count(*) AS owned FROM "
    "(SELECT 1 FROM ownership WHERE name = $1 AND epoch = $2 FOR SHARE) own) checked WHERE owned < 0"
)
"""Divides by zero, and so ends the transaction, unless the row still has this epoch. The lock makes a
takeover wait for the commit: without it an old owner could commit after the new one has read the inbox."""

_LOCK_MS = 6_000
_STUCK = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity a JOIN pg_locks l USING (pid) "
    "WHERE l.granted AND l.relation = CAST('ownership' AS regclass) AND a.datname = current_database() "
    "AND l.mode IN ('RowShareLock', 'RowExclusiveLock') "
    "AND a.usename = current_user AND pid <> pg_backend_pid() AND a.wait_event = 'ClientRead' "
    "AND a.state_change < clock_timestamp() - interval '5 s'"
)
"""Ends the sessions that keep the row although their client sent nothing for 5 s, such as half a commit of a
node that froze; those that only read, such as a backup, keep none. The server's own timeout begins only when
it has all that the client sends at once."""


NodeState = Literal["starting", "active", "standby", "draining", "drained", "outdated", "wrong_clock", "gone"]


class NodeRow(Struct, frozen=True):
    """One node. The owner is ``active``, the others stand by (``standby``).

    A node that took over is ``starting`` until it is ready. One that is to hand over is ``draining``, and
    ``drained`` once it only stands by. One whose version is too old for the database is ``outdated``: it
    passes clients on, and never takes over. One that stands by with a ``wrong_clock`` does not take over
    until the clock is right again. One without a recent heartbeat is ``gone``.

    ``started_at`` and ``heartbeat_at`` are in ISO 8601, ``heartbeat_age`` is in seconds. The active node
    also has: since when, the number of its takeover, and how many seconds that took from the token until the
    gateway was ready. ``differs`` has the keys of the settings that differ from those
    of the active node. ``clock_seconds`` is how far its clock is ahead of the database's, negative if it is
    behind; 0 if that is within the 2 s that are allowed.
    """

    name: str
    state: NodeState
    version: str
    machine: str
    started_at: str
    heartbeat_at: str
    heartbeat_age: float
    owner_since: str | None = None
    epoch: int | None = None
    takeover_seconds: float | None = None
    differs: Sequence[str] = ()
    clock_seconds: float = 0.0


class Owner(NamedTuple):
    """The owner of the gateway: its name, and its heartbeat's age in seconds.

    ``address`` is where it serves clients, once it does. ``was_spared`` is set if another node has just
    handed the token back, since this one lives.
    """

    name: str | None
    start_id: str | None
    heartbeat: float | None
    address: str | None
    was_spared: bool


class Neighbor(NamedTuple):
    """A live node: its name, its process, the address of its link, and whether it runs on a given machine."""

    name: str
    start_id: str
    address: str
    is_there: bool


class Rotation(NamedTuple):
    """The state of the rotation of the certificate: the step, and the nodes by what they did.

    Live nodes that have not done the step are ``waiting``. Those in ``gone`` do it once they read the
    database again. Live nodes of a version that knows no rotation are ``older``.
    """

    step: int
    waiting: Sequence[str]
    gone: Sequence[str]
    older: Sequence[str]

    @property
    def is_done(self) -> bool:
        """Return whether all live nodes use one certificate, and accept no other."""
        return self.step % _STEPS == 0 and not self.waiting


class Membership:
    """One node's entry in the tables, on its own connection that holds the shared lock of the database.

    A lost connection is reopened by the next call. ``clock`` returns seconds since 1970.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self.name = settings.cluster.node
        self._clock = clock
        self.start_id = uuid.uuid4().hex
        self._settings = settings
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._release: Callable[[], None] = lambda: None
        self._settled_at = 0.0
        """The time (``boot_time``) from which no call of earlier owners can reach a platform any more."""
        # One thread, so that a cancelled caller does not leave the connection to the next in mid-transaction.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cluster")
        self.clock_seconds = 0.0
        """The least time by which this machine's clock was ahead of the database's at the last heartbeat."""

    async def join(self, broker: str, link: Link) -> Certificate:
        """Enter the cluster, after the checks that keep two clusters or two equal nodes apart.

        ``broker`` is the name of the RabbitMQ cluster, ``link`` this node's end of the link. Returns the
        certificate of the cluster. Raises SettingsError with key and remedy, or StoreError.
        """
        await asyncio.to_thread(self._create_or_migrate)
        await self._run(create_tables)
        if await self._is_taken():
            raise SettingsError(
                f"cluster.name: a live node of this cluster is already named {self.name!r}; "
                "give each node a name of its own"
            )
        return await self._run(lambda connection: self._enter(connection, broker, link))

    def _create_or_migrate(self) -> None:
        """Create or migrate the database, unless other nodes use it: then its next owner migrates it."""
        url, durability = self._settings.store_url, self._settings.durability
        engine = engines.open_engine(url, durability)
        try:
            found = migrate.current(engine)
        except DatabaseError as error:
            raise engines.open_error(engine, error) from None
        finally:
            engine.dispose()
        if found == migrate.head():
            return
        try:
            with open_locked(url, durability) as base:
                migrate.upgrade(base.engine)
        except StoreLockedError:
            if found is None:
                raise  # it is being created
            if found not in migrate.revisions():
                raise StoreError(
                    f"the database is at revision {found}, and this version supports up to {migrate.head()}: "
                    "other nodes run a newer version; install it here, too"
                ) from None
            log.info("this node migrates the database when it takes over", revision=found, to=migrate.head())

    async def migrate(self, fence: Fence) -> None:
        """Migrate the database of this owner. Live nodes of the older version do not take over again.

        Raises StoreError; then the database is as it was.
        """
        await asyncio.to_thread(self._migrate, fence)

    def _migrate(self, fence: Fence) -> None:
        engine = engines.open_engine(self._settings.store_url, self._settings.durability)
        try:
            if migrate.head() != _REVISIONS[-1]:
                raise StoreError("another version was installed while this node ran; start it again")
            if (found := migrate.current(engine)) == migrate.head():
                return
            with engine.begin() as connection:
                connection.execute(text("SET LOCAL statement_timeout = 0"))
                connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = '30s'"))
                # Locked until the end, so that no other node takes over in the middle.
                own = "SELECT 1 FROM ownership WHERE name = :name AND epoch = :epoch FOR SHARE"
                name, epoch = fence.statement.values
                if connection.execute(text(own), {"name": name, "epoch": epoch}).first() is None:
                    raise StoreUnavailableError("another node took over")
                log.info("migrating the database", revision=found, to=migrate.head())
                migrate.run_migrations(connection)
        except DatabaseError as error:
            raise engines.open_error(engine, error) from None
        finally:
            engine.dispose()

    async def is_outdated(self) -> bool:
        """Return whether a newer version has migrated the database, so that this one cannot work with it."""
        return await self._run(_read_revision) not in _REVISIONS

    async def _is_taken(self) -> bool:
        """Return whether a live process has this name.

        Then its heartbeat is renewed twice. That of a killed predecessor may be renewed once, by what it had
        sent.
        """
        last, renewals = await self._run(self._find_heartbeat), 0
        deadline = time.monotonic() + 3 * HEARTBEAT_SECONDS
        while last is not None and time.monotonic() < deadline:
            await asyncio.sleep(HEARTBEAT_SECONDS / 2)
            found = await self._run(self._find_heartbeat)
            if found not in (None, last):
                renewals += 1
                deadline = time.monotonic() + 3 * HEARTBEAT_SECONDS
            if renewals > 1:
                return True
            last = found
        return False

    def _find_heartbeat(self, connection: Connection) -> Row[tuple[object]] | None:
        query = f"SELECT start_id, heartbeat_at FROM node WHERE name = :name AND {_LIVE}"  # noqa: S608 - constant
        return connection.execute(text(query), {"name": self.name}).first()

    def _enter(self, connection: Connection, broker: str, link: Link) -> Certificate:
        lock_requests(connection)
        self._check_clock(connection)
        self._check_broker(connection, broker)
        self._check_addresses(connection, link)
        known = connection.execute(text("SELECT * FROM cluster")).first()
        cluster_id = uuid.uuid4().hex if known is None else known.id
        self._check_folder(cluster_id, new=known is None)
        if known is None:
            # No other node waits for a row of it.
            connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = '60s'"))
            made = new_certificate(cluster_id)
        else:
            made = _certificate(known)
        upsert = (
            "INSERT INTO cluster VALUES (1, :id, :broker, :certificate, :key) "
            "ON CONFLICT (one) DO UPDATE SET broker = :broker"
        )
        connection.execute(text(upsert), {"id": cluster_id, "broker": broker, **made._asdict()})
        enter = (
            "INSERT INTO node "
            "VALUES (:name, :start, :version, :machine, clock_timestamp(), clock_timestamp(), :address, "
            ":settings, :revision, :boot, :step) "
            "ON CONFLICT (name) DO UPDATE SET start_id = :start, version = :version, machine = :machine, "
            "started_at = clock_timestamp(), heartbeat_at = clock_timestamp(), address = :address, "
            "settings = :settings, revision = :revision, boot_id = :boot, certificate_step = :step"
        )
        named = {
            "revision": _REVISIONS[-1],
            "boot": read_boot_id(),
            "name": self.name,
            "start": self.start_id,
            "version": VERSION,
            "address": link.address,
            **self._uses(made),
        }
        connection.execute(text(enter), {**named, "machine": socket.gethostname()})
        for table in (_DRAIN.name, _SUBSCRIBER.name):
            stale = f"DELETE FROM {table} WHERE start_id NOT IN (SELECT start_id FROM node)"  # noqa: S608 - a constant
            connection.execute(text(stale))
        owned = (
            "INSERT INTO ownership VALUES (:name, 0, NULL, NULL, NULL, clock_timestamp(), true, 'epoch') "
            "ON CONFLICT DO NOTHING"
        )
        connection.execute(text(owned), {"name": GATEWAY})
        return made

    def _uses(self, certificate: Certificate) -> dict[str, object]:
        """Return what other nodes are to know once this one uses a certificate."""
        written = msgspec.json.encode(fingerprint(self._settings, certificate.key)).decode()
        return {"start": self.start_id, "step": certificate.step, "settings": written}

    def _check_broker(self, connection: Connection, broker: str) -> None:
        row = connection.execute(text("SELECT broker FROM cluster")).first()
        live_nodes = f"SELECT name FROM node WHERE {_LIVE} AND name <> :name"  # noqa: S608 - a constant
        others = connection.execute(text(live_nodes), {"name": self.name}).scalars()
        if row is not None and row.broker != broker and (live := ", ".join(others)):
            raise SettingsError(
                f"cluster.url: leads to the RabbitMQ {broker!r}, but the live nodes ({live}) use "
                f"{row.broker!r}; all nodes need the same one"
            )

    def _check_addresses(self, connection: Connection, link: Link) -> None:
        """Check that nodes on different machines can reach one another."""
        query = (
            f"SELECT name, machine, address FROM node WHERE {_LIVE} AND machine <> :machine "  # noqa: S608 - a constant
            "ORDER BY name"
        )
        for other in connection.execute(text(query), {"machine": socket.gethostname()}):
            if link.is_local or is_local(other.address):
                whose = f"this node has {link.address}" if link.is_local else f"it has {other.address}"
                raise SettingsError(
                    f"cluster.address: node {other.name!r} runs on the machine {other.machine}, and {whose}, "
                    "which other machines cannot reach; give each node the host and a port of its machine"
                )

    @property
    def has_wrong_clock(self) -> bool:
        """Return whether this machine's clock was wrong at the last heartbeat."""
        return abs(self.clock_seconds) > MOST_CLOCK_SECONDS

    def _check_clock(self, connection: Connection) -> None:
        self._measure_clock(connection)
        if self.has_wrong_clock:
            raise SettingsError(
                f"the clock of this machine is {abs(self.clock_seconds):.0f} s apart from the database's, "
                f"and a cluster allows {MOST_CLOCK_SECONDS:.0f} s; synchronize it, for example with chrony"
            )

    def _measure_clock(self, connection: Connection) -> None:
        before = self._clock()
        now = float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
        # A slow answer, or a freeze in between, does not count as a difference.
        self.clock_seconds = max(before - now, 0) or min(self._clock() - now, 0)

    def _check_folder(self, cluster_id: str, *, new: bool) -> None:
        """Check that the data directory is the one that the other nodes use."""
        path = self._settings.data_dir / _ID_FILE
        try:
            if new:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.write_text(f"{cluster_id}\n")
            found = path.read_text().strip()
        except FileNotFoundError:
            found = None
        except OSError as error:
            raise SettingsError(f"data_dir: cannot use {path}: {error.strerror}") from None
        if found != cluster_id:
            state = "has no" if found is None else "belongs to another cluster by its"
            raise SettingsError(
                f"data_dir: {path.parent} {state} {_ID_FILE}; all nodes need one shared data directory. If "
                f"it is the right one, write {cluster_id} to {path}"
            )

    async def beat(self) -> bool:
        """Renew the heartbeat, and compare the clocks. Return False if another process has taken the name."""
        beat = "UPDATE node SET heartbeat_at = clock_timestamp(), clock_seconds = :ahead WHERE start_id = :id"

        def run(connection: Connection) -> bool:
            self._measure_clock(connection)
            ahead = self.clock_seconds if self.has_wrong_clock else 0.0
            return connection.execute(text(beat), {"ahead": ahead, "id": self.start_id}).rowcount == 1

        return await self._run(run)

    async def find_certificate(self) -> tuple[Certificate, bool]:
        """Read the certificate of the cluster, and whether it is recorded that this node uses it."""
        query = "SELECT c.*, n.certificate_step FROM cluster c LEFT JOIN node n ON n.start_id = :start"
        row = await self._run(lambda c: c.execute(text(query), {"start": self.start_id}).one())
        return _certificate(row), row.certificate_step == row.step

    async def use_certificate(self, certificate: Certificate) -> None:
        """Record that this node uses a certificate. Continue the rotation if all nodes are that far.

        Call it again each second during a rotation.
        """
        use = "UPDATE node SET certificate_step = :step, settings = :settings WHERE start_id = :start"
        lock = "SELECT pg_try_advisory_xact_lock(:id)"

        def run(connection: Connection) -> None:
            # The heartbeat does not wait for a node that joins, or a command that froze.
            if connection.execute(text(lock), {"id": JOINING}).scalar_one():
                connection.execute(text(use), self._uses(certificate))
                advance_rotation(connection)

        await self._run(run)

    async def find_differences(self) -> Sequence[str]:
        """Return the keys of the settings that are not those of the active node."""
        rows = await self._run(read_nodes)
        return next((row.differs for row in rows if row.name == self.name), ())

    async def find_neighbors(self, boot_id: str = "") -> Sequence[Neighbor]:
        """Read the other nodes that live, those on the machine with this boot id first.

        Without their own boot id they are too old to know requests for programs, and left out.
        """
        query = (
            "SELECT name, start_id, address, boot_id = :boot FROM node "  # noqa: S608 - a constant
            f"WHERE {_LIVE} AND start_id <> :start AND boot_id <> '' ORDER BY 4 DESC, name"
        )
        named = {"boot": boot_id, "start": self.start_id}
        return [Neighbor(*row) for row in await self._run(lambda c: c.execute(text(query), named).all())]

    async def find_owner(self) -> Owner:
        """Read the owner of the gateway."""
        query = (
            "SELECT o.node, o.start_id, extract(epoch FROM clock_timestamp() - n.heartbeat_at), o.address, "  # noqa: S608 - a constant
            f"o.republished_at > greatest(o.since, clock_timestamp() - interval '{LIVE_SECONDS} s') "
            "FROM ownership o LEFT JOIN node n ON n.start_id = o.start_id WHERE o.name = :name"
        )
        row = await self._run(lambda c: c.execute(text(query), {"name": GATEWAY}).one())
        return Owner(row[0], row[1], None if row[2] is None else float(row[2]), *row[3:])

    async def serve(self, address: str | None, seconds: float = 0) -> None:
        """Let the other nodes know where this one, the owner, serves clients; None if it does not.

        ``seconds`` is the time that this takeover took.
        """
        serve = "UPDATE ownership SET address = :address WHERE start_id = :start"
        record = (
            "INSERT INTO takeover SELECT name, epoch, :seconds FROM ownership WHERE start_id = :start "
            "AND address IS NOT NULL ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, "
            "seconds = excluded.seconds"
        )
        named = {"address": address, "seconds": seconds, "start": self.start_id}

        def run(connection: Connection) -> None:
            connection.execute(text(serve), named)
            connection.execute(text(record), named)

        await self._run(run)

    async def take(self) -> Fence:
        """Become the owner: raise the epoch, once the commits of the earlier owner have ended.

        Raises StoreError, also if a newer version has migrated the database meanwhile. Call ``release`` then:
        this node may own the gateway all the same.
        """
        lock = "SELECT released, start_id FROM ownership WHERE name = :name FOR UPDATE"
        take = (
            "UPDATE ownership SET epoch = epoch + 1, node = :node, start_id = :start, address = NULL, "
            "released = false, since = clock_timestamp() WHERE name = :name RETURNING epoch"
        )

        def run(connection: Connection) -> Fence:
            connection.execute(text(f"SET LOCAL lock_timeout = {_LOCK_MS}"))
            connection.execute(text(_STUCK))
            before = connection.execute(text(lock), {"name": GATEWAY}).one()
            # A migration holds the lock, too.
            if _read_revision(connection) not in _REVISIONS:
                raise StoreUnavailableError("a newer version has migrated the database")
            named = {"name": GATEWAY, "node": self.name, "start": self.start_id}
            epoch = connection.execute(text(take), named).scalar_one()
            # It was drained, but no other node is alive.
            connection.execute(text("DELETE FROM drain WHERE start_id = :start"), {"start": self.start_id})
            settled_at = boot_time() + (0 if before.released else SETTLED_SECONDS)
            return Fence(Statement(_FENCE, (GATEWAY, epoch)), settled_at)

        self._settled_at = math.inf
        fence = await self._run(run)
        self._settled_at = fence.settled_at
        return fence

    async def is_drained(self) -> bool:
        """Return whether this node has to leave the active role to a live one that can get the token."""
        query = (
            "SELECT EXISTS (SELECT 1 FROM drain WHERE start_id = :start) AND EXISTS (SELECT 1 FROM node "  # noqa: S608 - a constant
            f"JOIN subscriber USING (start_id) WHERE {_LIVE} AND start_id <> :start "
            "AND start_id NOT IN (SELECT start_id FROM drain))"
        )
        return await self._run(lambda c: bool(c.execute(text(query), {"start": self.start_id}).scalar_one()))

    async def set_subscribed(self, subscribed: bool) -> None:
        """Record whether this node holds the token or waits for it."""
        change = (
            "INSERT INTO subscriber VALUES (:start) ON CONFLICT DO NOTHING"
            if subscribed
            else "DELETE FROM subscriber WHERE start_id = :start"
        )
        await self._run(lambda c: c.execute(text(change), {"start": self.start_id}))

    async def set_drained(self) -> None:
        """Record that this node is a standby, and does not wait for the token any more."""
        done = "UPDATE drain SET done = true WHERE start_id = :start AND NOT done"
        await self._run(lambda c: c.execute(text(done), {"start": self.start_id}))

    async def may_republish(self) -> bool:
        """Return whether this node is to put a new token in the queue, because it may have been lost.

        So it may while no live node owns the gateway, every 5 s; one node wins.
        """
        claim = (
            "UPDATE ownership o SET republished_at = clock_timestamp() WHERE name = :name "  # noqa: S608 - constants
            f"AND republished_at < clock_timestamp() - interval '{LIVE_SECONDS} s' "
            f"AND NOT EXISTS (SELECT 1 FROM node n WHERE n.start_id = o.start_id AND {_LIVE})"
        )
        return await self._run(lambda c: c.execute(text(claim), {"name": GATEWAY}).rowcount == 1)

    async def spare_owner(self) -> None:
        """Record that the token returns to its queue, because the owner is alive."""
        note = "UPDATE ownership SET republished_at = clock_timestamp() WHERE name = :name"
        await self._run(lambda c: c.execute(text(note), {"name": GATEWAY}))

    async def release(self) -> None:
        """Give up ownership in order."""
        await self._run(self._release_ownership)

    async def leave(self) -> None:
        """Give up ownership in order, and leave the list of nodes."""

        def run(connection: Connection) -> None:
            self._release_ownership(connection)
            for table in (_NODE.name, _DRAIN.name, _SUBSCRIBER.name):
                leave = f"DELETE FROM {table} WHERE start_id = :start"  # noqa: S608 - a constant
                connection.execute(text(leave), {"start": self.start_id})

        await self._run(run)

    def _release_ownership(self, connection: Connection) -> None:
        release = (
            "UPDATE ownership SET node = NULL, start_id = NULL, address = NULL, released = :settled, "
            "republished_at = clock_timestamp() WHERE start_id = :start"
        )
        # This node left in order; one before it may not have, and its calls may still arrive.
        settled = boot_time() >= self._settled_at
        connection.execute(text(release), {"start": self.start_id, "settled": settled})

    async def close(self) -> None:
        """Close the connection, which frees its lock."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown()

    async def _run(self, work: Callable[[Connection], T]) -> T:
        """Run work in a transaction, in the thread. Raises StoreError."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._transact, work)

    def _transact(self, work: Callable[[Connection], T]) -> T:
        try:
            if self._connection is None:
                self._connect()
            assert self._connection is not None
            with self._connection.begin():
                return work(self._connection)
        except DatabaseError as error:
            assert self._engine is not None
            failure = engines.open_error(self._engine, error)
            self._disconnect()
            raise failure from None

    def _connect(self) -> None:
        engine = self._engine = engines.open_engine(self._settings.store_url, self._settings.durability)
        lock = engines.lock(engine, "shared")
        self._release = lock.release
        with lock.connect() as connection:
            self._connection = connection

    def _disconnect(self) -> None:
        self._release()
        if self._engine is not None:
            self._engine.dispose()
        self._release, self._connection, self._engine = (lambda: None), None, None


def read_boot_id() -> str:
    """Return the id of the kernel's start, which identifies this machine; "" if the system has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def lock_requests(connection: Connection) -> None:
    """Let nodes that join, requests to them and steps of a rotation wait for one another."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:id)"), {"id": JOINING})


def create_tables(connection: Connection) -> None:
    """Create the tables and columns that are missing, under the lock of requests."""
    # Two nodes may join an empty database at once.
    lock_requests(connection)
    metadata.create_all(connection)
    known = {name: {c["name"] for c in inspect(connection).get_columns(name)} for name in metadata.tables}
    for table in metadata.sorted_tables:
        for column in table.columns:
            if column.name not in known[table.name]:
                added = CreateColumn(column).compile(dialect=connection.dialect)
                connection.execute(text(f"ALTER TABLE {table.name} ADD COLUMN {added}"))


def _certificate(row: Row[Any]) -> Certificate:
    return Certificate(row.certificate, row.key, row.other_certificate, row.step)


def read_rotation(connection: Connection) -> Rotation:
    """Read the state of the rotation of the certificate."""
    step = connection.execute(text("SELECT step FROM cluster")).scalar_one()
    query = f"SELECT name, {_LIVE} AS live, certificate_step AS done FROM node ORDER BY name"  # noqa: S608 - a constant
    nodes = connection.execute(text(query)).all()
    # An older version that lives in a later step has joined since the first one, with the new certificate.
    behind = [n for n in nodes if (step % _STEPS == 1 if n.done is None else n.done < step)]
    return Rotation(
        step,
        waiting=[n.name for n in behind if n.live],
        gone=[n.name for n in behind if not n.live],
        older=[n.name for n in nodes if n.live and n.done is None],
    )


def advance_rotation(connection: Connection) -> Rotation:
    """Begin the next step of a rotation if all live nodes have done the last one. Return its state then.

    In the first step nodes accept the next certificate, too; in the second one they use it, and still accept
    the former one; after the third they accept no other, and have ended the connections of the former one.
    Nodes and the command call it. A node that joins, or wakes, continues at the step that it finds.
    """
    lock_requests(connection)
    found = read_rotation(connection)
    if found.step % _STEPS == 0 or found.waiting:
        return found
    if found.step % _STEPS == 1:
        # A frozen process of an older version would know the former certificate only. Without its row it
        # ends when it wakes.
        connection.execute(text("DELETE FROM node WHERE certificate_step IS NULL"))
        change = "certificate = other_certificate, key = other_key, other_certificate = certificate"
    else:
        change = "other_certificate = ''"
    take = f"UPDATE cluster SET step = step + 1, other_key = '', {change}"  # noqa: S608 - constants
    connection.execute(text(take))
    return read_rotation(connection)


def _share_key(one: Row[Any], other: Row[Any]) -> bool:
    """Return whether two nodes hashed their settings with one key, which the second step replaces."""
    steps = [getattr(row, "certificate_step", None) for row in (one, other)]
    return len({(step + 1) // _STEPS for step in steps if step is not None}) < 2


def _read_revision(connection: Connection) -> str | None:
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def read_nodes(connection: Connection) -> Sequence[NodeRow]:
    """Read all nodes by name; none where no cluster ever used the database."""
    if not inspect(connection).has_table(_DRAIN.name):
        return ()
    query = (
        f"SELECT n.*, {_LIVE} AS live, extract(epoch FROM clock_timestamp() - n.heartbeat_at) AS age, "  # noqa: S608 - a constant
        "o.since, o.epoch, t.seconds, d.done FROM node n "
        "LEFT JOIN ownership o ON o.start_id = n.start_id "
        "LEFT JOIN takeover t ON t.name = o.name AND t.epoch = o.epoch "
        "LEFT JOIN drain d ON d.start_id = n.start_id ORDER BY n.name"
    )
    rows = connection.execute(text(query)).all()
    written = {row.name: msgspec.json.decode(row.settings, type=Fingerprint) for row in rows}
    own = next((row for row in rows if row.since is not None and row.live), None)
    revision = _read_revision(connection) or ""
    return [
        NodeRow(
            row.name,
            _state(row, revision),
            row.version,
            row.machine,
            row.started_at.isoformat(timespec="seconds"),
            row.heartbeat_at.isoformat(timespec="milliseconds"),
            round(float(row.age), 3),
            None if row.since is None else row.since.isoformat(timespec="seconds"),
            row.epoch,
            row.seconds,
            ()
            if own is None or not _share_key(own, row)
            else differences(written[own.name], written[row.name]),
            round(getattr(row, "clock_seconds", 0.0), 3),
        )
        for row in rows
    ]


def _state(row: Row[Any], revision: str) -> NodeState:
    if not row.live:
        return "gone"
    # A node that has not joined since the column was added is of an older version, which says nothing.
    if (supported := getattr(row, "revision", "")) and supported < revision:
        return "outdated"
    if row.done is not None:
        return "drained" if row.done else "draining"
    if row.since is None:
        return "wrong_clock" if getattr(row, "clock_seconds", 0.0) else "standby"
    return "starting" if row.seconds is None else "active"
