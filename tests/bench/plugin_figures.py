"""The figures of confined plugins: their start, their memory, and calls, beside a bare child that echoes."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import uvloop
from figures import Bench, Row, row
from procfs import cpu_seconds

from gateway.extensions.process.frames import Connection
from gateway.extensions.process.launcher import Child, Launcher
from gateway.extensions.process.profile import PluginTarget, plugin

ECHO = """
import json, socket, struct, sys

def main(fd, folder=None, entry=None, site=None):
    sock = socket.socket(fileno=fd)
    data = b""
    while True:
        more = sock.recv(262144)
        if not more:
            return
        data += more
        answers = b""
        while len(data) >= 4 and len(data) >= 4 + (size := struct.unpack(">I", data[:4])[0]):
            frame = json.loads(data[4:4 + size])
            data = data[4 + size:]
            if "i" in frame:
                answer = json.dumps({"i": frame["i"], "r": frame["p"]}).encode()
                answers += struct.pack(">I", len(answer)) + answer
        sock.sendall(answers)

if __name__ == "__main__":
    main(int(sys.argv[1]))
"""
"""The same code on both sides of the comparison: only what is around it differs."""
_CALLS, _MANY, _PLUGINS = 2_000, 32, 50
_SMALL = {"text": "hello"}
_TRANSCRIPT = {"messages": [{"role": "user", "content": "x" * 1_000} for _ in range(112)]}


def plugin_start(bench: Bench) -> Iterator[Row]:
    """A confined plugin from the zygote, and fifty of them."""
    starts, fifties, each, zygotes = zip(*(uvloop.run(_starts()) for _ in range(bench.rounds)), strict=True)
    yield row("confined plugin: start from the zygote", "ms", {"ours": starts}, 15, absolute=True)
    yield row("50 confined plugins: all ready", "ms", {"ours": fifties}, 500, absolute=True)
    yield row("confined plugin: memory of its own (PSS)", "MB", {"ours": each}, 5, absolute=True)
    yield row("zygote: memory beside 50 plugins (PSS)", "MB", {"ours": zygotes}, 18, absolute=True)


def plugin_calls(bench: Bench) -> Iterator[Row]:
    """Calls of a confined plugin, beside a bare child on a socketpair."""
    floors = [_floor() for _ in range(bench.rounds)]
    found = [uvloop.run(_calls()) for _ in range(bench.rounds)]
    ours = {name: [one[name] for one in found] for name in found[0]}
    p50 = {"ours": ours["p50"], "relay": [one[0] for one in floors]}
    yield row("call of a confined plugin: p50 (floor: echo)", "µs", p50, 2.0)
    rates = {"ours": ours["rate"], "relay": [one[1] for one in floors]}
    yield row("32 calls at once (floor: echo)", "calls/s", rates, 0.5, at_least=True)
    yield row(
        "call of a confined plugin: the host's processor", "µs", {"ours": ours["cpu"]}, 25, absolute=True
    )
    large = {"ours": ours["large"]}
    yield row("call with a transcript of 114 KB", "ms", large, 1.5, absolute=True)


async def _with_plugin(work: Callable[[Callable[[], Awaitable[Child]]], Awaitable[Any]]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "echo.py").write_text(ECHO)  # noqa: ASYNC240 - nothing else runs
        launcher = Launcher()
        target = PluginTarget(folder, "echo.py", None, "echo", folder)
        try:
            return await work(lambda: launcher.spawn(plugin([folder]), target))
        finally:
            await launcher.close()


async def _starts() -> tuple[float, float, float, float]:
    """Return ms for one start, ms for fifty, MB for each, and MB of the zygote."""

    async def work(spawn: Callable[[], Awaitable[Child]]) -> tuple[float, float, float, float]:
        children = [await spawn()]
        times: list[float] = []
        for _ in range(10):
            begun = time.perf_counter()
            children.append(await spawn())
            times.append(time.perf_counter() - begun)
        for child in children:
            child.close()
        begun = time.perf_counter()
        children = await asyncio.gather(*(spawn() for _ in range(_PLUGINS)))
        fifty = time.perf_counter() - begun
        memory = median(_pss(child.pid) for child in children)
        zygote = _pss(_parent(children[0].pid))
        for child in children:
            child.close()
        return median(times) * 1e3, fifty * 1e3, memory, zygote

    return await _with_plugin(work)


async def _calls() -> dict[str, float]:
    async def work(spawn: Callable[[], Awaitable[Child]]) -> dict[str, float]:
        child = await spawn()
        assert child.sock is not None
        connection = Connection(child.sock, _serve)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(connection.run())
            for _ in range(100):
                await connection.call("echo", _SMALL, 10)
            cpu, times = cpu_seconds(os.getpid()), [0.0] * _CALLS
            for number in range(_CALLS):
                begun = time.perf_counter()
                await connection.call("echo", _SMALL, 10)
                times[number] = time.perf_counter() - begun
            cpu = cpu_seconds(os.getpid()) - cpu
            begun = time.perf_counter()
            await asyncio.gather(*(_caller(connection, _CALLS // _MANY * 4) for _ in range(_MANY)))
            rate = _CALLS // _MANY * 4 * _MANY / (time.perf_counter() - begun)
            large: list[float] = []
            for _ in range(50):
                begun = time.perf_counter()
                await connection.call("echo", _TRANSCRIPT, 10)
                large.append(time.perf_counter() - begun)
            running.cancel()
        child.close()
        p50, each = median(times) * 1e6, cpu / _CALLS * 1e6
        return {"p50": p50, "cpu": each, "rate": rate, "large": median(large) * 1e3}

    return await _with_plugin(work)


async def _caller(connection: Connection, calls: int) -> None:
    for _ in range(calls):
        await connection.call("echo", _SMALL, 10)


async def _serve(_method: str, _params: Any) -> None:
    return None


def _floor() -> tuple[float, float]:
    """Return µs for one echo of a bare child over a socketpair, and echoes a second, 32 at once."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "echo.py").write_text(ECHO)
        ours, theirs = socket.socketpair()
        words = [sys.executable, "-I", "-S", f"{folder}/echo.py", str(theirs.fileno())]
        with ours, subprocess.Popen(words, pass_fds=[theirs.fileno()]) as child:
            theirs.close()
            data = msgspec.json.encode({"i": 1, "m": "echo", "p": _SMALL, "d": 1000})
            frame = len(data).to_bytes(4, "big") + data
            answer = len(_echo(ours, frame, 0))
            times: list[float] = []
            for _ in range(_CALLS):
                begun = time.perf_counter()
                _echo(ours, frame, answer)
                times.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            for _ in range(_CALLS // _MANY * 4):
                _echo(ours, frame * _MANY, answer * _MANY)
            rate = _CALLS // _MANY * 4 * _MANY / (time.perf_counter() - begun)
            ours.shutdown(socket.SHUT_RDWR)
            child.kill()
    return median(times) * 1e6, rate


def _echo(sock: socket.socket, data: bytes, size: int) -> bytes:
    sock.sendall(data)
    received = sock.recv(262_144)
    while len(received) < size:
        received += sock.recv(262_144)
    return received


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _pss(pid: int) -> float:
    """Megabytes of a process, of which shared pages count in parts."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


PLUGIN_FIGURES = {"plugin_start": plugin_start, "plugin_calls": plugin_calls}
