"""Apps written with Slack's own Python library, or with none, connected to the fake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from slack_bolt.adapter.socket_mode.async_handler import AsyncSocketModeHandler
from slack_bolt.async_app import AsyncApp
from slack_sdk.web.async_client import AsyncWebClient

from channels.slack.fake import FakeSlack

PATH = "/slack/events"


def client(fake: FakeSlack, token: str | None = None) -> AsyncWebClient:
    """Return the official client, connected to the fake."""
    return AsyncWebClient(token or fake.bot_token, base_url=fake.api_url)


def bolt(fake: FakeSlack) -> AsyncApp:
    """Return a Bolt app with the token of one workspace."""
    return AsyncApp(client=client(fake), signing_secret=fake.app.signing_secret)


@asynccontextmanager
async def in_socket_mode(fake: FakeSlack, app: AsyncApp) -> AsyncGenerator[AsyncSocketModeHandler]:
    """Connect an app by Socket Mode inside the block."""
    handler = AsyncSocketModeHandler(app, fake.app_token, web_client=client(fake), ping_interval=0.05)
    await handler.connect_async()
    try:
        await fake.until(lambda: fake.sockets.live)
        yield handler
    finally:
        await handler.close_async()


@asynccontextmanager
async def by_http(fake: FakeSlack, app: AsyncApp) -> AsyncGenerator[str]:
    """Serve an app by HTTP inside the block, with its URL registered at the platform."""
    runner = web.AppRunner(app.server(path=PATH).web_app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = "http://{}:{}".format(*runner.addresses[0][:2]) + PATH
        await fake.register(url)
        yield url
    finally:
        await runner.cleanup()


class Plain:
    """Client of the Web API without a library: methods by name, arguments unchanged."""

    def __init__(self, fake: FakeSlack, http: aiohttp.ClientSession) -> None:
        self._fake = fake
        self.http = http

    async def call(self, method: str, token: str | None = None, **arguments: Any) -> Any:
        """Call a method with a JSON body."""
        headers = {"Authorization": f"Bearer {token or self._fake.bot_token}"}
        headers["Content-Type"] = "application/json; charset=utf-8"
        url = self._fake.api_url + method
        async with self.http.post(url, json=arguments, headers=headers) as answer:
            return await answer.json()

    async def form(self, method: str, token: str | None = None, **arguments: str) -> Any:
        """Call a method with a form that contains the token, omitted if empty."""
        given = self._fake.bot_token if token is None else token
        data = {**({"token": given} if given else {}), **arguments}
        async with self.http.post(self._fake.api_url + method, data=data) as answer:
            return await answer.json()


@asynccontextmanager
async def plain(**given: Any) -> AsyncGenerator[tuple[FakeSlack, Plain]]:
    """Return a fake, and a client without a library."""
    async with FakeSlack(**given) as fake, aiohttp.ClientSession() as http:
        yield fake, Plain(fake, http)


class Socket:
    """Socket Mode connection without a library."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def read(self) -> Any:
        """Return the next frame."""
        async with asyncio.timeout(60):
            return await self.socket.receive_json()

    async def ack(self, frame: Any, **payload: Any) -> None:
        """Acknowledge a frame."""
        more = {"payload": payload} if payload else {}
        await self.socket.send_json({"envelope_id": frame["envelope_id"], **more})


async def connect(fake: FakeSlack, api: Plain) -> Socket:
    """Open a socket and read its greeting."""
    opened = await api.call("apps.connections.open", fake.app_token)
    socket = Socket(await api.http.ws_connect(opened["url"]))
    assert (await socket.read())["type"] == "hello"
    return socket
