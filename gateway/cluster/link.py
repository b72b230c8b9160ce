"""The link between nodes: connections that one node passes on to another, with TLS.

All nodes of a cluster have one certificate, which PostgreSQL keeps; each side accepts the other only with it,
or with a second one while they replace it.
One connection from a node to another carries all clients and programs, each as a stream (see ``streams``).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import msgspec
import structlog
from msgspec import Struct

from gateway.cluster.certificate import Certificate
from gateway.cluster.streams import ALIVE_SECONDS, PROTOCOL, Connection
from gateway.contract.errors import AddressInUseError
from gateway.settings import is_loopback

log = structlog.get_logger("trunkline.cluster")

ANY_PORT = "127.0.0.1:0"
CONNECT_SECONDS = 2.0
_REFUSED = "without server.token it takes no clients of other machines"


class ClientRequest(Struct, frozen=True, tag_field="kind", tag="client"):
    """A request to serve a client."""

    address: str


class ProgramRequest(Struct, frozen=True, tag_field="kind", tag="program"):
    """A request for the connection to a program on the machine of the node that gets it.

    ``session`` names the program's folder. ``node``, ``host`` and ``boot_id`` say where it was started, and
    ``start_id`` is that of the node that asks. Nodes refuse a kind or version that they do not know.
    """

    session: str
    node: str
    host: str
    boot_id: str
    start_id: str
    version: Literal[1] = 1


Request = ClientRequest | ProgramRequest
Accept = Callable[[], asyncio.Protocol]
Serve = Callable[[ProgramRequest], asyncio.Protocol]


class Link:
    """This node's end of the link.

    ``address`` is the host and the port at which other nodes reach it. ``accept`` makes the protocol of a
    client that another node passes on, and ``serve`` that of a connection to a program; while they are None
    such requests are refused. ``open_to_all`` is False for a gateway without a token: it takes no clients of
    other machines, although another node may. ``alive_seconds`` is the pause between two signs of life to
    another node.
    """

    open_to_all = False

    def __init__(self, address: str, *, alive_seconds: float = ALIVE_SECONDS) -> None:
        self._alive_seconds = alive_seconds
        self._host, port = _split(address)
        try:
            self._socket = listening_socket(self._host, port)
        except OSError as error:
            raise AddressInUseError(
                f"cluster.address: cannot listen on {address}: {error.strerror or error}; give an address "
                "of this machine, and a free port"
            ) from None
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        self.accept: Accept | None = None
        self.serve: Serve | None = None
        self._server: asyncio.Server | None = None
        self._connecting: ssl.SSLContext
        self._certificate: Certificate | None = None
        self._trusted: set[bytes] = set()
        self._connections: set[Connection] = set()
        self._reached: dict[str, Connection] = {}
        """Connections that this node made, by address."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def is_local(self) -> bool:
        """Return whether only nodes on this machine reach it."""
        return is_local(self.address)

    @property
    def settled(self) -> bool:
        """Return whether each connection is one of a node with a certificate that is accepted now."""
        return all(connection.retiring is None for connection in self._connections)

    async def open(self, certificate: Certificate, drain_seconds: float = 0) -> None:
        """Accept the connections of nodes that have the certificate, and be able to make some.

        Another certificate replaces it. A connection of a node that had one which is not accepted any more
        gets no new streams, and ends with the last one or after ``drain_seconds``. Raises OSError.
        """
        if certificate == self._certificate:
            return
        # New contexts also forget the TLS sessions that a client could resume.
        accepting = _context(ssl.PROTOCOL_TLS_SERVER, certificate)
        connecting = _context(ssl.PROTOCOL_TLS_CLIENT, certificate)
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self._admit, self._connections, self._trusted, self._alive_seconds),
            sock=self._socket.dup(),  # its server closes it
            ssl=accepting,
            ssl_handshake_timeout=CONNECT_SECONDS,
        )
        if self._server is not None:
            self._server.close()
            log.info("the certificate of the link is being replaced", step=certificate.step)
        self._server, self._connecting, self._certificate = server, connecting, certificate
        self._trusted.clear()
        self._trusted.update(
            ssl.PEM_cert_to_DER_cert(pem) for pem in (certificate.certificate, certificate.other) if pem
        )
        # The other end of an older connection may know this node by the certificate that it had then.
        self._reached.clear()
        for connection in [*self._connections]:
            if connection.certificate not in self._trusted:
                connection.retire(drain_seconds)

    def close(self) -> None:
        """Listen no longer, and end the connections once what was written is sent."""
        if self._server is not None:
            self._server.close()
        self._socket.close()
        for connection in [*self._connections]:
            connection.close()

    async def connect(self, address: str, request: Request, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Open a stream to the node at an address; return its transport once that node has accepted it.

        Raises OSError or TimeoutError if it has not: nothing of the stream was used then.
        """
        async with asyncio.timeout(CONNECT_SECONDS):
            connection = await self._reach(address)
            return await connection.open(msgspec.json.encode(request), protocol)

    async def _reach(self, address: str) -> Connection:
        """Return the connection to a node; make one if there is none."""
        lock = self._locks.setdefault(address, asyncio.Lock())
        async with lock:
            found = self._reached.get(address)
            if found is None or not found.usable:
                host, port = _split(address)
                _, found = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(None, self._connections, self._trusted, self._alive_seconds),
                    host,
                    port,
                    ssl=self._connecting,
                    server_hostname="",
                )
                self._reached = {known: way for known, way in self._reached.items() if way.usable}
                self._reached[address] = found
            return found

    def _admit(self, opening: bytes) -> tuple[asyncio.Protocol, dict[str, Any]]:
        """Return the protocol of a stream that another node opens. Raises ConnectionRefusedError."""
        try:
            request = msgspec.json.decode(opening, type=Request)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise ConnectionRefusedError("it does not know what the connection is for") from None
        if isinstance(request, ProgramRequest) and self.serve is not None:
            return self.serve(request), {}
        if isinstance(request, ProgramRequest) or self.accept is None:
            raise ConnectionRefusedError("it is not ready")
        if not (self.open_to_all or is_loopback(request.address)):
            raise ConnectionRefusedError(_REFUSED)
        return self.accept(), {"peername": (request.address, 0)}


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a bound socket, which its server makes listen. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


def is_local(address: str) -> bool:
    """Return whether an address of a link is reached from its own machine only."""
    return is_loopback(_split(address)[0])


def _context(kind: int, certificate: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate is the cluster's, and no other one is accepted
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols([PROTOCOL])
    context.load_verify_locations(cadata=certificate.certificate + certificate.other)
    # OpenSSL reads them from a file only.
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "pem")
        file.touch(0o600)
        file.write_text(certificate.certificate + certificate.key)
        context.load_cert_chain(file)
    return context


def _split(address: str) -> tuple[str, int]:
    found = urlsplit(f"//{address}")
    assert found.hostname is not None and found.port is not None, "the settings check addresses"  # noqa: PT018
    return found.hostname, found.port
