"""The token of ownership: one message in a quorum queue of RabbitMQ with a single active consumer.

The broker gives it to one node at a time, and to the next one within milliseconds when a node dies. It has no
authority of its own: its receiver raises the epoch in PostgreSQL.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import aio_pika
import structlog
from aio_pika.exceptions import (
    CONNECTION_EXCEPTIONS,
    AuthenticationError,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    ProbableAuthenticationError,
)
from aiormq.exceptions import ChannelAccessRefused
from pamqp.common import FieldValue
from yarl import URL

from gateway.contract.errors import SettingsError, StoreUnavailableError, is_cancellation_requested

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage

log = structlog.get_logger("trunkline.cluster")

_CONNECT_SECONDS = 5.0
_SUBSCRIBE_SECONDS = 10.0
_HEARTBEAT_SECONDS = 4
"""The broker closes the connection of a frozen node after about two and a half of these."""
_AGAIN_SECONDS = 1.0
_PROBE_SECONDS = 3.0
_NO_QUEUE = "trunkline.doctor"
_ARGUMENTS: dict[str, FieldValue] = {
    "x-queue-type": "quorum",
    "x-single-active-consumer": True,
    "x-max-length": 1,
}
_OLDEST_BROKER = (3, 10)


class BrokerUnavailableError(StoreUnavailableError):
    """RabbitMQ cannot be reached at the moment."""


class BrokerState(NamedTuple):
    """Name and version of a RabbitMQ. A ``problem`` with the queue or its messages has an ``advice``."""

    name: str
    version: str
    problem: str = ""
    advice: str = ""


class _Connection(aio_pika.Connection):
    """Connection that is closed by its owner alone.

    The original starts a task when it is collected. In a thread without an event loop that ends with a
    warning on the terminal.
    """

    def __del__(self) -> None:
        pass


class TokenQueue:
    """The queue with one token, and this node's subscription to it.

    ``run`` subscribes, again after each loss. While the node holds the token, ``held`` is set. A newer token
    that arrives replaces the older one, which is acknowledged.
    """

    def __init__(self, url: str, queue: str) -> None:
        self._url = str(URL(url).update_query(heartbeat=_HEARTBEAT_SECONDS))
        self._shown = str(URL(url).with_password(None))
        self._queue = queue
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._message: AbstractIncomingMessage | None = None
        self._lost = asyncio.Event()
        self._wanted = asyncio.Event()
        self._wanted.set()
        self.held = asyncio.Event()
        self.held_since = 0.0
        """Time of the event loop at which the node got the token."""
        self.subscribed_at = 0.0
        """Time of the event loop at which the present subscription began."""

    @property
    def connected(self) -> bool:
        """Return whether the node is subscribed."""
        return self._channel is not None and not self._channel.is_closed

    async def connect(self) -> tuple[str, str]:
        """Connect and return the name and the version of the broker's cluster.

        Raises BrokerUnavailableError, or SettingsError if a retry cannot help.
        """
        if self._connection is None:
            try:
                async with _answering(_CONNECT_SECONDS + 1):
                    self._connection = await aio_pika.connect(
                        self._url, timeout=_CONNECT_SECONDS, connection_class=_Connection
                    )
            except (AuthenticationError, ProbableAuthenticationError):
                raise SettingsError(f"cluster.url: RabbitMQ at {self._shown} rejected the login") from None
            except (*CONNECTION_EXCEPTIONS, TimeoutError) as error:
                if (mistake := self._mistake(error)) is not None:
                    raise SettingsError(mistake) from None
                reason = str(error) or type(error).__name__
                raise BrokerUnavailableError(f"cannot reach RabbitMQ at {self._shown}: {reason}") from None
        transport = self._connection.transport
        assert transport is not None, "an open connection has a transport"
        facts: dict[str, Any] = transport.connection.server_properties
        version = _text(facts.get("version"))
        if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < _OLDEST_BROKER:
            raise SettingsError(
                f"cluster.url: RabbitMQ {version} is too old; version 3.10 or later is needed"
            )
        return _text(facts.get("cluster_name")), version

    def _mistake(self, error: BaseException) -> str | None:
        """Return what is wrong with the certificates, if a retry cannot help."""
        # The client hides errors of the connection in its own; those of reading the file arrive as they are.
        unread = isinstance(error, ssl.SSLError) and error.library == "X509"
        if unread or isinstance(error, FileNotFoundError | PermissionError):
            return (
                f"cluster.url: the file of cafile cannot be used: {error}: {self._shown}; name a file in PEM "
                "that the gateway can read"
            )
        if isinstance(cause := error.__cause__, ssl.SSLCertVerificationError):
            return (
                f"cluster.url: the certificate of RabbitMQ at {self._shown} is not accepted: "
                f"{cause.verify_message.rstrip('.')}; use a host name that is in the certificate, and name "
                "the file of a private CA at the end of the address: ?cafile=/path/to/ca.pem"
            )
        return None

    async def inspect(self) -> BrokerState:
        """Check the queue, which need not exist yet, and whether the broker accepts messages; change nothing.

        Raises BrokerUnavailableError or SettingsError.
        """
        name, version = await self.connect()
        assert self._connection is not None
        try:
            channel = await self._connection.channel(publisher_confirms=True)
            try:
                await channel.declare_queue(self._queue, passive=True, timeout=_CONNECT_SECONDS)
            except ChannelNotFoundEntity:
                channel = await self._connection.channel(publisher_confirms=True)
            else:
                # Equal arguments change nothing, and others are refused.
                await channel.declare_queue(self._queue, durable=True, arguments=_ARGUMENTS)
            # To no queue: they are only confirmed. A broker in alarm reads nothing after the first message.
            for _ in range(2):
                await channel.default_exchange.publish(
                    aio_pika.Message(b""), _NO_QUEUE, mandatory=False, timeout=_PROBE_SECONDS
                )
        except ChannelPreconditionFailed as error:
            problem = f"the queue {self._queue} was declared with other arguments: {error}"
            return BrokerState(name, version, problem, "stop all nodes, delete the queue, and start them")
        except ChannelAccessRefused as error:
            advice = (
                f"let the user configure, write and read {self._queue}, and write to the default exchange"
            )
            return BrokerState(name, version, f"RabbitMQ refuses its user: {error}", advice)
        except TimeoutError:
            problem = (
                "RabbitMQ accepts no messages, as with a memory or disk alarm; no node can renew its token"
            )
            return BrokerState(
                name, version, problem, "see `rabbitmq-diagnostics alarms`; free memory or disk space"
            )
        except CONNECTION_EXCEPTIONS as error:
            raise BrokerUnavailableError(f"lost the connection to RabbitMQ: {error}") from None
        return BrokerState(name, version)

    async def run(self) -> None:
        """Stay subscribed until cancelled, but for pauses."""
        reported = False
        while True:
            await self._wanted.wait()
            try:
                await self._subscribe()
                reported = False
                await self._lost.wait()
            except (*CONNECTION_EXCEPTIONS, TimeoutError, BrokerUnavailableError, SettingsError) as error:
                if not reported:
                    log.warning("no connection to RabbitMQ; retrying each second", reason=str(error))
                reported = True
            await self.close()
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _subscribe(self) -> None:
        await self.connect()
        assert self._connection is not None
        # One for each subscription: an earlier channel may report its end late.
        lost = self._lost = asyncio.Event()

        def lose(*_: object) -> None:
            lost.set()

        async with _answering(_SUBSCRIBE_SECONDS):
            channel = self._channel = await self._connection.channel(publisher_confirms=True)
            channel.close_callbacks.add(lose)
            # When the queue is deleted, the broker ends the subscription and leaves the channel open.
            consuming = await channel.get_underlay_channel()
            consuming.on_consumer_cancel_callbacks.add(lose)
            await channel.set_qos(prefetch_count=2)
            queue = await channel.declare_queue(self._queue, durable=True, arguments=_ARGUMENTS)
            self.subscribed_at = asyncio.get_running_loop().time()

            async def receive(message: AbstractIncomingMessage) -> None:
                if channel is self._channel:  # else the broker gives the token to another subscriber
                    await self._receive(message)

            await queue.consume(receive)

    async def _receive(self, message: AbstractIncomingMessage) -> None:
        older, self._message = self._message, message
        if not self.held.is_set():
            self.held_since = asyncio.get_running_loop().time()
        self.held.set()
        if older is not None:
            await older.ack()

    async def put(self) -> None:
        """Publish a token, and return once the broker has stored it. Raises BrokerUnavailableError."""
        if self._channel is None or self._channel.is_closed:
            raise BrokerUnavailableError("not connected to RabbitMQ")
        try:
            token = aio_pika.Message(b"token", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            async with _answering(_CONNECT_SECONDS):
                await self._channel.default_exchange.publish(token, self._queue)
        except (*CONNECTION_EXCEPTIONS, TimeoutError) as error:
            raise BrokerUnavailableError(f"cannot publish to RabbitMQ: {error}") from None

    async def pause(self) -> None:
        """Return the token, if this node holds it, and do not wait for it until ``resume``."""
        self._wanted.clear()
        await self.hand_back()

    def resume(self) -> None:
        """Wait for the token again, after a pause."""
        self._wanted.set()

    async def hand_back(self) -> None:
        """Return the token to the queue, which gives it to the next subscriber; ``run`` subscribes again."""
        await self._unsubscribe()
        self._lost.set()

    async def _unsubscribe(self) -> None:
        self._message = None
        self.held.clear()
        channel, self._channel = self._channel, None
        if channel is not None and not channel.is_closed:
            with suppress(*CONNECTION_EXCEPTIONS, TimeoutError):
                async with _answering(_CONNECT_SECONDS):
                    await channel.close()

    async def close(self) -> None:
        """Close the connection; a held token goes to the next subscriber."""
        await self._unsubscribe()
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*CONNECTION_EXCEPTIONS, TimeoutError):
                async with _answering(_CONNECT_SECONDS):
                    await connection.close()


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@asynccontextmanager
async def _answering(seconds: float) -> AsyncGenerator[None]:
    """Bound the wait for the broker's answers. Raises TimeoutError, or ConnectionError if it fell silent.

    Then the client cancels the calls of the connection, and that would end our own task, unnoticed.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except asyncio.CancelledError as error:
        if is_cancellation_requested(error):
            raise
        raise ConnectionAbortedError("RabbitMQ does not answer") from None
