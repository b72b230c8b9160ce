"""The contract suite for channels, with a client of the websocket protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.app import Gateway
from gateway.testing.contracts.channel_contract import ChannelCheck, checks_for
from gateway.testing.contracts.channel_platform import Platform

pytestmark = pytest.mark.slow

_SESSION = "s"
_MALFORMED = (
    "{",
    "[]",
    '{"type": "brand_new"}',
    '{"type": "message", "client_msg_id": 7, "text": []}',
    '{"type": "message", "client_msg_id": "", "text": "?"}',
    '{"type": "resume", "session": "s", "after": "x"}',
    '{"type": "abort"}',
)
_OVERLOADED_PAUSE = 0.05


class WebsocketPlatform(Platform):
    """A client that keeps its messages until they are acknowledged, and reconnects to each gateway."""

    name = "websocket"
    longest = 1_000_000
    lacks = {
        "edits": "clients cannot change sent messages",
        "deletions": "clients cannot change sent messages",
        "rooms": "a session is a private chat",
        "reordering": "a connection keeps the order",
        "sending": "clients read the session's log",
    }

    def __init__(self) -> None:
        self._unsent: dict[str, str] = {}
        """The frames of messages without an acknowledgement, by client_msg_id."""
        self._texts: dict[str, str] = {}
        self._seq = 0
        self._copies = 1
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._work: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> WebsocketPlatform:
        self._http = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        for task in (self._work, *self._sending):
            if task is not None:
                task.cancel()
        await self._http.close()

    def settings(self) -> Mapping[str, Any]:
        return {}

    async def connected(self, gateway: Gateway, url: str) -> None:
        self._socket = await self._http.ws_connect(f"{url}/ws", protocols=("trunkline.v1",))
        if self._texts:
            await self._socket.send_json({"type": "resume", "session": _SESSION, "after": self._seq})
        self._work = asyncio.create_task(self._read(self._socket))
        for frame in list(self._unsent.values()):
            await self._socket.send_str(frame)

    def write(self, text: str) -> str:
        key = f"m{len(self._unsent)}{text}"
        frame = {"type": "message", "client_msg_id": key, "session": _SESSION, "text": text}
        self._unsent[key] = json.dumps(frame)
        for _ in range(self._copies):
            self._send(self._unsent[key])
        return key

    def shown(self) -> Sequence[str]:
        return [text for text in self._texts.values() if text]

    def check(self) -> None:
        assert self._unsent == {}, "a message was not acknowledged"

    def malformed(self) -> None:
        for frame in _MALFORMED:
            self._send(frame)

    def repeat(self) -> None:
        self._copies = 2

    def _send(self, frame: str, pause: float = 0) -> None:
        socket = self._socket
        if socket is not None and not socket.closed:
            task = asyncio.create_task(_sent(socket, frame, pause))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for received in socket:
            frame = json.loads(received.data)
            self._seq = max(self._seq, frame.get("seq", 0))
            key = frame.get("client_msg_id")
            match frame["type"]:
                case "ack":
                    self._unsent.pop(key, None)
                case "error" if frame["retryable"] and key in self._unsent:
                    self._send(self._unsent[key], _OVERLOADED_PAUSE)
                case "turn_start":
                    self._texts[frame["message_id"]] = ""
                case "text_delta" if "kind" not in frame:
                    self._texts[frame["message_id"]] += frame["content"]
                case "message" if frame["message"]["role"] == "assistant":
                    parts = frame["message"]["parts"]
                    self._texts[frame["message"]["id"]] = "".join(part["content"] for part in parts)
                case _:
                    pass


async def _sent(socket: aiohttp.ClientWebSocketResponse, frame: str, pause: float) -> None:
    await asyncio.sleep(pause)
    if not socket.closed:
        await socket.send_str(frame)


@pytest.mark.parametrize("check", checks_for(WebsocketPlatform), ids=str)
async def test_the_contract(check: ChannelCheck, tmp_path: Path) -> None:
    await check(WebsocketPlatform(), tmp_path)
