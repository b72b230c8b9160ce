"""The pieces below a backend: lines, a child process, and the loop that the gateway really runs on."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plugins.cli_backends.backend import Admission
from plugins.cli_backends.contract import BackendError
from plugins.programs.environment import find_program
from plugins.programs.process import (
    ChildProcess,
    Launch,
    LineSplitter,
    LineTooLongError,
    capture_output,
    kill_marked,
    parse_message,
)
from tests.plugins.cli_backends.pretend import gone

ROOT = Path(__file__).parents[3]
PATH = {"PATH": os.environ.get("PATH", os.defpath)}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_000_17_lines_are_the_same_however_they_are_cut(size: int) -> None:
    data = b'{"a":1}\n\n  \r\n{"b":"\xc3\xb6"}\r\nrest'
    split = LineSplitter()
    lines = [line for at in range(0, len(data), size) for line in split.feed(data[at : at + size])]
    assert lines + split.close() == [b'{"a":1}', b'{"b":"\xc3\xb6"}\r', b"rest"]
    assert split.close() == []


@pytest.mark.parametrize("data", [b"x" * 11, b"x" * 11 + b"\n", b"ok\n" + b"x" * 11])
def test_000_25_a_line_that_is_too_long_is_refused(data: bytes) -> None:
    split = LineSplitter(10)
    with pytest.raises(LineTooLongError):
        split.feed(data)
    assert split.close() == [], "and nothing of it is kept"
    assert LineSplitter(10).feed(b"x" * 10 + b"\n") == [b"x" * 10]


def test_000_17_only_objects_are_messages() -> None:
    assert parse_message(b'\xef\xbb\xbf {"a": 1} \r') == {"a": 1}
    for line in (b"hello", b"[1]", b"1", b'"x"', b"null", b"{", b"\xff", b'{"a":' * 100_000, b"{'a': 1}"):
        assert parse_message(line) is None


def test_a_program_is_found_on_absolute_folders_only(tmp_path: Path) -> None:
    made = tmp_path / "echo"
    made.write_text("#!/bin/sh\n")
    made.chmod(0o755)
    assert find_program("./echo", {"PATH": str(tmp_path)}) is None
    assert find_program("echo", {"PATH": str(tmp_path)}) == str(made)
    assert find_program("~/echo", {"HOME": str(tmp_path)}) == str(made)
    assert find_program("no-such-program", PATH) is None


async def test_what_carries_the_mark_is_found(tmp_path: Path) -> None:
    child = await ChildProcess.start(
        Launch([sys.executable, "-c", "import time; time.sleep(600)"], PATH, str(tmp_path))
    )
    assert kill_marked("another mark") == 0
    await child.end()
    assert child.code is not None


async def test_a_short_program_is_read_to_its_end(tmp_path: Path) -> None:
    script = "import sys; print('one'); print(); sys.stdout.write('two'); sys.exit(3)"
    output = await capture_output(Launch([sys.executable, "-c", script], PATH, str(tmp_path)), 20)
    assert (output.code, output.text, output.is_cut) == (3, "one\n\ntwo", False)
    with pytest.raises(TimeoutError):
        await capture_output(
            Launch([sys.executable, "-c", "import time; time.sleep(600)"], PATH, str(tmp_path)), 0.2
        )


async def test_long_output_of_a_short_program_is_cut(tmp_path: Path) -> None:
    script = "import sys; print('why', file=sys.stderr, flush=True)\nwhile True: print('x' * 999)"
    output = await capture_output(Launch([sys.executable, "-c", script], PATH, str(tmp_path)), 60, 100_000)
    assert (len(output.data), output.is_cut, output.errors) == (100_000, True, ("why",))


async def test_000_05_who_is_cancelled_twice_leaves_nothing(tmp_path: Path) -> None:
    """A stop, and then the end of the gateway while the program still takes its time."""
    script = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    pids: list[int] = []
    running = asyncio.Event()

    async def work() -> None:
        child = await ChildProcess.start(Launch([sys.executable, "-c", script], PATH, str(tmp_path)))
        try:
            assert child._transport is not None
            pids.append(child._transport.get_pid())
            running.set()
            await asyncio.Event().wait()
        finally:
            await child.end()

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work())
        await running.wait()
        task.cancel()
        await asyncio.sleep(0.05)
        task.cancel()
    assert gone(pids)


async def test_000_22_the_admission_queue_forgets_conversations(tmp_path: Path) -> None:
    admission = Admission("x")
    for conversation in ("c", "d"):
        async with admission.enter(conversation, "t1", 1):
            assert not admission.abort("t1"), "whoever is inside does not wait"
            with pytest.raises(BackendError, match="busy with 1 other"):
                async with admission.enter("other", "t2", 1):
                    pass


SCRIPT = """
import asyncio, sys
from pathlib import Path
import uvloop
sys.path.insert(0, {root!r})
from tests.plugins.cli_backends.pretend import Heard, ask, backend, gone, noted

async def main():
    folder = Path({folder!r})
    assert "uvloop" in type(asyncio.get_running_loop()).__module__
    flood = 'prompt()\\nfor n in range(300):\\n    say("x" * 20000)\\ndone()'
    assert len((await ask(await backend(folder, flood))).output) == 6_000_000
    hang = 'signal.signal(signal.SIGTERM, signal.SIG_IGN)\\nprompt()\\nsay("hello")\\ntime.sleep(600)'
    made = await backend(folder, hang)
    result = await ask(made, heard=Heard(made.abort))
    print(result.error.code, gone(noted(folder, "pids")))
    silent = await ask(await backend(folder, hang, stall_timeout_ms=300))
    print(silent.error.code, gone(noted(folder, "pids")))

uvloop.run(main())
"""


async def test_000_19_it_works_on_the_loop_that_the_gateway_uses(tmp_path: Path) -> None:
    script = SCRIPT.format(root=str(ROOT), folder=str(tmp_path))
    run = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    told = [line for line in run.stdout.splitlines() if line.startswith(("ABORTED", "TIMEOUT"))]
    assert told == ["ABORTED True", "TIMEOUT True"], run.stderr
