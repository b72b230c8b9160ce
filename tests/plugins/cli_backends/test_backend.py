"""One backend: its ten members, and what becomes of programs that behave and of those that do not."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from plugins.cli_backends import CLIS
from plugins.cli_backends.adapters.cli import Cli
from plugins.cli_backends.backend import BAD_SECONDS, GOOD_SECONDS, INTERRUPTED, Availability
from plugins.cli_backends.contract import (
    BackendError,
    CodingPlugin,
    Context,
    DispatchOptions,
    Image,
    TextChunk,
)
from plugins.cli_backends.settings import BackendSettings
from plugins.cli_backends.state import SessionFile
from tests.plugins.cli_backends.pretend import Heard, alive, ask, backend, gone, noted

HANG = """
prompt()
say("working")
time.sleep(600)
"""
ECHO = """
said = prompt()
note("prompts", said)
note("arguments", sys.argv[1:])
say("You said: " + said)
done()
"""


def code(error: BackendError | None) -> str:
    assert error is not None
    return error.code


@pytest.mark.parametrize("cli", CLIS, ids=lambda cli: cli.name)
async def test_000_01_every_backend_has_the_ten_members(cli: Cli, tmp_path: Path) -> None:
    made: CodingPlugin = await backend(tmp_path, ECHO, cli)
    assert made.name == cli.name
    assert isinstance(made.version, str)
    members = (
        made.initialize,
        made.dispatch,
        made.is_available,
        made.clear_session,
        made.abort,
        made.cleanup,
    )
    assert all(inspect.iscoroutinefunction(member) for member in members)
    assert made.get_session("nobody") is None
    assert made.get_running_task_count() == 0


async def test_000_02_tokens_calls_and_results_come_before_the_end(tmp_path: Path) -> None:
    made = await backend(
        tmp_path,
        """
        prompt()
        say("Let me ")
        say("look.")
        call = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"path": "a"}}
        out(type="assistant", message={"content": [{"type": "text", "text": "Let me look."}, call]})
        result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "A"}]}
        out(type="user", message={"content": [result]})
        say("Done.")
        done(usage={"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 5})
        """,
    )
    heard = Heard()
    result = await ask(made, heard=heard)
    assert heard.log == [
        ("token", "Let me "),
        ("token", "look."),
        ("call", "Read", {"path": "a"}),
        ("result", "Read", "A"),
        ("token", "Done."),
        ("done",),
    ]
    assert result.output == "Let me look.Done."
    assert result.usage is not None
    assert (result.usage.input, result.usage.cached, result.usage.output) == (7, 4, 5)


async def test_000_02_callbacks_that_raise_change_nothing(tmp_path: Path) -> None:
    def broken(_: str) -> None:
        raise RuntimeError("a callback is broken")

    async def broken_later(_: str) -> None:
        raise RuntimeError("a callback is broken")

    for on_token in (broken, broken_later):
        heard = Heard(on_token)
        assert (await ask(await backend(tmp_path, ECHO), heard=heard)).success
        assert heard.text == "You said: go"


async def test_000_03_a_program_that_is_not_there_is_not_available(tmp_path: Path) -> None:
    assert await (await backend(tmp_path, ECHO)).is_available()
    assert not await (await backend(tmp_path, binary=str(tmp_path / "missing"))).is_available()
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\nexit 3\n")
    failing.chmod(0o755)
    assert not await (await backend(tmp_path, binary=str(failing))).is_available()
    assert not await (await backend(tmp_path, ECHO, enabled=False)).is_available()
    versed = await backend(tmp_path, ECHO)
    await versed.is_available()
    assert versed.version == "7.8.9"


async def test_000_04_a_conversation_resumes_until_it_is_cleared(tmp_path: Path) -> None:
    file = tmp_path / "kept" / "sessions.json"
    made = await backend(tmp_path, f"begin()\n{ECHO}", sessions=SessionFile(file))
    await ask(made)
    session = made.get_session("c")
    assert session is not None
    again = await backend(tmp_path, f"begin()\n{ECHO}", sessions=SessionFile(file))
    assert again.get_session("c") == session, "it is known after a restart"
    await ask(again)
    await ask(again, conversation_id="other")
    await again.clear_session("c")
    assert again.get_session("c") is None
    await ask(again)
    calls = noted(tmp_path, "arguments")
    assert [("--resume" in call) for call in calls] == [False, True, False, False]
    assert calls[1][calls[1].index("--resume") + 1] == session
    assert again.get_session("c") not in (None, session)


async def test_000_04_a_lost_session_is_recreated_with_the_conversation(tmp_path: Path) -> None:
    sessions = SessionFile()
    await sessions.put("claude-code", "c", "11111111-0000-4000-8000-000000000000")
    made = await backend(
        tmp_path,
        """
        if "--resume" in sys.argv:
            print("No conversation found with session ID: 1", file=sys.stderr)
            sys.exit(1)
        """
        + ECHO.replace("\n", "\n        "),
        sessions=sessions,
    )
    result = await ask(made, history="what was said", prompt="go on")
    assert result.output == "You said: what was said\n\ngo on"


async def test_000_04_a_session_that_missed_an_answer_is_not_resumed(tmp_path: Path) -> None:
    sessions = SessionFile()
    made = await backend(tmp_path, ECHO, sessions=sessions)
    await sessions.put("claude-code", "c", "s1", "answer 1")
    await ask(made, after="answer 1", history="before")
    await ask(made, after="answer 2", history="before")
    assert [("--resume" in call) for call in noted(tmp_path, "arguments")] == [True, False]
    assert noted(tmp_path, "prompts") == ["go", "before\n\ngo"]


async def test_000_04_an_answer_that_was_cut_off_continues_where_it_was(tmp_path: Path) -> None:
    """The gateway died and makes the same answer again: the program is told, and does nothing twice."""
    sessions = SessionFile()
    made = await backend(tmp_path, ECHO, sessions=sessions)
    await sessions.put("claude-code", "c", "s1", "answer 2")
    again = {"after": "answer 1", "answer_id": "answer 2", "history": "before"}
    await ask(made, starts_answer=True, **again)
    await ask(made, starts_answer=False, **again)
    assert noted(tmp_path, "prompts") == [f"{INTERRUPTED}\n\ngo", "before\n\ngo"]
    assert [("--resume" in call) for call in noted(tmp_path, "arguments")] == [True, False]


async def test_pictures_go_with_the_prompt(tmp_path: Path) -> None:
    made = await backend(tmp_path, "said = prompt()\nnote('prompts', said)\ndone()")
    await ask(made, "What is this?", images=(Image("image/png", "UE5H"),))
    source = {"type": "base64", "media_type": "image/png", "data": "UE5H"}
    expected = [{"type": "image", "source": source}, {"type": "text", "text": "What is this?"}]
    assert noted(tmp_path, "prompts") == [expected]


async def test_000_05_an_aborted_dispatch_ends_and_its_program_is_gone(tmp_path: Path) -> None:
    made = await backend(tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + HANG)
    heard = Heard(made.abort)
    result = await ask(made, heard=heard, task_id="mine")
    assert code(result.error) == "ABORTED"
    assert heard.log == [("token", "working"), ("error",)]
    assert not alive(noted(tmp_path, "pids")[0])
    assert not await made.abort("mine"), "there is nothing left to abort"


async def test_000_05_aborting_one_task_leaves_the_others(tmp_path: Path) -> None:
    made = await backend(tmp_path, HANG)
    working = asyncio.Event()

    def begun(_text: str) -> None:
        if len(noted(tmp_path, "pids")) == 2:
            working.set()

    async with asyncio.TaskGroup() as tasks:
        one, two = [
            tasks.create_task(ask(made, heard=Heard(begun), task_id=name, conversation_id=name))
            for name in ("one", "two")
        ]
        await working.wait()
        assert not await made.abort("three"), "there is no such task"
        assert await made.abort("one")
        assert sorted(map(alive, noted(tmp_path, "pids"))) == [False, True], "gone when abort returns"
        assert code((await one).error) == "ABORTED"
        assert not two.done()
        assert made.get_running_task_count() == 1
        assert await made.abort("two")
        assert code((await two).error) == "ABORTED"
    assert gone(noted(tmp_path, "pids"))


async def test_000_05_what_it_started_is_gone_too(tmp_path: Path) -> None:
    made = await backend(
        tmp_path,
        """
        prompt()
        for detached in (False, True):
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                                     start_new_session=detached)
            note("pids", child.pid)
        say("working")
        time.sleep(600)
        """,
    )
    result = await ask(made, heard=Heard(made.abort))
    assert code(result.error) == "ABORTED"
    pids = noted(tmp_path, "pids")
    assert len(pids) == 3
    assert gone(pids)


async def test_000_06_running_ones_are_counted_and_old_sessions_forgotten(tmp_path: Path) -> None:
    now = 1_000_000
    sessions = SessionFile(clock=lambda: now)
    made = await backend(tmp_path, HANG, sessions=sessions)
    counts: list[int] = []
    running: list[str] = []

    async def count(task_id: str) -> None:
        counts.append(made.get_running_task_count())
        running.append(task_id)
        if len(counts) == 2:
            for task in running:
                await made.abort(task)

    async with asyncio.TaskGroup() as tasks:
        for conversation in ("a", "b"):
            tasks.create_task(ask(made, heard=Heard(count), conversation_id=conversation))
    assert counts[-1] == 2
    assert made.get_running_task_count() == 0
    await sessions.put("claude-code", "old", "s1")
    await sessions.put("codex", "old", "s2")
    now += 5000
    await sessions.put("claude-code", "new", "s3")
    assert await made.cleanup(1000) == 1
    assert made.get_session("old") is None
    assert made.get_session("new") == "s3"
    assert sessions.get("codex", "old") == "s2"


async def test_000_12_settings_of_a_backend_count(tmp_path: Path) -> None:
    body = """
    note("prompts", [read()["request"]["appendSystemPrompt"], os.environ.get("MINE"),
                     os.environ.get("ANTHROPIC_API_KEY"), os.environ.get("ANTHROPIC_BASE_URL")])
    read()
    note("arguments", sys.argv[1:])
    done()
    """
    made = await backend(
        tmp_path,
        body,
        model="opus",
        extra_args=["--verbose", "--last"],
        system_prompt="Be kind.",
        env={"MINE": "yes"},
        api_key="sk-mine",
        api_url="http://127.0.0.1:9",
    )
    await ask(made)
    await ask(made, model="sonnet", system_prompt_suffix="Be brief.", conversation_id="d")
    first, second = noted(tmp_path, "arguments")
    assert first[first.index("--model") + 1] == "opus"
    assert first[-2:] == ["--verbose", "--last"]
    assert second[second.index("--model") + 1] == "sonnet"
    environment = ["yes", "sk-mine", "http://127.0.0.1:9"]
    assert noted(tmp_path, "prompts") == [
        ["Be kind.", *environment],
        ["Be kind.\n\nBe brief.", *environment],
    ]


async def test_000_15_availability_is_asked_once_and_kept(tmp_path: Path) -> None:
    assert (GOOD_SECONDS, BAD_SECONDS) == (60, 5)
    made = await backend(tmp_path, ECHO)
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(made.is_available()) for _ in range(5)]
    assert all(task.result() for task in asked)
    assert await made.is_available()
    assert len(noted(tmp_path, "versions")) == 1
    await made.initialize(BackendSettings(binary=str(tmp_path / "claude"), model="other"))
    assert await made.is_available()
    assert len(noted(tmp_path, "versions")) == 2, "other settings are another question"


async def test_000_15_an_answer_is_believed_for_a_while(tmp_path: Path) -> None:
    times, answer, asked = [0.0], True, 0

    async def probe() -> bool:
        nonlocal asked
        asked += 1
        return answer

    availability = Availability(probe, lambda: times[-1])
    for time, asked_by_then in ((0, 1), (59, 1), (60, 2)):
        times.append(time)
        assert await availability.check()
        assert asked == asked_by_then
    answer = False
    for time, asked_by_then in ((121, 3), (125, 3), (127, 4)):
        times.append(time)
        assert not await availability.check()
        assert asked == asked_by_then


async def test_000_17_split_blank_and_malformed_lines_do_no_harm(tmp_path: Path) -> None:
    made = await backend(
        tmp_path,
        r"""
        prompt()
        print("Welcome! A new version is available.")
        print("\n\n   \n{broken\n[1, 2]\n42\nnull\n" + "[" * 5000, flush=True)
        out(type="unknown"); out(type="assistant", message={"content": ["odd", 7, {"type": "text"}]})
        out(type="stream_event", event={"delta": 5}); out(type="user", message={"content": [None]})
        delta = {"type": "text_delta", "text": "wörld"}
        line = json.dumps({"type": "stream_event", "event": {"delta": delta}}, ensure_ascii=False).encode()
        for byte in line:
            os.write(1, bytes([byte]))
        os.write(1, b"\r\n")
        sys.stdout.write(json.dumps({"type": "result", "is_error": False}))
        sys.stdout.flush()
        os.close(1)
        """,
    )
    result = await ask(made)
    assert result.error is None
    assert result.output == "wörld"


async def test_000_19_a_program_sees_little_of_the_gateways_environment(tmp_path: Path) -> None:
    environ = {
        "PATH": f"relative:{os.defpath}::/opt/bin",
        "HOME": "/home/somebody",
        "LC_ALL": "C.UTF-8",
        "ANTHROPIC_API_KEY": "sk-own",
        "OPENAI_API_KEY": "sk-of-another",
        "TRUNKLINE_SERVER__TOKEN": "secret",
        "SSH_AUTH_SOCK": "/run/agent",
        "CLAUDECODE": "1",
    }
    made = await backend(tmp_path, 'prompt()\nnote("env", dict(os.environ))\ndone()', environ=environ)
    assert (await ask(made)).success
    env = noted(tmp_path, "env")[0]
    assert env.pop("TRUNKLINE_DISPATCH")
    env.pop("LC_CTYPE", None)
    assert env == {
        "PATH": f"{os.defpath}:/opt/bin",
        "HOME": "/home/somebody",
        "LC_ALL": "C.UTF-8",
        "ANTHROPIC_API_KEY": "sk-own",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "TERM": "dumb",
        "NO_COLOR": "1",
    }


@pytest.mark.parametrize(("setting", "option"), [(2000, 0), (60_000, 2000)])
async def test_000_20_a_dispatch_that_takes_too_long_is_killed(
    tmp_path: Path, setting: int, option: int
) -> None:
    """It keeps talking and ignores SIGTERM, and what it started does so too."""
    chatter = """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        prompt()
        child = subprocess.Popen([sys.executable, "-c",
            "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"])
        note("pids", child.pid)
        while True:
            say(".")
            time.sleep(0.02)
    """
    made = await backend(tmp_path, chatter, timeout_ms=setting)
    result = await ask(made, timeout_ms=option or None)
    assert code(result.error) == "TIMEOUT"
    assert "not finished after 2 seconds" in str(result.error)
    assert not alive(noted(tmp_path, "pids")[0])
    assert gone(noted(tmp_path, "pids"))
    assert BackendSettings().timeout_ms == 30 * 60 * 1000


async def test_000_21_a_program_that_says_nothing_is_killed(tmp_path: Path) -> None:
    made = await backend(tmp_path, HANG, stall_timeout_ms=2000)
    result = await ask(made)
    assert code(result.error) == "TIMEOUT"
    assert "no output for 2 seconds" in str(result.error)
    assert not alive(noted(tmp_path, "pids")[0])
    assert BackendSettings().stall_timeout_ms == 120_000


async def test_000_21_who_speaks_in_time_is_not_silent(tmp_path: Path) -> None:
    body = """
    prompt()
    for _ in range(9):
        time.sleep(0.25)
        say(".")
    for _ in range(9):
        time.sleep(0.25)
        print("thinking", file=sys.stderr, flush=True)
    done()
    """
    result = await ask(await backend(tmp_path, body, stall_timeout_ms=2000))
    assert result.error is None
    assert result.output == "." * 9


async def test_000_22_one_conversation_too_many_is_refused(tmp_path: Path) -> None:
    made = await backend(tmp_path, HANG, max_concurrency=2)
    refused: list[str] = []

    async def one_more(task_id: str) -> None:
        if made.get_running_task_count() == 2 and not refused:
            refused.append(code((await ask(made, conversation_id="third")).error))
            await made.shutdown()

    async with asyncio.TaskGroup() as tasks:
        for conversation in ("a", "b"):
            tasks.create_task(ask(made, heard=Heard(one_more), conversation_id=conversation))
    assert refused == ["CONCURRENCY_LIMIT"]
    assert BackendSettings().max_concurrency == 3
    made = await backend(tmp_path, ECHO, max_concurrency=2)
    assert (await ask(made)).success, "whoever is done makes room"


async def test_000_22_a_conversation_keeps_its_order(tmp_path: Path) -> None:
    made = await backend(tmp_path, "time.sleep(0.02)\n" + ECHO, max_concurrency=1)
    prompts = [f"number {n}" for n in range(12)]
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(ask(made, prompt)) for prompt in prompts]
    codes = [task.result().error and code(task.result().error) for task in asked]
    assert codes == [None] * 11 + ["CONCURRENCY_LIMIT"], "one runs, ten wait, and the twelfth may not"
    assert noted(tmp_path, "prompts") == prompts[:11]


async def test_000_22_a_caller_that_gives_up_waiting_blocks_no_other(tmp_path: Path) -> None:
    made = await backend(tmp_path, "time.sleep(0.1)\n" + ECHO)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ask(made, "one"))
        second = tasks.create_task(made.dispatch("two", Context(), options(), Heard().callbacks))
        third = tasks.create_task(ask(made, "three"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second.cancel()
    assert third.result().output == "You said: three"
    assert noted(tmp_path, "prompts") == ["one", "three"]


def options(**more: Any) -> DispatchOptions:
    return DispatchOptions(conversation_id="c", working_directory="/", **more)


BROKEN = {
    "TIMEOUT": HANG,
    "PROCESS_EXIT": 'print("fatal: no such thing", file=sys.stderr)\nsys.exit(4)',
    "BUFFER_OVERFLOW": 'prompt()\nos.write(1, b"x" * 100)\nwhile True:\n    os.write(1, b"x" * 65536)',
    "PROVIDER_ERROR": 'prompt()\nout(type="result", is_error=True, result="overloaded")',
    "SESSION_ERROR": 'prompt()\nout(type="result", is_error=True, errors=["No conversation found"])',
}


@pytest.mark.parametrize("expected", BROKEN)
async def test_000_25_every_failure_has_its_code(expected: str, tmp_path: Path) -> None:
    stall = 1000 if expected == "TIMEOUT" else 60_000
    made = await backend(tmp_path, BROKEN[expected], stall_timeout_ms=stall)
    result = await ask(made)
    assert code(result.error) == expected
    assert result.error is not None
    assert (result.error.name, result.error.backend) == (expected, "claude-code")
    assert gone(noted(tmp_path, "pids"))


async def test_000_25_the_other_codes(tmp_path: Path) -> None:
    missing = await ask(await backend(tmp_path, binary=str(tmp_path / "missing")))
    assert code(missing.error) == "SPAWN_FAILURE"
    assert "npm install -g @anthropic-ai/claude-code" in str(missing.error)
    nowhere = await ask(await backend(tmp_path, ECHO), working_directory=str(tmp_path / "missing"))
    assert code(nowhere.error) == "SPAWN_FAILURE"

    async def broken(tool: str, arguments: Any) -> bool:
        raise RuntimeError("the asker is broken")

    asking = await backend(
        tmp_path,
        """
        prompt()
        request = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {}}
        out(type="control_request", request_id="1", request=request)
        time.sleep(600)
        """,
    )
    assert code((await ask(asking, ask=broken)).error) == "UNKNOWN"
    assert gone(noted(tmp_path, "pids"))


async def test_000_25_secrets_are_kept_out_of_what_is_reported(tmp_path: Path) -> None:
    body = 'print("error: bad key sk-very-secret", file=sys.stderr)\nsys.exit(1)'
    result = await ask(await backend(tmp_path, body, api_key="sk-very-secret"))
    assert result.error is not None
    assert "error: bad key …" in str(result.error)
    assert "sk-very-secret" not in f"{result.error} {result.error.detail}"


class TestBadPrograms:
    """Unexpected behaviour of programs: each ends by itself, under a name, and leaves nothing."""

    async def outcome(self, folder: Path, body: str, **settings: Any) -> BackendError:
        settings = {"stall_timeout_ms": 5000, **settings}
        result = await ask(await backend(folder, body, **settings))
        assert result.error is not None
        assert gone(noted(folder, "pids"))
        return result.error

    async def test_it_asks_on_a_terminal(self, tmp_path: Path) -> None:
        error = await self.outcome(
            tmp_path,
            """
            try:
                terminal = open("/dev/tty")
            except OSError as problem:
                sys.exit(f"error: no terminal ({problem.errno})")
            """,
        )
        assert error.code == "PROCESS_EXIT"
        assert "no terminal" in str(error)

    async def test_it_asks_on_its_output_and_waits(self, tmp_path: Path) -> None:
        error = await self.outcome(
            tmp_path,
            'print("Trust this folder? [y/N]", flush=True)\nread(); read(); read()',
            stall_timeout_ms=2000,
        )
        assert error.code == "TIMEOUT"
        assert "Trust this folder?" in str(error)

    @pytest.mark.parametrize("status", [0, 1])
    async def test_it_dies_at_once(self, tmp_path: Path, status: int) -> None:
        error = await self.outcome(tmp_path, f"sys.exit({status})")
        assert (error.code, f"status {status}" in str(error)) == ("PROCESS_EXIT", True)

    async def test_it_is_shot(self, tmp_path: Path) -> None:
        error = await self.outcome(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)")
        assert error.code == "PROCESS_EXIT"
        assert "SIGSEGV" in str(error)

    @pytest.mark.parametrize("detached", [False, True])
    async def test_it_forks_and_its_child_holds_the_pipes(self, tmp_path: Path, detached: bool) -> None:
        error = await self.outcome(
            tmp_path,
            f"""
            prompt()
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                                     start_new_session={detached})
            note("pids", child.pid)
            """,
            stall_timeout_ms=60_000,
        )
        assert error.code == "PROCESS_EXIT"

    async def test_it_answers_and_stays(self, tmp_path: Path) -> None:
        made = await backend(tmp_path, "prompt()\nsay('hello')\ndone()\ntime.sleep(600)")
        assert (await ask(made)).output == "hello"
        assert gone(noted(tmp_path, "pids"))

    async def test_it_closes_its_output_and_stays(self, tmp_path: Path) -> None:
        error = await self.outcome(tmp_path, "os.close(1)\ntime.sleep(600)")
        assert error.code == "PROCESS_EXIT"
        assert "closed its output" in str(error)

    async def test_it_fills_stderr(self, tmp_path: Path) -> None:
        error = await self.outcome(tmp_path, 'while True:\n    os.write(2, b"x" * 65536)')
        assert error.code == "BUFFER_OVERFLOW"

    async def test_it_never_stops_talking(self, tmp_path: Path) -> None:
        body = 'prompt()\nline = b"{}" + b" " * 65000 + b"\\n"\nwhile True:\n    os.write(1, line)'
        error = await self.outcome(tmp_path, body, stall_timeout_ms=60_000)
        assert error.code == "BUFFER_OVERFLOW"

    async def test_it_complains_a_lot_and_answers(self, tmp_path: Path) -> None:
        body = 'prompt()\nfor n in range(5000):\n    print("warning", "x" * 200, file=sys.stderr)\ndone()'
        assert (await ask(await backend(tmp_path, body))).success

    async def test_it_reads_nothing(self, tmp_path: Path) -> None:
        made = await backend(tmp_path, "time.sleep(600)", stall_timeout_ms=1000)
        result = await ask(made, "x" * 1_000_000)
        assert code(result.error) == "TIMEOUT"

    async def test_it_says_more_than_anybody_reads(self, tmp_path: Path) -> None:
        """The reader stands still; what waits for it stays bounded, and nothing is lost."""
        body = 'prompt()\nfor n in range(400):\n    say(str(n) + "x" * 10000)\ndone()'
        made = await backend(tmp_path, body)
        said: list[str] = []
        async with aclosing(made.stream("go", Context(), options())) as steps:
            async for step in steps:
                if isinstance(step, TextChunk):
                    said.append(step.text.rstrip("x"))
                    if len(said) == 1:
                        await asyncio.sleep(0.1)
        assert said == [str(n) for n in range(400)]

    async def test_the_backend_is_not_a_program(self, tmp_path: Path) -> None:
        text = tmp_path / "text"
        text.write_text("hello")
        text.chmod(0o755)
        assert code((await ask(await backend(tmp_path, binary=str(text)))).error) == "SPAWN_FAILURE"

    async def test_who_stops_listening_ends_it(self, tmp_path: Path) -> None:
        made = await backend(tmp_path, HANG)
        async with aclosing(made.stream("go", Context(), options())) as steps:
            async for step in steps:
                if isinstance(step, TextChunk):
                    break
        assert gone(noted(tmp_path, "pids"))
        assert made.get_running_task_count() == 0


async def test_a_person_is_asked_and_may_take_longer_than_a_program_may_be_silent(tmp_path: Path) -> None:
    body = """
    prompt()
    request = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": "ls"}}
    out(type="control_request", request_id="7", request=request)
    response = read()["response"]
    say(json.dumps([response["request_id"], response["response"]]))
    done()
    """
    asked: list[Any] = []
    later = 0.0
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + later

    def person(answer: bool) -> Any:
        async def decide(tool: str, arguments: Any) -> bool:
            asked.append((tool, dict(arguments)))
            nonlocal later
            later += 3600
            return answer

        return decide

    made = await backend(tmp_path, body, stall_timeout_ms=60_000, timeout_ms=86_400_000)
    yes = await ask(made, ask=person(True))
    assert json.loads(yes.output) == ["7", {"behavior": "allow", "updatedInput": {"command": "ls"}}]
    no = await ask(made, ask=person(False))
    assert json.loads(no.output)[1]["behavior"] == "deny"
    nobody = await ask(made)
    assert json.loads(nobody.output)[1]["behavior"] == "deny", "where nobody can be asked it is not allowed"
    assert asked == [("claude-code:Bash", {"command": "ls"})] * 2


@pytest.mark.parametrize(("rest", "expected"), [("time.sleep(600)", "ABORTED"), ("", "PROCESS_EXIT")])
async def test_a_question_ends_with_its_dispatch(tmp_path: Path, rest: str, expected: str) -> None:
    """After a stop or a death of the program no caller waits for the answer."""
    body = """
    prompt()
    request = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {}}
    out(type="control_request", request_id="7", request=request)
    """
    made = await backend(tmp_path, body + rest)

    async def never(tool: str, arguments: Any) -> bool:
        if rest:
            assert await made.abort("mine")
        await asyncio.Event().wait()
        return True

    assert code((await ask(made, ask=never, task_id="mine")).error) == expected
    assert gone(noted(tmp_path, "pids"))
