"""Servers that others wrote, confined: each is listed, called, refused what was not granted, and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pytest_aiohttp import AiohttpServer

from gateway.contract.errors import ToolError
from gateway.mcp import Server
from gateway.testing.chat import chatting

from .conftest import server, until, use

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
"""The folder with the servers from PyPI, which are pinned with the other requirements of the tests."""


def of_npm(foreign: Path, name: str, *arguments: str) -> list[str]:
    return [
        "node",
        str(foreign / f"node_modules/@modelcontextprotocol/server-{name}/dist/index.js"),
        *arguments,
    ]


@asynccontextmanager
async def running(
    tmp_path: Path, command: list[str], roots: tuple[Path, ...] = (), **more: Any
) -> AsyncGenerator[Server]:
    """The server in a gateway. Each of its calls is approved by a rule; no process of it remains."""
    files = {"filesystem": {"roots": [str(root) for root in roots], "write": True}}
    settings = {"capabilities": files, "timeout": 120_000, **more, "command": command}
    async with chatting(tmp_path / "data", mcp={"real": settings}) as chat:
        real = server(chat, "real")
        await until(lambda: real.status.tools or real.problem)
        assert real.problem == ""
        assert real.status.waiting == 0
        yield real
        await survives(real, command)
    await until(lambda: not processes(command))


async def survives(real: Server, command: list[str]) -> None:
    """Kill the server, and use it again."""
    await real.connect()
    before = processes(command)
    assert before
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    await until(lambda: real.status.state == "failed")
    await real.connect()
    assert (real.status.state, real.status.waiting) == ("connected", 0)


def processes(command: list[str]) -> list[int]:
    """The processes with the last two words of the command among theirs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")[:-1]
        except OSError:
            continue
        if words[-len(command[1:]) :] == [word.encode() for word in command[1:]] and len(command) > 1:
            found.append(int(path.parent.name))
    return found


async def call(real: Server, tool: str, **arguments: Any) -> str:
    output = await real.call(tool, arguments, print)
    assert not output.is_error, output.content
    return output.content


async def refused(real: Server, tool: str, **arguments: Any) -> str:
    try:
        output = await real.call(tool, arguments, print)
    except ToolError as error:
        return str(error)
    assert output.is_error, output.content
    return output.content


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


async def test_everything_echoes_and_reports_its_progress(tmp_path: Path, foreign: Path) -> None:
    async with running(tmp_path, of_npm(foreign, "everything", "stdio")) as real:
        assert "hello" in await call(real, "echo", message="hello")
        shown: list[str] = []
        await real.call("trigger-long-running-operation", {"duration": 0.2, "steps": 2}, shown.append)
        assert shown
        picture = await real.call("get-tiny-image", {}, print)
        assert [each.mime_type for each in picture.attachments] == ["image/png"]
        uri = (await call(real, "resources")).split()[0]
        assert uri in await call(real, "resources", uri=uri)


async def test_a_model_calls_a_tool_of_everything(tmp_path: Path, foreign: Path) -> None:
    settings = {"real": {"command": of_npm(foreign, "everything", "stdio"), "timeout": 120_000}}
    async with chatting(tmp_path / "data", mcp=settings, permissions={"real_get-sum": "allow"}) as chat:
        await until(lambda: server(chat, "real").status.tools)
        assert "5" in (await use(chat, "real_get-sum", a=2, b=3)).output
        assert (await chat.say("/real_args-prompt")).text == "Usage: /real_args-prompt <city> [state]"
        assert "Oslo" in (await chat.say("/real_args-prompt Oslo")).text


async def test_filesystem_is_held_to_the_granted_folder_by_the_kernel(
    tmp_path: Path, foreign: Path, root: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "secret.txt").write_text("secret")
    # The server itself believes that it may use both folders.
    async with running(tmp_path, of_npm(foreign, "filesystem", str(root), str(other)), (root,)) as real:
        await call(real, "write_file", path=str(root / "a.txt"), content="hello")
        assert (root / "a.txt").read_text() == "hello"
        assert "hello" in await call(real, "read_text_file", path=str(root / "a.txt"))
        assert "secret" not in (await refused(real, "read_text_file", path=str(other / "secret.txt"))).split()
        await refused(real, "write_file", path=str(other / "b.txt"), content="x")
    assert [path.name for path in other.iterdir()] == ["secret.txt"]


async def test_memory_keeps_its_file_only_where_it_may_write(
    tmp_path: Path, foreign: Path, root: Path
) -> None:
    entity = {"name": "Ada", "entityType": "person", "observations": ["writes programs"]}
    env = {"MEMORY_FILE_PATH": str(root / "memory.jsonl")}
    async with running(tmp_path, of_npm(foreign, "memory", str(root)), (root,), env=env) as real:
        await call(real, "create_entities", entities=[entity])
        assert "writes programs" in await call(real, "read_graph")
    assert "Ada" in (root / "memory.jsonl").read_text()
    async with running(tmp_path / "second", of_npm(foreign, "memory", str(root)), env=env) as real:
        await refused(real, "create_entities", entities=[entity])


async def test_sequential_thinking_takes_a_thought(tmp_path: Path, foreign: Path) -> None:
    async with running(tmp_path, of_npm(foreign, "sequential-thinking", str(tmp_path))) as real:
        thought = {"thought": "Begin", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}
        assert '"thoughtNumber": 1' in await call(real, "sequentialthinking", **thought)


async def test_time_tells_the_time(tmp_path: Path) -> None:
    zone = "--local-timezone=Europe/Oslo"
    async with running(tmp_path, [str(BIN / "mcp-server-time"), zone]) as real:
        assert "Europe/Oslo" in await call(real, "get_current_time", timezone="Europe/Oslo")


async def test_git_reads_only_the_granted_repository(tmp_path: Path, root: Path) -> None:
    other = tmp_path / "other"
    for folder in (root, other):
        subprocess.run(["git", "init", "--quiet", str(folder)], check=True)  # noqa: ASYNC221 - nothing else runs
        (folder / "new.txt").write_text("x")
    async with running(tmp_path, [str(BIN / "mcp-server-git"), "--verbose"], (root,)) as real:
        assert "new.txt" in await call(real, "git_status", repo_path=str(root))
        assert "new.txt" not in await refused(real, "git_status", repo_path=str(other))


async def test_fetch_has_a_network_only_if_that_is_granted(
    tmp_path: Path, aiohttp_server: AiohttpServer
) -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(
            text="<html><body><p>The page of the test</p></body></html>", content_type="text/html"
        )

    app = web.Application()
    app.router.add_get("/page", page)
    url = str((await aiohttp_server(app)).make_url("/page"))
    command = [
        str(BIN / "mcp-server-fetch"),
        "--ignore-robots-txt",
        "--allow-private-ips",
        f"--user-agent={tmp_path}",
    ]
    async with running(tmp_path, command) as real:
        assert "The page of the test" not in await refused(real, "fetch", url=url, raw=True)
    granted = {"network": {"enabled": True}}
    async with running(tmp_path / "second", command, capabilities=granted) as real:
        assert "The page of the test" in await call(real, "fetch", url=url, raw=True)
