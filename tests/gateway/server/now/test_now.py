"""The state now, over real sockets: the snapshot, the stream of its changes, and who may read what."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway import Plugin, Tool, tool_from
from gateway.access.tokens import Auth
from gateway.contract.errors import InvalidStateError
from gateway.contract.messages import now_ms
from gateway.server.guard import Guard
from gateway.server.now import NowRoutes, Observer, Reader
from gateway.server.now.needs import headline_of
from gateway.server.routes import Binder
from gateway.store import schema as t
from gateway.store.writes import Write
from gateway.testing.chat import written
from gateway.testing.fake_models.script import Gate, Refusal, Reply, Say, Use
from gateway.testing.served import Served, serving

pytestmark = pytest.mark.slow
Event = tuple[str, dict[str, Any]]


class Shell(Plugin):
    """A tool that waits until the test lets it end."""

    name = "shell"

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

        async def shell(command: str) -> str:
            """Run a command."""
            await self.may_end.wait()
            return f"ran {command}"

        self._tools = [tool_from(shell, match_key=lambda arguments: arguments["command"])]

    def tools(self) -> Sequence[Tool]:
        return self._tools


class Stream:
    """A client of ``/api/now/events``."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.last = ""
        self._received = b""

    async def next(self) -> Event:
        """The next event with its data."""
        async with asyncio.timeout(60):
            while True:
                event, end, rest = self._received.partition(b"\n\n")
                if not end:
                    if not (more := await self.response.content.readany()):
                        raise InvalidStateError("the stream ended")
                    self._received += more
                    continue
                self._received = rest
                fields = dict(line.split(": ", 1) for line in event.decode().split("\n"))
                if "event" in fields:
                    self.last = fields["id"]
                    return fields["event"], json.loads(fields["data"])

    async def until(self, wanted: Callable[[str, dict[str, Any]], object]) -> dict[str, Any]:
        """The data of the next event that matches."""
        while not wanted(*(event := await self.next())):
            pass
        return event[1]

    async def step(self, kind: str) -> dict[str, Any]:
        """The next row that begins this step."""
        data = await self.until(
            lambda n, d: n == "turn" and any(r["step"]["kind"] == kind for r in d["changed"])
        )
        return next(row for row in data["changed"] if row["step"]["kind"] == kind)


class Streams:
    """Opens streams, and closes them at the end of the test."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self.opened: list[aiohttp.ClientResponse] = []

    async def status(self, served: Served, reader: str) -> int:
        """Open a stream and return the status of the response."""
        address, headers = f"{served.url}/api/now/events", {"X-Reader": reader}
        self.opened.append(await self._http.get(address, headers=headers))
        return self.opened[-1].status

    async def __call__(self, served: Served, query: str = "", **headers: str) -> Stream:
        """Open a stream."""
        response = await self._http.get(f"{served.url}/api/now/events{query}", headers=headers)
        self.opened.append(response)
        assert response.status == 200, await response.text()
        return Stream(response)


@asynccontextmanager
async def following() -> AsyncGenerator[Streams]:
    """Yield the streams of a client."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        streams = Streams(http)
        try:
            yield streams
        finally:
            for response in streams.opened:
                response.close()


async def test_a_turn_is_followed_through_its_steps(tmp_path: Path) -> None:
    shell, said = Shell(), asyncio.Event()
    async with (
        serving(tmp_path, shell, permissions={"shell": "ask"}) as served,
        following() as follow,
        served.socket() as client,
    ):
        stream = await follow(served)
        name, first = await stream.next()
        assert (name, first["headline"]["text"]) == ("snapshot", "Nothing needs you. Everything works.")
        assert [figure["name"] for figure in first["figures"]] == [
            *("messages", "answers", "first_token", "errors", "cost", "running")
        ]
        assert [channel["id"] for channel in first["channels"]] == ["websocket"]
        assert first["channels"][0]["ticks"][-1] == "ok"
        served.models.then(
            Reply((Use("shell", json.dumps({"command": "rm"})),), "tools"),
            Reply((Say("Do"), Gate(said), Say("ne"))),
        )
        await client.say("Please tidy up", session="s")
        asked = await client.until("approval_request")
        row = await stream.step("question")
        assert (row["person"], row["session"], row["step"]["name"]) == ("owner", "s", "shell")
        assert (row["path"][0], row["path"][-1]) == (
            {"kind": "accepted", "state": "ok"},
            {"kind": "question", "state": "waiting"},
        )
        needs = await stream.until(lambda n, d: n == "health" and d["headline"]["count"] == 1)
        [need] = needs["needs"]
        assert (need["kind"], need["text"], need["action"]["target"]) == (
            "question",
            "1 question waits for a person",
            "/console/waiting",
        )
        status, now = await served.ask("GET", "/api/now")
        assert (status, now["asked"]["questions"], now["running"]["total"]) == (200, 1, 1)
        await client.send(type="approval", session="s", approval_id=asked["approval_id"], decision="once")
        row = await stream.step("tool")
        assert (row["step"]["name"], row["path"][-1]["state"]) == ("shell", "running")
        before = stream.last
        shell.may_end.set()
        await stream.step("writing")
        said.set()
        end = await stream.until(lambda n, d: n == "turn" and d["ended"])
        assert [(one["id"], one["person"], one["outcome"]) for one in end["ended"]] == [
            (row["id"], "owner", "end_turn")
        ]
        assert (end["gone"], end["total"]) == ([row["id"]], 0)
        # A reader that comes back gets what it missed, and no snapshot.
        again = await follow(served, **{"Last-Event-ID": before})
        name, missed = await again.next()
        assert (name, missed["changed"][0]["step"]["kind"]) == ("turn", "writing")
        for old in ("nothing", "0" * 12 + "-1", before.partition("-")[0] + "-999999"):
            other = await follow(served, **{"Last-Event-ID": old})
            assert (await other.next())[0] == "snapshot"
            other.response.close()  # which leaves its place to the next one
            await asyncio.sleep(0)
        resumed = await follow(served, f"?after={stream.last}")
        served.models.then(Reply((Say("Hi"),)))
        await served.gateway.parts.host.submit(written("hello"))
        assert (await resumed.next())[0] != "snapshot"


async def test_a_turn_that_ended_is_in_the_snapshot_or_in_a_change_after_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, following() as follow:
        await (await follow(served)).next()
        await served.gateway.parts.host.submit(written("hello", "one"))
        _, now = await served.ask("GET", "/api/now")
        changes = await follow(served, f"?after={now['id']}")
        await served.gateway.parts.host.submit(written("hello", "two"))
        ended = [one["session"] for one in now["activity"]]
        while "two" not in ended:
            name, change = await changes.next()
            ended += [one["session"] for one in change["ended"]] if name == "turn" else []
        assert ended == ["one", "two"]


async def test_what_needs_a_person_is_counted_with_its_cause_and_one_action(tmp_path: Path) -> None:
    budgets = {"all": {"per": "ever", "warn": 0.5, "stop": 10}}
    prices = {"models": {"openai/fake-small": {"input_price": 0, "output_price": 120_000}}}
    async with serving(tmp_path, budgets=budgets, **prices) as served:
        # Its five tokens cost 0.6 dollars.
        served.models.then(Reply((Say("Hi"),)))
        await served.gateway.parts.host.submit(written("hello"))
        served.models.then(Refusal(401, "no such key"))
        await served.gateway.parts.host.submit(written("hello again"))
        event = Write("insert", 999, t.quarantine, "id channel account key raw reason at")
        await served.gateway.parts.store.write((event, ("q", "web", "a", "k", "{}", "odd", now_ms() - 5)))
        served.gateway.left_out["slack"] = "no token"
        _, now = await served.ask("GET", "/api/now")
        found = {need["kind"]: need for need in now["needs"]}
        assert now["headline"]["text"] == f"{len(found)} things need you. Everything else works."
        assert {"provider", "channel", "budget", "dead_letter"} <= found.keys()
        assert found["provider"]["text"] == "OpenAI rejects the key"
        assert found["provider"]["action"]["command"] == "trunkline auth login openai"
        assert (found["channel"]["name"], found["channel"]["cause"]) == ("slack", "no token")
        assert found["budget"]["cause"] == "$0.60 of $10.00 in ever"
        assert found["dead_letter"]["count"] == 1
        [provider] = now["providers"]
        assert (provider["id"], provider["circuit"], provider["failures"]) == ("openai", "rejected", 0)
        assert provider["name"] == "OpenAI"
        assert now["spend"]["today_usd"] == pytest.approx(0.6)
        # The next answer shows that the key works again.
        await served.gateway.parts.host.submit(written("now?"))
        _, now = await served.ask("GET", "/api/now")
        assert "provider" not in {need["kind"] for need in now["needs"]}
    assert headline_of([]).count == 0


async def test_the_cost_of_today_has_no_reservation_of_an_ended_call(tmp_path: Path) -> None:
    prices = {"models": {"openai/fake-small": {"input_price": 0, "output_price": 120_000}}}
    opened = asyncio.Event()
    budgets = {"all": {"per": "day", "warn": 900}}
    async with serving(tmp_path, budgets=budgets, **prices) as served, served.socket() as client:

        async def today() -> float:
            _, now = await served.ask("GET", "/api/now")
            return now["spend"]["today_usd"]

        served.models.then(Reply((Say("Hi"), Gate(opened))))
        await client.say("hello", session="s")
        await client.until("text_delta")
        assert await today() > 400
        # The conversation has no title yet, but it is not a deleted one.
        _, usage = await served.ask("GET", "/api/usage")
        assert [one["title"] for one in usage["top"]] == ["s"]
        opened.set()
        async with asyncio.timeout(60):
            while await today() != pytest.approx(0.6):
                await asyncio.sleep(0.1)


class Readers:
    """Login sessions as a test has them: each request names its reader in a header."""

    def __init__(self) -> None:
        self.ended: set[str] = set()

    def of(self, request: web.Request) -> Reader:
        session, _, role = request.headers.get("X-Reader", "a admin").partition(" ")
        is_admin = role == "admin"
        return Reader(session, is_admin, is_admin, lambda: session not in self.ended)


@asynccontextmanager
async def serving_readers(
    tmp_path: Path, *plugins: Plugin, **settings: Any
) -> AsyncGenerator[tuple[Served, Served, Readers]]:
    """Serve the state of a gateway at its own address, to the readers of the test.

    Yields the gateway, the server of its state, and the readers.
    """
    readers = Readers()
    async with serving(tmp_path, *plugins, **settings) as served:
        observer = Observer(served.gateway)
        routes = NowRoutes(observer, readers.of)
        app = web.Application(middlewares=[Guard(served.gateway.settings.server).middleware])
        app.add_routes(Binder(Auth(None)).bind(routes.routes()))
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        observing = asyncio.create_task(observer.run())
        port = runner.addresses[0][1]
        try:
            now = Served(served.gateway, f"http://127.0.0.1:{port}", served.http, served.models)
            yield served, now, readers
        finally:
            observing.cancel()
            await asyncio.wait([observing])
            routes.close()
            observer.close()
            await runner.cleanup()


async def test_a_viewer_reads_no_text_of_messages(tmp_path: Path) -> None:
    viewer: Mapping[str, str] = {"X-Reader": "v viewer"}
    async with (
        serving_readers(tmp_path, Shell(), permissions={"shell": "ask"}) as (served, now, _),
        following() as follow,
        served.socket() as client,
    ):
        admin, stream = await follow(now), await follow(now, **viewer)
        assert (await stream.next())[0] == (await admin.next())[0] == "snapshot"
        served.models.then(Reply((Use("shell", json.dumps({"command": "rm"})),), "tools"))
        await client.say("My secret plan", session="s")
        await client.until("approval_request")
        assert (await admin.step("question"))["title"] == "My secret plan"
        row = await stream.step("question")
        assert (row["title"], row["step"]["name"], row["person"]) == ("", "", "owner")
        later = await follow(now, **viewer)
        for told in (
            json.dumps((await later.next())[1]),
            json.dumps((await now.ask("GET", "/api/now", headers=viewer))[1]),
        ):
            assert "owner" in told
            assert "secret" not in told
        assert "My secret plan" in json.dumps((await now.ask("GET", "/api/now"))[1])


async def test_a_stream_ends_with_its_session(tmp_path: Path) -> None:
    async with serving_readers(tmp_path) as (_, served, readers), following() as follow:
        one = await follow(served, **{"X-Reader": "one admin"})
        two = await follow(served, **{"X-Reader": "two viewer"})
        readers.ended.add("one")
        await one.response.content.read()
        assert (await two.next())[0] == "snapshot"
        assert not two.response.content.at_eof(), "another session"


async def test_a_session_and_all_together_have_a_limited_number_of_streams(tmp_path: Path) -> None:
    async with serving_readers(tmp_path) as (_, served, _), following() as follow:
        assert [await follow.status(served, "a viewer") for _ in range(5)] == [200, 200, 200, 200, 429]
        taken = await asyncio.gather(*(follow.status(served, f"s{n} viewer") for n in range(186)))
        assert set(taken) == {200}
        assert await follow.status(served, "late viewer") == 429, "the last ten are for admins"
        assert [await follow.status(served, f"b{n} admin") for n in range(11)] == [200] * 10 + [429]


@pytest.mark.parametrize("unread", ["the snapshot", "a change"])
async def test_a_reader_that_does_not_read_is_disconnected(tmp_path: Path, unread: str) -> None:
    async with serving(tmp_path) as served:
        host, port = served.url.removeprefix("http://").rsplit(":", 1)
        much = {f"c{number}": "x" * 100_000 for number in range(100)}
        if unread == "the snapshot":
            served.gateway.left_out.update(much)
        slow = socket.create_connection((host, int(port)))
        slow.sendall(b"GET /api/now/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        if unread == "a change":
            assert await asyncio.to_thread(slow.recv, 1, socket.MSG_PEEK)
            served.gateway.left_out.update(much)
        # More than the buffers of the two sockets hold is lost: the connection was reset.
        with slow:
            error = await asyncio.to_thread(read_to_the_end, slow)
        assert isinstance(error, ConnectionError)


def read_to_the_end(connection: socket.socket) -> OSError | None:
    """Wait until writing fails, without reading."""
    connection.settimeout(60)
    try:
        while True:
            connection.sendall(b"x")
            time.sleep(0.05)
    except OSError as error:
        return error
