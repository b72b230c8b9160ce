"""The gateway's side of a sandbox's network: hosts, addresses, and the key of a model service."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from plugins.coding_agents.confinement.proxy import MOST_STREAMS, ModelService, NetworkExit
from plugins.coding_agents.settings import CodingAgentSettings
from plugins.programs.hosts import GROUPS, parse_rule, parse_rules

PATIENCE = 60
HERE = "127.0.0.0/8"
KEY, PLACEHOLDER = "sk-real-key", "trunkline-placeholder-0"


class Wire:
    """A stream as the keeper's client has it, over a pair of sockets, and its end in the sandbox."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, most: int = 65536) -> bytes:
        return await self._reader.read(most)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def write_eof(self) -> None:
        self._writer.write_eof()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


@asynccontextmanager
async def asking(
    way_out: NetworkExit, *words: str
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a stream for a service, and yield its end in the sandbox."""
    ours, theirs = socket.socketpair()
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        wire = Wire(*await asyncio.open_connection(sock=ours))
        inner = await asyncio.open_connection(sock=theirs)

        async def serve() -> None:
            try:
                await way_out.serve(words, wire)
            finally:
                await wire.close()

        serving = tasks.create_task(serve())
        yield inner
        inner[1].close()
        with contextlib.suppress(OSError):
            await inner[1].wait_closed()
        serving.cancel()


async def refusal(way_out: NetworkExit, *words: str) -> str:
    async with asking(way_out, *words) as (reader, _):
        return (await reader.readline()).decode()


@asynccontextmanager
async def server(answer: bytes, ends: bytes = b"") -> AsyncGenerator[tuple[int, list[bytes]]]:
    """A server that answers what ends so with the same bytes; yields its port and what it read."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(b"")
        while not (seen[-1].endswith(ends) and seen[-1]) and (data := await reader.read(65_536)):
            seen[-1] += data
        for at in range(0, len(answer), 7):
            writer.write(answer[at : at + 7])
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield listening.sockets[0].getsockname()[1], seen


def exit_to(*hosts: str, service: ModelService | None = None) -> NetworkExit:
    return NetworkExit("pty-1", [parse_rule(host) for host in hosts], service)


@pytest.mark.parametrize(
    ("rule", "host", "port", "fits"),
    [
        ("api.example.com", "api.example.com", 443, True),
        ("API.example.com", "api.example.com", 443, True),
        ("api.example.com", "api.example.com", 80, False),
        ("api.example.com", "evil-api.example.com", 443, False),
        ("api.example.com", "api.example.com.evil.org", 443, False),
        ("api.example.com:8443", "api.example.com", 8443, True),
        ("api.example.com:8443", "api.example.com", 443, False),
        ("*.example.com", "a.b.example.com", 443, True),
        ("*.example.com", "example.com", 443, False),
        ("*.example.com", "badexample.com", 443, False),
        ("10.1.0.0/16", "10.1.2.3", 8080, True),
        ("10.1.0.0/16", "10.2.2.3", 8080, False),
        ("10.1.2.3:80", "10.1.2.3", 443, False),
        ("::1", "::1", 443, True),
        ("[::1]:80", "::1", 80, True),
        ("[::1]:80", "::1", 81, False),
        ("10.0.0.0/8", "a.example.com", 443, False),
    ],
)
def test_a_rule_covers_one_host_or_network_and_its_port(rule: str, host: str, port: int, fits: bool) -> None:
    assert parse_rule(rule).fits(host, port) is fits


@pytest.mark.parametrize(
    "text", ["", "https://a.example", "a b", "a/b", "*", "a.*.com", "a..b", "a:b", "1.2.3.4/99"]
)
def test_an_invalid_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host"):
        parse_rule(text)


async def test_a_group_allows_the_hosts_of_a_registry_by_https_alone() -> None:
    way_out = NetworkExit("pty-1", [rule for name in GROUPS for rule in parse_rules(name)], None)
    for host in ("registry.npmjs.org", "files.pythonhosted.org", "static.crates.io", "codeload.github.com"):
        assert way_out.allows(host, 443)
        assert "not among the allowed hosts" in await refusal(way_out, "connect", host, "80")
    assert "not among" in await refusal(way_out, "connect", "npmjs.org.evil.example", "443")
    settings = CodingAgentSettings(network="list", allow_hosts=("@npm", "@PyPI", "git.example.org:8443"))
    assert [len(parse_rules(text)) for text in settings.allow_hosts] == [2, 2, 1]
    with pytest.raises(ValueError, match="'@nmp' is not a group of hosts; there are @npm, @pypi"):
        CodingAgentSettings(allow_hosts=("@nmp",))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["connect", "example.com", "443"], "not among the allowed hosts"),
        (["connect", "169.254.169.254", "80"], "not among the allowed hosts"),
        (["connect", "metadata.google.internal", "443"], "not among"),
        (["connect", "localhost", "443"], "not a public address"),
        (["connect", "LOCALHOST.", "443"], "not a public address"),
        (["connect", "127.1", "443"], "not a public address"),
        (["connect", "2130706433", "443"], "not a public address"),
        (["connect", "0x7f.1", "443"], "not a public address"),
        (["connect", "::ffff:127.0.0.1", "443"], "not among"),
        (["connect", "64:ff9b::7f00:1", "443"], "not among"),
        (["connect", "localhost", "0"], "not a host and a port"),
        (["connect", "localhost", "99999"], "not a host and a port"),
        (["connect", "localhost", "\uff14\uff14\uff13"], "not a host and a port"),
        (["connect", "a\x1bb", "443"], "not a host and a port"),
        (["connect", "localhost"], "unknown service"),
        (["listen", "0"], "unknown service"),
        (["http"], "no model service"),
    ],
)
async def test_other_hosts_and_private_addresses_are_refused(words: Sequence[str], said: str) -> None:
    # The names are allowed, but what they lead to is this machine.
    way_out = exit_to("localhost", "127.1", "2130706433:443", "0x7f.1")
    assert said in await refusal(way_out, *words)


async def test_a_tunnel_leads_to_a_named_host_and_passes_bytes_in_both_directions() -> None:
    async with server(b"answer" * 1000) as (port, seen):
        way_out = exit_to(f"localhost:{port}", HERE)
        async with asking(way_out, "connect", "localhost", str(port)) as (reader, writer):
            assert await reader.readline() == b"ok\n"
            writer.write(b"hello")
            writer.write_eof()
            assert await reader.read() == b"answer" * 1000
        assert seen == [b"hello"]
        assert "cannot be reached" in await refusal(exit_to(HERE), "connect", "127.0.0.1", "1")


async def test_a_session_has_a_limited_number_of_streams() -> None:
    async with server(b"") as (port, _), contextlib.AsyncExitStack() as stack:
        way_out = exit_to(HERE)
        words = ("connect", "127.0.0.1", str(port))
        for _ in range(MOST_STREAMS):
            reader, _ = await stack.enter_async_context(asking(way_out, *words))
            assert await reader.readline() == b"ok\n"
        assert "at once" in await refusal(way_out, *words)


def service(port: int, *, named: bool = True) -> ModelService:
    return ModelService(f"http://127.0.0.1:{port}/v1", KEY, PLACEHOLDER, named=named)


async def test_the_model_service_gets_the_real_key_and_the_program_its_streamed_answer() -> None:
    answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ndata: 1\n\ndata: 2\n\n"
    async with server(answer, b"567") as (port, seen):
        async with asking(exit_to(service=service(port)), "http") as (reader, writer):
            assert await reader.readline() == b"ok\n"
            request = (
                f"POST /v1/messages?key={PLACEHOLDER} HTTP/1.1\r\nHost: 127.0.0.1:3129\r\n"
                f"Connection: keep-alive\r\nx-api-key: {PLACEHOLDER}\r\n"
                f"Authorization: Bearer {PLACEHOLDER}\r\nContent-Length: 40\r\n\r\n"
                f"{PLACEHOLDER} 2345678901234567"
            )
            writer.write(request.encode())
            assert await reader.read() == answer
            writer.write_eof()
        head, _, body = seen[0].partition(b"\r\n\r\n")
        assert head.split(b"\r\n") == [
            b"POST /v1/messages?key=sk-real-key HTTP/1.1",
            b"x-api-key: sk-real-key",
            b"Authorization: Bearer sk-real-key",
            b"Content-Length: 40",
            f"Host: 127.0.0.1:{port}".encode(),
            b"Connection: close",
        ]
        assert body == PLACEHOLDER.encode() + b" 2345678901234567"


async def test_the_key_is_put_only_where_a_service_reads_it_and_errors_do_not_quote_it() -> None:
    head = (
        f"GET /v1/models/{PLACEHOLDER}?model={PLACEHOLDER}&key={PLACEHOLDER}&key=x{PLACEHOLDER} HTTP/1.1\r\n"
        f"anthropic-version: {PLACEHOLDER}\r\nX-Goog-Api-Key: {PLACEHOLDER}\r\n\r\n"
    )
    async with server(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n", b"\r\n\r\n") as (port, seen):
        async with asking(exit_to(service=service(port)), "http") as (reader, writer):
            writer.write(head.encode())
            assert b"404" in await reader.read()
        lines = seen[0].decode().split("\r\n")
        path = f"/v1/models/{PLACEHOLDER}?model={PLACEHOLDER}&key={KEY}&key=x{PLACEHOLDER}"
        assert lines[:3] == [
            f"GET {path} HTTP/1.1",
            f"anthropic-version: {PLACEHOLDER}",
            f"X-Goog-Api-Key: {KEY}",
        ]


@pytest.mark.parametrize(
    "request_head",
    [
        b"TRACE / HTTP/1.1\r\n\r\n",
        b"CONNECT a:443 HTTP/1.1\r\n\r\n",
        b"GET http://other.example/ HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\nX: y\r\n\r\n",
        b"GET / HTTP/1.1\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nA : b\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"b" * 70_000 + b"\r\n\r\n",
    ],
)
async def test_a_request_in_another_form_does_not_reach_the_service(request_head: bytes) -> None:
    async with server(b"HTTP/1.1 200 OK\r\n\r\n") as (port, seen):
        async with asking(exit_to(service=service(port)), "http") as (reader, writer):
            writer.write(request_head)
            assert await reader.readline() == b"ok\n"
            assert (await reader.read()).startswith(b"HTTP/1.1 502 ")
        assert seen == []


async def test_a_service_at_a_private_address_must_be_named_by_the_operator() -> None:
    async with server(b"") as (port, seen):
        async with asking(exit_to(service=service(port, named=False)), "http") as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            answer = await reader.read()
        assert b"not a public address" in answer
        assert KEY.encode() not in answer
        assert "not a public address" in await refusal(
            exit_to(service=service(port, named=False)), "connect", "127.0.0.1", str(port)
        )
        assert seen == []


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost"
    files = ("-keyout", "key.pem", "-out", "cert.pem")
    subprocess.run([*command.split(), *files], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


async def test_a_certificate_without_an_authority_is_refused_before_the_key_is_sent(
    certificate: Path,
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(1000))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as listening:
        port = listening.sockets[0].getsockname()[1]
        found = ModelService(f"https://localhost:{port}", KEY, PLACEHOLDER, named=True)
        async with asking(exit_to(service=found), "http") as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\nx-api-key: %s\r\n\r\n" % PLACEHOLDER.encode())
            assert b"certificate" in await reader.read()
    assert seen == []
