"""A session's events as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from gateway.server.events import EventEncoder, SessionEvents
from gateway.server.routes import Binder
from gateway.session.frames import Event, SessionFrame
from gateway.testing.fake_models.script import Cut, Gate, Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import Served, serving, until


class Reader:
    """Reader of a stream. ``events`` are (id, bytes of the JSON)."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.events: list[tuple[int, bytes]] = []
        self.comments: list[bytes] = []
        self.last_id = ""

    async def block(self) -> bytes:
        """One block of the stream; empty at its end."""
        async with asyncio.timeout(60):
            try:
                return await self.response.content.readuntil(b"\n\n")
            except aiohttp.ClientPayloadError:
                return b""

    async def until(self, kind: str) -> dict[str, Any]:
        """Read on to an event of a type. Raises EOFError at the end of the stream."""
        while block := await self.block():
            if block.startswith(b":"):
                self.comments.append(block)
                continue
            first, second, *rest = block.rstrip(b"\n").split(b"\n")
            assert first.startswith(b"id: ")
            assert second.startswith(b"data: ")
            assert rest == []
            self.last_id = first[4:].decode()
            self.events.append((int(self.last_id.partition(":")[0]), second[6:]))
            event = msgspec.json.decode(second[6:])
            if event["type"] == kind:
                return event
        raise EOFError

    @property
    def seq(self) -> int:
        return self.events[-1][0]


@asynccontextmanager
async def reading(served: Served, path: str = "/sessions/s/events", **headers: str) -> AsyncGenerator[Reader]:
    async with served.http.get(served.url + path, headers=headers) as response:
        assert response.status == 200
        yield Reader(response)


def is_idle(frame: dict[str, Any]) -> bool:
    return frame.get("status") == "idle"


async def begun(served: Served, *replies: Reply, text: str = "Hi") -> None:
    served.models.then(*replies)
    await served.ask("POST", "/api/sessions/s/messages", json={"text": text})


async def test_004_19_each_event_is_one_json_object_with_its_number(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with serving(tmp_path) as served:
        await begun(served, Reply((Gate(gate), Say("one "), Say("two"))))
        async with reading(served) as reader:
            gate.set()
            await reader.until("complete")
        assert reader.response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert reader.comments == [b": connected\n\n"]
        for number, payload in reader.events:
            event = msgspec.json.decode(payload)
            assert (event["session"], event["seq"]) == ("s", number)


@pytest.mark.parametrize("path", ["/sessions/s/events", "/api/sessions/s/events"])
async def test_004_20_both_transports_carry_the_same_bytes(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path) as served, served.socket() as client:
        await client.say("First", session="s")
        await client.until(is_idle)
        async with reading(served, f"{path}?after={client.seq}") as reader:
            await reader.until("replayed")
            served.models.then(
                Reply((Say('Quotes " and\nlines\u2028 and \U0001f600'), Use("utc_time")), "tools"),
                Reply((Say("done"),)),
            )
            first = len(client.raw)
            await client.say("Second", session="s")
            await client.until(is_idle)
            while reader.seq < client.seq:
                await reader.until("session")
        sent = [raw for raw in client.raw[first:] if b'"seq"' in raw and not raw.startswith(b'{"type":"ack"')]
        streamed = [payload for _, payload in reader.events if b'"replayed"' not in payload]
        assert streamed[-len(sent) :] == sent
        assert len(sent) > 8


async def test_004_27_a_reader_that_comes_back_gets_what_it_missed(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with serving(tmp_path) as served:
        await begun(served, Reply((Say("all "), Gate(gate), Say("of it"))))
        async with reading(served) as reader:
            await reader.until("text_delta")
            seen = reader.seq
        gate.set()
        await served.idle("s")
        async with reading(served, **{"Last-Event-ID": str(seen)}) as back:
            await back.until("replayed")
        async with reading(served, f"/sessions/s/events?after={seen}") as same:
            await same.until("replayed")
        async with reading(served, "/sessions/s/events?after=0", **{"Last-Event-ID": str(seen)}) as header:
            await header.until("replayed")
        whole = msgspec.json.decode(back.events[0][1])
        assert whole["message"]["parts"] == [{"type": "text", "content": "all of it"}]
        assert back.events == same.events == header.events


class Appending:
    """An append-only client: it adds text to what it has, and knows nothing of ``turn_start``."""

    def __init__(self) -> None:
        self.text = ""
        self.calls: list[str] = []
        self.last_id = ""

    async def read(
        self, served: Served, last: Callable[[dict[str, Any]], bool], gate: asyncio.Event | None = None
    ) -> None:
        """Connect with the last id, and read to an event. The gate opens when it is connected."""
        headers = {"Last-Event-ID": self.last_id} if self.last_id else {}
        async with reading(served, **headers) as reader:
            while block := await reader.block():
                if block.startswith(b":"):
                    if gate:
                        gate.set()
                    continue
                first, second = block.rstrip(b"\n").split(b"\n")
                self.last_id, event = first[4:].decode(), msgspec.json.decode(second[6:])
                if event["type"] == "text_delta":
                    self.text += event["content"]
                    assert self.last_id.partition(":")[2] == str(event["accumulated_length"])
                elif event["type"] == "tool_call_start":
                    self.calls.append(event["tool_call_id"])
                if last(event):
                    return
        raise EOFError


async def test_004_27_an_append_only_reader_continues_in_the_middle_of_a_text(tmp_path: Path) -> None:
    gates = [asyncio.Event() for _ in range(4)]
    async with serving(tmp_path) as served:
        await begun(
            served,
            Reply(
                (
                    Say("One \U0001f600 "),
                    Gate(gates[0]),
                    Say("two "),
                    Gate(gates[1]),
                    Say("three. "),
                    Use("utc_time", id="c1"),
                ),
                "tools",
            ),
            Reply((Gate(gates[2]), Say("Four "), Gate(gates[3]), Say("five."))),
        )
        client = Appending()
        await client.read(served, lambda event: event.get("content") == "One \U0001f600 ")
        gates[0].set()
        await client.read(served, lambda event: event["type"] == "replayed")
        await client.read(served, lambda event: client.text.endswith("two "))
        gates[1].set()
        await client.read(served, lambda event: event["type"] == "tool_result_end")
        for _ in range(3):
            await client.read(served, lambda event: event["type"] == "replayed")
        gates[2].set()
        await client.read(served, lambda event: event.get("content") == "Four ")
        await client.read(served, lambda event: event["type"] == "replayed")
        await client.read(served, lambda event: event["type"] == "complete", gates[3])
        assert client.text == "One \U0001f600 two three. Four five."
        assert client.calls == ["c1"]


async def test_004_27_a_reader_that_is_cut_off_within_a_replay_continues_there(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with serving(tmp_path) as served:
        await begun(
            served,
            Reply((Say("One. "), Use("utc_time", id="c1")), "tools"),
            Reply((Say("Two. "), Gate(gate), Say("Three."))),
        )
        async with reading(served) as other:
            while "Two" not in str((await other.until("text_delta"))["content"]):
                pass
        client = Appending()
        await client.read(served, lambda event: event["type"] == "turn_start")
        await client.read(served, lambda event: event.get("content") == "One. ")
        await client.read(served, lambda event: event.get("content") == "Two. ")
        await client.read(served, lambda event: event["type"] == "complete", gate)
        assert client.text == "One. Two. Three."


async def test_a_reader_restarts_when_what_it_saw_was_withdrawn(tmp_path: Path) -> None:
    gate, failed = asyncio.Event(), asyncio.Event()
    async with FakeModels() as fake:
        backend = {"base_url": fake.openai_url, "api_key": "k", "max_retries": 0}
        settings: dict[str, Any] = {
            "providers": {"openai": backend, "other": {**backend, "like": "openai"}},
            "fallback": ("other/fake-small",),
        }
        async with serving(tmp_path, fake=fake, **settings) as served:
            await begun(
                served,
                Reply((Say("Wro"), Gate(failed), Cut())),
                Reply((Say("Right"), Gate(gate), Say("."))),
            )
            async with reading(served) as reader:
                await reader.until("text_delta")
                seen = reader.last_id
            failed.set()
            async with reading(served) as reader:
                while (await reader.until("text_delta"))["content"] != "Right":
                    pass
            async with reading(served, **{"Last-Event-ID": seen}) as back:
                await back.until("turn_start")
                gate.set()
                await back.until("complete")


async def test_a_reader_that_comes_back_after_a_restart_gets_what_it_missed(tmp_path: Path) -> None:
    async with FakeModels() as models:
        async with serving(tmp_path, fake=models) as served:
            await begun(served)
            await served.idle("s")
        async with serving(tmp_path, fake=models) as served, reading(served) as reader:
            await reader.until("replayed")
    kinds = [msgspec.json.decode(payload)["type"] for _, payload in reader.events]
    assert kinds == ["message", "message", "replayed"]


async def test_a_quiet_stream_shows_that_it_is_alive(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await begun(served)
        await served.idle("s")
        streams = SessionEvents(served.gateway.parts.host, heartbeat=0.02)
        route = streams.routes()[0]
        async with (
            _listening(Binder(served.gateway.parts.host.auth).bind([route])) as url,
            served.http.get(f"{url}/sessions/s/events") as response,
        ):
            reader = Reader(response)
            await reader.until("replayed")
            assert await reader.block() == b": still here\n\n"
            assert await reader.block() == b": still here\n\n"
            streams.close()
            while await reader.block():
                pass


async def test_004_22_a_reader_that_stops_reading_is_dropped_and_resumes(tmp_path: Path) -> None:
    limits = {"websocket_queue": 1}
    async with serving(tmp_path, limits=limits) as served, served.lazy_http() as lazy:
        await begun(served)
        await served.idle("s")
        session = await served.gateway.parts.host.sessions.find("s")
        async with lazy.get(f"{served.url}/sessions/s/events") as response:
            reader = Reader(response)
            await reader.until("replayed")
            for n in range(6000):
                session.publish(SessionFrame(title=f"{n} " + "x" * 4000))
                await asyncio.sleep(0)
            assert served.gateway.counters.dropped == 1
            with pytest.raises((EOFError, aiohttp.ClientError)):
                await reader.until("never")
        await until(lambda: served.gateway.counters.clients["sse"] == 0)
        async with reading(served, **{"Last-Event-ID": str(reader.seq)}) as back:
            assert (await back.until("replayed"))["seq"] == session.seq


async def test_a_reader_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await begun(served)
        async with reading(served) as reader:
            await reader.until("complete")
            assert served.gateway.counters.clients["sse"] == 1
        session = await served.gateway.parts.host.sessions.find("s")
        for _ in range(3):
            session.publish(SessionFrame(status="idle"))
            await asyncio.sleep(0.01)
        await until(lambda: served.gateway.counters.clients["sse"] == 0)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/sessions/nobody/events", {}, 404),
        ("/sessions/s/events?after=x", {}, 400),
        ("/sessions/s/events?after=-1", {}, 400),
        ("/sessions/s/events", {"Last-Event-ID": "x"}, 400),
        ("/sessions/s/events", {"Last-Event-ID": "9" * 30}, 400),
        ("/sessions/%00/events", {}, 400),
    ],
)
async def test_a_stream_that_cannot_be_is_refused_by_name(
    tmp_path: Path, path: str, headers: dict[str, str], status: int
) -> None:
    async with serving(tmp_path) as served:
        await begun(served)
        got, refused = await served.ask("GET", path, headers=headers)
        names = {400: "InvalidRequestError", 404: "NotFoundError"}
        assert (got, refused["error_name"]) == (status, names[status])


@pytest.mark.parametrize("path", ["/api/now/events", "/api/events", "/api/sessions/s/events"])
async def test_a_request_for_the_headers_of_a_stream_ends(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path) as served, served.socket() as client:
        await client.say("Hi", session="s")
        await client.until("complete")
        host, _, port = served.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(60):
            for request in (f"HEAD {path}", "GET /healthz"):
                writer.write(f"{request} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                # The second answer begins where a body would follow the first one.
                assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"application/json" in head
        writer.close()


async def test_streams_end_with_the_server(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as tasks:
        async with serving(tmp_path) as served:
            await begun(served)
            await served.idle("s")
            response = await served.http.get(f"{served.url}/sessions/s/events")
            reader = Reader(response)
            await reader.until("replayed")
            end = tasks.create_task(reader.block())
        assert await end == b""


def test_an_event_is_written_as_two_lines() -> None:
    event = Event("s", 7, SessionFrame(title="a\nb"))
    assert EventEncoder().encode([event, event]) == 2 * (
        b'id: 7:0\ndata: {"type":"session","title":"a\\nb","session":"s","seq":7}\n\n'
    )


@asynccontextmanager
async def _listening(routes: list[Any]) -> AsyncGenerator[str]:
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
