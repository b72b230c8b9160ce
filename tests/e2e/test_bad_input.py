"""Bad input over the wire, against a gateway that is a separate process.

Whatever clients, pages, models and plugins do: each gets an error with a name, the process lives, and
what was accepted meanwhile is answered once.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy import select

from gateway.store import schema as t
from gateway.testing.contracts.rude_server import RudeServer
from gateway.testing.fake_models.script import Gate, ModelRequest, Refusal, Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import SocketClient
from tests.e2e.gateway_process import GatewayProcess
from tests.e2e.rude_answers import FINE, RUDE

PROVIDER_ERRORS = {
    "BadRequestError",
    "DeltaParseError",
    "EmptyAnswerError",
    "ProviderUnavailableError",
    "ServerFailedError",
    "StreamAbortedError",
    "StreamTimeoutError",
}


@asynccontextmanager
async def besieged(directory: Path, **tables: str) -> AsyncGenerator[GatewayProcess]:
    """A gateway that is answering three people; they get their answers after the block."""
    gate = asyncio.Event()

    def answer(asked: ModelRequest) -> Reply | Refusal:
        return Reply((Say("You said: "), Gate(gate), Say(asked.user_text)))

    async with (
        FakeModels(answer) as models,
        GatewayProcess(directory, models.openai_url, **tables) as gateway,
    ):
        assert await gateway.start()
        async with gateway.client(**GUEST) as client:
            acks = [await client.say(f"question {n}", session=f"calm-{n}") for n in range(3)]
            yield gateway
            gate.set()
            for _ in acks:
                await client.until("complete")
        assert gateway.status is None
        assert await gateway.stop() == 0
        assert await answers(gateway, "calm-") == {f"calm-{n}": 1 for n in range(3)}
        assert "Traceback" not in gateway.errors


GUEST = {"Authorization": "Bearer a-right-token-of-some-length"}
GUARDED = 'token = "a-right-token-of-some-length"'


async def answers(gateway: GatewayProcess, sessions: str) -> dict[str, int]:
    """How many answers there are in each session whose name begins so; no message may be open."""
    messages = select(t.messages.c.session_id).where(
        t.messages.c.role == "assistant", t.messages.c.session_id.startswith(sessions)
    )
    async with gateway.database() as engine:
        with engine.connect() as connection:
            states = set(connection.execute(select(t.inbox.c.state)).scalars())
            found = connection.execute(messages).scalars().all()
    assert states <= {"done", "dead"}
    return {session: found.count(session) for session in found}


FRAMES = {
    "no JSON": "hello",
    "half a frame": '{"type":"message"',
    "an array": "[]",
    "deep lists": '{"type":"message","client_msg_id":"1","parts":' + "[" * 400_000,
    "deep objects": '{"type":"message","client_msg_id":"1","parts":[' + '{"a":' * 100_000,
    "a lone surrogate": '{"type":"message","client_msg_id":"1","text":"\\ud800 and more"}',
    "a number of a million digits": '{"type":"resume","session":"s","after":%s}' % ("9" * 900_000),
    "a megabyte of nothing": " " * 999_999,
    "a megabyte of keys": "{" + ",".join(f'"{n}":0' for n in range(90_000)) + "}",
    "a session nobody has": '{"type":"resume","session":"nobody"}',
    "an abort of a session nobody has": '{"type":"abort","session":"nobody"}',
    "a path as a session": '{"type":"message","client_msg_id":"1","text":"x","session":"../../etc"}',
}
VALUES = ("null", "true", "-1", "1e999", '""', '"\\u0000"', "[]", "{}", "[[]]", '[{"type":7}]')
FIELDS = {
    "message": ("type", "client_msg_id", "session", "parts"),
    "resume": ("session", "after"),
    "abort": ("session",),
    "approval": ("session", "approval_id", "decision"),
}


def wrong_types() -> list[str]:
    """Frames with one field that is of a wrong type, or says what it must not."""
    good = {"client_msg_id": '"1"', "session": '"calm-0"', "approval_id": '"x"', "decision": '"once"'}
    found: list[str] = []
    for kind, fields in FIELDS.items():
        for field, value in itertools.product(fields, VALUES):
            given = {"type": f'"{kind}"', **good, field: value}
            found.append("{" + ",".join(f'"{key}":{value}' for key, value in given.items()) + "}")
    return found


async def test_frames_that_are_none_are_refused_by_name(tmp_path: Path) -> None:
    async with besieged(tmp_path) as gateway, gateway.client() as rude:
        for frame in (*FRAMES.values(), *wrong_types()):
            await rude.socket.send_str(frame)
            refused = await rude.read()
            assert refused["type"] == "error", frame[:200]
            assert refused["error_name"] in REFUSALS, frame[:200]
            assert len(refused["message"]) < 500
        await rude.send(type="ping")
        assert await rude.read() == {"type": "pong"}


REFUSALS = {"InvalidRequestError", "InvalidPartTypeError", "PartValidationError", "NotFoundError"}


async def test_the_largest_frame_is_taken_and_a_larger_one_ends_only_its_socket(tmp_path: Path) -> None:
    async with besieged(tmp_path) as gateway:
        empty = len('{"type":"message","client_msg_id":"1","text":"","session":"large"}')
        async with gateway.client() as client:
            text = "x" * (999_999 - empty)
            await client.send(type="message", client_msg_id="1", text=text, session="large")
            assert (await client.read())["type"] == "ack"
        async with gateway.client() as client:
            text = "x" * (1_000_001 - empty)
            await client.send(type="message", client_msg_id="2", text=text, session="large")
            assert await client.close_code() == 1009
        async with gateway.client() as client:
            with pytest.raises(ConnectionError):  # with the ack or before: the rest is not waited for
                await client.say(text * 50, session="large")


def handshake(url: str) -> bytes:
    """The beginning of a websocket."""
    key = base64.b64encode(os.urandom(16)).decode()
    lines = (
        "GET /ws HTTP/1.1",
        f"Host: {url.removeprefix('http://')}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Protocol: trunkline.v1",
    )
    return "\r\n".join((*lines, "", "")).encode()


def masked(first: int, payload: bytes = b"", length: int | None = None) -> bytes:
    """A frame of a client, its mask being zero; ``length`` is what it claims."""
    size = len(payload) if length is None else length
    head = bytes([first, 0x80 | size]) if size < 126 else bytes([first, 0xFF]) + struct.pack(">Q", size)
    return head + b"\0\0\0\0" + payload


TEXT, CONTINUED, CLOSE, PING, FIN = 1, 0, 8, 9, 0x80
BREACHES = {
    "a kind of frame that is none": (masked(FIN | 0x3), 1002),
    "reserved bits": (masked(FIN | 0x70 | TEXT, b"{}"), 1002),
    "a length beyond all": (masked(FIN | TEXT, length=2**63 - 1), 1009),
    "a ping in pieces": (masked(PING, b"x") + masked(FIN | CONTINUED, b"x"), 1002),
    "a large ping": (bytes([FIN | PING, 0xFE]) + struct.pack(">H", 200) + b"\0" * 204, 1002),
    "a continuation of nothing": (masked(FIN | CONTINUED, b"{}"), 1002),
    "pieces that grow too large": (masked(TEXT, b"x" * 60) + masked(CONTINUED, b"x" * 100) * 20_000, 1009),
    "a farewell of one byte": (masked(FIN | CLOSE, b"x"), 1002),
}


async def test_a_socket_that_breaks_the_protocol_gets_the_reason_and_is_closed(tmp_path: Path) -> None:
    async with besieged(tmp_path) as gateway:
        for name, (sent, code) in BREACHES.items():
            said = await exchange(gateway.url, handshake(gateway.url) + sent)
            assert said.startswith(b"HTTP/1.1 101"), name
            assert struct.pack(">H", code) in said.split(b"\r\n\r\n", 1)[1], (name, said[-80:])


REQUESTS = {
    "noise": bytes(range(256)) * 50,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "a line of a megabyte": b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\n\r\n",
    "a header of a megabyte": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 1_000_000 + b"\r\n\r\n",
    "two lengths": b"POST /api/sessions HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    "a length and chunks": b"POST /api/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n",
    "a negative length": b"POST /api/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    "a broken chunk": b"POST /api/sessions HTTP/1.1\r\nHost: localhost\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a version nobody knows": b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
}


async def exchange(url: str, sent: bytes) -> bytes:
    """Send bytes, and read until the other side ends it."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    said = b""
    try:
        writer.write(sent)
        async with asyncio.timeout(60):
            while piece := await reader.read(65536):
                said += piece
    except ConnectionError:
        pass  # it ended it while we were still talking
    finally:
        writer.close()
    return said


async def test_requests_that_are_none_are_refused(tmp_path: Path) -> None:
    async with besieged(tmp_path) as gateway:
        for name, sent in REQUESTS.items():
            said = await exchange(gateway.url, sent)
            assert not said or said.startswith((b"HTTP/1.0 4", b"HTTP/1.1 4")), (name, said[:200])
            assert b"Traceback" not in said


async def test_a_refused_client_gets_the_reason_and_disturbs_no_other(tmp_path: Path) -> None:
    async with besieged(tmp_path, server=GUARDED) as gateway, aiohttp.ClientSession() as http:
        for wrong, status, name in (
            ({"Authorization": "Bearer wrong"}, 401, "UnauthorizedError"),
            ({"Origin": "https://evil.example", **GUEST}, 403, "ForeignPageError"),
            ({"Host": "evil.example", **GUEST}, 421, "MisdirectedRequestError"),
        ):
            async with http.get(f"{gateway.url}/api/sessions", headers=wrong) as response:
                refused = await response.json()
            assert (response.status, refused["error_name"]) == (status, name)
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            async with gateway.client(Origin="https://evil.example", **GUEST):
                pass
        for code in [4001] * 9 + [4029]:
            with pytest.raises(ConnectionError, match=str(code)):
                async with gateway.client(Authorization="Bearer wrong"):
                    pass


async def finished(client: SocketClient, session: str) -> Sequence[dict[str, Any]]:
    """What a session was shown from here to the end of its answer."""
    seen: list[dict[str, Any]] = []

    def ends(frame: dict[str, Any]) -> bool:
        if frame.get("session") == session:
            seen.append(frame)
        return frame["type"] == "complete" and frame["session"] == session

    await client.until(ends)
    return seen


async def test_a_model_that_answers_garbage_is_named_and_the_next_answer_is_fine(tmp_path: Path) -> None:
    limits = {"provider": "max_retries = 0\ntimeout = 4_000", "settings": "stream_timeout_ms = 3_000"}
    async with RudeServer() as rude, GatewayProcess(tmp_path, f"{rude.url}/v1", **limits) as gateway:
        assert await gateway.start()
        async with gateway.client() as client:
            for number, (name, answer) in enumerate(RUDE.items()):
                session = f"rude-{number}"
                rude.answer = answer
                await client.say("Hello", session=session)
                shown = await finished(client, session)
                [part] = [frame["part"] for frame in shown if frame["type"] == "part"]
                assert part["error_name"] in PROVIDER_ERRORS, (name, part)
                assert shown[-1]["stop_reason"] == "cancelled"
                rude.answer = (FINE,)
                await client.say("Hello again", session=session)
                assert (await finished(client, session))[-1]["stop_reason"] == "end_turn", name
        assert await gateway.stop() == 0
        assert await answers(gateway, "rude-") == {f"rude-{n}": 2 for n in range(len(RUDE))}
        assert "Traceback" not in gateway.errors


async def test_a_model_that_is_not_there_is_named_and_asked_again_later(tmp_path: Path) -> None:
    async with FakeModels() as models:
        url = models.openai_url
    async with GatewayProcess(tmp_path, url, provider="max_retries = 1") as gateway:
        assert await gateway.start()
        async with gateway.client() as client:
            await client.say("Hello", session="s")
            assert (await client.until("part"))["part"]["error_name"] == "ProviderUnavailableError"
            async with FakeModels(port=int(url.rsplit(":", 1)[1].removesuffix("/v1"))):
                await client.say("Hello again", session="s")
                assert await client.until(
                    lambda f: f["type"] == "complete" and f["stop_reason"] == "end_turn"
                )


FAILURES = ("RuntimeError('oops')", "SystemExit(3)", "asyncio.CancelledError()", "TimeoutError()")
HOOKS = (
    "transform_user_input",
    "transform_system_prompt",
    "filter_tools",
    "before_llm_call",
    "after_llm_call",
    "before_tool_exec",
    "after_tool_exec",
    "after_agent_run",
)
ENDS_THE_TURN = HOOKS[:4]
BROKEN = f'''
import asyncio
from gateway import Plugin, SlashCommand, tool_from

FAILURES = ({", ".join(FAILURES)})

class Broken(Plugin):
    """Fails wherever the last words of the user tell it to: "PLACE FAILURE"."""

    name = "broken"
    place, failure = "", 0

    def _fail(self, place):
        if place == self.place:
            raise FAILURES[self.failure]

    async def activate(self, ctx):
        self.system_prompt = self._prompt

    async def deactivate(self):
        raise RuntimeError("oops")

    def _prompt(self, ctx):
        self._fail("system_prompt")
        return ""

    def tools(self):
        async def knock() -> str:
            """Knock."""
            self._fail("tool")
            return "knocked"

        return [tool_from(knock)]

    def commands(self):
        async def command(rest, ctx):
            self.place, self.failure = "command", int(rest)
            self._fail("command")

        return [SlashCommand("fail", "Fail.", command)]

    async def transform_user_input(self, text, ctx):
        place, _, failure = text.partition(" ")
        self.place, self.failure = place, int(failure or 0)
        self._fail("transform_user_input")
'''
BROKEN += "".join(
    f"\n    async def {hook}(self, *given):\n        self._fail('{hook}')\n" for hook in HOOKS[1:]
)
UNUSABLE = """
from gateway import Plugin

class Unusable(Plugin):
    name = "unusable"

    async def activate(self, ctx):
        raise SystemExit(3)

plugin = Unusable()
"""


async def test_a_plugin_that_fails_wherever_it_can_is_named_and_ends_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(f"{BROKEN}\nplugin = Broken()\n")
    (tmp_path / "unusable.py").write_text(UNUSABLE)
    enabled = '[{ name = "unusable", optional = true }, "broken"]'
    settings = f'plugins.enabled = {enabled}\npermissions.knock = "allow"'
    async with FakeModels() as models, GatewayProcess(tmp_path, models.openai_url, settings) as gateway:
        assert await gateway.start()
        async with gateway.client() as client:
            for place, number in itertools.product((*HOOKS, "system_prompt", "tool"), range(len(FAILURES))):
                models.forget()
                models.then(Reply((Use("knock"),), "tools"), Reply((Say("done"),)))
                session = f"broken-{place}-{number}"
                await client.say(f"{place} {number}", session=session)
                shown = await finished(client, session)
                errors = [f["part"] for f in shown if f["type"] == "part" and f["part"]["type"] == "error"]
                if place in (*ENDS_THE_TURN, "system_prompt"):
                    assert [error["error_name"] for error in errors] == ["PluginError"], (place, number)
                    assert "'broken'" in errors[0]["message"]
                else:
                    assert (errors, shown[-1]["stop_reason"]) == ([], "end_turn"), (place, number)
            for number in range(len(FAILURES)):
                await client.say(f"/fail {number}", session="broken-command")
                assert (await client.until("part"))["part"]["error_name"] == "InternalError"
                await finished(client, "broken-command")
            await client.say("still there?", session="broken-not")
            await finished(client, "broken-not")
        assert await gateway.stop() == 0
        counts = await answers(gateway, "broken-")
        assert counts.pop("broken-command") == len(FAILURES)
        assert set(counts.values()) == {1}
        assert "unusable" in gateway.errors
