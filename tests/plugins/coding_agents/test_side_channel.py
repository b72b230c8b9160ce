"""The side channel: hooks of a program reach their session with its secret, and decide nothing.

The program is a pretended Claude Code, which shows recorded screens and runs the hooks that it was given.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import stat
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from plugins.coding_agents.adapters import find_adapter
from plugins.coding_agents.adapters.contract import AgentRequest, Fact, HookCommand
from plugins.coding_agents.keeper_client import SIBLING_SOCKET
from plugins.coding_agents.session import Session
from plugins.coding_agents.side_channel import hook_command, intake, report, secret_of
from plugins.coding_agents.tools.replies import listed
from tests.plugins.coding_agents.rig import processes, until, until_status
from tests.plugins.coding_agents.test_chat import Place, place

SCREENS = Path(__file__).parent / "screens" / "claude" / "2.1.330"
PRETENDED = f"""#!{sys.executable}
import json, os, subprocess, sys, termios, tty
if "--version" in sys.argv:
    print("2.1.330 (Claude Code)")
    raise SystemExit
given = dict(zip(sys.argv[1:], sys.argv[2:]))
settings = json.loads(given["--settings"])
def hook(event, **said):
    run = settings["hooks"][event][0]["hooks"][0] if event else settings["statusLine"]
    said = {{"session_id": given["--session-id"], "cwd": os.getcwd(), **said}}
    if event:
        said["hook_event_name"] = event
    told = subprocess.run(run["command"], shell=True, input=json.dumps(said), text=True, capture_output=True)
    assert (told.returncode, told.stdout) == (0, ""), told
def show(name):
    first, *lines = open(f"{SCREENS}/{{name}}.txt").read().split("\\n")
    row, column = json.loads(first)["cursor"]
    sys.stdout.write("\\x1b[2J\\x1b[H" + "\\r\\n".join(lines[:40]) + f"\\x1b[{{row + 1}};{{column + 1}}H")
    sys.stdout.flush()
def key():
    return os.read(0, 1).decode()
tty.setraw(0)
hook("SessionStart", source="startup")
hook("", cost={{"total_cost_usd": 0.25}})
show("ready-status-line")
while (typed := key()) != "\\r":
    sys.stdout.write(typed)
    sys.stdout.flush()
hook("UserPromptSubmit", prompt="a secret of the user")
tool = {{"tool_name": "Bash", "tool_input": {{"command": TOLD, "description": "Make a file"}}}}
hook("PreToolUse", **tool)
show("bash")
hook("PermissionRequest", **tool)
answer = key()
show("busy")
hook("PostToolUse", tool_response={{"stdout": "x" * 1_000_000}}, **tool)
hook("Stop", last_assistant_message="The answer is " + answer)
show("done")
key()
"""


def shown_by_processes(session_id: str) -> str:
    """Return the arguments and the variables of all processes of a session."""
    folders = [Path("/proc", str(process)) for process in processes(session_id)]
    found = [(folder / name).read_bytes() for folder in folders for name in ("cmdline", "environ")]
    return b"".join(found).decode(errors="replace")


@asynccontextmanager
async def pretended(tmp_path: Path, told: str) -> AsyncGenerator[tuple[Place, Session]]:
    """Run a gateway with a session of the pretended program, whose hooks tell of a command."""
    program = tmp_path / "claude"
    program.write_text(PRETENDED.replace("TOLD", repr(told)))
    program.chmod(0o700)
    settings = {"claude": {"binary": str(program)}}
    async with place(tmp_path / "data", agents=settings) as chat:
        session = await chat.spawn("Make a file.", agent="claude")
        try:
            yield chat, session
        finally:
            await session.stop(force=True)


async def send(session: Session, line: bytes, body: bytes = b"") -> bytes:
    """Send to the inner socket of a session what a process of its sandbox could; return the answer."""
    socket = session.folder / SIBLING_SOCKET
    folder = os.open(socket.parent, os.O_PATH)  # its path is longer than that of a socket may be
    try:
        reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/{socket.name}")
    finally:
        os.close(folder)
    writer.write(line + body)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.slow
async def test_a_hook_tells_the_command_the_session_the_costs_and_the_answer_and_decides_nothing(
    tmp_path: Path,
) -> None:
    # The screen shows the same command; only the hook knows that there are two spaces in it.
    async with pretended(tmp_path, "touch  made.txt") as (chat, session):
        first = session.record.program_session
        question = await chat.room.until_asked()
        assert question.detail == f"touch  made.txt\nin {session.record.workdir}"
        asked = session.record.question
        assert asked is not None
        assert asked.tool == "Bash"
        assert (session.record.program_session, session.record.cost_usd) == (first, 0.25)
        assert not session.record.task_done, "the hook was told of a permission, and did not answer it"
        await chat.press(question.id, "once")
        await until(session, lambda: session.record.task_done)
        assert any("The answer is 1" in text for text in await chat.until_log("has finished"))
        await chat.until_log(session.record.short_id, " · $0.25")
        assert listed([session.record]).endswith(" · $0.25")
        secret = secret_of(session.record.key)
        file = session.folder / "inside" / "hook"
        assert file.read_text() == secret
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert secret not in await asyncio.to_thread(shown_by_processes, session.record.id)


@pytest.mark.slow
async def test_a_command_that_the_screen_does_not_show_is_not_asked_about(tmp_path: Path) -> None:
    async with pretended(tmp_path, "npm test") as (chat, session):
        question = await chat.room.until_asked()
        assert question.detail == f"touch made.txt\nin {session.record.workdir}"


@pytest.mark.slow
async def test_a_report_needs_the_secret_of_its_session_and_is_limited(tmp_path: Path) -> None:
    async with place(tmp_path) as chat:
        one, two = await chat.spawn(""), await chat.spawn("")
        await until_status(one, "ready")
        secret = f"hook {secret_of(one.record.key)}\n".encode()
        other = f"hook {secret_of(two.record.key)}\n".encode()
        for line in (b"hook\n", b"hook x\n", other, secret.replace(b"\n", b" x\n")):
            assert (await send(one, line, b"{}")).startswith(b"401 ")
        assert await send(one, secret, b"{}") == b"200 noted\n"
        assert (await send(one, secret, b"[1]")).startswith(b"400 ")
        huge = b'{"cost":{"total_cost_usd":1%s}}' % (b"0" * 400)
        assert (await send(one, secret, huge)).startswith((b"200 ", b"400 "))
        assert (await send(one, secret, b'{"a":' * 100_000)).startswith((b"400 ", b"413 "))
        assert (await send(one, secret, b" " * (report.MOST + 1))).startswith(b"413 ")
        answers = [await send(one, secret, b"{}") for _ in range(2 * intake.MOST_AT_ONCE)]
        assert any(answer.startswith(b"429 ") for answer in answers)
        assert await send(two, other, b"{}") == b"200 noted\n", "a limit is for one session"
        await one.stop()
        await two.stop()


@pytest.mark.slow
async def test_without_a_gateway_a_hook_ends_at_once_without_a_decision(tmp_path: Path) -> None:
    async with place(tmp_path) as chat:
        session = await chat.spawn("")
        await until_status(session, "ready")
    # The gateway is gone, the keeper is not.
    event = json.dumps({"hook_event_name": "PermissionRequest", "session_id": "x"})
    for path in (session.folder / SIBLING_SOCKET, tmp_path / "nothing" / "socket"):
        hook = await asyncio.create_subprocess_exec(
            *hook_command().argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"TRUNKLINE_SOCKET": str(path)},
        )
        output, _ = await hook.communicate(event.encode())
        assert (hook.returncode, output) == (0, b"")
    async with place(tmp_path) as chat:
        found = chat.rig.sessions.session(session.record.id, session.record.owner)
        line = f"hook {secret_of(found.record.key)}\n".encode()
        assert await send(found, line, b"{}") == b"200 noted\n", "the next gateway takes reports again"
        await found.stop()


def test_the_texts_of_a_report_are_short_and_have_no_control_characters() -> None:
    given = Fact("asks", "s\x00", "Bash", "npm test\r\x1b[8mrm -rf /\u202e\n\tx", output="y" * 9_000)
    found = intake.cleaned(given)
    assert (found.session, found.detail) == ("s ", "npm test  [8mrm -rf / \n\tx")
    assert len(found.output) == 4_000


@pytest.mark.parametrize("cost", ["1" + "0" * 400, "1e308", "-1", "[]"])
def test_a_cost_that_is_none_does_no_harm(cost: str) -> None:
    given = msgspec.json.decode(f'{{"session_id":"s","cost":{{"total_cost_usd":{cost}}}}}')
    assert find_adapter("claude").hook(given) is None


def test_a_report_is_reduced_to_what_the_gateway_needs() -> None:
    given = {
        "hook_event_name": "PostToolUse",
        "prompt": "text of the user",
        "tool_response": {"stdout": "secret"},
        "tool_input": {"command": "x" * 9_000, "deep": {"a": {"b": 1}}},
    }
    assert report.reduced(given) == {
        "hook_event_name": "PostToolUse",
        "tool_input": {"command": "x" * 4_000, "deep": None},
    }


CALL = {"session_id": "s", "cwd": "/w", "tool_name": "Bash"}
REPORTS = [
    ("claude", {**CALL, "hook_event_name": "SessionStart"}, Fact(session="s")),
    ("claude", {"session_id": "s", "cost": {"total_cost_usd": 1}}, Fact(session="s", cost_usd=1.0)),
    (
        "claude",
        {**CALL, "hook_event_name": "PermissionRequest", "tool_input": {"command": "ls", "description": "d"}},
        Fact("asks", "s", "Bash", "ls", "d", "/w"),
    ),
    ("claude", {**CALL, "hook_event_name": "Notification"}, None),
    (
        "gemini",
        {
            "hook_event_name": "Notification",
            "notification_type": "ToolPermission",
            "session_id": "s",
            "cwd": "/w",
            "details": {"type": "edit", "filePath": "/w/a", "newContent": "x"},
        },
        Fact("asks", "s", "", "/w/a", folder="/w"),
    ),
    (
        "gemini",
        {"hook_event_name": "AfterAgent", "session_id": "s", "prompt_response": "x"},
        Fact("done", "s"),
    ),
    ("codex", {"type": "agent-turn-complete", "thread-id": "t"}, Fact(session="t")),
    ("gemini", {"hook_event_name": ["BeforeTool"], "session_id": 7, "details": []}, None),
]


@pytest.mark.parametrize(("name", "said", "fact"), REPORTS)
def test_an_adapter_reads_the_reports_of_its_program(
    name: str, said: dict[str, object], fact: Fact | None
) -> None:
    assert find_adapter(name).hook(said) == fact


def test_an_older_version_of_claude_code_gets_no_status_line_which_would_hide_its_hint() -> None:
    hook = HookCommand(("report", "it"), shlex.join(("report", "it")))
    for version, has_line in (("2.1.330", True), ("2.1.197", False), ("", False)):
        argv = (
            find_adapter("claude")
            .launch(AgentRequest(workdir="/w", home="/h", version=version, hook=hook))
            .argv
        )
        settings = json.loads(argv[argv.index("--settings") + 1])
        assert ("statusLine" in settings) is has_line
        assert settings["hooks"]["Stop"][0]["hooks"][0]["command"] == "report it"
