"""Connections of clients: a limit for each address, and a timeout for the headers of a request.

A client that connects and sends nothing, or sends its request byte by byte, holds memory and a file
descriptor. It is disconnected after ten seconds without complete headers.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import cast

import structlog
from aiohttp import web

log = structlog.get_logger("trunkline.server")

HEAD_SECONDS = 10.0
"""Time for the first request of a connection, and for the headers of each request, to arrive."""
IDLE_SECONDS = 130.0
"""Time that a connection may be idle: longer than reverse proxies keep it open (Caddy: 120 s)."""
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\n"
    b"Content-Type: text/plain\r\nContent-Length: 25\r\n\r\ntoo many open connections"
)


class Proxies:
    """The reverse proxies that may say whose requests they pass on, by their networks."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [ipaddress.ip_network(network, strict=False) for network in networks]

    def __contains__(self, host: str) -> bool:
        if not self._networks:
            return False
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._networks)

    def client_of(self, request: web.BaseRequest) -> str:
        """Return the address of the client: the last one in ``X-Forwarded-For`` that is none of the proxies.

        Entries before that one may be inventions of the client. Without a proxy it is the peer's.
        """
        peer = client = request.remote or ""
        for hop in reversed(",".join(request.headers.getall("X-Forwarded-For", ())).split(",")):
            if client not in self:
                break
            try:
                client = str(ipaddress.ip_address(hop.strip().strip("[]")))
            except ValueError:
                return peer
        return client


class Peers:
    """Counter of the open connections of each address. IPv6 clients count by their /64 network.

    A peer may have ``limit`` connections; 0 means no limit. ``proxies`` are not counted.
    """

    def __init__(self, limit: int, proxies: Proxies | None = None) -> None:
        self._limit = limit
        self.proxies = proxies or Proxies(())
        self._open: Counter[str] = Counter()

    def enter(self, peer: str) -> bool:
        """Count a new connection. Return whether it is within the limit."""
        if self._limit and self._open[peer] >= self._limit:
            return False
        self._open[peer] += 1
        if self._open[peer] == self._limit:
            log.warning(
                "connection limit of a peer reached; further connections are refused",
                peer=peer,
                setting=f"server.connections_per_peer = {self._limit}",
            )
        return True

    def leave(self, peer: str) -> None:
        """Stop counting a connection."""
        self._open[peer] -= 1
        if self._open[peer] <= 0:
            del self._open[peer]


class Connection(web.RequestHandler):
    """aiohttp's protocol of a connection, counted for its peer, with a timeout for request headers."""

    def __init__(
        self,
        peers: Peers,
        head_seconds: float,
        manager: web.Server,
        loop: asyncio.AbstractEventLoop,
        **options: object,
    ) -> None:
        # aiohttp takes these options as keywords of many types.
        super().__init__(manager, loop=loop, **options)  # type: ignore[arg-type]
        self._peers = peers
        self._head_seconds = head_seconds
        self._peer: str | None = None
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or answer 503 and close it."""
        super().connection_made(transport)
        address = transport.get_extra_info("peername")
        host = str(address[0]) if address else ""
        peer = _network(host)
        if host in self._peers.proxies:
            self._start_head_timer()
        elif self._peers.enter(peer):
            self._peer = peer
            self._start_head_timer()
        else:
            cast("asyncio.Transport", transport).write(_REFUSAL)
            self.force_close()

    def data_received(self, data: bytes) -> None:
        """Pass data to aiohttp, and start or stop the timeout for request headers."""
        complete = self._request_count
        super().data_received(data)
        if self._request_count != complete:
            self._stop_head_timer()
        elif self._head_timer is None and not self._request_in_progress and not self._messages:
            self._start_head_timer()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop counting the connection."""
        super().connection_lost(exc)
        self._stop_head_timer()
        if self._peer is not None:
            self._peers.leave(self._peer)
            self._peer = None

    def _start_head_timer(self) -> None:
        self._head_timer = self._loop.call_later(self._head_seconds, self.force_close)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def connection_factory(
    limit: int,
    proxies: Proxies,
    head_seconds: float,
    runner: web.AppRunner,
    loop: asyncio.AbstractEventLoop,
    **options: object,
) -> partial[Connection]:
    """Return the protocol factory of a listener. Call ``runner.setup()`` first."""
    assert runner.server is not None, "the runner is set up"
    options["keepalive_timeout"] = IDLE_SECONDS
    return partial(Connection, Peers(limit, proxies), head_seconds, runner.server, loop, **options)


def _network(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return host
    mapped = address.ipv4_mapped
    return str(mapped) if mapped else str(ipaddress.ip_network((address, 64), strict=False))
