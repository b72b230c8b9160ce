"""Connections that send nothing, send slowly, or are too many."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from gateway.app import Gateway
from gateway.server import Server
from gateway.server.connections import Peers, Proxies
from gateway.settings import ServerSettings, Settings

HASTE = 1.0
"""Seconds for a head: long enough for a whole one under any load."""
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def listening(data_dir: Path, most: int = 100) -> AsyncIterator[int]:
    """Run a gateway that listens, and yield its port."""
    server = ServerSettings(port=0, connections_per_peer=most)
    gateway = Gateway(Settings(data_dir=data_dir, channels={}, model="demo/demo", server=server))
    async with gateway.running(), Server(gateway, head_seconds=HASTE) as made:
        yield int(made.url.rsplit(":", 1)[1])


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Ask, and return whether an answer of 200 came."""
    writer.write(GET)
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(len(b'{"ok":true}'))
    return b" 200 " in head.split(b"\r\n")[0]


@pytest.mark.parametrize("sent", [b"", b"GET /heal", GET[:-2]])
async def test_a_connection_without_a_whole_first_request_is_closed(tmp_path: Path, sent: bytes) -> None:
    async with listening(tmp_path) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await reader.read() == b""
        writer.close()


async def test_a_head_that_comes_byte_by_byte_is_cut_off(tmp_path: Path) -> None:
    async with listening(tmp_path) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await answered(reader, writer)
        for byte in b"GET / HTTP/1.1\r\nX: " + b"y" * 10_000:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.01)
            if reader.at_eof() or writer.is_closing():
                break
        else:
            pytest.fail("it was never cut off")
        with contextlib.suppress(ConnectionResetError):  # closed while bytes of ours were on their way
            assert await reader.read() == b""
        writer.close()


async def test_a_connection_that_is_idle_between_requests_stays_open(tmp_path: Path) -> None:
    async with listening(tmp_path) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await answered(reader, writer)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2 * HASTE):
                await reader.read(1)
        assert await answered(reader, writer)
        writer.close()


async def test_one_address_holds_so_many_connections_and_no_more(tmp_path: Path) -> None:
    async with listening(tmp_path, most=3) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert [await answered(*each) for each in held] == [True] * 3
        reader, refused = await asyncio.open_connection("127.0.0.1", port)
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        refused.close()
        held[0][1].close()
        assert await held[0][0].read() == b""
        while True:  # until the server has noticed, too
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET)
            line = await reader.readline()
            writer.close()
            if b" 200 " in line:
                break
        for _, writer in held[1:]:
            writer.close()


def test_zero_lets_in_any_number() -> None:
    peers = Peers(0)
    assert all(peers.enter("10.0.0.1") for _ in range(1_000))


@pytest.mark.parametrize(
    ("proxies", "forwarded", "client"),
    [
        ((), ["203.0.113.7"], "127.0.0.1"),
        (("10.0.0.0/8",), ["203.0.113.7"], "127.0.0.1"),
        (("127.0.0.1",), [], "127.0.0.1"),
        (("127.0.0.1",), ["203.0.113.7"], "203.0.113.7"),
        (("127.0.0.0/8", "10.1.1.1"), ["6.6.6.6, 203.0.113.7, 10.1.1.1"], "203.0.113.7"),
        (("127.0.0.1",), ["6.6.6.6", "2001:DB8::7"], "2001:db8::7"),
        (("127.0.0.1",), ["unknown"], "127.0.0.1"),
        (("127.0.0.1",), ["203.0.113.7, nonsense"], "127.0.0.1"),
        (("127.0.0.0/8",), ["127.0.0.5"], "127.0.0.5"),
    ],
)
async def test_a_trusted_proxy_names_the_client(
    proxies: tuple[str, ...], forwarded: list[str], client: str
) -> None:
    found = Proxies(proxies)

    async def tell(request: web.BaseRequest) -> web.Response:
        return web.Response(text=found.client_of(request))

    runner = web.ServerRunner(web.Server(tell))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    headers = [("X-Forwarded-For", value) for value in forwarded]
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{runner.addresses[0][1]}", headers=headers) as told,
    ):
        assert await told.text() == client
    await runner.cleanup()


TOKEN = "0123456789abcdef" * 2


async def test_clients_of_a_trusted_proxy_have_their_own_limits(tmp_path: Path) -> None:
    """Wrong tokens of one client lock out no other one, and the proxy's connections have no limit."""
    server = {"port": 0, "token": TOKEN, "trusted_proxies": ["127.0.0.1"], "connections_per_peer": 2}
    settings = Settings.model_validate(
        {"data_dir": tmp_path, "channels": {}, "model": "demo/demo", "server": server}
    )
    gateway = Gateway(settings)
    async with gateway.running(), Server(gateway) as made, AsyncExitStack() as stack:

        async def ask(client: str, token: str) -> int:
            http = await stack.enter_async_context(aiohttp.ClientSession())
            headers = {"X-Forwarded-For": client, "Authorization": f"Bearer {token}"}
            return (await http.get(f"{made.url}/api/sessions", headers=headers)).status

        statuses = [await ask("203.0.113.7", "wrong") for _ in range(40)]
        assert statuses[0] == 401
        assert statuses[-1] == 429
        assert await ask("203.0.113.8", TOKEN) == 200


def test_a_proxy_that_is_not_a_network_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'proxy\.example' is not an IP address or network"):
        ServerSettings(trusted_proxies=("proxy.example",))
