"""A node: it joins the cluster, stands by until it gets the token, and owns the gateway until it leaves."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import structlog
from yarl import URL

from gateway.cluster.certificate import Certificate
from gateway.cluster.folders import find_unshared
from gateway.cluster.forwarder import Forwarder
from gateway.cluster.link import ANY_PORT, Accept, Link
from gateway.cluster.membership import GATEWAY, HEARTBEAT_SECONDS, LIVE_SECONDS, Membership
from gateway.cluster.programs import Programs
from gateway.cluster.token import BrokerState, BrokerUnavailableError, TokenQueue
from gateway.contract.errors import SettingsError, StoreError, StoreUnavailableError
from gateway.settings import Settings, is_loopback
from gateway.store import Fence
from gateway.store.writer import boot_time

log = structlog.get_logger("trunkline.cluster")

_QUEUE = f"trunkline.owner.{GATEWAY}"
_RENEW_SECONDS = 600.0
"""Well below the 30 minutes after which RabbitMQ closes a channel that does not acknowledge."""
_REPORT_SECONDS = 5.0
_YOUNG_SECONDS = 1.0
"""Age of a subscription up to which its token may come from a restarted broker, and not from a dead owner."""
_FROZEN_SECONDS = 8.0
"""A process that did not run for so long may have lost its ownership, and exits before it calls a
platform."""
_ANSWER_SECONDS = 20.0
"""Seconds after which a database that accepts connections and answers nothing counts as lost."""
_LOOK_SECONDS = 0.25
_UNCHECKED = "no_verify_ssl"
"""Option in the address of RabbitMQ, with which the client does not check the certificate."""
TAKEN_OVER = 75
"""Exit status of an owner that was frozen, and of a takeover that hung: a restart makes it a standby."""


class Node:
    """This process as a node of the cluster in the settings.

    ``stop`` ends the wait for ownership. ``drained`` is set while this node is to leave the work to another
    one, which waits for the token; the owner then stops the gateway and calls ``hand_over``. ``clock``
    returns seconds since 1970.
    """

    def __init__(
        self, settings: Settings, stop: asyncio.Event, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._stop = stop
        self._membership = Membership(settings, clock)
        self._token = TokenQueue(_url(settings), _QUEUE)
        self.drained = asyncio.Event()
        self._owns = False
        self._outdated = False
        """A newer version has migrated the database."""
        self._has_wrong_clock = False
        self._unsure = False
        """This node does not work, and the database may name it as the owner."""
        self._watch = _FrozenWatch()
        self._link: Link
        self._forwarder: Forwarder
        self.programs: Programs

    @asynccontextmanager
    async def joined(self) -> AsyncGenerator[None]:
        """Join the cluster; leave it, and give up ownership, when the block ends.

        Raises SettingsError, StoreError or AddressInUseError; waits up to ``store.wait_ms`` for the database
        and RabbitMQ.
        """
        self._link = Link(self._settings.cluster.address or ANY_PORT)
        certificate = await self._join()
        await self._link.open(certificate)
        try:
            async with asyncio.TaskGroup() as tasks:
                programs = Programs(self._settings.data_dir, self._membership, self._link, tasks)
                self.programs, self._link.serve = programs, programs.serve
                background = [tasks.create_task(self._token.run()), tasks.create_task(self._beat())]
                try:
                    async with Forwarder(self._settings, self._membership, self._link) as forwarder:
                        self._forwarder = forwarder
                        yield
                finally:
                    self._link.serve = None
                    programs.close()
                    for task in background:
                        task.cancel()
        finally:
            self._link.close()
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await self._membership.leave()
            # After the release is durable: the next owner then need not wait for calls of this one.
            await self._token.close()
            await self._membership.close()

    @property
    def name(self) -> str:
        """Its name."""
        return self._membership.name

    @property
    def url(self) -> str:
        """The address at which clients reach it while it stands by."""
        return self._forwarder.url

    async def own(self) -> Fence | None:
        """Stand by until this node owns the gateway. Return its fence, or None if it was stopped."""
        log.info("standing by", node=self._membership.name, link=self._link.address)
        with suppress(StoreError):  # only a warning depends on it
            if differs := await self._membership.find_differences():
                log.warning("this node has other settings than the active node", settings=differs)
        if folders := await asyncio.to_thread(find_unshared, self._settings):
            log.warning(
                "other machines may have other files in these folders: mount them there, too, or use folders "
                "below data_dir",
                folders=folders,
            )
        while not self._stop.is_set():
            if await self._is_due() and (fence := await self._take()) is not None:
                log.info("took over", node=self._membership.name, epoch=fence.statement.values[1])
                return fence
        return None

    async def hand_over(self) -> None:
        """Give up ownership once the gateway has stopped, and leave the token to another node.

        Without the database this node gives up ownership later, and the next owner waits for its last calls.
        """
        self._owns, self._unsure = False, True
        self._watch.end()
        await self._release()
        await self._token.pause()
        log.info("handed over")

    def stand_aside(self) -> socket.socket | None:
        """Pass on no new connections; return the listening socket for the gateway's own server."""
        return self._forwarder.stand_aside()

    @asynccontextmanager
    async def serving(self, accept: Accept) -> AsyncGenerator[None]:
        """Serve clients of all nodes until the block ends; ``accept`` makes the protocol of a connection.

        The gateway is ready at the beginning: record how long that took from the token on. If the node is
        drained at the end, new connections wait for the next owner.
        """
        self._link.open_to_all = self._settings.server.token is not None
        self._link.accept = accept
        seconds = asyncio.get_running_loop().time() - self._token.held_since
        await self._membership.serve(self._link.address, seconds)
        try:
            yield
        finally:
            self._link.accept = None
            with suppress(StoreError):  # the next owner writes its own address
                await self._membership.serve(None)
            if self.drained.is_set() and not self._stop.is_set():
                await self._forwarder.listen()
            else:
                self._forwarder.close()

    async def _join(self) -> Certificate:
        begun, reported = time.monotonic(), -math.inf
        while True:
            try:
                broker, _version = await self._token.connect()
                return await self._membership.join(broker, self._link)
            except StoreUnavailableError as error:
                waited = time.monotonic() - begun
                left = self._settings.store.wait_ms / 1000 - waited
                if left <= 0 or self._stop.is_set():
                    raise
                if waited - reported >= _REPORT_SECONDS:
                    reported = waited
                    log.warning("waiting to join the cluster", reason=str(error), seconds_left=round(left))
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._stop.wait()

    async def _release(self) -> None:
        with suppress(StoreUnavailableError, TimeoutError):
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._membership.release()
            self._unsure = False

    async def _is_due(self) -> bool:
        """Wait up to a second for the token; put a new one in its queue if it may be lost.

        A drained node does not wait for the token, and neither does one that could not use it.
        """
        if self._unsure:
            # Otherwise other nodes would wait for this one, which is alive but not active.
            await self._release()
        if self._outdated or self._has_wrong_clock:
            await self._token.pause()
        elif self.drained.is_set():
            await self._token.pause()
            with suppress(StoreUnavailableError):
                await self._membership.set_drained()
        else:
            self._token.resume()
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                async with asyncio.TaskGroup() as tasks:
                    waits = [tasks.create_task(event.wait()) for event in (self._token.held, self._stop)]
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                    for wait in waits:
                        wait.cancel()
        if self._token.held.is_set():
            return True
        with suppress(StoreUnavailableError):
            if self._token.connected and await self._membership.may_republish():
                await self._token.put()
        return False

    async def _take(self) -> Fence | None:
        """Take over with the token that this node holds. Return None if the owner turns out to live."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS) as waiting:
                if await self._owner_lives():
                    log.info("the owner lives; handing the token back")
                    await self._membership.spare_owner()
                    await self._token.hand_back()
                    await asyncio.sleep(2 * HEARTBEAT_SECONDS)
                    return None
                # This machine may have been suspended since its last heartbeat.
                await self._beat_once()
                if self._has_wrong_clock or await self._read_outdated():
                    await self._token.hand_back()
                    return None
                self._unsure = True
                fence = await self._membership.take()
                waiting.reschedule(None)  # a migration may take long
                await self._membership.migrate(fence)
        except TimeoutError:
            # What it sent may still arrive. Without its connection the server does not commit that.
            log.critical("the database does not answer; this process exits, and another node takes over")
            os._exit(TAKEN_OVER)
        except StoreUnavailableError as error:
            # A node without the database cannot work; another one may.
            log.warning("cannot take over; handing the token back", reason=str(error))
            await self._token.hand_back()
            await asyncio.sleep(2 * HEARTBEAT_SECONDS)
            return None
        self._owns, self._unsure = True, False
        self.drained.clear()
        self._watch.start()
        return fence

    async def _owner_lives(self) -> bool:
        """Return whether the token came from a restarted broker, while its owner still works.

        A restarted broker gives the token to the first subscriber, which hands it back, and then to the next
        one. The owner is one soon, too.
        """
        loop = asyncio.get_running_loop()
        is_young = loop.time() - self._token.subscribed_at <= _YOUNG_SECONDS
        owner = await self._membership.find_owner()
        if not (is_young or owner.was_spared):
            return False
        if owner.heartbeat is None or owner.heartbeat > LIVE_SECONDS:
            return False
        if owner.start_id == self._membership.start_id:
            return False  # this node does not work: the database did not take its release yet
        deadline, before = loop.time() + 3 * HEARTBEAT_SECONDS, owner.heartbeat
        while loop.time() < deadline:
            await asyncio.sleep(HEARTBEAT_SECONDS / 4)
            owner = await self._membership.find_owner()
            if owner.heartbeat is not None and owner.heartbeat < before:
                return True
            before = owner.heartbeat or before
        return False

    async def _beat(self) -> None:
        """Renew the heartbeat each second, and the held token every ten minutes."""
        renewed_at = -math.inf
        while True:
            with suppress(StoreUnavailableError):
                await self._beat_once()
                await self._membership.set_subscribed(self._token.connected)
                await follow_certificate(self._membership, self._link, self._settings.limits.drain_seconds)
                await self._read_drain()
                await self._read_outdated()
                await self.programs.check()
            now = time.monotonic()
            if self._token.held.is_set() and now - renewed_at > _RENEW_SECONDS:
                with suppress(BrokerUnavailableError):
                    await self._token.put()
                    renewed_at = now
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _beat_once(self) -> None:
        """Renew the heartbeat, and report a clock that is wrong, or right again. Raises SettingsError."""
        membership = self._membership
        if not await membership.beat():
            raise SettingsError(
                f"cluster.name: another node took the name {membership.name!r}; "
                "give each node a name of its own"
            )
        if membership.has_wrong_clock == self._has_wrong_clock:
            return
        self._has_wrong_clock = membership.has_wrong_clock
        if self._has_wrong_clock:
            log.error(
                "the clock of this machine is wrong: this node does not take over until it is right again; "
                "synchronize it with the database's, for example with chrony",
                seconds_ahead=round(membership.clock_seconds, 1),
                works=self._owns,
            )
        else:
            log.info("the clock of this machine is right again", works=self._owns)

    async def _read_outdated(self) -> bool:
        """Return whether this version is too old for the database. Then it passes clients on, and no more."""
        if not self._outdated and await self._membership.is_outdated():
            log.error(
                "a newer version has migrated the database: install it here, too; this node only stands by"
            )
            self._outdated = True
        return self._outdated

    async def _read_drain(self) -> None:
        """Set ``drained`` as the database has it. An owner that lost the token cannot pass it on."""
        if not await self._membership.is_drained():
            self.drained.clear()
        elif not self.drained.is_set() and (not self._owns or self._token.held.is_set()):
            log.info("asked to leave the work to another node", works=self._owns)
            self.drained.set()


async def follow_certificate(membership: Membership, link: Link, drain_seconds: float) -> None:
    """Let a link use the certificate that the database has now; record it once no connection has another.

    Raises StoreError. To be called each second.
    """
    certificate, recorded = await membership.find_certificate()
    try:
        await link.open(certificate, drain_seconds)
    except OSError as error:
        log.error("cannot use the new certificate of the cluster yet", reason=str(error))
        return
    if link.settled and (certificate.other or not recorded):
        await membership.use_certificate(certificate)


async def inspect_broker(settings: Settings) -> BrokerState:
    """Return the state of the RabbitMQ in the settings. Raises SettingsError or StoreError."""
    queue = TokenQueue(_url(settings), _QUEUE)
    try:
        return await queue.inspect()
    finally:
        await queue.close()


def _url(settings: Settings) -> str:
    """Return the address of RabbitMQ. Raises SettingsError if this cluster is not possible."""
    url = settings.cluster.url or ""
    if not settings.store_url.startswith("postgres"):
        raise SettingsError("store.url: a cluster needs PostgreSQL; set it, or remove cluster.url")
    if is_loopback(urlsplit(url).hostname or ""):
        return url
    if url.startswith("amqp://"):
        raise SettingsError(
            "cluster.url: amqp:// sends the password in clear; use amqps:// for a RabbitMQ on another machine"
        )
    if _UNCHECKED in URL(url).query:
        raise SettingsError(
            f"cluster.url: with {_UNCHECKED} any server can get the password; remove it, and name the file "
            "of a private CA: ?cafile=/path/to/ca.pem"
        )
    return url


class _FrozenWatch:
    """A thread that ends the process when it has not run for a while, such as after SIGSTOP or a suspension.

    In a thread: the event loop may first continue what it was about to send.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()

    def start(self) -> None:
        self._ended = threading.Event()
        threading.Thread(target=self._run, args=(self._ended,), name="frozen-watch", daemon=True).start()

    def end(self) -> None:
        self._ended.set()

    def _run(self, ended: threading.Event) -> None:
        seen = boot_time()
        while not ended.wait(_LOOK_SECONDS):
            if (now := boot_time()) - seen > _FROZEN_SECONDS:
                log.critical("this process did not run for a while; it exits, and another node continues")
                os._exit(TAKEN_OVER)
            seen = now
