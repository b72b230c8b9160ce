"""A gateway with its HTTP server in tests, on real sockets; its model is a fake server.

::

    async with serving(tmp_path) as served, served.socket() as client:
        served.models.then(Reply((Say("Hello"),)))
        ack = await client.say("Hi")
        done = await client.until("complete")
"""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from gateway.app import Gateway
from gateway.contract.messages import new_id
from gateway.contract.plugin import Plugin
from gateway.server import Server
from gateway.settings import Settings, load_settings
from gateway.testing.database import place_database
from gateway.testing.fake_models.server import FakeModels

Frame = dict[str, Any]
_TIMEOUT_SECONDS = 60.0


class SocketClient:
    """A websocket client. ``frames`` are all received frames, ``raw`` the same as bytes."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.frames: list[Frame] = []
        self.raw: list[bytes] = []
        self._next = 0

    @property
    def seq(self) -> int:
        """The highest sequence number of an event so far."""
        return max((frame["seq"] for frame in self.frames if "seq" in frame), default=0)

    async def send(self, **frame: Any) -> None:
        """Send one frame with these fields."""
        await self.socket.send_str(msgspec.json.encode(frame).decode())

    async def say(self, text: str, **fields: Any) -> Frame:
        """Send a message and return its ack, or the error that refuses it."""
        name = fields.pop("client_msg_id", None) or new_id()
        await self.send(type="message", client_msg_id=name, text=text, **fields)
        return await self.until(lambda frame: frame.get("client_msg_id") == name)

    async def until(self, wanted: str | Callable[[Frame], bool]) -> Frame:
        """Return the next frame of a type, or that matches, after the frame of the last call."""
        while True:
            while self._next < len(self.frames):
                frame = self.frames[self._next]
                self._next += 1
                if frame["type"] == wanted if isinstance(wanted, str) else wanted(frame):
                    return frame
            await self.read()

    async def read(self) -> Frame:
        """Receive a frame. Raises ConnectionError if the socket was closed instead."""
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            message = await self.socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise ConnectionError(f"closed with {self.socket.close_code}")
        payload = message.data.encode()
        self.raw.append(payload)
        self.frames.append(msgspec.json.decode(payload))
        return self.frames[-1]

    async def close_code(self) -> int | None:
        """Read to the end and return the close code."""
        try:
            while True:
                await self.read()
        except ConnectionError:
            return self.socket.close_code


class Served:
    """A running gateway at ``url``. ``http`` is a client for it; ``models`` is its fake model server."""

    def __init__(self, gateway: Gateway, url: str, http: aiohttp.ClientSession, models: FakeModels) -> None:
        self.gateway = gateway
        self.url = url
        self.http = http
        self.models = models

    @asynccontextmanager
    async def socket(self, **how: Any) -> AsyncGenerator[SocketClient]:
        """Yield a websocket client and close it after the block; see ``connect``."""
        client = await self.connect(**how)
        try:
            yield client
        finally:
            await client.socket.close()

    async def connect(
        self,
        *,
        html: bool = False,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        greeted: bool = True,
    ) -> SocketClient:
        """Return a websocket client; with ``greeted`` wait for the ``ready`` frame."""
        protocols = ["trunkline.v1.html" if html else "trunkline.v1"]
        if token is not None:
            protocols.append("token." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("="))
        client = SocketClient(
            await self.http.ws_connect(f"{self.url}/ws", protocols=protocols, headers=headers, max_msg_size=0)
        )
        if greeted:
            await client.until("ready")
        return client

    @asynccontextmanager
    async def lazy_http(self) -> AsyncGenerator[aiohttp.ClientSession]:
        """Yield a client with small buffers, so that the server notices a client that does not read."""
        connector = aiohttp.TCPConnector(socket_factory=_small_buffer_socket)
        async with aiohttp.ClientSession(connector=connector, read_bufsize=4096) as http:
            yield http

    @asynccontextmanager
    async def lazy_socket(self) -> AsyncGenerator[SocketClient]:
        """Yield a websocket client with small buffers."""
        async with self.lazy_http() as http:
            yield await Served(self.gateway, self.url, http, self.models).connect()

    async def idle(self, session: str) -> None:
        """Wait until a loaded session has no running turn and no queued message."""
        live = self.gateway.parts.sessions.get(session)
        assert live is not None
        await until(lambda: live.turn is None and not live.pending)

    async def ask(self, method: str, path: str, **request: Any) -> tuple[int, Any]:
        """Return the status and the JSON body of a response; None for an empty body."""
        async with self.http.request(method, f"{self.url}{path}", **request) as response:
            body = await response.read()
            return response.status, msgspec.json.decode(body) if body else None


async def until(condition: Callable[[], object]) -> None:
    """Poll until a condition holds. Raises TimeoutError after a minute."""
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(
    data_dir: Path,
    *plugins: Plugin,
    fake: FakeModels | None = None,
    file: Path | None = None,
    **settings: Any,
) -> AsyncGenerator[Served]:
    """Run a gateway with its server for as long as the block, with a fake model server unless one is given.

    Every tool runs without approval unless ``permissions`` are given. ``file`` is a settings file, over which
    the other settings are.
    """
    if fake is None:
        async with (
            FakeModels() as own,
            serving(data_dir, *plugins, fake=own, file=file, **settings) as served,
        ):
            yield served
        return
    openai = {"base_url": fake.openai_url, "api_key": "k", "max_retries": 0}
    given: dict[str, Any] = {
        "data_dir": data_dir,
        "model": "openai/fake-small",
        "providers": {"openai": openai},
        "permissions": {"*": "allow"},
        **settings,
    }
    given["server"] = {"port": 0, **given.get("server", {})}
    place_database(data_dir / "trunkline.db")
    flags = {**given, "data_dir": str(data_dir)}
    loaded = Settings(**given) if file is None else load_settings(file, flags=flags, environ={}, cwd=data_dir)
    gateway = Gateway(loaded, plugins=plugins)
    async with (
        aiohttp.ClientSession() as http,
        gateway.running(),
        Server(gateway) as server,
    ):
        yield Served(gateway, server.url, http, fake)


def _small_buffer_socket(address: Any) -> socket.socket:
    """Return a socket with a small receive buffer."""
    made = socket.socket(address[0], address[1], address[2])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return made
