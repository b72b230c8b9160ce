"""A coding program in a chat: its answer, its tools and its questions, and how it is stopped."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from gateway import (
    ChatOptions,
    Complete,
    DisplayHints,
    ErrorPart,
    Message,
    Plugin,
    PluginContext,
    TextDelta,
    TextPart,
    Tool,
    ToolCallPart,
    ToolContext,
    ToolResultPart,
    tool_from,
)
from gateway.app import Gateway
from gateway.models import TRIGGERS, Trigger
from gateway.provider_http import ServerFailedError
from gateway.session.frames import ApprovalAsked
from gateway.settings import Settings
from gateway.testing.chat import Chat, chatting
from gateway.testing.contracts.fallback_contract import QUESTION, answers, failing
from gateway.testing.fake_models.script import Reply, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.fake_program import fake_program
from plugins.cli_backends import CliBackends
from plugins.cli_backends.contract import GitChanges, ToolCall
from plugins.cli_backends.provider import changes_text, hints_for
from tests.gateway.trail.test_recording import settled_trail
from tests.plugins.cli_backends.pretend import alive, noted, program

ECHO = """
begin()
said = prompt()
note("prompts", said)
note("arguments", sys.argv[1:])
say("You said: ")
say(said.split()[-1])
done(usage={"input_tokens": 7, "output_tokens": 5})
"""
ASKS = """
prompt()
say("I will look.")
call = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}
out(type="assistant", message={"content": [{"type": "text", "text": "I will look."}, call]})
request = {"subtype": "can_use_tool", "tool_name": "Bash", "input": call["input"], "tool_use_id": "t1"}
out(type="control_request", request_id="1", request=request)
answer = read()["response"]["response"]
allowed = answer["behavior"] == "allow"
result = {"type": "tool_result", "tool_use_id": "t1", "content": "a.txt" if allowed else answer["message"],
          "is_error": not allowed}
out(type="user", message={"content": [result]})
say("Done.")
done()
"""
HANG = 'signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprompt()\nsay("working")\ntime.sleep(600)'


def talking(tmp_path: Path, *more: Plugin, bodies: dict[str, str], model: str, **table: Any) -> Any:
    """A chat whose model is a pretended program."""
    env = {"PATH": os.environ.get("PATH", os.defpath)}
    plugins = {
        name: {"binary": str(program(tmp_path / "bin", body, name)), "env": env}
        for name, body in bodies.items()
    }
    limits, fallback = table.pop("limits", {}), table.pop("fallback", [])
    settings: dict[str, Any] = {"agents": table.pop("agents", {}), "limits": limits}
    settings["plugins"] = {"cli_backends": {"plugins": plugins, **table}}
    return chatting(tmp_path / "data", CliBackends(), *more, model=model, fallback=fallback, **settings)


async def asked(chat: Chat) -> ApprovalAsked:
    watcher = await chat.watch()
    return await watcher.until(lambda frame: isinstance(frame, ApprovalAsked))


async def test_000_11_the_doctor_reports_unknown_backend_names(tmp_path: Path) -> None:
    backends = CliBackends()
    for names, told in (
        ({"active_plugin": "claude", "fallback_plugins": ["codex", "gemni"]}, "claude, gemni"),
        ({"plugins": {"open-code": {"enabled": False}}}, "open-code"),
        ({"active_plugin": "codex", "fallback_plugins": ["gemini"]}, ""),
    ):
        settings = {"plugins": {"cli_backends": {**names, "file": str(tmp_path / "none.json")}}}
        async with chatting(tmp_path / "data", backends, **settings):
            problem = await backends.find_problem()
        assert problem.partition("; choose from claude-code")[0].partition("no backend is named ")[2] == told


async def test_a_program_answers_as_a_model_does(tmp_path: Path) -> None:
    async with talking(tmp_path, bodies={"claude-code": ECHO}, model="claude-code/opus") as chat:
        answer = await chat.say("hello")
        assert answer.parts == (TextPart("You said: hello"),)
        assert (answer.metadata.provider, answer.metadata.model) == ("claude-code", "opus")
        assert (answer.metadata.input_tokens, answer.metadata.output_tokens) == (7, 5)
        watcher = await chat.watch()
        await chat.say("again")
        await watcher.until(lambda frame: isinstance(frame, Complete))
        said = [frame.content for frame in watcher.frames if isinstance(frame, TextDelta)]
        assert said == ["You said: ", "again"]
        first, second = noted(tmp_path / "bin", "arguments")
        assert first[first.index("--model") + 1] == "opus"
        assert second[second.index("--resume") + 1] == first[first.index("--session-id") + 1]
        assert (tmp_path / "data" / "workspace").is_dir(), "it works in a folder of its own"


async def test_what_others_answered_meanwhile_is_reported(tmp_path: Path) -> None:
    async with talking(tmp_path, bodies={"claude-code": ECHO}, model="claude-code/default") as chat:
        await chat.say("first")
        chat.gateway.model = "script/one"
        await chat.say("second")
        chat.gateway.model = "claude-code/default"
        await chat.say("third")
        told = noted(tmp_path / "bin", "prompts")[-1]
        assert "assistant: You said: first\n\nuser: second\n\nassistant: You said: second" in told
        assert "--resume" not in noted(tmp_path / "bin", "arguments")[-1]


@pytest.mark.parametrize(
    ("tool", "arguments", "hints"),
    [
        ("execute", {"title": "ls"}, DisplayHints(kind="shell", fields={"command": "title"})),
        ("Edit", {"file_path": "a"}, DisplayHints(kind="file-write", fields={"path": "file_path"})),
        ("Read", {"file_path": "a"}, DisplayHints(kind="file-read", fields={"path": "file_path"})),
        ("web_search", {"query": "a"}, DisplayHints(fields={"query": "query"})),
        ("file_change", {"changes": []}, DisplayHints(kind="file-write")),
        ("other", {"path": 1}, None),
    ],
)
def test_002_13_tools_of_programs_have_display_hints(
    tool: str, arguments: dict[str, Any], hints: DisplayHints | None
) -> None:
    assert hints_for(ToolCall("1", tool, arguments)) == hints


@pytest.mark.parametrize(
    ("decision", "output"), [("once", "a.txt"), ("deny", "The user did not allow this.")]
)
async def test_a_person_decides_in_the_chat(tmp_path: Path, decision: Any, output: str) -> None:
    async with talking(tmp_path, bodies={"claude-code": ASKS}, model="claude-code/default") as chat:
        answer_id = await chat.accept("go")
        question = await asked(chat)
        assert (question.tool_name, question.arguments) == ("claude-code:Bash", {"command": "ls"})
        await chat.host.settle(question.approval_id, decision, session="s")
        answer = await chat.answer(answer_id)
        path = await settled_trail(chat, answer_id)
        [tool] = [step for step in path.steps if step.kind == "tool"]
        by = {"allowed_by": "person"} if decision == "once" else {"refused_by": "person"}
        assert (tool.name, tool.detail) == ("Bash", {"call": "t1", **by})
        assert answer.parts == (
            TextPart("I will look."),
            ToolCallPart("t1", "Bash", {"command": "ls"}),
            ToolResultPart(
                "t1",
                output,
                is_error=decision == "deny",
                display=DisplayHints(kind="shell", fields={"command": "command"}),
                metadata=answer.parts[2].metadata,
            ),
            TextPart("Done."),
        )


@pytest.mark.parametrize(("tools", "given"), [(["claude-code:Read", "calculator"], "Read"), ([], "")])
async def test_an_agents_tools_narrow_those_of_the_program(
    tmp_path: Path, tools: list[str], given: str
) -> None:
    bodies = {"claude-code": f'note("arguments", sys.argv)\n{ASKS}'}
    agents = {"looker": {"tools": tools}}
    async with talking(tmp_path, bodies=bodies, model="claude-code/default", agents=agents) as chat:
        # Its program asks for another tool, about which no user is asked.
        answer = await chat.say("go", agent="looker")
        assert [part.is_error for part in answer.parts if isinstance(part, ToolResultPart)] == [True]
    (arguments,) = noted(tmp_path / "bin", "arguments")
    assert arguments[arguments.index("--tools") + 1] == given
    assert "--strict-mcp-config" in arguments


async def test_no_answer_is_a_no(tmp_path: Path) -> None:
    limits = {"approval_timeout_ms": 1}
    bodies = {"claude-code": ASKS}
    async with talking(tmp_path, bodies=bodies, model="claude-code/default", limits=limits) as chat:
        answer = await chat.say("go")
        assert [part.is_error for part in answer.parts if isinstance(part, ToolResultPart)] == [True]


async def test_stop_ends_the_program_within_a_second(tmp_path: Path) -> None:
    async with talking(tmp_path, bodies={"claude-code": HANG}, model="claude-code/default") as chat:
        answer_id = await chat.accept("go")
        watcher = await chat.watch()
        await watcher.until(lambda frame: isinstance(frame, TextDelta))
        begun = time.monotonic()
        assert (await chat.say("/stop")).text == "Stopped."
        assert not alive(noted(tmp_path / "bin", "pids")[0])
        assert time.monotonic() - begun < 60, "a program that will not end would take ten minutes"
        answer = await chat.answer(answer_id)
        assert answer.text == "working"
        assert answer.metadata.stop_reason == "cancelled"
        program(tmp_path / "bin", ECHO, "claude-code")
        assert (await chat.say("hello")).text == "You said: hello", "the place is free again"


async def test_stop_withdraws_what_a_program_asks(tmp_path: Path) -> None:
    async with talking(tmp_path, bodies={"claude-code": ASKS}, model="claude-code/default") as chat:
        await chat.accept("go")
        await asked(chat)
        assert (await chat.say("/stop")).text == "Stopped."
        assert not alive(noted(tmp_path / "bin", "pids")[0])


async def test_a_failure_is_reported_by_its_name(tmp_path: Path) -> None:
    body = 'print("error: it is broken", file=sys.stderr)\nsys.exit(3)'
    async with talking(tmp_path, bodies={"claude-code": body}, model="claude-code/default") as chat:
        error = (await chat.say("go")).parts[-1]
        assert isinstance(error, ErrorPart)
        assert error.error_name == "PROCESS_EXIT"
        assert "it is broken" in error.message


async def test_a_call_without_a_result_gets_one(tmp_path: Path) -> None:
    """The agent runs calls that have none, and this one is not its own."""
    body = """
    prompt()
    call = {"type": "tool_use", "id": "t1", "name": "clock", "input": {}}
    out(type="assistant", message={"content": [call]})
    done()
    """
    async with talking(tmp_path, bodies={"claude-code": body}, model="claude-code/default") as chat:
        answer = await chat.say("go")
        assert [type(part) for part in answer.parts] == [ToolCallPart, ToolResultPart]
        assert isinstance(answer.parts[1], ToolResultPart)
        assert "reported no result" in answer.parts[1].output


async def test_one_takes_over_and_only_the_last_error_shows(tmp_path: Path) -> None:
    fails = 'prompt()\nsay("I try.")\nout(type="result", is_error=True, result="overloaded")'
    table: dict[str, Any] = {
        "fallback_plugins": ["opencode"],
        "plugin_dispatch": {"fallback": {"on_dispatch_error": True}},
    }
    bodies = {"claude-code": fails, "opencode": "sys.exit(9)"}
    async with talking(tmp_path, bodies=bodies, model="cli/active", **table) as chat:
        answer = await chat.say("go")
        errors = [part for part in answer.parts if isinstance(part, ErrorPart)]
        assert [error.error_name for error in errors] == ["PROCESS_EXIT"]
        assert answer.parts[:2] == (
            TextPart("I try."),
            TextPart("claude-code failed. Answering with opencode instead.", "notice"),
        )
        program(tmp_path / "bin", ECHO, "claude-code")
        assert (await chat.say("hello")).text == "You said: hello"


async def test_000_23_who_stands_in_is_announced_and_recorded(tmp_path: Path) -> None:
    """Also where the active program cannot be started at all; the next program never reads the notice."""
    bodies = {"claude-code": ECHO, "opencode": "sys.exit(9)"}
    table: dict[str, Any] = {"active_plugin": "opencode", "fallback_plugins": ["claude-code"]}
    async with talking(tmp_path, bodies=bodies, model="cli/active", **table) as chat:
        (tmp_path / "bin" / "opencode").unlink()
        for text in ("hello", "again"):
            answer = await chat.say(text)
            assert answer.parts == (
                TextPart("opencode is not available. Answering with claude-code instead.", "notice"),
                TextPart(f"You said: {text}"),
            )
            assert (answer.metadata.provider, answer.metadata.model) == ("claude-code", "default")
    assert not [prompt for prompt in noted(tmp_path / "bin", "prompts") if "Answering with" in prompt]


async def test_000_23_the_active_program_is_recorded_by_its_own_name(tmp_path: Path) -> None:
    async with talking(tmp_path, bodies={"claude-code": ECHO}, model="cli/active") as chat:
        answer = await chat.say("hello")
    assert (answer.metadata.provider, answer.metadata.model) == ("claude-code", "default")


async def test_a_program_that_stands_in_is_asked_what_the_user_said(tmp_path: Path) -> None:
    """At once, and after a tool of the gateway has run: then it is told of that, too."""
    bodies = {"claude-code": ECHO}
    async with talking(
        tmp_path, Errand(), bodies=bodies, model="script/one", fallback=["claude-code/default"]
    ) as chat:
        chat.model.then(ServerFailedError("oh"))
        answer = await chat.say("hello")
        assert answer.text == "You said: hello"
        assert noted(tmp_path / "bin", "prompts")[-1].endswith("hello")
        chat.model.then(Reply((Use("fetch_milk"),), "tools"), ServerFailedError("oh"))
        answer = await chat.say("milk, please")
        assert answer.metadata.provider == "claude-code"
    prompt = noted(tmp_path / "bin", "prompts")[-1]
    _, asked_for, rest = prompt.partition("milk, please")
    assert asked_for
    assert "[used fetch_milk {}: here it is]" in rest
    assert "Answering with" not in prompt


@pytest.mark.parametrize("name", ["claude-code", "codex", "gemini", "opencode"])
@pytest.mark.parametrize("trigger", TRIGGERS)
async def test_004_35_every_program_stands_in(tmp_path: Path, name: str, trigger: Trigger) -> None:
    """Its prompt on the wire ends with the question, or with what tools of the gateway have done for it."""
    binary, arguments = fake_program(tmp_path, name, "repeat")
    program = {"binary": binary, "extra_args": arguments, "env": {"PATH": os.environ["PATH"]}}
    async with FakeModels() as first:
        settings = {**failing(first, trigger), "plugins": {"cli_backends": {"plugins": {name: program}}}}
        async with chatting(
            tmp_path / "data", CliBackends(), fallback=[f"{name}/default"], **settings
        ) as chat:
            async for phase, answer, after_tool in answers(chat, first, trigger, name):
                prompt, _, done = answer.text.partition("\n\n<answer_so_far>")
                assert prompt.split()[-1] == QUESTION, (phase, prompt)
                assert bool(done) == after_tool, (phase, done)
                assert not done or '[used calculator {"expression":"2 + 2"}: 4]' in done, (phase, done)


async def test_changes_are_reported_at_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    await asyncio.to_thread(subprocess.run, ["git", "init", "-q", str(folder)], check=True)
    body = 'prompt()\nopen("new.txt", "w").write("one\\n")\nsay("I wrote it.")\ndone()'
    bodies = {"claude-code": body}
    async with talking(
        tmp_path, bodies=bodies, model="claude-code/default", working_directory=str(folder)
    ) as chat:
        assert (await chat.say("go")).text == "I wrote it.\n\n*1 file changed, 1 insertion(+)*"


def test_000_18_new_commits_are_reported_also_when_no_file_differs() -> None:
    """A program often commits only what was changed before."""
    assert changes_text(GitChanges("", (), ("1a2b3c4 fix `x`",))) == "- `1a2b3c4 fix 'x'`"
    commits = tuple(f"{number} change" for number in range(7, 0, -1))
    told = changes_text(GitChanges(" a | 2 +-\n 1 file changed, 1 insertion(+)", ("a",), commits))
    assert told.splitlines() == [
        "*1 file changed, 1 insertion(+)*",
        "- *2 commits, then*",
        *(f"- `{number} change`" for number in range(3, 8)),
    ]


async def test_000_18_a_commit_of_earlier_work_is_reported_in_the_chat(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    await asyncio.to_thread(subprocess.run, ["git", "init", "-q", str(folder)], check=True)
    (folder / "work.txt").write_text("done before\n")
    commit = "git add -A && git -c user.name=a -c user.email=a@example.org commit -qm 'Keep the work'"
    body = f'prompt()\n__import__("subprocess").run({commit!r}, shell=True, check=True)\nsay("Kept.")\ndone()'
    async with talking(
        tmp_path, bodies={"claude-code": body}, model="claude-code/default", working_directory=str(folder)
    ) as chat:
        answer, _, told = (await chat.say("commit it")).text.partition("\n\n")
    assert answer == "Kept."
    assert re.fullmatch(r"- `[0-9a-f]+ Keep the work`", told)


class Errand(Plugin):
    """A tool that lets a program do part of the work."""

    name = "errand"

    def __init__(self) -> None:
        async def errand(context: ToolContext) -> str:
            """Run an errand."""
            return await context.run_nested("buy milk", model="claude-code/default")

        async def fetch_milk() -> str:
            """Fetch milk."""
            return "here it is"

        self._tools = [tool_from(errand), tool_from(fetch_milk)]

    def tools(self) -> list[Tool]:
        return self._tools


async def test_a_nested_run_has_its_own_session(tmp_path: Path) -> None:
    bodies = {"claude-code": ECHO}
    async with talking(tmp_path, Errand(), bodies=bodies, model="claude-code/default") as chat:
        await chat.say("first")
        chat.gateway.model = "script/one"
        chat.model.then(Reply((Use("errand"),), "tools"))
        await chat.say("second")
        chat.gateway.model = "claude-code/default"
        await chat.say("third")
        prompts = noted(tmp_path / "bin", "prompts")
        assert "conversation_so_far" not in prompts[1]
        assert "buy milk" in prompts[1]
        assert "user: first" in prompts[2], "the conversation does not go on where the errand ended"
        assert all("--resume" not in call for call in noted(tmp_path / "bin", "arguments"))


class Asking(Plugin):
    """Hands out the providers."""

    name = "asking"
    ctx: PluginContext

    async def activate(self, ctx: PluginContext) -> None:
        self.ctx = ctx


async def test_it_keeps_the_contract_of_providers(tmp_path: Path) -> None:
    plugin = Asking()
    async with talking(tmp_path, plugin, bodies={"claude-code": ECHO}, model="script/one"):
        assert plugin.ctx.providers is not None
        provider = await plugin.ctx.providers.ready("claude-code")
        message = Message(session_id="s", role="user", parts=(TextPart("hello"),))
        answer = await provider.chat([message], ChatOptions(model="default"))
        assert answer.text == "You said: hello"
        assert [model.id for model in await provider.list_models()] == ["default"]
        active = await plugin.ctx.providers.ready("cli")
        names = [model.id for model in await active.list_models()]
        assert names == ["active", "claude-code", "codex", "gemini", "opencode"]


async def test_people_let_programs_remember(tmp_path: Path) -> None:
    async with talking(tmp_path, bodies={"claude-code": ECHO}, model="claude-code/default") as chat:
        assert (await chat.say("/remember I like tea")).text == "Remembered."
        assert (await chat.say("/remember")).text.startswith("Write the fact")
        await chat.say("hello")
        await chat.say("hello", "other")
        assert (await chat.say("/forget")).text == "Facts removed: 1."
        await chat.say("hello")
        told = ["I like tea" in prompt for prompt in noted(tmp_path / "bin", "prompts")]
        assert told == [True, False, False]


async def test_backends_are_shown(tmp_path: Path) -> None:
    async with talking(tmp_path, bodies={"claude-code": ECHO}, model="claude-code/default") as chat:
        shown = (await chat.say("/backends")).text.splitlines()
        assert shown[0] == "- claude-code (active): available 7.8.9, 0 running"
        lack = "program 'codex' not found; install it with `npm install -g @openai/codex`"
        assert shown[1] == f"- codex: not available ({lack}), 0 running"


async def test_the_programs_variables_are_handed_to_the_plugin_and_nothing_else(tmp_path: Path) -> None:
    class Listening(CliBackends):
        async def activate(self, ctx: PluginContext) -> None:
            self.ctx = ctx

    plugin = Listening()
    settings = Settings(data_dir=tmp_path, channels={}, model="demo/demo")
    theirs = {"HOME": "/h", "PATH": "/bin", "LC_ALL": "C", "XDG_CONFIG_HOME": "/c", "ANTHROPIC_API_KEY": "a"}
    ours = {"TRUNKLINE_SERVER__TOKEN": "secret", "TELEGRAM_TOKEN": "t", "COHERE_API_KEY": "c"}
    async with Gateway(settings, environ=theirs | ours, plugins=[plugin]).running():
        assert plugin.ctx.environ == theirs
