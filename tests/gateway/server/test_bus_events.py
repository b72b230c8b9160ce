"""``/api/events`` and ``trunkline events``: the event bus for the operator, over a real socket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp

from gateway import Plugin
from gateway.contract.errors import InvalidStateError
from gateway.events import BusEvent, ChannelHealth, SessionDeleted
from gateway.testing.served import Served, serving
from tests.gateway.cli.processes import PATIENCE, gateway, started, trunkline


class Odd(BusEvent, frozen=True, tag="test.odd"):
    """An event of a plugin with a value that JSON does not have."""

    value: object


class Reader:
    """A client of the stream."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self) -> dict[str, Any]:
        """The next event; its name is that of the SSE event."""
        name = ""
        async for line in self.response.content:
            if line.startswith(b"event: "):
                name = line[7:].decode().strip()
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                assert event["name"] == name
                return event
        raise InvalidStateError("the stream ended")

    async def until(self, name: str) -> dict[str, Any]:
        while (event := await self.next())["name"] != name:
            pass
        return event


async def opened(served: Served, http: aiohttp.ClientSession, query: str = "", **how: Any) -> Reader:
    response = await http.get(f"{served.url}/api/events{query}", **how)
    assert response.status == 200, await response.text()
    assert response.headers["Content-Type"].startswith("text/event-stream")
    reader = Reader(response)
    assert (await reader.next())["name"] == "server.connected"
    return reader


async def test_004_t02_an_operator_follows_the_events(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, aiohttp.ClientSession() as http, served.socket() as client:
        reader = await opened(served, http)
        only = await opened(served, http, "?type=test.odd,session.deleted")
        await client.say("Hi", session="s")
        await client.until("complete")
        assert (await reader.until("session.created"))["session"] == "s"
        turn = await reader.until("turn.finished")
        assert (turn["session"], turn["outcome"], turn["channel"]) == ("s", "end_turn", "websocket")
        await served.gateway.registry.register(type("New", (Plugin,), {"name": "new"})())
        assert (await reader.until("plugin.registered"))["plugin"] == "new"
        served.gateway.events.emit(Odd({1, 2}))
        served.gateway.events.emit(SessionDeleted("x"))
        assert [(await only.next())["name"] for _ in range(2)] == ["test.odd", "session.deleted"]
        reader.response.close()
        only.response.close()


async def test_an_unknown_type_is_named_with_the_known_ones(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        status, error = await served.ask("GET", "/api/events?type=turn.finished,turn.ended")
        assert (status, error["error_name"]) == (400, "InvalidRequestError")
        assert "no event 'turn.ended'; the events are" in error["message"]
        assert "turn.finished" in error["message"]


async def test_the_stream_needs_the_token(tmp_path: Path) -> None:
    async with serving(tmp_path, server={"token": "t" * 40}) as served, aiohttp.ClientSession() as http:
        async with http.get(f"{served.url}/api/events") as response:
            assert response.status == 401
        reader = await opened(served, http, headers={"Authorization": f"Bearer {'t' * 40}"})
        reader.response.close()


async def test_a_stream_ends_with_a_last_event_and_leaves_no_subscription(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as http:
        async with serving(tmp_path) as served:
            left = await opened(served, http, "?type=test.odd")
            left.response.close()
            while served.gateway.events.wants(Odd):
                await asyncio.sleep(0.01)
            reader = await opened(served, http)
        assert (await reader.until("gateway.disposed"))["at"] > 0
        assert (await reader.response.content.read()).strip() == b""


async def test_a_reader_that_is_too_slow_gets_the_number_of_lost_events(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, aiohttp.ClientSession() as http:
        reader = await opened(served, http, "?type=channel.health")
        for number in range(1_500):
            served.gateway.events.emit(ChannelHealth(str(number), ok=True, detail=""))
        assert (await reader.next())["count"] == 500
        assert (await reader.next())["channel"] == "500"
        reader.response.close()


def test_the_command_prints_events_and_refuses_unknown_types(tmp_path: Path) -> None:
    with gateway(tmp_path, "--port", "0", "--model", "demo/demo") as running:
        port = {"TRUNKLINE_SERVER__PORT": running.port}
        wrong = trunkline("events", "--type", "nothing", home=tmp_path, **port)
        assert (wrong.returncode, "no event 'nothing'" in wrong.stderr) == (2, True)
        with started("events", "--json", "--type", "turn.finished", home=tmp_path, **port) as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["name"] == "server.connected"
            assert trunkline("send", "Hi", home=tmp_path, **port).returncode == 0
            assert json.loads(process.stdout.readline())["outcome"] == "end_turn"
            assert running.stop() == 0
            assert json.loads(process.stdout.readline())["name"] == "gateway.disposed"
            assert process.wait(PATIENCE) == 0


def test_without_a_gateway_the_command_says_so(tmp_path: Path) -> None:
    done = trunkline("events", home=tmp_path, TRUNKLINE_SERVER__PORT="1")
    assert (done.returncode, "no gateway responds" in done.stderr) == (75, True)
