"""The floor of ``POST /v1/chat/completions``: aiohttp passes the request on, and the answer's bytes back."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import aiohttp
import uvloop
from aiohttp import web

MODEL = web.AppKey("MODEL", str)
CLIENT = web.AppKey("CLIENT", aiohttp.ClientSession)


async def relay(request: web.Request) -> web.StreamResponse:
    """One request."""
    body = await request.read()
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    async with request.app[CLIENT].post(request.app[MODEL] + "/v1/chat/completions", data=body) as response:
        async for chunk in response.content.iter_any():
            await answer.write(chunk)
    await answer.write_eof()
    return answer


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
    app.router.add_post("/v1/chat/completions", relay)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    print("ready: http://{}:{}".format(*runner.addresses[0][:2]), flush=True)
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
