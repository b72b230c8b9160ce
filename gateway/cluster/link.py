"""The link between nodes: connections that one node passes on to another, with TLS.

All nodes of a cluster have one certificate, which PostgreSQL keeps; each side accepts the other only with it.
The first line of a connection is JSON: the address of a client, or a request for a program. The other node
answers with an empty line, and after that follow the bytes of both sides.
"""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import urlsplit

import msgspec
import structlog
from msgspec import Struct

from gateway.contract.errors import AddressInUseError
from gateway.settings import is_loopback

log = structlog.get_logger("trunkline.cluster")

ANY_PORT = "127.0.0.1:0"
CONNECT_SECONDS = 2.0
_LONGEST_HEAD = 512
_ACCEPTED = b"\n"
_REFUSED = b"without server.token it takes no clients of other machines"
_FIRST = datetime.datetime(2020, 1, 1)
_LAST = datetime.datetime(9999, 12, 31)


class ProgramRequest(Struct, frozen=True, tag_field="kind", tag="program"):
    """A request for the connection to a program on the machine of the node that gets it.

    ``session`` names the program's folder. ``node``, ``host`` and ``boot_id`` tell where it was started, and
    ``start_id`` is that of the node that asks. Nodes close a connection whose kind or version they do not
    know.
    """

    session: str
    node: str
    host: str
    boot_id: str
    start_id: str
    version: Literal[1] = 1


Accept = Callable[[], asyncio.Protocol]
Serve = Callable[[ProgramRequest], asyncio.Protocol]


class Certificate(NamedTuple):
    """The certificate of a cluster and its private key, as PEM."""

    certificate: str
    key: str


def new_certificate(cluster_id: str) -> Certificate:
    """Return a new certificate, which does not expire."""
    # Imported here: only the first node of a cluster needs it, and it takes 30 ms.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"trunkline {cluster_id}")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), _FIRST, _LAST)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Certificate(made.public_bytes(pem).decode(), private.decode())


class Link:
    """This node's end of the link.

    ``address`` is the host and the port at which other nodes reach it. ``accept`` makes the protocol of a
    connection that another node passes on; while it is None they are closed. ``serve`` does the same for
    requests for programs. ``open_to_all`` is False for a gateway without a token: it takes no clients of
    other machines, although another node may.
    """

    open_to_all = False

    def __init__(self, address: str) -> None:
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

    @property
    def is_local(self) -> bool:
        """Return whether only nodes on this machine reach it."""
        return is_local(self.address)

    async def open(self, certificate: Certificate) -> None:
        """Accept the connections of nodes that have the certificate, and be able to make some."""
        accepting = _context(ssl.PROTOCOL_TLS_SERVER, certificate)
        self._connecting = _context(ssl.PROTOCOL_TLS_CLIENT, certificate)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Arriving(self), sock=self._socket, ssl=accepting, ssl_handshake_timeout=CONNECT_SECONDS
        )

    def close(self) -> None:
        """Listen no longer. Connections that were accepted remain."""
        if self._server is not None:
            self._server.close()
        self._socket.close()

    async def connect(
        self, address: str, head: str | ProgramRequest, protocol: asyncio.Protocol
    ) -> asyncio.Transport:
        """Connect to the node at an address for a client's address or a request, once that has accepted it.

        Raises OSError or TimeoutError if it has not: nothing of the connection was used then.
        """
        host, port = _split(address)
        loop = asyncio.get_running_loop()
        accepted = loop.create_future()
        async with asyncio.timeout(CONNECT_SECONDS):
            transport, _ = await loop.create_connection(
                lambda: _Departing(accepted), host, port, ssl=self._connecting, server_hostname=""
            )
            try:
                transport.write(msgspec.json.encode(head) + b"\n")
                await accepted
            except BaseException:
                transport.abort()
                raise
        transport.set_protocol(protocol)
        return transport


class _Departing(asyncio.Protocol):
    """A connection to another node, until that has accepted it."""

    def __init__(self, accepted: asyncio.Future[None]) -> None:
        self._accepted = accepted

    def data_received(self, data: bytes) -> None:
        if self._accepted.done():
            return
        if data == _ACCEPTED:
            self._accepted.set_result(None)
        else:
            self._accepted.set_exception(ConnectionRefusedError(data.decode(errors="replace")))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._accepted.done():
            self._accepted.set_exception(exc or ConnectionResetError("the node is not ready"))


class _Arriving(asyncio.Protocol):
    """A connection of another node, until its first line has arrived."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(CONNECT_SECONDS, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, ended, rest = self._received.partition(b"\n")
        if not ended and len(head) < _LONGEST_HEAD:
            return
        self._timer.cancel()
        try:
            client = msgspec.json.decode(head, type=str | ProgramRequest)
        except msgspec.DecodeError:
            log.warning("a node opened a connection for a purpose that is unknown here; it was closed")
            client = None
        if isinstance(client, ProgramRequest) and self._link.serve is not None and not rest:
            protocol = self._link.serve(client)
            self._transport.set_protocol(protocol)
            self._transport.write(_ACCEPTED)
            protocol.connection_made(self._transport)
            return
        if not isinstance(client, str) or self._link.accept is None:
            self._transport.close()
            return
        if not (self._link.open_to_all or is_loopback(client)):
            self._transport.write(_REFUSED)
            self._transport.close()
            return
        self._transport.write(_ACCEPTED)
        protocol = self._link.accept()
        self._transport.set_protocol(protocol)
        protocol.connection_made(cast("asyncio.Transport", _PassedOn(self._transport, client)))
        if rest:
            protocol.data_received(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()


class _PassedOn:
    """The transport of a connection that was passed on: its peer is the client, and TLS is the link's own."""

    def __init__(self, transport: asyncio.Transport, client: str) -> None:
        self._transport = transport
        self._own: dict[str, Any] = {"peername": (client, 0), "sslcontext": None}

    def get_extra_info(self, name: str, default: object = None) -> Any:
        """Return what a transport knows of its connection."""
        return self._own[name] if name in self._own else self._transport.get_extra_info(name, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


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
    context.load_verify_locations(cadata=certificate.certificate)
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
