"""The figures of a gateway with coding agents, beside one without sessions, a bare terminal, or plain git."""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import uvloop
from coding import TALK
from figures import MIB, Bench, Row, cost, each, rate, row
from processes import Process
from procfs import cpu_seconds, rss_bytes

from plugins.programs.process import kill_marked

_SESSIONS = 20
_FILES = 5_000
_KEYS = 60
_KEY_SECONDS = 0.12
"""The time between two keys, of a fast typist."""
_PATIENCE = 120.0
_DRAW = "seq 1000; for i in $(seq 300); do printf '\\e[5;1H\\e[2K\\e[32mstep %s\\e[0m\\e[40;1H' $i; done"
"""A task whose output has lines, and a screen that is drawn again and again: about 16 KB."""
CHROMIUM = "TRUNKLINE_TEST_CHROMIUM"
"""The variable that names the browser, also for tests."""
_WATCH = """() => {
    const rows = document.querySelector(".terminal .rows");
    let typed = "", begun = 0;
    window.took = [];
    document.addEventListener("keydown", (event) => { typed += event.key; begun = performance.now(); }, true);
    new MutationObserver(() => {
        if (begun && rows.textContent.includes(typed)) { took.push(performance.now() - begun); begun = 0; }
    }).observe(rows, { subtree: true, childList: true, characterData: true });
}"""
_PLUGIN = """
[plugins]
enabled = ["coding_agents"]
[plugins.coding_agents]
max_sessions = 100
min_free_memory_mb = 0
sandbox = "off"
allowed_roots = ["{root}"]
"""


def agents_restart(bench: Bench) -> Iterator[Row]:
    """From a start of the gateway until all of its sessions have a status; the floor has no sessions."""
    waits: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    folders = {name: _folder(bench, f"restart-{name}") for name in ("relay", "ours")}
    try:
        for name, folder in folders.items():
            server = _gateway(bench, folder)
            if name == "ours":
                uvloop.run(_spawn_all(server, _DRAW))
            bench.lab.kill(server)
        for _ in range(max(5, bench.rounds)):
            for name, folder in folders.items():
                server = _gateway(bench, folder)
                count = _SESSIONS if name == "ours" else 0
                waits[name].append((server.start_seconds + uvloop.run(_until_known(server, count))) * 1e3)
                cpu[name].append(cpu_seconds(server.pid) * 1e3)
                bench.lab.kill(server)
    finally:
        _end_sessions(folders["ours"])
    label = f"restart with {_SESSIONS} sessions (floor: without)"
    yield row(f"{label}: start to all statuses", "ms", waits)
    yield row(f"{label}: more than the floor", "ms", _more(waits), 300, absolute=True)
    note = "not wall time, so that other work of the machine does not count"
    yield row(f"{label}: more processor", "ms", _more(cpu), 300, absolute=True, note=note)


def agents_busy(bench: Bench) -> Iterator[Row]:
    """Sessions without a reader that write 100 lines/s each.

    The floor of the processor is a loop that reads as many terminals. The floor of the turns is a gateway
    without sessions, while the same programs run.
    """
    folder = _folder(bench, "busy")
    script = folder / "talk.py"
    script.write_text(TALK)
    servers = {"relay": _gateway(bench, _folder(bench, "busy-floor")), "ours": _gateway(bench, folder)}
    try:
        uvloop.run(_spawn_all(servers["ours"], f"exec {sys.executable} -I -S {script}"))
        used: dict[str, list[float]] = defaultdict(list)
        for _ in range(bench.rounds):
            used["ours"].append(_share(servers["ours"].pid, bench.seconds * 2))
            used["relay"].append(_read_terminals(script, bench.seconds * 2))
        label = f"{_SESSIONS} unwatched sessions, 100 lines/s each"
        yield row(f"{label}: processor of the gateway", "% of a core", used, 25, absolute=True)
        paced = bench.talks(servers, mode="p32", clients=20)
        yield row(f"{label}: turns of 32 tokens in 0.4 s", "turns/s", each(paced, rate), 0.95, at_least=True)
        full = bench.talks(servers, mode="s32", clients=20)
        yield row(f"{label}: turns of 32 tokens, saturated", "turns/s", each(full, rate))
        yield row(f"{label}: processor of a turn and the sessions", "µs", each(full, cost))
    finally:
        bench.lab.stop(*servers.values())
        _end_sessions(folder)


def agents_echo(bench: Bench) -> Iterator[Row]:
    """From a key at the websocket of a terminal to the row with its echo; the floor is a terminal alone."""
    folder = _folder(bench, "echo")
    server = _gateway(bench, folder)
    took: dict[str, list[float]] = defaultdict(list)
    try:
        for _ in range(bench.rounds):
            took["ours"].append(uvloop.run(_type_keys(server)))
            if browser := os.environ.get(CHROMIUM):
                took["page"].append(_typed_on_page(server, browser))
            took["relay"].append(_floor_echo())
    finally:
        bench.lab.stop(server)
        _end_sessions(folder)
    yield row("a key to its echo at the websocket: median", "ms", took)
    yield row("a key to its echo: more than the floor", "ms", _more(took), 30, absolute=True)
    label = "a key to its echo on the page, in Chromium: more than the floor"
    if took["page"]:
        page = {"ours": took["page"], "relay": took["relay"]}
        yield row(label, "ms", _more(page), 30, absolute=True, note="from keydown to the changed row")
    else:
        yield Row(label, "ms", None, note=f"not measured: {CHROMIUM} names no browser")


def agents_worktree(bench: Bench) -> Iterator[Row]:
    """A workspace of a repository that is in the cache; the floor is ``git worktree add``."""
    folder = _folder(bench, "worktree")
    origin = _repository(folder / "root" / "origin")
    server = _gateway(bench, folder)
    took: dict[str, list[float]] = defaultdict(list)
    try:
        uvloop.run(_request(server, "POST", "/api/workspaces", repo=str(origin)))
        for number in range(max(5, bench.rounds)):
            begun = time.perf_counter()
            uvloop.run(_request(server, "POST", "/api/workspaces", repo=str(origin)))
            took["ours"].append((time.perf_counter() - begun) * 1e3)
            begun = time.perf_counter()
            _git(origin, "worktree", "add", "--quiet", "-b", f"floor-{number}", str(folder / f"w{number}"))
            took["relay"].append((time.perf_counter() - begun) * 1e3)
    finally:
        bench.lab.stop(server)
    yield row(f"a workspace of {_FILES:,} files (floor: git worktree add)", "ms", took, 2)


def agents_idle(bench: Bench) -> Iterator[Row]:
    """Memory of a gateway with the plugin and without sessions; the floor is a gateway without it."""
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(max(5, bench.rounds)):
        for name in ("relay", "ours"):
            server = bench.lab.gateway(tables=_tables(bench.lab.folder) if name == "ours" else "")
            time.sleep(1)
            found[name].append(rss_bytes(server.pid) / MIB)
            bench.lab.stop(server)
    yield row("idle memory with coding agents (floor: without)", "MiB", found)
    note = "settings, tools, commands and routes; a terminal is imported with the first session"
    yield row("idle memory that coding agents add", "MiB", _more(found), 1, absolute=True, note=note)


def _more(rounds: Mapping[str, Sequence[float]]) -> Mapping[str, Sequence[float]]:
    """Return how much more ours is than the floor, in each round."""
    return {"ours": [ours - floor for ours, floor in zip(rounds["ours"], rounds["relay"], strict=True)]}


def _folder(bench: Bench, name: str) -> Path:
    folder = bench.lab.folder / name
    folder.mkdir()
    return folder


def _tables(folder: Path) -> str:
    return _PLUGIN.format(root=folder / "root")


def _gateway(bench: Bench, folder: Path) -> Process:
    return bench.lab.gateway(folder=folder, tables=_tables(folder))


def _end_sessions(data: Path) -> None:
    """Kill the programs, which outlive their gateway."""
    for folder in (data / "coding-agents" / "sessions").glob("pty-*"):
        kill_marked(folder.name)


async def _request(server: Process, method: str, path: str, **body: Any) -> Any:
    async with aiohttp.ClientSession() as client:
        given = body if method == "POST" else None
        async with client.request(method, f"{server.address}{path}", json=given) as answer:
            found = await answer.json()
    if answer.status >= 400:
        raise RuntimeError(f"{method} {path}: {answer.status} {found}")
    return found


async def _spawn_all(server: Process, task: str) -> None:
    """Start shells with a task, and wait until each has begun with it."""
    for _ in range(_SESSIONS):
        await _request(server, "POST", "/api/coding-agents", agent="shell", task=task)
    async with asyncio.timeout(_PATIENCE):
        while not all(end > 100 for end in await _ends(server)):
            await asyncio.sleep(0.2)


async def _ends(server: Process) -> list[int]:
    found = await _request(server, "GET", "/api/coding-agents")
    shown = [one["id"] for one in found["sessions"]]
    return [(await _request(server, "GET", f"/api/coding-agents/{one}/output"))["next"] for one in shown]


async def _until_known(server: Process, count: int) -> float:
    """Wait until so many sessions have a status that was read from their screens; return the seconds."""
    begun = time.perf_counter()
    async with asyncio.timeout(_PATIENCE), aiohttp.ClientSession() as client:
        while True:
            async with client.get(f"{server.address}/api/coding-agents") as answer:
                found = (await answer.json())["sessions"]
            if sum(one["status"] in ("ready", "busy", "blocked") for one in found) >= count:
                return time.perf_counter() - begun
            await asyncio.sleep(0.005)


def _share(pid: int, seconds: float) -> float:
    """Return the processor that a process uses, in % of a core."""
    begun, before = time.monotonic(), cpu_seconds(pid)
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / (time.monotonic() - begun) * 100


def _read_terminals(script: Path, seconds: float) -> float:
    """Return the processor of a loop that reads so many terminals, in % of a core."""
    found = selectors.DefaultSelector()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(_SESSIONS):
            master, slave = os.openpty()
            command = [sys.executable, "-I", "-S", str(script)]
            processes.append(subprocess.Popen(command, stdout=slave, start_new_session=True))
            os.close(slave)
            found.register(master, selectors.EVENT_READ)
        time.sleep(0.5)
        begun, before = time.monotonic(), time.process_time()
        while time.monotonic() - begun < seconds:
            for key, _ in found.select(0.5):
                os.read(key.fd, 65536)
        return (time.process_time() - before) / (time.monotonic() - begun) * 100
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for key in list(found.get_map().values()):
            os.close(key.fd)
        found.close()


async def _type_keys(server: Process) -> float:
    """Type in a new session and return the median time until the echo, in ms."""
    session = await _request(server, "POST", "/api/coding-agents", agent="shell")
    base = f"/api/coding-agents/{session['id']}"
    took: list[float] = []
    async with _terminal(server, base) as socket:
        shown: dict[int, str] = {}
        await _screen(socket, shown, lambda: "pty>" in "".join(shown.values()))
        await socket.send_json({"type": "drive"})
        typed = ""
        for number in range(_KEYS):
            await asyncio.sleep(_KEY_SECONDS)
            typed += chr(ord("a") + number % 26)
            begun = time.perf_counter()
            await socket.send_json({"type": "text", "text": typed[-1]})
            await _screen(socket, shown, lambda typed=typed: typed in "".join(shown.values()))
            took.append((time.perf_counter() - begun) * 1e3)
    await _request(server, "POST", f"{base}/stop", force=True)
    return median(took)


def _typed_on_page(server: Process, browser: str) -> float:
    """Type in a terminal of the page and return the median time until its row has the echo, in ms."""
    from playwright.async_api import Error  # only here: other figures need no browser

    try:
        return asyncio.run(_type_on_page(server, browser))
    except Error as error:
        raise RuntimeError(f"the page: {error}") from error


async def _type_on_page(server: Process, browser: str) -> float:
    from playwright.async_api import async_playwright

    session = await _request(server, "POST", "/api/coding-agents", agent="shell")
    async with async_playwright() as driver:
        chromium = await driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = await chromium.new_page()
        await page.goto(server.address)
        await page.get_by_role("button", name="Coding agents").click()
        await page.get_by_role("dialog").get_by_role("button", name="shell running").click()
        await page.get_by_role("button", name="Take the keyboard").click()
        await page.locator(".terminal .rows").filter(has_text="pty>").wait_for()
        await page.evaluate(_WATCH)
        typed = ""
        for number in range(_KEYS):
            await asyncio.sleep(_KEY_SECONDS)
            typed += chr(ord("a") + number % 26)
            await page.keyboard.press(typed[-1])
            await page.locator(".terminal .rows").filter(has_text=typed).wait_for()
        took: list[float] = await page.evaluate("took")
        await chromium.close()
    await _request(server, "POST", f"/api/coding-agents/{session['id']}/stop", force=True)
    return median(took)


@asynccontextmanager
async def _terminal(server: Process, base: str) -> AsyncGenerator[aiohttp.ClientWebSocketResponse]:
    async with (
        aiohttp.ClientSession() as client,
        client.ws_connect(f"{server.address}{base}/terminal?view=rows") as socket,
    ):
        yield socket


async def _screen(socket: aiohttp.ClientWebSocketResponse, shown: dict[int, str], holds: Any) -> None:
    """Draw batches until the screen is as expected."""
    async with asyncio.timeout(_PATIENCE):
        while not holds():
            frame = json.loads(await socket.receive_str())
            if frame["type"] == "screen":
                shown |= {at: "".join(text for text, *_ in spans) for at, spans in frame["rows"]}
                await socket.send_json({"type": "ack", "n": frame["n"]})
            elif frame["type"] == "refused":
                raise RuntimeError(f"refused: {frame}")


def _floor_echo() -> float:
    """Return the median time of the echo of a terminal alone, with the same shell, in ms."""
    master, slave = os.openpty()
    command = ["bash", "--noprofile", "--norc", "-i"]
    took: list[float] = []
    env = {"PS1": "pty> "}
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=env
    ) as shell:
        os.close(slave)
        seen = b""
        while b"pty> " not in seen:
            seen += os.read(master, 65536)
        for number in range(_KEYS):
            time.sleep(_KEY_SECONDS / 4)
            begun = time.perf_counter()
            os.write(master, b"%c" % (97 + number % 26))
            os.read(master, 65536)
            took.append((time.perf_counter() - begun) * 1e3)
        shell.kill()
    os.close(master)
    return median(took)


def _repository(folder: Path) -> Path:
    """Make a repository with so many small files in 100 folders."""
    for number in range(_FILES):
        file = folder / f"d{number % 100}" / f"f{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# {number}\n" + "x = 1\n" * (number % 300))
    _git(folder, "init", "--quiet", "-b", "main")
    _git(folder, "add", ".")
    who = ("-c", "user.name=bench", "-c", "user.email=bench@example.org")
    _git(folder, *who, "commit", "--quiet", "-m", "all")
    return folder


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True)


AGENT_FIGURES = {
    "agents_restart": agents_restart,
    "agents_busy": agents_busy,
    "agents_echo": agents_echo,
    "agents_worktree": agents_worktree,
    "agents_idle": agents_idle,
}
