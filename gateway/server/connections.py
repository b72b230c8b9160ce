"""Connections of clients: how many one address may hold, and how long a request head may take.

A client that connects and sends nothing, or sends its request byte by byte, holds memory and a file
descriptor. It gets ten seconds for each request head and is then cut off.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from functools import partial
from typing import cast

import structlog
from aiohttp import web

log = structlog.get_logger("trunkline.server")

HEAD_SECONDS = 10.0
"""How long the first request of a connection, and the head of each request, may take to arrive."""
IDLE_SECONDS = 130.0
"""How long a connection may wait for its next request: longer than reverse proxies keep it (Caddy: 120 s)."""
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\n"
    b"Content-Type: text/plain\r\nContent-Length: 25\r\n\r\ntoo many open connections"
)


class Peers:
    """How many connections each address has. An IPv6 client counts by its /64 network, which is all its own.

    ``most`` connections are let in; 0 lets in any number.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    def enter(self, peer: str) -> bool:
        """Count a new connection. Return whether there is room for it."""
        if self._most and self._open[peer] >= self._most:
            return False
        self._open[peer] += 1
        if self._open[peer] == self._most:
            log.warning(
                "an address has as many connections as it may; further ones are refused",
                peer=peer,
                setting=f"server.connections_per_peer = {self._most}",
            )
        return True

    def leave(self, peer: str) -> None:
        """Count a connection that ended."""
        self._open[peer] -= 1
        if self._open[peer] <= 0:
            del self._open[peer]


class Connection(web.RequestHandler):
    """aiohttp's protocol of a connection, with a place among those of its peer and a deadline for heads."""

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
        """Take the connection in, or refuse it."""
        super().connection_made(transport)
        address = transport.get_extra_info("peername")
        peer = _network(str(address[0])) if address else ""
        if self._peers.enter(peer):
            self._peer = peer
            self._await_head()
        else:
            cast("asyncio.Transport", transport).write(_FULL)
            self.force_close()

    def data_received(self, data: bytes) -> None:
        """Pass bytes on, and start or stop the clock for a request head."""
        complete = self._request_count
        super().data_received(data)
        if self._request_count != complete:
            self._stop_clock()
        elif self._head_timer is None and not self._request_in_progress and not self._messages:
            self._await_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Give the place up."""
        super().connection_lost(exc)
        self._stop_clock()
        if self._peer is not None:
            self._peers.leave(self._peer)
            self._peer = None

    def _await_head(self) -> None:
        self._head_timer = self._loop.call_later(self._head_seconds, self.force_close)

    def _stop_clock(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def connections(
    most: int,
    head_seconds: float,
    runner: web.AppRunner,
    loop: asyncio.AbstractEventLoop,
    **options: object,
) -> partial[Connection]:
    """Return the protocol factory of a listener; call ``runner.setup()`` first."""
    assert runner.server is not None, "the runner is set up"
    options["keepalive_timeout"] = IDLE_SECONDS
    return partial(Connection, Peers(most), head_seconds, runner.server, loop, **options)


def _network(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return host
    mapped = address.ipv4_mapped
    return str(mapped) if mapped else str(ipaddress.ip_network((address, 64), strict=False))
