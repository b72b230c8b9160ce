"""The figures of MCP servers: start and call of a confined server, beside the same one with full trust."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import uvloop
from figures import Bench, Row, row

from gateway.extensions.process.service import Processes
from gateway.extensions.scope import PluginTasks
from gateway.mcp import KnownTools, Server
from gateway.settings import Settings

SERVER = Path(__file__).parent.parent / "gateway/mcp/hostile.py"
_STARTS, _CALLS = 10, 1_000


def mcp_servers(bench: Bench) -> Iterator[Row]:
    """A server in Python that only needs the standard library."""
    found = {
        trust: [uvloop.run(_measured(trust)) for _ in range(bench.rounds)] for trust in ("sandbox", "full")
    }
    starts = [[one[0] for one in found[trust]] for trust in ("sandbox", "full")]
    more = {"ours": [ours - plain for ours, plain in zip(*starts, strict=True)]}
    yield row(
        "MCP server: start, confined (floor: full trust)", "ms", {"ours": starts[0], "relay": starts[1]}
    )
    yield row("MCP server: what confinement adds to a start", "ms", more, 50, absolute=True)
    calls = {"ours": [one[1] for one in found["sandbox"]], "relay": [one[1] for one in found["full"]]}
    yield row("MCP server: call, confined (floor: full trust)", "µs", calls, 1.1)


async def _measured(trust: str) -> tuple[float, float]:
    """Return the medians of ten starts, in ms, and of calls, in µs. The first start is not counted."""
    with tempfile.TemporaryDirectory() as folder:
        server = {"command": [sys.executable, str(SERVER), "plain", folder], "trust": trust}
        files = {"filesystem": {"roots": [folder]}}
        settings = Settings(mcp={"bench": {**server, "capabilities": files}}).mcp["bench"]
        processes = Processes()
        starts: list[float] = []
        calls: list[float] = []
        async with asyncio.TaskGroup() as group:
            for number in range(_STARTS + 1):
                tasks = PluginTasks("mcp", group)
                one = Server(
                    "bench",
                    settings,
                    KnownTools(Path(folder, "known")),
                    processes,
                    {},
                    tasks,
                    login=Path(folder, "login"),
                )
                begun = time.perf_counter()
                await one.connect()
                starts.append((time.perf_counter() - begun) * 1e3)
                for _ in range(_CALLS if number == 1 else 0):
                    begun = time.perf_counter()
                    await one.call("add", {"a": 1, "b": 2}, print)
                    calls.append((time.perf_counter() - begun) * 1e6)
                await tasks.end()
            await processes.close()
        return median(starts[1:]), median(calls)


MCP_FIGURES = {"mcp_servers": mcp_servers}
