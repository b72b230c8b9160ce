"""Remote MCP servers: those of the SDK, served on real sockets by streamable HTTP and by SSE."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from aiohttp import web
from mcp.server.mcpserver import MCPServer
from pytest_aiohttp import AiohttpServer

from gateway.contract.errors import ToolError
from gateway.testing.chat import Chat, chatting
from tests.gateway.cli.processes import environment

from .conftest import plugin, server, until, use

pytestmark = pytest.mark.slow

TOKEN = "Bearer the-token-of-a-remote-server"


def offering() -> MCPServer:
    """A server with one tool."""
    made = MCPServer("remote")

    @made.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    return made


class Guarded:
    """An application that refuses requests without the token."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and (b"authorization", TOKEN.encode()) not in scope["headers"]:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await self._app(scope, receive, send)


@asynccontextmanager
async def serving(app: Any, port: int = 0) -> AsyncGenerator[int]:
    """An application that wants the token, on a real socket; yields its port."""
    async with listening(Guarded(app), socket.create_server(("127.0.0.1", port))) as found:
        yield found


@asynccontextmanager
async def listening(app: Any, sock: socket.socket) -> AsyncGenerator[int]:
    """An application on a socket; yields its port."""
    config = uvicorn.Config(app, log_level="error", ws="none", timeout_graceful_shutdown=1)
    running = uvicorn.Server(config)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(running.serve([sock]))
        await until(lambda: running.started)
        try:
            yield sock.getsockname()[1]
        finally:
            running.should_exit = True


@asynccontextmanager
async def chat_with(tmp_path: Path, url: str, **more: Any) -> AsyncGenerator[Chat]:
    settings = {"far": {"url": url, "headers": {"Authorization": TOKEN}, **more}}
    rules = {"far_add": "allow"}
    async with chatting(tmp_path / "data", mcp=settings, permissions=rules) as chat:
        await until(lambda: server(chat, "far").status.tools or server(chat, "far").problem)
        yield chat


async def test_004_T18_a_remote_server_is_used_by_streamable_http(tmp_path: Path) -> None:
    async with (
        serving(offering().streamable_http_app()) as port,
        chat_with(tmp_path, f"http://127.0.0.1:{port}/mcp") as chat,
    ):
        added = await use(chat, "far_add", a=2, b=3)
        assert (added.output, added.is_error) == ("5", False)
        assert added.metadata is not None
        assert added.metadata.untrusted
        assert server(chat, "far").status.protocol == "2026-07-28"


async def test_a_server_that_only_has_sse_is_used_by_that(tmp_path: Path) -> None:
    async with (
        serving(offering().sse_app()) as port,
        chat_with(tmp_path, f"http://127.0.0.1:{port}/sse") as chat,
    ):
        assert (await use(chat, "far_add", a=2, b=3)).output == "5"


async def test_a_remote_server_that_comes_back_is_used_again(tmp_path: Path) -> None:
    async with serving(offering().streamable_http_app()) as port:
        url = f"http://127.0.0.1:{port}/mcp"
        async with chat_with(tmp_path, url):
            pass
    async with chat_with(tmp_path, url) as chat:
        assert [tool.name for tool in plugin(chat).tools()] == ["far_add"]
        assert "it cannot be reached" in (await use(chat, "far_add", a=2, b=3)).output
        async with serving(offering().streamable_http_app(), port):
            output = await server(chat, "far").call("add", {"a": 1, "b": 1}, print)
            assert output.content == "2"


class Forgetful:
    """A server with sessions. One that it does not know it refuses with 400, as many servers do."""

    def __init__(self) -> None:
        self.sessions: set[str] = set()

    async def answer(self, request: web.Request) -> web.Response:
        asked = await request.json()
        known = request.headers.get("Mcp-Session-Id") in self.sessions
        if asked["method"] != "initialize" and not known:
            error = {"code": -32000, "message": "Bad Request: No valid session ID provided"}
            return web.json_response({"jsonrpc": "2.0", "error": error, "id": None}, status=400)
        if "id" not in asked:
            return web.Response(status=202)
        headers: dict[str, str] = {}
        result: dict[str, Any] = {}
        if asked["method"] == "initialize":
            headers["Mcp-Session-Id"] = f"session-{len(self.sessions)}"
            self.sessions.add(headers["Mcp-Session-Id"])
            version, about = asked["params"]["protocolVersion"], {"name": "remote", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
        elif asked["method"] == "tools/list":
            result = {"tools": [{"name": "add", "inputSchema": {"type": "object"}}]}
        elif asked["method"] == "tools/call":
            result = {"content": [{"type": "text", "text": "5"}]}
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], "result": result}, headers=headers)


async def test_a_server_that_forgot_its_session_gets_a_new_one(
    tmp_path: Path, aiohttp_server: AiohttpServer
) -> None:
    served, app = Forgetful(), web.Application()
    app.router.add_post("/mcp", served.answer)
    url = str((await aiohttp_server(app)).make_url("/mcp"))
    async with chat_with(tmp_path, url) as chat:
        remote = server(chat, "far")
        assert (await remote.call("add", {}, print)).content == "5"
        served.sessions.clear()
        with pytest.raises(ToolError, match="it answered with status 400"):
            await remote.call("add", {}, print)
        assert (await remote.call("add", {}, print)).content == "5"


async def test_a_remote_server_is_reached_by_the_proxy_of_the_environment(
    tmp_path: Path, aiohttp_server: AiohttpServer
) -> None:
    served, app = Forgetful(), web.Application()
    app.router.add_post("/mcp", served.answer)
    proxy = str((await aiohttp_server(app)).make_url("/"))
    (tmp_path / "config").mkdir()
    settings = '[mcp.far]\nurl = "http://far.invalid/mcp"\n'
    (tmp_path / "config/trunkline.toml").write_text(settings)
    asked = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "mcp", "test", "far"),
        cwd=tmp_path,
        env=environment(tmp_path, HTTP_PROXY=proxy, NO_PROXY="", TRUNKLINE_SERVER__PORT="1"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await asked.communicate()
    assert (asked.returncode, said.split(b":")[0]) == (0, b"far works"), said


async def test_wrong_credentials_are_reported_and_not_shown(tmp_path: Path) -> None:
    async with serving(offering().streamable_http_app()) as port:
        wrong = {"Authorization": "Bearer something-else-that-is-wrong"}
        async with chat_with(tmp_path, f"http://127.0.0.1:{port}/mcp", headers=wrong) as chat:
            problem = server(chat, "far").problem
            assert "it rejected the credentials (401); set its headers" in problem
            assert "something-else" not in problem


async def test_an_endless_response_is_bounded(tmp_path: Path, aiohttp_server: AiohttpServer) -> None:
    async def flood(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(b'{"jsonrpc": "2.0", "id": 1, "result": {"x": "')
        while True:
            await response.write(b"x" * 1_000_000)

    app = web.Application()
    app.router.add_post("/mcp", flood)
    url = str((await aiohttp_server(app)).make_url("/mcp"))
    async with chat_with(tmp_path, url) as chat:
        assert "it sent more than 4 MB at once" in server(chat, "far").problem
        assert (await chat.say("Are you there?")).text
