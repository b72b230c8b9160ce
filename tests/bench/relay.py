"""The floor: a bare relay. A message goes to the model, each event of the answer back as a frame.

No store, no session, no hook: what aiohttp costs, and nothing else. A text that begins with ``ack`` is
only acknowledged.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator

import aiohttp
import msgspec
import uvloop
from aiohttp import WSMsgType, web

MODEL = web.AppKey("MODEL", str)
CLIENT = web.AppKey("CLIENT", aiohttp.ClientSession)


async def serve(request: web.Request) -> web.WebSocketResponse:
    """One client: ask the model for each of its messages."""
    socket = web.WebSocketResponse(compress=False, decode_text=False)
    await socket.prepare(request)
    async for message in socket:
        asked = msgspec.json.decode(message.data)
        if asked["text"].startswith("ack"):
            await socket.send_frame(b'{"type":"ack"}', WSMsgType.TEXT)
        else:
            await relay(request.app, asked["text"], socket)
    return socket


async def relay(app: web.Application, text: str, socket: web.WebSocketResponse) -> None:
    """Send a text to the model and every event of the answer to the client."""
    body = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": text}]}
    url = app[MODEL] + "/v1/chat/completions"
    async with app[CLIENT].post(url, data=msgspec.json.encode(body)) as response:
        rest = b""
        async for chunk in response.content.iter_any():
            *events, rest = (rest + chunk).split(b"\n\n")
            for event in events:
                await socket.send_frame(event[6:], WSMsgType.TEXT)


async def client(app: web.Application) -> AsyncIterator[None]:
    """The relay's connections to the model."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        app[CLIENT] = session
        yield


async def main(model: str) -> None:
    """Serve until the process is ended; the first line of the output is the address."""
    app = web.Application()
    app[MODEL] = model
    app.cleanup_ctx.append(client)
    app.router.add_get("/ws", serve)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    await web.SockSite(runner, listener, backlog=4096).start()
    print(f"ready: http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
