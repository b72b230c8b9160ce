"""The figures of coding programs: their keepers, beside a loop that only reads a terminal.

The floor of the processor and of the memory is a process with the same program in a terminal, which reads its
output and drops it. The floor of an attachment is the same amount of output, read from a terminal.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median, quantiles

import uvloop
from figures import MIB, Bench, Row, row
from procfs import cpu_seconds, pss_bytes

from plugins.coding_agents.keeper_client import KeeperClient, KeeperLaunch, start_keeper
from plugins.programs.process import MARK, kill_marked

_REPLAY = 512 * 1024
_ATTACHMENTS = 200
_KEEPERS = 20
TALK = """
import os, time
line, at = b"\\x1b[32mok\\x1b[0m " + b"x" * 70 + b"\\n", time.monotonic()
while True:
    os.write(1, line)
    at += 0.01
    time.sleep(max(0, at - time.monotonic()))
"""
_FLOOR = """
import os, sys
master, slave = os.openpty()
if os.fork() == 0:
    os.login_tty(slave)
    os.execv(sys.argv[1], sys.argv[1:])
os.close(slave)
try:
    while os.read(master, 65536):
        pass
except OSError:
    pass
"""


def keepers(bench: Bench) -> Iterator[Row]:
    """Memory, attachment and processor of keepers."""
    rounds = [uvloop.run(_attached()) for _ in range(bench.rounds)]
    memory = {"ours": [one[0] / MIB for one in rounds], "relay": [_floor_memory() / MIB for _ in rounds]}
    yield row("keeper: memory (PSS), 512 KiB retained", "MiB", memory, 6, absolute=True)
    replay = {"ours": [one[1] for one in rounds], "relay": [_floor_read() for _ in rounds]}
    middle = f"half of them within {median(one[2] for one in rounds):.2g} ms"
    yield row("keeper: attach and replay 512 KiB, p99", "ms", replay, 5, absolute=True, note=middle)
    busy = {
        "ours": [uvloop.run(_busy(bench.seconds)) for _ in range(bench.rounds)],
        "relay": [_floor_busy(bench.seconds) for _ in range(bench.rounds)],
    }
    yield row(f"{_KEEPERS} keepers, 100 lines/s each: processor", "% of a core", busy, 5, absolute=True)


@asynccontextmanager
async def _keeper(*argv: str) -> AsyncIterator[tuple[KeeperLaunch, int]]:
    """Start a keeper; yield its launch and the id of its process."""
    with tempfile.TemporaryDirectory() as folder:
        mark = f"bench-{os.urandom(8).hex()}"
        launch = KeeperLaunch(
            folder=Path(folder, "session"), argv=argv, env={}, cwd="/", key=os.urandom(32), mark=mark
        )
        try:
            await start_keeper(launch)
            yield launch, _pid_of(mark)
        finally:
            kill_marked(mark)


def _pid_of(mark: str) -> int:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            marked = f"{MARK}={mark}".encode() in (process / "environ").read_bytes()
            if marked and b"keeper/__main__.py" in (process / "cmdline").read_bytes():
                return int(process.name)
        except OSError:
            continue
    raise RuntimeError("the keeper does not run")


async def _attached() -> tuple[int, float, float]:
    """Return the memory of a keeper, and the 99th percentile and median of attachments with a replay, ms."""
    times: list[float] = []
    async with _keeper("/bin/sh", "-c", f"head -c {2 * MIB} /dev/zero; exec sleep 1000") as (launch, pid):
        seen = await _replayed(launch, 0, 2 * MIB)
        for _ in range(_ATTACHMENTS):
            begun = time.perf_counter()
            await _replayed(launch, seen - _REPLAY, seen)
            times.append((time.perf_counter() - begun) * 1e3)
        return pss_bytes(pid), quantiles(times, n=100)[-1], median(times)


async def _replayed(launch: KeeperLaunch, offset: int, end: int) -> int:
    """Attach, and read until an offset."""
    done = asyncio.Event()
    client = await KeeperClient.attach(
        launch.folder,
        launch.key,
        offset,
        on_output=lambda at, data: done.set() if at + len(data) >= end else None,
        on_exit=print,
        on_gone=done.set,
    )
    await done.wait()
    client.abort()
    return end


async def _busy(seconds: float) -> float:
    """Return the processor of keepers with an attached gateway, in % of a core."""
    async with asyncio.TaskGroup() as group:
        ready, stop = asyncio.Semaphore(0), asyncio.Event()
        tasks = [group.create_task(_talking(ready, stop)) for _ in range(_KEEPERS)]
        for _ in tasks:
            await ready.acquire()
        pids = [pid for task in tasks if (pid := int(task.get_name()))]
        used = await _used(pids, seconds)
        stop.set()
    return used


async def _talking(ready: asyncio.Semaphore, stop: asyncio.Event) -> None:
    async with _keeper(sys.executable, "-I", "-S", "-c", TALK) as (launch, pid):
        client = await KeeperClient.attach(
            launch.folder, launch.key, 0, on_output=lambda *_: None, on_exit=print, on_gone=stop.set
        )
        task = asyncio.current_task()
        assert task is not None
        task.set_name(str(pid))
        ready.release()
        await stop.wait()
        client.abort()


async def _used(pids: list[int], seconds: float) -> float:
    begun, before = time.monotonic(), sum(map(cpu_seconds, pids))
    await asyncio.sleep(seconds)
    return (sum(map(cpu_seconds, pids)) - before) / (time.monotonic() - begun) * 100


def _floor(*argv: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", "-B", "-c", _FLOOR, *argv]
    return subprocess.Popen(command, start_new_session=True)


def _floor_memory() -> int:
    with _floor("/bin/sleep", "1000") as process:
        time.sleep(0.5)
        used = pss_bytes(process.pid)
        process.kill()
    return used


def _floor_busy(seconds: float) -> float:
    processes = [_floor(sys.executable, "-I", "-S", "-c", TALK) for _ in range(_KEEPERS)]
    time.sleep(1)
    used = asyncio.run(_used([process.pid for process in processes], seconds))
    for process in processes:
        process.kill()
        process.wait()
    return used


def _floor_read() -> float:
    """Return the time in which 512 KiB are read from a terminal, in ms."""
    master, slave = os.openpty()
    with subprocess.Popen(["/usr/bin/head", "-c", str(_REPLAY), "/dev/zero"], stdout=slave):
        os.close(slave)
        count, begun = len(os.read(master, 65536)), time.perf_counter()
        while count < _REPLAY:
            count += len(os.read(master, 65536))
        took = (time.perf_counter() - begun) * 1e3
    os.close(master)
    return took


CODING_FIGURES = {"keepers": keepers}
