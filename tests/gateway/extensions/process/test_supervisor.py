"""The supervisor of a plugin's process: calls, deaths, restarts, quarantine, limits, and hogs."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.contract.errors import PluginActivationError
from gateway.extensions.process import kernel
from gateway.extensions.process.frames import ProcessEnded

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(kernel.missing(kernel.layers(), strict=False)), reason="the kernel cannot confine"
    ),
]


async def test_a_plugin_answers_calls_and_gets_events(plugins: Any) -> None:
    code = "seen = []\ndef note(w, f):\n    seen.append(f['p'])\ndef seen_(w, f):\n    return seen\n"
    one = await plugins.start(code)
    one.notify("note", {"n": 1})
    one.notify("note", {"n": 2})
    assert await one.call("seen_", {}, 5) == [{"n": 1}, {"n": 2}]
    assert one.state == "running"
    assert {"landlock", "seccomp"} <= set(one.layers)
    await one.stop()
    assert one.state == "stopped"
    assert plugins.kinds() == ["started", "stopped"]
    with pytest.raises(ProcessEnded, match="stopped"):
        await one.call("seen_", {}, 5)


async def test_open_calls_fail_with_the_process_and_it_starts_again(plugins: Any) -> None:
    one = await plugins.start()
    calls = [asyncio.ensure_future(one.call("silent", {}, 60)) for _ in range(5)]
    await asyncio.sleep(0.05)
    pid = one.pid
    os.kill(pid, signal.SIGKILL)
    for call in calls:
        with pytest.raises(ProcessEnded):
            await call
    await plugins.until(lambda: one.state == "running" and one.pid != pid)
    assert await one.call("echo", {"a": 1}, 5) == {"a": 1}
    assert plugins.events[1].reason == "it was ended by SIGKILL"


async def test_five_deaths_are_a_quarantine_that_a_start_ends(plugins: Any) -> None:
    one = await plugins.start("def die(w, f):\n    import os\n    os._exit(4)\n")
    for _ in range(5):
        await plugins.until(lambda: one.state in ("running", "quarantined"))
        with pytest.raises(ProcessEnded):
            await one.call("die", {}, 5)
        await plugins.until(lambda: one.state != "running")
    await plugins.until(lambda: one.state == "quarantined")
    assert "5 times in 5 minutes; at last it ended with status 4" in one.reason
    assert plugins.kinds()[-2:] == ["died", "quarantined"]
    await one.start(5)
    assert one.state == "running"


async def test_a_plugin_that_does_not_start_says_why(plugins: Any) -> None:
    with pytest.raises(PluginActivationError, match="ZeroDivisionError: division by zero"):
        await plugins.start("1 / 0")
    with pytest.raises(PluginActivationError, match="status 3"):
        await plugins.start("import sys; sys.exit(3)", name="two")


async def test_the_end_of_stderr_is_kept_over_restarts(plugins: Any) -> None:
    code = (
        "import sys, os\ndef say(w, f):\n    sys.stderr.write('x' * 200_000 + 'end\\n'); sys.stderr.flush()\n"
    )
    one = await plugins.start(code)
    await one.call("say", {}, 5)
    await plugins.until(lambda: one.record.stderr()[0].endswith(b"end\n"))
    assert len(one.record.stderr()[0]) == 65_536
    one.kill("it is a test")
    await plugins.until(lambda: one.state == "running" and one.record.deaths == 1)
    assert one.record.stderr()[0].endswith(b"end\n")
    assert plugins.events[1].kind == "killed"


HOGS = {
    "memory": "def hog(w, f):\n    x = []\n    while True:\n        x.append(bytearray(1 << 20))\n",
    "loop": "def hog(w, f):\n    while True:\n        pass\n",
    "regex": "import re\ndef hog(w, f):\n    re.match('(a+)+$', 'a' * 60 + 'b')\n",
    "bigint": "def hog(w, f):\n    x = 3\n    while True:\n        x = x * x\n",
    "crash": "import ctypes\ndef hog(w, f):\n    ctypes.string_at(0)\n",
    "frame": "def hog(w, f):\n    w.raw((1 << 30).to_bytes(4, 'big') + b'x')\n    return NotImplemented\n",
    "forgery": "def hog(w, f):\n    w.send({'i': 12345, 'r': None})\n    return NotImplemented\n",
    "events": "def hog(w, f):\n    while True:\n        w.send({'m': 'log', 'p': {}})\n",
    "syscall": "import ctypes\ndef hog(w, f):\n    ctypes.CDLL(None).syscall(0x40000000 + 39)\n",
    "close": "def hog(w, f):\n    w.sock.close()\n    import time\n    time.sleep(60)\n",
}
REASONS = {
    "memory": "MemoryError",
    "loop": "a call used more than 1 s of the processor",
    "regex": "a call used more than 1 s of the processor",
    "bigint": "processor|MemoryError",
    "crash": "SIGSEGV",
    "frame": "1,073,741,824 bytes",
    "forgery": "the call 12345",
    "events": "calls and events in a second|processor",
    "syscall": "forbidden system call",
    "close": "closed its connection",
}


@pytest.mark.parametrize("kind", list(HOGS))
async def test_001_27_a_hog_ends_for_a_reason_that_is_audited_and_no_other_plugin_notices(
    plugins: Any, kind: str
) -> None:
    hog = await plugins.start(HOGS[kind], name="hog", memory_mb=128, cpu_seconds=1)
    other = await plugins.start(name="other")
    call = asyncio.ensure_future(hog.call("hog", {}, 60))
    while not call.done():
        assert await other.call("echo", {"a": 1}, 5) == {"a": 1}
        await asyncio.sleep(0.01)
    with pytest.raises(ProcessEnded):
        await call
    await plugins.until(lambda: hog.record.deaths == 1)
    assert re.search(REASONS[kind], next(e.reason for e in plugins.events if e.kind in ("died", "killed")))
    assert other.record.deaths == 0


async def test_a_flood_on_stderr_is_bounded(plugins: Any) -> None:
    code = "import os\ndef hog(w, f):\n    while True:\n        os.write(2, b'x' * 65536)\n"
    hog = await plugins.start(code, name="hog")
    for _ in range(3):
        with pytest.raises((TimeoutError, ProcessEnded)):
            await hog.call("hog", {}, 0.2)
    await plugins.until(lambda: hog.record.deaths == 1)
    assert len(hog.record.stderr()[0]) <= 65_536


async def test_a_plugin_that_sleeps_misses_deadlines_and_is_started_again(plugins: Any) -> None:
    hog = await plugins.start("import time\ndef hog(w, f):\n    time.sleep(600)\n")
    for _ in range(3):
        with pytest.raises((TimeoutError, ProcessEnded)):
            await hog.call("hog", {}, 0.05)
    await plugins.until(lambda: hog.record.deaths == 1 and hog.state == "running")
    assert "did not answer 3 calls" in next(e.reason for e in plugins.events if e.kind == "killed")


async def test_a_plugin_sees_neither_its_neighbours_nor_the_gateway(plugins: Any, tmp_path: Path) -> None:
    code = """
import os
def look(w, f):
    try:
        return os.listdir(f['p']['path'])
    except OSError as error:
        return str(error)
"""
    one = await plugins.start(code, name="one")
    await plugins.start(name="two")
    assert await one.call("look", {"path": str(tmp_path / "one")}, 5) == ["main.py"]
    assert "No such file" in await one.call("look", {"path": str(tmp_path / "two")}, 5)


async def test_nothing_of_confined_processes_is_imported_by_a_gateway_without_them() -> None:
    code = "import sys, gateway.app; print([m for m in sys.modules if 'extensions.process.' in m])"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    assert (await process.stdout.read()).strip() == b"['gateway.extensions.process.service']"
    await process.wait()
