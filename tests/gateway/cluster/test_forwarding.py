"""Clients may connect to any node: one that stands by passes them on to the active node."""

from __future__ import annotations

import asyncio
import io
import signal
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest
import uvloop
from aiohttp import web
from playwright.async_api import Browser, expect
from sqlalchemy import create_engine, text

from gateway.cluster.certificate import Certificate, new_certificate
from gateway.cluster.forwarder import Forwarder
from gateway.cluster.link import ANY_PORT, ClientRequest, Link
from gateway.cluster.membership import Membership
from gateway.contract.errors import AddressInUseError, SettingsError
from gateway.settings import Settings
from gateway.testing.fake_models.script import Reply, Say, Stall
from tests.e2e.gateway_process import GatewayProcess
from tests.e2e.page_browser import answers, chat, say, words
from tests.gateway.cluster.nodes import Cluster, settings_of, standing_by, until

pytestmark = pytest.mark.postgres


class Node:
    """A member of a cluster, its end of the link, and a server that tells what it gets."""

    def __init__(self, settings: Settings, link: Link) -> None:
        self.settings, self.link = settings, link
        self.member = Membership(settings)
        self.certificate: Certificate
        self.taken = asyncio.Event()
        self.silent = False

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.taken.set()
        if self.silent:
            await asyncio.Event().wait()
        body = b"".join([chunk async for chunk in request.content.iter_any()])
        told = {"remote": request.remote, "secure": request.secure, "bytes": len(body), "sum": sum(body)}
        return web.Response(
            body=msgspec.json.encode(told) + b" " * len(body), content_type="application/json"
        )

    async def work(self) -> None:
        """Become the owner, and serve."""
        await self.member.take()
        server = web.ServerRunner(web.Server(self.answer))
        await server.setup()
        self.link.accept, self.link.open_to_all = server.server, True
        await self.member.serve(self.link.address)


@asynccontextmanager
async def pair(folder: Path, url: str) -> AsyncGenerator[tuple[Node, Node]]:
    """Two nodes of one cluster. None works yet."""
    made: list[Node] = []
    for name in ("one", "two"):
        node = Node(settings_of(folder, url, name), Link(ANY_PORT))
        made.append(node)
        node.certificate = await node.member.join("rabbit", node.link)
        await node.link.open(node.certificate)
    yield made[0], made[1]
    for node in made:
        node.link.close()
        await node.member.close()


@pytest.fixture
async def nodes(tmp_path: Path, postgres_url: str) -> AsyncIterator[tuple[Node, Node]]:
    async with pair(tmp_path, postgres_url) as made:
        yield made


@asynccontextmanager
async def forwarding(node: Node, local: str = "127.0.0.1") -> AsyncGenerator[aiohttp.ClientSession]:
    """Let a node forward. Yields a client of it, with a local address."""
    connector = aiohttp.TCPConnector(local_addr=(local, 0))
    async with (
        Forwarder(node.settings, node.member, node.link) as forwarder,
        aiohttp.ClientSession(forwarder.url, connector=connector) as http,
    ):
        yield http


async def test_a_request_waits_for_a_node_that_works(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    async with forwarding(two) as http:
        async with http.get("/healthz") as alive:
            assert (alive.status, (await alive.json())["state"]) == (200, "standby")
        async with http.get("/readyz") as ready:
            assert ready.status == 503
            assert (await ready.json())["message"] == "node two stands by; no node is active at the moment"
        asking = asyncio.create_task(http.post("/", data=b"abc"))
        # A connection that was made later is answered: the first is with the node by now.
        async with http.get("/healthz"):
            await one.work()
        async with await asking as answered:
            assert (await answered.json())["bytes"] == 3
        async with http.get("/readyz") as ready:
            assert ready.status == 200


def test_a_client_that_leaves_before_it_is_answered_causes_no_error(
    tmp_path: Path, postgres_url: str
) -> None:
    failures: list[str] = []

    async def leave() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, found: failures.append(found["message"]))
        async with pair(tmp_path, postgres_url) as (one, two), forwarding(two) as http:
            one.silent = True
            await one.work()
            asking = asyncio.create_task(http.get("/"))
            await one.taken.wait()
            asking.cancel()
            await asyncio.wait([asking])
            one.silent = False
            async with http.get("/") as answered:
                assert answered.status == 200

    uvloop.run(leave())  # as the gateway runs: it refuses what a closed connection is asked for
    assert failures == []


async def test_the_client_is_known_by_its_own_address_and_a_large_body_arrives_whole(
    nodes: tuple[Node, Node],
) -> None:
    one, two = nodes
    await one.work()
    body = bytes(range(256)) * 40_000
    async with forwarding(two, local="127.0.0.9") as http, http.post("/", data=io.BytesIO(body)) as answered:
        told = await answered.read()
    assert len(told) > len(body)
    assert msgspec.json.decode(told.rstrip()) == {
        "remote": "127.0.0.9",
        "secure": False,
        "bytes": len(body),
        "sum": sum(body),
    }


async def test_a_node_without_a_token_takes_no_clients_of_other_machines(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    await one.work()
    one.link.open_to_all = False
    with pytest.raises(ConnectionRefusedError, match=r"without server\.token"):
        await two.link.connect(one.link.address, ClientRequest("203.0.113.7"), asyncio.Protocol())
    assert not one.taken.is_set()
    async with forwarding(two) as http, http.get("/") as answered:
        assert answered.status == 200


async def test_a_request_to_a_node_that_ends_is_answered_with_503(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    await one.work()
    one.silent = True
    async with forwarding(two) as http:
        asking = asyncio.create_task(http.get("/"))
        await one.taken.wait()
        await two.work()  # the first is frozen, and never answers
        async with await asking as answered:
            assert answered.status == 503
            assert answered.headers["Retry-After"] == "1"
            assert (await answered.json())["message"] == (
                "the active node ended before it answered; send the request again"
            )
        async with http.get("/") as answered:
            assert answered.status == 200


async def test_the_link_takes_only_nodes_that_have_the_certificate_of_the_cluster(
    nodes: tuple[Node, Node],
) -> None:
    one, _ = nodes
    await one.work()
    stranger = Link(ANY_PORT)
    await stranger.open(new_certificate("other"))
    with pytest.raises(ssl.SSLError):
        await stranger.connect(one.link.address, ClientRequest("127.0.0.1"), asyncio.Protocol())
    host, port = one.link.address.rsplit(":", 1)
    insecure = ssl.create_default_context()
    insecure.check_hostname, insecure.verify_mode = False, ssl.CERT_NONE
    with pytest.raises((ssl.SSLError, ConnectionError)):  # noqa: PT012 - TLS 1.3 tells it with the first read
        reader, writer = await asyncio.open_connection(host, int(port), ssl=insecure)
        try:
            writer.write(b'"127.0.0.1"\nGET / HTTP/1.1\r\nHost: x\r\n\r\n')
            if not await reader.read(1):
                raise ConnectionError
        finally:
            writer.transport.abort()
    assert not one.taken.is_set()
    stranger.close()


async def test_nodes_on_two_machines_need_addresses_that_both_reach(
    nodes: tuple[Node, Node], tmp_path: Path, postgres_url: str
) -> None:
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE node SET machine = 'elsewhere' WHERE name = 'one'"))
    engine.dispose()
    member, link = Membership(settings_of(tmp_path, postgres_url, "three")), Link(ANY_PORT)
    try:
        with pytest.raises(
            SettingsError,
            match=r"^cluster.address: node 'one' runs on the machine elsewhere, and this node has",
        ):
            await member.join("rabbit", link)
    finally:
        link.close()
        await member.close()


async def test_an_address_that_is_in_use_is_refused_by_its_key(nodes: tuple[Node, Node]) -> None:
    address = nodes[0].link.address
    with pytest.raises(AddressInUseError, match=f"^cluster.address: cannot listen on {address}: "):
        await Link(address).open(nodes[0].certificate)


@asynccontextmanager
async def two_nodes(cluster: Cluster) -> AsyncGenerator[tuple[GatewayProcess, GatewayProcess]]:
    """An active node, and one that stands by and accepts connections."""
    first, second = cluster.node("one"), cluster.node("two")
    async with first:
        assert await first.start()
        async with standing_by(cluster, second):
            await until(lambda: second.url and "standing by" in second.errors)
            yield first, second


async def texts(node: GatewayProcess, session: str) -> list[str]:
    """Read a conversation at a node."""
    async with node.client() as client:
        await client.send(type="resume", session=session, after=0)
        await client.until("replayed")
        frames = [frame for frame in client.frames if frame["type"] == "message"]
        return [part["content"] for frame in frames for part in frame["message"]["parts"]]


@pytest.mark.slow
async def test_pages_rest_and_conversations_reach_the_node_that_works(cluster: Cluster) -> None:
    async with two_nodes(cluster) as (_, standby), aiohttp.ClientSession(standby.url) as http:
        async with http.get("/") as page:
            assert page.status == 200
            assert "Content-Security-Policy" in page.headers
            assert "<title>" in await page.text()
        async with standby.client() as client:
            await client.say("Hi", session="s")
            await client.until("complete")
            assert await texts(standby, "s") == ["Hi", "You said: Hi"]
        async with http.get("/api/sessions") as listed:
            assert [one["id"] for one in (await listed.json())["sessions"]] == ["s"]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
async def test_a_client_of_a_standby_continues_with_the_next_node_and_none_is_refused(
    cluster: Cluster, how: signal.Signals
) -> None:
    cluster.models.then(Reply((Say("The first begins"), Stall())))
    async with AsyncExitStack() as stack:
        first, standby = await stack.enter_async_context(two_nodes(cluster))
        http = await stack.enter_async_context(aiohttp.ClientSession(standby.url))
        client = await stack.enter_async_context(standby.client())
        ack = await client.say("Hi", session="s")
        await client.until("text_delta")
        first.send_signal(how)
        assert await client.close_code() is not None
        # The other node is not ready yet; it accepts the connection, and answers once it is.
        async with http.get("/api/sessions") as listed:
            assert listed.status == 200
        later = await stack.enter_async_context(standby.client())
        await later.send(type="resume", session="s", after=0)
        await later.until(
            lambda frame: (
                frame.get("message", {}).get("id") == ack["answer_id"]
                or (frame["type"] == "complete" and frame["message_id"] == ack["answer_id"])
            )
        )
        assert await texts(standby, "s") == ["Hi", "You said: Hi"]
        assert cluster.owners() == [("two", 2)]


@pytest.mark.slow
async def test_a_page_at_a_standby_shows_the_whole_answer_although_the_node_that_works_is_killed(
    cluster: Cluster, own_browser: Browser
) -> None:
    cluster.models.then(Reply((Say("The first begins"), Stall())))
    async with two_nodes(cluster) as (first, standby), chat(own_browser, f"{standby.url}/") as page:
        await say(page, "Hi")
        await expect(words(answers(page))).to_contain_text("The first begins")
        first.send_signal(signal.SIGKILL)
        await expect(words(answers(page))).to_have_text("You said: Hi")
        await expect(answers(page)).to_have_attribute("data-status", "done")
        await expect(answers(page)).to_have_count(1)
