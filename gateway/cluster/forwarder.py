"""The forwarder of a node that stands by: clients may connect to any node, and reach the active one.

It passes on the bytes of whole connections: pages, websockets, streams and webhooks are treated alike.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from types import TracebackType
from typing import Self, cast

import msgspec
from msgspec import Struct

from gateway.cluster.link import ClientRequest, Link, listening_socket
from gateway.cluster.membership import HEARTBEAT_SECONDS, Membership, Owner
from gateway.contract.errors import AddressInUseError, StoreError, StoreUnavailableError
from gateway.settings import Settings

_FOLLOWED_SECONDS = 12.0
"""Time in which a node that froze is followed by another one."""
_HEAD_SECONDS = 10.0
"""Time for the first line of a request to arrive."""
_LONGEST_LINE = 8_192
_AGAIN_SECONDS = 0.1


class Forwarder:
    """Accepts the connections to this node's server while the node stands by.

    A request waits while no node is active: until a frozen node is replaced, or a stopped one
    has finished its running answers. ``stand_aside`` gives the listening socket to the node's own server;
    connections that wait are then passed on to this one.
    """

    def __init__(self, settings: Settings, membership: Membership, link: Link) -> None:
        self._settings = settings.server
        self._wait_seconds = _FOLLOWED_SECONDS + settings.limits.drain_seconds
        self._membership = membership
        self._link = link
        self._owner: Owner | None = None
        self._failure: StoreError | None = None
        """Why the owner is not known."""
        self._wanted = asyncio.Event()
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._tunnels: set[_Tunnel] = set()
        self._tasks: asyncio.TaskGroup
        self.url = ""

    async def __aenter__(self) -> Self:
        host, port = self._settings.host, self._settings.port
        try:
            self._socket = listening_socket(host, port)
        except OSError as error:
            raise AddressInUseError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
        await self.listen()
        host, port = self._socket.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._tasks = await asyncio.TaskGroup().__aenter__()
        self._watching = self._tasks.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._watching.cancel()
        for tunnel in [*self._tunnels]:
            tunnel.close()
        await self._tasks.__aexit__(kind, error, trace)

    async def listen(self) -> None:
        """Accept connections, again after ``stand_aside``."""
        if self._socket is not None:
            # A duplicate, which its server closes; connections to the socket itself then queue in the kernel.
            self._server = await asyncio.get_running_loop().create_server(
                lambda: _Tunnel(self), sock=self._socket.dup(), backlog=1024
            )

    def stand_aside(self) -> socket.socket | None:
        """Accept no more connections; return a socket of the same port.

        Connections queue until a server accepts them at this socket, or until ``listen``.
        """
        if self._server is not None:
            self._server.close()
            self._server = None
        return None if self._socket is None else self._socket.dup()

    def close(self) -> None:
        """Accept no more connections: they are refused."""
        if self._server is not None:
            self._server.close()
        if self._socket is not None:
            self._socket.close()
        self._socket = self._server = None

    async def _watch(self) -> None:
        """Follow the owner. Connections to an earlier one are closed: it may be frozen, and never answer."""
        while True:
            try:
                self._owner, self._failure = await self._membership.find_owner(), None
            except StoreError as error:
                self._failure = error
            else:
                for tunnel in [*self._tunnels]:
                    tunnel.follow(self._owner)
            self._wanted.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._wanted.wait()
                    await asyncio.sleep(_AGAIN_SECONDS)

    def enter(self, tunnel: _Tunnel) -> None:
        """Keep a new connection until it is left."""
        self._tunnels.add(tunnel)

    def leave(self, tunnel: _Tunnel) -> None:
        """Forget a connection that has ended."""
        self._tunnels.discard(tunnel)

    def start(self, tunnel: _Tunnel, line: bytes) -> asyncio.Task[None]:
        """Treat a connection whose first line has arrived."""
        return self._tasks.create_task(self._treat(tunnel, line))

    async def _treat(self, tunnel: _Tunnel, line: bytes) -> None:
        path = line.split(b" ")[1:2]
        if path == [b"/healthz"]:
            tunnel.answer(self._state(alive=True))
            return
        deadline = asyncio.get_running_loop().time() + (0 if path == [b"/readyz"] else self._wait_seconds)
        refused_by = ""
        while True:
            owner = self._owner
            if owner is not None and owner.address is not None and owner.start_id is not None:
                try:
                    node = _Node(tunnel)
                    transport = await self._link.connect(owner.address, ClientRequest(tunnel.client), node)
                    tunnel.join(transport, owner.start_id)
                    return
                except (OSError, TimeoutError) as error:
                    refused_by = f"; it cannot be reached at {owner.address}: {error or 'no answer in time'}"
            if asyncio.get_running_loop().time() >= deadline:
                tunnel.answer(self._state(refused_by))
                return
            self._wanted.set()
            await asyncio.sleep(_AGAIN_SECONDS)

    def lost(self) -> bytes:
        """Return the response to a request whose node ended before it answered."""
        name = self._membership.name
        reason = "the active node ended before it answered; send the request again"
        return _response(_Standby(False, "standby", name, None, StoreUnavailableError.__name__, reason))

    def _state(self, detail: str = "", *, alive: bool = False) -> bytes:
        """Return the response that this node gives itself."""
        name = self._membership.name
        active = None if self._owner is None else self._owner.name
        if self._failure is not None:
            reason = f"node {name} cannot reach the database: {self._failure}"
        elif active is None:
            reason = f"node {name} stands by; no node is active at the moment"
        else:
            reason = f"node {name} stands by; node {active} works{detail}"
        if self._membership.has_wrong_clock:
            reason += f"; {name} does not take over, since the clock of its machine is wrong: synchronize it"
        return _response(_Standby(alive, "standby", name, active, StoreUnavailableError.__name__, reason))


class _Standby(Struct, frozen=True):
    """The body of each response of a standby. The last two fields are those of every error of the gateway."""

    ok: bool
    state: str
    node: str
    active: str | None
    error_name: str
    message: str


def _response(state: _Standby) -> bytes:
    body = msgspec.json.encode(state)
    status = "200 OK" if state.ok else "503 Service Unavailable\r\nRetry-After: 1"
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Server: Trunkline\r\nConnection: close\r\n\r\n".encode() + body


class _Tunnel(asyncio.Protocol):
    """A client's connection, and the one to the active node, which it is joined to."""

    __slots__ = (
        "_answered",
        "_begun",
        "_forwarder",
        "_node",
        "_opening",
        "_start_id",
        "_timer",
        "_transport",
    )

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._begun = b""
        self._node: asyncio.Transport | None = None
        self._start_id = ""
        self._opening: asyncio.Task[None] | None = None
        self._answered = False

    @property
    def client(self) -> str:
        """The client's address."""
        peer = self._transport.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(_HEAD_SECONDS, self._transport.abort)
        self._forwarder.enter(self)

    def data_received(self, data: bytes) -> None:
        if self._node is not None:
            self._node.write(data)
            return
        self._begun += data
        line, ended, _ = self._begun.partition(b"\r\n")
        if self._opening is None and (ended or len(line) > _LONGEST_LINE):
            self._timer.cancel()
            # Until it is joined: what the client sends now waits in the kernel.
            self._transport.pause_reading()
            self._opening = self._forwarder.start(self, line)

    def join(self, node: asyncio.Transport, start_id: str) -> None:
        """Pass everything on to a node from now on."""
        if self._transport.is_closing():
            node.abort()
            return
        self._node, self._start_id, self._opening = node, start_id, None
        node.write(self._begun)
        self._begun = b""
        self._transport.resume_reading()

    def follow(self, owner: Owner) -> None:
        """Close the connection if it leads to a node that is not active any more."""
        if self._node is not None and owner.start_id not in (None, self._start_id):
            self._node.abort()

    def pass_back(self, data: bytes) -> None:
        """Send what the node sent."""
        self._answered = True
        if not self._transport.is_closing():
            self._transport.write(data)

    def node_lost(self) -> None:
        """End with the connection to the node; a request without any answer gets one."""
        if self._transport.is_closing():
            return
        if not self._answered:
            self._transport.write(self._forwarder.lost())
        self._transport.close()

    def answer(self, response: bytes) -> None:
        """Send a response of this node, and close the connection."""
        self._answered = True
        self._transport.write(response)
        self._transport.close()

    def close(self) -> None:
        """End both connections."""
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        if self._opening is not None:
            self._opening.cancel()
        if self._node is not None:
            self._node.close()
        self._forwarder.leave(self)

    def pause_writing(self) -> None:
        if self._node is not None:
            self._node.pause_reading()

    def resume_writing(self) -> None:
        if self._node is not None:
            self._node.resume_reading()

    def pause_reading(self) -> None:
        """Read no more of the client: the node takes no more."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if not self._transport.is_closing():
            self._transport.resume_reading()


class _Node(asyncio.Protocol):
    """The connection of a tunnel to the active node."""

    __slots__ = ("_tunnel",)

    def __init__(self, tunnel: _Tunnel) -> None:
        self._tunnel = tunnel

    def data_received(self, data: bytes) -> None:
        self._tunnel.pass_back(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._tunnel.node_lost()

    def pause_writing(self) -> None:
        self._tunnel.pause_reading()

    def resume_writing(self) -> None:
        self._tunnel.resume_reading()
