"""Programs that pretend to be coding programs: real processes, made for one test each."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from plugins.cli_backends.adapters.claude_code import CLI as CLAUDE
from plugins.cli_backends.adapters.cli import Cli
from plugins.cli_backends.backend import SpawnedBackend
from plugins.cli_backends.contract import BackendError, Callbacks, Context, DispatchOptions, DispatchResult
from plugins.cli_backends.settings import BackendSettings
from plugins.cli_backends.state import SessionFile

PRELUDE = """\
import json, os, signal, subprocess, sys, time

def out(**message):
    print(json.dumps(message), flush=True)

def read():
    line = sys.stdin.readline()
    return json.loads(line) if line else sys.exit()

def say(text):
    delta = {"type": "text_delta", "text": text}
    out(type="stream_event", event={"type": "content_block_delta", "delta": delta})

def done(**more):
    out(type="result", subtype="success", is_error=False, result="", num_turns=1, **more)

def begin():
    flag = "--resume" if "--resume" in sys.argv else "--session-id"
    out(type="system", subtype="init", session_id=sys.argv[sys.argv.index(flag) + 1])

def prompt():
    read()
    return read()["message"]["content"]

def note(name, value):
    with open(os.path.join(os.path.dirname(__file__), name), "a") as file:
        print(json.dumps(value), file=file, flush=True)

if "--version" in sys.argv:
    note("versions", 1)
    print("7.8.9 (Pretend)")
    sys.exit()
note("pids", os.getpid())
"""


def program(folder: Path, body: str, name: str = "claude") -> Path:
    """An executable with a body of Python, which has the words of the prelude."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!{sys.executable} -IS\n{PRELUDE}\n{textwrap.dedent(body)}")
    path.chmod(0o755)
    return path


def noted(folder: Path, name: str) -> list[Any]:
    """What a program noted, oldest first."""
    import json

    path = folder / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def alive(pid: int) -> bool:
    """Whether a process is there, be it as a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def gone(pids: Sequence[int], seconds: float = 5) -> bool:
    """Whether all processes go away, also those that another process has to collect."""
    until = time.monotonic() + seconds
    while any(map(_runs, pids)):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def _runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


class Heard:
    """Callbacks that remember; ``ends`` are the terminal ones."""

    def __init__(self, on_token: Callable[[str], Any] = lambda _text: None) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.ends: list[DispatchResult | BackendError] = []
        self._on_token = on_token

    @property
    def text(self) -> str:
        """All tokens."""
        return "".join(entry[1] for entry in self.log if entry[0] == "token")

    @property
    def callbacks(self) -> Callbacks:
        """The callbacks."""
        return Callbacks(
            on_token=self._token,
            on_tool_call=lambda name, given, _: self.log.append(("call", name, dict(given))),
            on_tool_result=lambda name, output, _: self.log.append(("result", name, output)),
            on_done=lambda result, _: self._end("done", result),
            on_error=lambda error, _: self._end("error", error),
        )

    def _token(self, text: str, task_id: str) -> Any:
        self.log.append(("token", text))
        return self._on_token(task_id)

    def _end(self, kind: str, end: DispatchResult | BackendError) -> None:
        self.log.append((kind,))
        self.ends.append(end)


async def backend(
    folder: Path,
    body: str = "",
    cli: Cli = CLAUDE,
    environ: Mapping[str, str] | None = None,
    sessions: SessionFile | None = None,
    **settings: Any,
) -> SpawnedBackend:
    """A backend whose program has this body."""
    made = SpawnedBackend(cli, environ or {"PATH": os.defpath}, sessions or SessionFile())
    binary = settings.pop("binary", None) or str(program(folder, body, cli.program.binary))
    await made.initialize(BackendSettings(binary=binary, **settings))
    return made


async def ask(
    backend: SpawnedBackend, prompt: str = "go", heard: Heard | None = None, **options: Any
) -> DispatchResult:
    """One dispatch."""
    options = {"conversation_id": "c", "working_directory": "/", **options}
    heard = heard or Heard()
    result = await backend.dispatch(prompt, Context(), DispatchOptions(**options), heard.callbacks)
    assert len(heard.ends) == 1
    assert heard.log[-1][0] == ("done" if result.success else "error")
    return result
