"""HTTP clients against real servers: kept connections, limits, TLS, proxies, and what may be sent twice."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import ssl
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from gateway.http_client import (
    ConnectError,
    ConnectionLostError,
    HttpClient,
    HttpResponse,
    MalformedResponseError,
    open_client,
)
from gateway.http_client.aiohttp_client import AiohttpClient
from gateway.http_client.httptools_client import HttptoolsClient

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nha"

Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Answers each request with ``answer(head, writer)``; keeps connections open until told otherwise."""

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None = None) -> None:
        self._answer = answer
        self._tls = tls
        self._writers: set[asyncio.StreamWriter] = set()
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.open = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/"

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                _, _, length = head.partition(b"Content-Length: ")
                self.bodies.append(await reader.readexactly(int(length.split(b"\r\n")[0] or 0)))
                await self._answer(head, writer)
                await writer.drain()
        self.open -= 1
        writer.close()

    async def until_open(self, number: int) -> None:
        async with asyncio.timeout(60):
            while self.open != number:
                await asyncio.sleep(0.005)


def say(data: bytes) -> Answer:
    async def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return answer


@contextlib.asynccontextmanager
async def opened(client: HttpClient) -> AsyncGenerator[HttpClient]:
    try:
        yield client
    finally:
        await client.close()


async def get(client: HttpClient, url: str, headers: Mapping[str, str] | None = None) -> bytes:
    return await body_of(await client.request("GET", url, headers or {}, None, 5))


async def post(client: HttpClient, url: str, body: bytes) -> bytes:
    return await body_of(await client.request("POST", url, {"Content-Type": "text/plain"}, body, 5))


async def body_of(response: HttpResponse) -> bytes:
    body = b""
    try:
        while piece := await response.read(5):
            body += piece
    finally:
        response.close()
    return body


@pytest.mark.parametrize("kind", ["httptools", "aiohttp"])
async def test_connections_are_kept_and_used_again(kind: str) -> None:
    async with Server(say(OK)) as server, opened(open_client(kind)) as client:  # type: ignore[arg-type]
        assert [await get(client, server.url) for _ in range(5)] == [b"ok"] * 5
        assert [await post(client, server.url, b"body") for _ in range(2)] == [b"ok"] * 2
        assert (server.connections, server.bodies[-1]) == (1, b"body")


@pytest.mark.parametrize("kind", ["httptools", "aiohttp"])
async def test_a_large_body_arrives_whole_while_other_requests_continue(kind: str) -> None:
    body = bytes(range(256)) * 40_000
    async with Server(say(OK)) as server, opened(open_client(kind)) as client:  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as group:
            large = group.create_task(post(client, server.url, body))
            small = [group.create_task(get(client, server.url)) for _ in range(5)]
        assert {task.result() for task in (large, *small)} == {b"ok"}
        assert body in server.bodies


async def test_a_large_body_is_sent_no_further_once_it_is_refused() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Large\r\nContent-Length: 0\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            await reader.read(1000)
            await gone.wait()
        writer.close()

    gone = asyncio.Event()
    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with opened(HttptoolsClient(10)) as client:
        response = await client.request("POST", url, {}, b"x" * 50_000_000, 5)
        assert response.status == 413
        gone.set()
    server.close()


async def test_the_head_has_what_was_given_and_the_usual_headers() -> None:
    async with Server(say(OK)) as server, opened(HttptoolsClient(10)) as client:
        url = server.url.replace("127.0.0.1", "me:p%40ss@localhost") + "a%20b?c=d e#f"
        await get(client, url, {"X-A": "ü", "accept": "text/plain", "Content-Length": "99"})
        line, *headers = server.heads[0].decode().rstrip().split("\r\n")
        assert line == "GET /a%20b?c=d+e HTTP/1.1"
        fields = dict(header.split(": ", 1) for header in headers)
        assert fields.pop("User-Agent").startswith("Trunkline/")
        assert fields == {
            "Host": f"localhost:{server.port}",
            "Accept-Encoding": "identity",
            "Authorization": "Basic bWU6cEBzcw==",
            "X-A": "ü",
            "accept": "text/plain",
        }


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("http://127.0.0.1:1/", {"X": "a\r\nY: b"}),
        ("http://127.0.0.1:1/", {"X": "a\0b"}),
        ("http://127.0.0.1:1/", {"X\r\nY": "b"}),
        ("http://127.0.0.1:1/", {"": "b"}),
        ("ftp://127.0.0.1:1/", {}),
        ("nothing", {}),
    ],
)
async def test_a_request_that_would_break_the_framing_is_not_sent(url: str, headers: dict[str, str]) -> None:
    async with opened(HttptoolsClient(10)) as client:
        with pytest.raises(ValueError, match=r"header|address"):
            await get(client, url, headers)


async def test_requests_beyond_the_limit_wait_in_order() -> None:
    gate = asyncio.Event()

    async def later(_: bytes, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        writer.write(OK)

    async with Server(later) as server, opened(HttptoolsClient(2)) as client:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(get(client, f"{server.url}{n}")) for n in range(7)]
            await server.until_open(2)
            tasks[3].cancel()
            gate.set()
        assert server.connections == 2
        paths = [head.split()[1] for head in server.heads]
        assert sorted(paths[:2]) == [b"/0", b"/1"]
        assert sorted(paths[2:]) == [b"/2", b"/4", b"/5", b"/6"]
        assert paths.index(b"/2") < paths.index(b"/5")


async def test_a_wait_for_a_connection_that_is_too_long_times_out() -> None:
    async with Server(say(HALF)) as server, opened(HttptoolsClient(1)) as client:
        first = await client.request("GET", server.url, {}, None, 5)
        with pytest.raises(TimeoutError):
            await client.request("GET", server.url, {}, None, 0.02)
        first.close()
        second = await client.request("GET", server.url, {}, None, 5)
        assert second.status == 200


@pytest.mark.parametrize("moment", ["before the head", "in the body"])
async def test_cancelling_closes_the_connection_and_leaves_the_others_alone(moment: str) -> None:
    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        if b" /hang" not in head:
            writer.write(OK)
        elif moment == "in the body":
            writer.write(HALF)

    async with Server(answer) as server, opened(HttptoolsClient(1)) as client:
        task = asyncio.ensure_future(get(client, f"{server.url}hang"))
        while not server.heads:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await server.until_open(0)
        assert await get(client, server.url) == b"ok"
        assert server.connections == 2


async def test_a_kept_connection_that_the_server_closed_is_not_used() -> None:
    async def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await writer.drain()
        writer.close()

    async with Server(answer) as server, opened(HttptoolsClient(10)) as client:
        for _ in range(3):
            assert await post(client, server.url, b"x") == b"ok"
            await server.until_open(0)
            await asyncio.sleep(0.01)
        assert server.connections == 3


async def test_a_kept_connection_that_closes_at_the_same_time_repeats_only_a_get() -> None:
    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        if b" /drop" in head and server.heads.count(head) == 1:
            writer.transport.abort()
        else:
            writer.write(OK)

    async with Server(answer) as server, opened(HttptoolsClient(10)) as client:
        await get(client, server.url)
        assert await get(client, f"{server.url}drop") == b"ok"
        with pytest.raises(ConnectionLostError):
            await post(client, f"{server.url}drop", b"x")
        with pytest.raises(ConnectionLostError):
            await get(client, f"{server.url}drop?new")
        assert len(server.heads) == 5


async def test_a_server_that_is_not_there_is_named() -> None:
    async with Server(say(OK)) as server:
        gone = server.url
    async with opened(HttptoolsClient(1)) as client:
        for _ in range(2):
            with pytest.raises(ConnectError, match=r"refused|Connect call failed"):
                await get(client, gone)
        with pytest.raises(ConnectError):
            await get(client, "http://no-such-host.invalid/")


async def test_closing_the_client_ends_its_requests() -> None:
    async with Server(say(HALF)) as server:
        client = HttptoolsClient(10)
        response = await client.request("GET", server.url, {}, None, 5)
        await client.close()
        assert await response.read() == b"ha"
        with pytest.raises(ConnectionLostError):
            await response.read()
        await server.until_open(0)


async def test_a_connection_that_opens_while_the_client_closes_is_closed() -> None:
    async with Server(say(OK)) as server:
        client = HttptoolsClient(10)
        connecting = asyncio.create_task(get(client, server.url))
        await asyncio.sleep(0)  # it resolves the address
        await client.close()
        with pytest.raises(ConnectError, match="the client is closed"):
            await connecting
        assert server.heads == []
        with pytest.raises(ConnectError, match="the client is closed"):
            await get(client, server.url)


def authority(folder: Path) -> None:
    """Make a test authority, and a certificate of it for 127.0.0.1."""
    commands = (
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca"
        " -addext keyUsage=critical,keyCertSign",
        "req -newkey rsa:2048 -nodes -keyout key.pem -out request.pem -subj /CN=server",
        "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -out cert.pem -extfile ext",
    )
    # Python 3.13 and newer accept no CA without keyUsage, and no certificate without the id of its CA's key.
    (folder / "ext").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    for command in commands:
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    authority(folder)
    return folder


def server_tls(certificates: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def client_tls(certificates: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    context.set_alpn_protocols(["http/1.1"])
    return context


async def test_tls_asks_for_http_1_and_checks_the_certificate(certificates: Path) -> None:
    chosen: list[str | None] = []

    async def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
        chosen.append(writer.get_extra_info("ssl_object").selected_alpn_protocol())
        writer.write(OK)

    async with Server(answer, server_tls(certificates)) as server:
        trusting = HttptoolsClient(10, tls=lambda: client_tls(certificates))
        async with opened(trusting) as client:
            assert [await get(client, server.url) for _ in range(2)] == [b"ok"] * 2
            assert await post(client, server.url, b"y" * 3_000_000) == b"ok"
            assert (server.connections, server.bodies[-1]) == (1, b"y" * 3_000_000)
            with pytest.raises(ConnectError, match="certificate"):
                await get(client, server.url.replace("127.0.0.1", "localhost"))
        async with opened(HttptoolsClient(10)) as client:
            with pytest.raises(ConnectError, match="certificate"):
                await get(client, server.url)
        async with opened(AiohttpClient(10, use_proxies=False)) as client:
            with pytest.raises(ConnectError, match="certificate"):
                await get(client, server.url)
    assert chosen == ["http/1.1"] * 3


async def test_what_is_not_tls_is_a_failed_connection() -> None:
    async with Server(say(OK)) as server, opened(HttptoolsClient(10)) as client:
        with pytest.raises(ConnectError):
            await get(client, server.url.replace("http:", "https:"))


class Proxy:
    """An HTTP proxy that answers CONNECT with ``reply``, and pipes to the server if that is a success."""

    def __init__(self, reply: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n") -> None:
        self._reply = reply
        self._writers: list[asyncio.StreamWriter] = []
        self.heads: list[bytes] = []
        self.url = ""

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://me:secret@127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        if not head.startswith(b"CONNECT"):
            writer.write(OK)
            writer.close()
            return
        writer.write(self._reply)
        if b" 200 " not in self._reply:
            writer.close()
            return
        host, _, port = head.split()[1].decode().rpartition(":")
        other, onward = await asyncio.open_connection(host, int(port))
        self._writers.append(onward)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pipe(reader, onward))
            group.create_task(self._pipe(other, writer))

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()


async def test_https_goes_through_a_tunnel_of_the_proxy(certificates: Path) -> None:
    async with Server(say(OK), server_tls(certificates)) as server, Proxy() as proxy:
        tls = functools.partial(client_tls, certificates)
        async with opened(HttptoolsClient(10, {"https": proxy.url}, tls)) as client:
            assert [await get(client, server.url) for _ in range(3)] == [b"ok"] * 3
        assert len(proxy.heads) == 1
        assert proxy.heads[0].startswith(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n" % server.port)
        assert b"Proxy-Authorization: Basic bWU6c2VjcmV0\r\n" in proxy.heads[0]
        assert b"Proxy-Authorization" not in server.heads[0]


async def test_http_names_the_whole_address_to_the_proxy() -> None:
    async with Proxy() as proxy, opened(HttptoolsClient(10, {"http": proxy.url})) as client:
        assert await get(client, "http://models.invalid/v1?a=b") == b"ok"
        assert proxy.heads[0].startswith(b"GET http://models.invalid/v1?a=b HTTP/1.1\r\n")
        assert b"\r\nHost: models.invalid\r\n" in proxy.heads[0]
        assert b"Proxy-Authorization: Basic bWU6c2VjcmV0\r\n" in proxy.heads[0]


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"HTTP/1.1 407 Authenticate\r\nContent-Length: 0\r\n\r\n", "refused the connection .407."),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "no HTTP"),
        (b"x" * 20_000, "no HTTP"),
        (b"HTTP/1.1 502", "closed the connection"),
    ],
)
async def test_a_proxy_that_opens_no_tunnel_is_named(reply: bytes, error: str) -> None:
    async with Proxy(reply) as proxy, opened(HttptoolsClient(1, {"https": proxy.url})) as client:
        for _ in range(2):
            with pytest.raises(ConnectError, match=error):
                await get(client, "https://models.invalid/")


async def test_a_stream_is_refused_in_another_encoding_but_read_as_gzip() -> None:
    body = gzip.compress(b"data: hello\n\n")
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: %b\r\nContent-Length: %d\r\n\r\n"
    async with Server(say(head % (b"gzip", len(body)) + body)) as server, opened(open_client()) as client:
        assert await get(client, server.url) == b"data: hello\n\n"
    async with Server(say(head % (b"zstd", len(body)) + body)) as server, opened(open_client()) as client:
        with pytest.raises(MalformedResponseError, match="'zstd'"):
            await get(client, server.url)
