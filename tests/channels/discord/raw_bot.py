"""Bot that does nothing by itself: plain HTTP and plain websockets, for tests of the fake."""

from __future__ import annotations

import asyncio
import io
import json
import zlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import zstandard

from channels.discord.fake import FakeDiscord
from channels.discord.fake.calls import FORMATS, check
from gateway.testing.fake_platform import Schemas

_PATIENCE = 60.0
_AGENT = "DiscordBot (https://example.org, 1.0)"
EVERYTHING = 0b11_0011_0001_1111_1111_1111_1111 & ~(1 << 1 | 1 << 8)
"""All intents but those of members and presences."""
ANSWERS = Schemas(json.loads((Path(__file__).parent / "answers.json").read_text()), formats=FORMATS)
"""What the platform's own descriptions say of its answers and events."""


class Said:
    """Response to a call."""

    def __init__(self, status: int, headers: Mapping[str, str], body: Any) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def code(self) -> int:
        """Return Discord's error code."""
        return self.body["code"]


class RawBot:
    """Client of the REST API, with the fake's token."""

    def __init__(self, fake: FakeDiscord, http: aiohttp.ClientSession) -> None:
        self.fake = fake
        self.http = http

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        files: Mapping[str, bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Said:
        """Make a call and return its response."""
        sent: Any = raw if raw is not None else (None if body is None else msgspec.json.encode(body))
        given = {"User-Agent": _AGENT, "Authorization": f"Bot {self.fake.token}", **(headers or {})}
        if files is not None:
            sent = aiohttp.FormData(quote_fields=False)
            sent.add_field("payload_json", json.dumps(body), content_type="application/json")
            for index, (name, data) in enumerate(files.items()):
                sent.add_field(f"files[{index}]", io.BytesIO(data), filename=name)
        elif sent is not None:
            given["Content-Type"] = "application/json"
        async with self.http.request(
            method, self.fake.api_url + path, data=sent, headers=given, allow_redirects=False
        ) as answer:
            text = await answer.read()
            is_json = answer.content_type == "application/json"
            return Said(answer.status, answer.headers, json.loads(text) if is_json and text else text)

    async def send(self, chat: int, content: str = "", **more: Any) -> Said:
        """Write a message."""
        return await self.call("POST", f"/channels/{chat}/messages", {"content": content, **more})

    @asynccontextmanager
    async def socket(self, **query: str) -> AsyncGenerator[Socket]:
        """Connect to the gateway and read its greeting."""
        asked = {"v": "10", "encoding": "json", **query}
        async with self.http.ws_connect(self.fake.gateway_url, params=asked, max_msg_size=0) as socket:
            yield Socket(self.fake, socket, query.get("compress", ""))

    @asynccontextmanager
    async def session(self, intents: int = EVERYTHING, **query: str) -> AsyncGenerator[Socket]:
        """Connect, log in and read all guilds."""
        async with self.socket(**query) as socket:
            await socket.identify(intents)
            ready = await socket.until("READY")
            socket.session_id = ready["session_id"]
            if intents & 1:
                for _ in ready["guilds"]:
                    await socket.until("GUILD_CREATE")
            yield socket


class Socket:
    """Connection to the gateway. ``seq`` is the number of the last event."""

    def __init__(self, fake: FakeDiscord, socket: aiohttp.ClientWebSocketResponse, compress: str) -> None:
        self.fake = fake
        self.socket = socket
        self.seq: int | None = None
        self.session_id = ""
        self.payloads: list[dict[str, Any]] = []
        unpackers = {"zlib-stream": zlib.decompressobj(), "zstd-stream": zstandard.ZstdDecompressor()}
        unpacker = unpackers.get(compress)
        self._unpacker: Any = unpacker.decompressobj() if compress == "zstd-stream" else unpacker

    async def send(self, op: int, data: object = None) -> None:
        """Send a payload."""
        await self.socket.send_str(json.dumps({"op": op, "d": data}))

    async def identify(self, intents: int = EVERYTHING, **more: Any) -> None:
        """Log in."""
        about = {"os": "linux", "browser": "test", "device": "test"}
        token = {"token": self.fake.token, "intents": intents, "properties": about}
        await self.send(2, {**token, **more})

    async def resume(self, session: str, seq: int | None) -> None:
        """Resume a session."""
        await self.send(6, {"token": self.fake.token, "session_id": session, "seq": seq})

    async def read(self) -> dict[str, Any]:
        """Return the next payload. Raises ConnectionError if the connection is closed."""
        async with asyncio.timeout(_PATIENCE):
            frame = await self.socket.receive()
        if frame.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            raise ConnectionError(f"closed with {self.socket.close_code}")
        data = frame.data
        if isinstance(data, bytes):
            data = self._unpacker.decompress(data) if self._unpacker is not None else zlib.decompress(data)
        payload = json.loads(data)
        if payload.get("s") is not None:
            self.seq = payload["s"]
        self.payloads.append(payload)
        return payload

    async def until(self, name: str) -> Any:
        """Return the data of the next event with a name."""
        while True:
            payload = await self.read()
            if payload["t"] == name:
                return payload["d"]

    async def until_op(self, op: int) -> Any:
        """Return the data of the next payload with an opcode."""
        while True:
            payload = await self.read()
            if payload["op"] == op:
                return payload["d"]

    async def close_code(self) -> int | None:
        """Read until the other side closes, and return its code."""
        try:
            while True:
                await self.read()
        except ConnectionError:
            return self.socket.close_code

    async def settled(self) -> list[dict[str, Any]]:
        """Return everything that was sent up to now: the answer to a heartbeat comes after it."""
        await self.send(1, self.seq)
        await self.until_op(11)
        return self.payloads


def misfits(fake: FakeDiscord) -> list[str]:
    """Return where the fake's responses and events differ from Discord's schema."""
    found: list[str] = []
    for call in fake.transcript.calls:
        if call.method in ANSWERS.at("calls") and call.status < 300 and call.answer is not None:
            wrong = check(ANSWERS, call.answer, "calls", call.method).wrong
            found += [f"{call.method}: {wrong}"] if wrong else []
    for session in fake.gateway.sessions.values():
        for event in session.events:
            if event.name in ANSWERS.at("events"):
                wrong = check(ANSWERS, msgspec.to_builtins(event.data), "events", event.name).wrong
                found += [f"{event.name}: {wrong}"] if wrong else []
    return found
