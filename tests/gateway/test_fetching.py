"""Fetching what messages name: public addresses alone, on every hop, within bounds."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_network

import pytest
from aiohttp import web

from gateway.contract.errors import AddressRefusedError, FetchError
from gateway.fetching import Fetched, Reach, connect_public, fetch, is_public

HERE = Reach(allow=(ip_network("127.0.0.1/32"),), most_bytes=1000, seconds=5)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def site(handler: Handler) -> AsyncGenerator[str]:
    """A web server on this machine that answers everything so."""
    app = web.Application()
    app.router.add_get("/{tail:.*}", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def to(location: str) -> Handler:
    """Answers with a redirect."""

    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": location})

    return handler


async def hello(_: web.Request) -> web.Response:
    return web.Response(text="hello")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.9.1",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "192.0.0.8",
        "192.0.2.1",
        "192.88.99.1",
        "198.18.0.1",
        "203.0.113.9",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2002:808:808::1",
        "2001::1",
        "2001:0:53aa:64c:0:f5ff:80ff:fffe",
        "2001:db8::1",
        "3fff::1",
        "100::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
    ],
)
def test_an_address_that_is_not_of_the_internet_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1", "::ffff:8.8.8.8", "64:ff9b::808:808"],
)
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.1", "0x7f.1", "2130706433", "0177.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]"],
)
async def test_this_machine_is_not_asked_however_it_is_written(host: str) -> None:
    asked: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response()

    async with site(handler) as url:
        with pytest.raises(FetchError):
            await fetch(f"http://{host}:{url.rpartition(':')[2]}/")
    assert asked == []


async def test_a_socket_connects_to_public_and_allowed_addresses_only() -> None:
    async with site(hello) as url:
        port = int(url.rpartition(":")[2])
        for host in ("127.0.0.1", "localhost", "127.1", "::ffff:127.0.0.1"):
            with pytest.raises(AddressRefusedError, match="not a public address"):
                await connect_public(host, port)
        with await connect_public("localhost", port, [ip_network("127.0.0.0/8")]) as connected:
            assert connected.getpeername() == ("127.0.0.1", port)
    for host in ("localhost", "no such host", "x" * 100, ""):
        with pytest.raises(FetchError):
            await connect_public(host, port, [ip_network("127.0.0.0/8")])


async def test_a_refusal_is_named_and_says_nothing_of_what_is_there() -> None:
    async with site(hello) as url:
        with pytest.raises(AddressRefusedError, match="is not a public address") as there:
            await fetch(url)
    with pytest.raises(AddressRefusedError) as gone:
        await fetch(url)
    assert str(there.value) == str(gone.value)


async def test_what_the_operator_allows_is_fetched() -> None:
    async with site(hello) as url:
        assert await fetch(f"{url}/a", HERE) == Fetched(f"{url}/a", "text/plain", b"hello", "utf-8")
        mapped = f"http://[::ffff:127.0.0.1]:{url.rpartition(':')[2]}/"
        with pytest.raises(FetchError, match=r"cannot be reached|not a public"):
            await fetch(mapped.replace("127.0.0.1", "127.0.0.2"), HERE)


@pytest.mark.parametrize(
    ("location", "error"),
    [
        ("http://127.0.0.2/", AddressRefusedError),
        ("http://169.254.169.254/latest/meta-data/", AddressRefusedError),
        ("http://localhost.localdomain:1/", FetchError),
        ("//[::1]:80/", FetchError),
        ("file:///etc/passwd", FetchError),
        ("gopher://127.0.0.1:6379/_INFO", FetchError),
        ("http://user:secret@127.0.0.1/", FetchError),
        ("http://[", FetchError),
        ("", FetchError),
    ],
)
async def test_every_hop_is_judged(location: str, error: type[FetchError]) -> None:
    async with site(to(location)) as url:
        with pytest.raises(FetchError) as caught:
            await fetch(url, HERE)
    assert isinstance(caught.value, error)
    assert "secret" not in str(caught.value)


async def test_a_redirect_to_what_may_be_fetched_is_followed() -> None:
    async with site(hello) as end, site(to(f"{end}/there")) as url:
        assert (await fetch(url, HERE)).url == f"{end}/there"
    async with site(to("/again")) as url:
        with pytest.raises(FetchError, match="redirects too often"):
            await fetch(url, HERE)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://example.org/",
        "http://",
        "http:///x",
        "//example.org",
        "javascript:alert(1)",
        "http://example.org:99999/",
        "http://user@8.8.8.8/",
        "http://[::1",
        "http://exa mple/",
        "http://" + "a" * 9000,
        "",
        "\0",
    ],
)
async def test_what_is_not_a_web_address_is_not_fetched(url: str) -> None:
    with pytest.raises(FetchError):
        await fetch(url, HERE)


async def test_no_line_of_an_address_becomes_a_header() -> None:
    seen: list[web.Request] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request)
        return web.Response()

    async with site(handler) as url:
        await fetch(f"{url}/a\r\nX-Evil: 1\r\n", HERE)
    assert "X-Evil" not in seen[0].headers
    assert {"Authorization", "Cookie"} & set(seen[0].headers) == set()


async def forever(request: web.Request) -> web.StreamResponse:
    """Sends without an end."""
    answer = web.StreamResponse()
    await answer.prepare(request)
    while True:
        await answer.write(b"x" * 500)


async def bomb(_: web.Request) -> web.Response:
    return web.Response(body=gzip.compress(b"x" * 1_000_000), headers={"Content-Encoding": "gzip"})


async def silent(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError


async def missing(_: web.Request) -> web.Response:
    return web.Response(status=404)


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (forever, "more than 1000 bytes"),
        (bomb, "compressed"),
        (silent, "did not answer within"),
        (missing, "status 404"),
    ],
)
async def test_nothing_is_fetched_without_bounds(handler: Handler, said: str) -> None:
    reach = Reach(HERE.allow, HERE.most_bytes, 0.3 if handler is silent else 5)
    async with site(handler) as url:
        with pytest.raises(FetchError, match=said):
            await fetch(url, reach)


async def test_what_is_not_a_web_server_is_named() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ftp\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(FetchError, match="did not answer with valid HTTP"):
        await fetch(f"http://127.0.0.1:{port}/", HERE)
    server.close()
    await server.wait_closed()
    with pytest.raises(FetchError, match="cannot be reached"):
        await fetch(f"http://127.0.0.1:{port}/", HERE)
