"""One connection between two nodes carries all clients; neither a client nor a node harms the others."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import cast

import msgspec
import pytest
import uvloop

from gateway.cluster.certificate import Certificate, new_certificate
from gateway.cluster.link import ANY_PORT, ClientRequest, Link
from gateway.cluster.streams import (
    ACCEPT,
    CLOSE,
    CREDIT,
    DATA,
    HEAD,
    MOST_BYTES,
    OPEN,
    OTHER_VERSION,
    PROTOCOL,
    WINDOW,
)
from tests.gateway.cluster.nodes import until

OPENING = b'{"kind":"client","address":"127.0.0.1"}'


@cache
def certificate() -> Certificate:
    return new_certificate("test")


class End(asyncio.Protocol):
    """One end of a stream, which keeps what it gets."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.received = bytearray()
        self.lost = asyncio.Event()
        self.paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False

    async def until(self, size: int) -> bytes:
        await until(lambda: len(self.received) >= size)
        return bytes(self.received)


class Echo(End):
    """An end that returns what it gets."""

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Network:
    """The network between two nodes: it counts connections, may hold what is sent, and may be cut."""

    def __init__(self, port: int) -> None:
        self.connections = 0
        self._port = port
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[str]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self.mend()
        server.close()
        self.cut()

    def hold(self) -> None:
        self._flowing.clear()

    def mend(self) -> None:
        self._flowing.set()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, far = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, far}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass(reader, far))
                tasks.create_task(self._pass(there, writer))
        except* OSError:
            pass

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            await self._flowing.wait()
            writer.write(data)
            await writer.drain()
        writer.transport.abort()


class Pair:
    """An active node, and one that stands by and reaches it over a network."""

    def __init__(self, works: Link, stands_by: Link, network: Network, address: str) -> None:
        self.works, self.stands_by, self.network, self.address = works, stands_by, network, address
        self.accepted: list[End] = []
        self.make: Callable[[], End] = Echo
        works.accept = self._accept

    def _accept(self) -> asyncio.Protocol:
        self.accepted.append(self.make())
        return self.accepted[-1]

    async def connect(self, client: str = "127.0.0.1") -> End:
        end = End()
        end.connection_made(await self.stands_by.connect(self.address, ClientRequest(client), end))
        return end


@asynccontextmanager
async def pair(alive_seconds: float = 5.0) -> AsyncGenerator[Pair]:
    async with AsyncExitStack() as stack:
        links = [Link(ANY_PORT, alive_seconds=alive_seconds) for _ in range(2)]
        for link in links:
            await link.open(certificate())
            stack.callback(link.close)
        network = Network(int(links[0].address.rsplit(":")[-1]))
        address = await stack.enter_async_context(network.listening())
        yield Pair(*links, network, address)


@pytest.fixture
async def nodes() -> AsyncIterator[Pair]:
    async with pair() as made:
        yield made


def test_thousands_of_clients_use_one_connection() -> None:
    async def talk() -> None:
        async with pair() as nodes:
            ends = [await nodes.connect(f"127.0.0.{number % 250 + 1}") for number in range(3_000)]
            peers = {end.transport.get_extra_info("peername")[0] for end in nodes.accepted}
            assert len(peers) == 250
            for number, end in enumerate(ends):
                end.transport.writelines([b"%d" % number, b" " * (number % 7 * 1_000)])
            for number, end in enumerate(ends):
                assert await end.until(len(b"%d" % number)) == b"%d" % number + b" " * (number % 7 * 1_000)
            for end in ends[::2]:
                end.transport.close()
            for end in ends[1::2]:
                end.transport.write(b"again")
            for end in ends[1::2]:
                await until(lambda end=end: end.received.endswith(b"again"))
            for end, accepted in zip(ends, nodes.accepted, strict=True):
                assert accepted.lost.is_set() == end.lost.is_set()
            assert nodes.network.connections == 1

    uvloop.run(talk())  # as the gateway runs


async def test_a_client_that_does_not_read_holds_up_no_other_and_its_bytes_wait_at_the_sender(
    nodes: Pair,
) -> None:
    nodes.make = End
    slow, other = await nodes.connect(), await nodes.connect()
    slow.transport.pause_reading()
    sender = nodes.accepted[0]
    body = random.Random(1).randbytes(5_000_000)
    for at in range(0, len(body), 10_000):
        sender.transport.write(body[at : at + 10_000])
    assert sender.paused
    nodes.accepted[1].transport.write(b"x" * 1_000_000)
    await other.until(1_000_000)
    assert slow.received == b""
    assert sender.transport.get_write_buffer_size() == len(body) - WINDOW
    slow.transport.resume_reading()
    assert await slow.until(len(body)) == body
    assert not sender.paused
    assert sender.transport.get_write_buffer_size() == 0


async def test_what_was_sent_before_a_stream_ended_arrives_also_at_a_client_that_reads_later(
    nodes: Pair,
) -> None:
    nodes.make = End
    slow = await nodes.connect()
    slow.transport.pause_reading()
    sender = nodes.accepted[0]
    sender.transport.write(b"x" * WINDOW + b"y")
    sender.transport.close()
    sender.transport.write(b"too late")
    slow.transport.resume_reading()
    assert await slow.until(WINDOW + 1) == b"x" * WINDOW + b"y"
    await slow.lost.wait()
    await sender.lost.wait()
    short = await nodes.connect()
    short.transport.pause_reading()
    nodes.accepted[1].transport.write(b"held")
    nodes.accepted[1].transport.close()
    await nodes.accepted[1].lost.wait()
    assert (await nodes.connect()).transport.get_write_buffer_size() == 0  # so the end has arrived
    assert not short.lost.is_set()
    short.transport.resume_reading()
    await short.lost.wait()
    assert short.received == b"held"


async def test_an_aborted_stream_ends_at_once_although_bytes_wait(nodes: Pair) -> None:
    nodes.make = End
    slow = await nodes.connect()
    slow.transport.pause_reading()
    nodes.accepted[0].transport.write(b"x" * 10 * WINDOW)
    slow.transport.abort()
    await slow.lost.wait()
    await nodes.accepted[0].lost.wait()


def test_streams_share_a_network_that_takes_nothing_for_a_while() -> None:
    async def share(nodes: Pair) -> None:
        nodes.make = End
        ends = [await nodes.connect() for _ in range(200)]
        nodes.network.hold()
        sent = random.Random(2).randbytes(200_000)
        for accepted in nodes.accepted:
            accepted.transport.write(sent)
        assert all(accepted.paused for accepted in nodes.accepted)
        # 13 MB have credit, but most of them stay with their streams, which are bounded.
        unsent = sum(accepted.transport.get_write_buffer_size() for accepted in nodes.accepted)
        assert unsent > 200 * 200_000 - 8_000_000
        nodes.network.mend()
        for end in ends:
            assert await end.until(len(sent)) == sent
        assert not any(accepted.paused for accepted in nodes.accepted)

    async def run() -> None:
        async with pair() as nodes:
            await share(nodes)

    uvloop.run(run())  # as the gateway runs: its buffers are others


async def test_all_streams_end_with_the_connection_and_later_ones_use_another(nodes: Pair) -> None:
    ends = [await nodes.connect() for _ in range(100)]
    nodes.network.hold()
    opening = asyncio.create_task(nodes.connect())
    for end in ends:
        end.transport.write(b"x" * 300_000)
    nodes.network.cut()
    for end in (*ends, *nodes.accepted):
        await end.lost.wait()
    with pytest.raises(OSError, match="the connection to it has ended"):
        await opening
    nodes.network.mend()
    later = await nodes.connect()
    later.transport.write(b"later")
    assert await later.until(5) == b"later"
    assert nodes.network.connections == 2


async def test_a_node_that_freezes_is_noticed_by_both_sides() -> None:
    async with pair(alive_seconds=0.05) as nodes:
        end = await nodes.connect()
        nodes.network.hold()
        await end.lost.wait()
        await nodes.accepted[0].lost.wait()


async def test_a_connection_without_streams_is_closed_after_a_while() -> None:
    async with pair(alive_seconds=0.01) as nodes:
        first = await nodes.connect()
        first.transport.close()
        await first.lost.wait()
        while nodes.network.connections == 1:
            await asyncio.sleep(0.3)
            (await nodes.connect()).transport.close()


async def test_a_client_is_refused_while_the_other_node_is_not_ready_or_without_a_token(nodes: Pair) -> None:
    with pytest.raises(ConnectionRefusedError, match=r"without server\.token"):
        await nodes.connect("203.0.113.7")
    with pytest.raises(ConnectionRefusedError, match="too long"):
        await nodes.connect("1" * 2_000)
    accept, nodes.works.accept = nodes.works.accept, None
    with pytest.raises(ConnectionRefusedError, match="it is not ready"):
        await nodes.connect()
    nodes.works.accept = accept
    end = await nodes.connect()
    end.transport.write(b"served")
    assert await end.until(6) == b"served"


async def test_an_error_of_one_stream_ends_that_one_alone(
    nodes: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(End):
        def data_received(self, data: bytes) -> None:
            raise ValueError(data)

    good = await nodes.connect()
    nodes.make = Broken
    broken = await nodes.connect()
    broken.transport.write(b"x")
    await broken.lost.wait()
    good.transport.write(b"good")
    assert await good.until(4) == b"good"


def context(folder: Path, purpose: int, protocol: str | None) -> ssl.SSLContext:
    """What a node with a certificate uses, with another protocol."""
    made = ssl.SSLContext(purpose)
    made.check_hostname, made.verify_mode = False, ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=certificate().certificate)
    file = folder / "pem"
    file.write_text(certificate().certificate + certificate().key)
    made.load_cert_chain(file)
    if protocol is not None:
        made.set_alpn_protocols([protocol])
    return made


async def read_all(link: Link, sent: bytes, folder: Path, protocol: str | None = PROTOCOL) -> bytes:
    """Send bytes as a node with the certificate; return what the other one says until it closes."""
    host, port = link.address.rsplit(":", 1)
    tls = context(folder, ssl.PROTOCOL_TLS_CLIENT, protocol)
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    try:
        writer.write(sent)
        async with asyncio.timeout(30):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


def frame(number: int, kind: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(number, kind, len(payload)) + payload


@pytest.mark.parametrize(
    "sent",
    [
        HEAD.pack(1, DATA, MOST_BYTES + 1),
        HEAD.pack(1, OPEN, 65_535),
        frame(1, 99),
        frame(1, 0),
        frame(0, OPEN, OPENING),
        frame(1, OPEN, OPENING) * 2,
        frame(2, OPEN, OPENING) + frame(1, OPEN, OPENING),
        frame(1, OPEN, b'{"kind":"client","address":"' + b"1" * 2_000 + b'"}'),
        frame(1, OPEN, OPENING) + frame(1, DATA, b"x" * MOST_BYTES) * (WINDOW // MOST_BYTES + 1),
        frame(1, OPEN, OPENING) + frame(1, CREDIT, b"\0\0\0\1"),
        frame(1, OPEN, OPENING) + frame(1, CREDIT, b"\xff" * MOST_BYTES),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_a_node_that_breaks_the_protocol_loses_its_connection_and_no_other(
    tmp_path: Path, sent: bytes
) -> None:
    async with pair(alive_seconds=600) as nodes:
        good = await nodes.connect()
        nodes.make = Paused
        await read_all(nodes.works, sent, tmp_path)
        for end in nodes.accepted[1:]:
            await end.lost.wait()
        good.transport.write(b"good")
        assert await good.until(4) == b"good"


class Paused(End):
    """An end that does not read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.pause_reading()


async def test_random_bytes_of_a_node_do_no_harm(tmp_path: Path) -> None:
    chance = random.Random(3)
    async with pair(alive_seconds=0.02) as nodes:
        for _ in range(30):
            frames = (
                frame(chance.randrange(4), chance.randrange(8), chance.randbytes(chance.randrange(9)))
                for _ in range(50)
            )
            sent = frame(1, OPEN, OPENING) + b"".join(frames) + chance.randbytes(100)
            await read_all(nodes.works, sent, tmp_path)
        for end in nodes.accepted:
            await end.lost.wait()
        assert len(nodes.accepted) >= 30


@pytest.mark.parametrize(
    "opening", [b"", b"{", b"null", b'{"kind":"other"}', b'{"kind":"client","address":"\xff"}']
)
async def test_an_opening_that_is_not_known_is_refused_with_the_reason(
    tmp_path: Path, opening: bytes
) -> None:
    async with pair(alive_seconds=0.02) as nodes:
        heard = await read_all(nodes.works, frame(7, OPEN, opening) + frame(8, OPEN, OPENING), tmp_path)
        assert frame(7, CLOSE, b"it does not know what the connection is for") in heard
        assert frame(8, ACCEPT) in heard


async def test_a_node_of_another_version_gets_the_reason(nodes: Pair, tmp_path: Path) -> None:
    first_line = msgspec.json.encode("127.0.0.1") + b"\n"
    for protocol in (None, "trunkline-streams-0"):
        assert await read_all(nodes.works, first_line, tmp_path, protocol) == OTHER_VERSION.encode()
    tls = context(tmp_path, ssl.PROTOCOL_TLS_SERVER, None)
    older = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=tls)
    try:
        with pytest.raises(ConnectionRefusedError, match=OTHER_VERSION):
            await nodes.stands_by.connect(
                f"127.0.0.1:{older.sockets[0].getsockname()[1]}",
                ClientRequest("127.0.0.1"),
                asyncio.Protocol(),
            )
    finally:
        older.close()
    assert nodes.accepted == []
