"""The protocols of the programs, each played by a pretended one; ``test_foreign.py`` has the real ones."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from plugins.cli_backends.adapters import claude_code, codex, gemini, opencode
from plugins.cli_backends.adapters.cli import Cli
from plugins.cli_backends.adapters.opencode import CONFIG, extra_variables
from plugins.cli_backends.adapters.protocol import Finished, Outgoing, PermissionRequest, ProgramRequest
from plugins.cli_backends.contract import DispatchResult, TextChunk, ToolCall, ToolResult, Usage
from plugins.cli_backends.state import SessionFile
from tests.plugins.cli_backends.pretend import Heard, ask, backend, noted

CODEX = """
note("arguments", sys.argv[1:])
KNOWN = {}

def notify(method, **params):
    out(method=method, params=params)

def item(state, **fields):
    notify("item/" + state, threadId="t", turnId="u", item=fields)

def turn(params):
    text = params["input"][0]["text"]
    item("started", type="agentMessage", id="m1", text="")
    notify("item/agentMessage/delta", itemId="m1", delta="You said: ")
    notify("item/agentMessage/delta", itemId="m1", delta=text)
    item("completed", type="agentMessage", id="m1", text="You said: " + text)
    if "tool" in text:
        fields = dict(type="commandExecution", id="c1", command="ls", cwd="/w")
        item("started", **fields, status="inProgress")
        told_ = dict(itemId="c1", command="ls", cwd="/w", reason="to see")
        out(id=0, method="item/commandExecution/requestApproval", params=told_)
        decision = read()["result"]["decision"]
        yes = decision == "accept"
        item("completed", **fields, status="completed" if yes else "declined",
             aggregatedOutput="a.txt" if yes else None, exitCode=0 if yes else None)
    if "fail" in text:
        notify("turn/completed", turn={"status": "failed", "error": {"message": "usage limit reached"}})
    used = {"inputTokens": 8, "cachedInputTokens": 2, "outputTokens": 3}
    total = {name: count + KNOWN.get(name, 0) for name, count in used.items()}
    notify("thread/tokenUsage/updated", threadId="t", turnId="u", tokenUsage={"total": total, "last": used})
    item("completed", type="agentMessage", id="m2", text=" Whole.")
    notify("turn/completed", turn={"status": "completed", "error": None})

while True:
    asked = read()
    note("asked", [asked["method"], asked.get("params")])
    method = asked["method"]
    if method == "initialize":
        out(id=asked["id"], result={"userAgent": "x"})
    elif method == "account/read":
        out(id=asked["id"], result={"account": None, "requiresOpenaiAuth": True})
    elif method == "account/login/start":
        out(id=asked["id"], result={"type": "apiKey"})
    elif method == "thread/start":
        out(id=asked["id"], result={"thread": {"id": "thread-1"}})
    elif method == "thread/resume":
        if asked["params"]["threadId"] == "lost":
            out(id=asked["id"], error={"code": -32600, "message": "no rollout found"})
        else:
            KNOWN = {"inputTokens": 900, "cachedInputTokens": 500, "outputTokens": 70}
            out(id=asked["id"], result={"thread": {"id": asked["params"]["threadId"]}})
            if asked["params"]["threadId"] == "told":
                usage = {"total": KNOWN, "last": KNOWN}
                notify("thread/tokenUsage/updated", threadId="t", turnId="old", tokenUsage=usage)
    elif method == "turn/start":
        out(id=asked["id"], result={"turn": {"id": "u"}})
        turn(asked["params"])
"""

ACP = """
note("arguments", sys.argv[1:])
CAN = {"loadSession": True}
if "gemini" not in __file__:
    CAN["sessionCapabilities"] = {"resume": {}}

def answer(asked, **result):
    out(jsonrpc="2.0", id=asked["id"], result=result)

def update(what, **fields):
    params = {"sessionId": "s-1", "update": {"sessionUpdate": what, **fields}}
    out(jsonrpc="2.0", method="session/update", params=params)

def said(text, kind="agent_message_chunk"):
    update(kind, content={"type": "text", "text": text})

def turn(asked):
    text = asked["params"]["prompt"][-1]["text"]
    said("Hm.", "agent_thought_chunk")
    said("You said: ")
    said(text)
    if "tool" in text:
        raw = {"command": "ls"}
        update("tool_call", toolCallId="c1", title="ls", kind="execute", status="pending", rawInput={})
        update("tool_call_update", toolCallId="c1", title="ls", kind="execute", status="in_progress",
               rawInput=raw)
        options = [{"optionId": "o1", "kind": "allow_always"}, {"optionId": "o2", "kind": "allow_once"},
                   {"optionId": "o3", "kind": "reject_once"}]
        call = {"toolCallId": "c1", "title": "ls", "kind": "execute", "rawInput": raw}
        out(jsonrpc="2.0", id=70, method="session/request_permission",
            params={"sessionId": "s-1", "toolCall": call, "options": options})
        chosen = read()["result"]["outcome"]["optionId"]
        note("chosen", chosen)
        content = [{"type": "content", "content": {"type": "text", "text": "a.txt"}}]
        update("tool_call_update", toolCallId="c1", content=content,
               status="completed" if chosen == "o2" else "failed")
    if "refuse" in text:
        return answer(asked, stopReason="refusal")
    if "fail" in text:
        return out(jsonrpc="2.0", id=asked["id"], error={"code": 429, "message": "quota", "data": "later"})
    if "cost" in text:
        update("usage_update", used=5, size=9, cost={"amount": float(text.split()[-1]), "currency": "USD"})
    usage = {"inputTokens": 5, "cachedReadTokens": 2, "cachedWriteTokens": 1}
    usage |= {"outputTokens": 2, "thoughtTokens": 1}
    answer(asked, stopReason="end_turn", usage=usage)

while True:
    asked = read()
    method, params = asked["method"], asked["params"]
    note("asked", [method, params])
    if method == "initialize":
        answer(asked, protocolVersion=1, agentCapabilities=CAN)
    elif method == "authenticate":
        answer(asked)
    elif method == "session/new":
        answer(asked, sessionId="s-1")
    elif method in ("session/load", "session/resume"):
        if params["sessionId"] == "lost":
            out(jsonrpc="2.0", id=asked["id"], error={"code": -32603, "message": "no such session"})
            continue
        said("from long ago")
        answer(asked)
    elif method == "session/prompt":
        turn(asked)
"""

PLAYED = [
    pytest.param(codex.CLI, CODEX, id="codex"),
    pytest.param(gemini.CLI, ACP, id="gemini"),
    pytest.param(opencode.CLI, ACP, id="opencode"),
]
ROWS = {"codex": "thread-1", "gemini": "s-1", "opencode": "s-1"}


def asked(folder: Path) -> list[str]:
    return [entry[0] for entry in noted(folder, "asked")]


async def yes(tool: str, arguments: Any) -> bool:
    return True


async def spoken(result: DispatchResult) -> str:
    assert result.error is None, result.error
    return result.output


@pytest.mark.parametrize(("cli", "body"), PLAYED)
async def test_000_08_09_10_it_streams_and_resumes(cli: Cli, body: str, tmp_path: Path) -> None:
    sessions = SessionFile()
    made = await backend(tmp_path, body, cli, sessions=sessions)
    heard = Heard()
    result = await ask(made, "hello", heard)
    assert heard.text.startswith("You said: hello")
    assert len(heard.log) >= 3
    assert result.usage is not None
    assert result.usage == Usage(8, 3, 2)
    assert made.get_session("c") == ROWS[cli.name]
    begun = asked(tmp_path)
    assert "from long ago" not in (await ask(made, "again")).output
    resuming = {"codex": "thread/resume", "gemini": "session/load", "opencode": "session/resume"}
    assert resuming[cli.name] in asked(tmp_path)[len(begun) :]
    await sessions.put(cli.name, "c", "lost")
    assert "before\n\nonce more" in (await ask(made, "once more", history="before")).output


@pytest.mark.parametrize(("cli", "body"), PLAYED)
@pytest.mark.parametrize("allowed", [True, False])
async def test_000_08_09_10_it_asks_before_it_acts(
    cli: Cli, body: str, allowed: bool, tmp_path: Path
) -> None:
    questions: list[Any] = []

    async def decide(tool: str, arguments: Any) -> bool:
        questions.append((tool, arguments["command"]))
        return allowed

    heard = Heard()
    await spoken(await ask(await backend(tmp_path, body, cli), "use a tool", heard, ask=decide))
    kind = "shell" if cli.name == "codex" else "execute"
    assert questions == [(f"{cli.name}:{kind}", "ls")]
    calls = [entry for entry in heard.log if entry[0] in ("call", "result")]
    assert calls[0][:2] == ("call", kind)
    assert calls[0][2]["command"] == "ls"
    assert calls[1][:2] == ("result", kind)
    assert len(calls) == 2
    if cli.name != "codex":
        assert noted(tmp_path, "chosen") == ["o2" if allowed else "o3"], "never for always"


@pytest.mark.parametrize(("cli", "body"), PLAYED)
@pytest.mark.parametrize("trouble", ["fail", "refuse"])
async def test_000_08_09_10_what_the_service_refuses_is_reported(
    cli: Cli, body: str, trouble: str, tmp_path: Path
) -> None:
    if (cli.name, trouble) == ("codex", "refuse"):
        return
    result = await ask(await backend(tmp_path, body, cli), trouble)
    assert result.error is not None
    assert result.error.code == "PROVIDER_ERROR"
    assert any(word in str(result.error) for word in ("usage limit reached", "quota (later)", "refusal"))


async def test_000_07_claude_code_asks_by_tool_and_resumes_by_name(tmp_path: Path) -> None:
    body = """
    prompt()
    request = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": "ls"}}
    out(type="control_request", request_id="x", request={"subtype": "hook_callback"})
    note("answers", read()["response"]["subtype"])
    out(type="control_request", request_id="y", request=request)
    note("answers", read()["response"]["response"]["behavior"])
    say("ok")
    done()
    """
    made = await backend(tmp_path, body, claude_code.CLI)
    assert await spoken(await ask(made, ask=yes)) == "ok"
    assert noted(tmp_path, "answers") == ["error", "allow"]


def test_000_07_what_a_helper_of_claude_code_says_is_not_the_answer() -> None:
    adapter = claude_code.ClaudeAdapter(ProgramRequest("p", "", "", "/"))
    text = {"type": "text_delta", "text": "inner"}
    inner = {"type": "stream_event", "event": {"delta": text}, "parent_tool_use_id": "t1"}
    assert adapter.read(inner) == []
    said = {"type": "assistant", "message": {"content": [{"type": "text", "text": "whole"}]}}
    assert adapter.read({**said, "parent_tool_use_id": "t1"}) == []
    assert adapter.read(said) == [TextChunk("whole")], "what was not told piece by piece is told whole"
    assert adapter.read({"type": "stream_event", "event": {"delta": text}}) == [TextChunk("inner")]
    assert adapter.read(said) == []
    assert adapter.read({**said, "message": {"content": [{"type": "text", "text": "next"}]}}) == [
        TextChunk("next")
    ]


@pytest.mark.parametrize(
    ("version", "costs"),
    [("2.1.330", [0.25, 0.125, 0.5]), ("2.1.276", [0.25, 0.375, 0.5]), (None, [0.25, 0.375, 0.5])],
)
async def test_000_07_claude_code_charges_a_resumed_session_once(
    version: str | None, costs: list[float], tmp_path: Path
) -> None:
    body = f"""
    flag = "--resume" if "--resume" in sys.argv else "--session-id"
    session = sys.argv[sys.argv.index(flag) + 1]
    out(type="system", subtype="init", session_id=session, claude_code_version={version!r})
    cost = prompt()
    done(total_cost_usd=float(cost), usage={{"input_tokens": 6, "output_tokens": 3}})
    """
    file = tmp_path / "sessions.json"
    found: list[float | None] = []
    for total in ("0.25", "0.375"):
        made = await backend(tmp_path, body, claude_code.CLI, sessions=SessionFile(file))
        result = await ask(made, total)
        found.append(result.usage and result.usage.cost)
    await made.clear_session("c")
    result = await ask(made, "0.5")
    assert [*found, result.usage and result.usage.cost] == costs


async def test_000_10_opencode_charges_what_the_session_cost_more(tmp_path: Path) -> None:
    sessions, found = SessionFile(tmp_path / "sessions.json"), list[Usage | None]()
    for total in ("0.25", "0.375"):
        made = await backend(tmp_path, ACP, opencode.CLI, sessions=sessions)
        found.append((await ask(made, f"cost {total}")).usage)
    assert found == [Usage(8, 3, 2, 0.25, 0.25), Usage(8, 3, 2, 0.125, 0.375)]


async def test_000_08_codex_logs_in_with_a_key_if_it_has_none(tmp_path: Path) -> None:
    made = await backend(tmp_path, CODEX, codex.CLI, api_key="sk-mine", system_prompt="Be kind.", model="m")
    await spoken(await ask(made, working_directory=str(tmp_path)))
    steps = noted(tmp_path, "asked")
    assert ["account/login/start", {"type": "apiKey", "apiKey": "sk-mine"}] in steps
    started = dict(steps)["thread/start"]
    assert started == {
        "cwd": str(tmp_path),
        "approvalPolicy": "on-request",
        "sandbox": "workspace-write",
        "developerInstructions": "Be kind.",
        "model": "m",
    }
    assert "sk-mine" not in str(noted(tmp_path, "arguments"))
    other = tmp_path / "other"
    await spoken(await ask(await backend(other, CODEX, codex.CLI)))
    assert "account/login/start" not in asked(other), "without a key it is logged in, or says that it is not"


@pytest.mark.parametrize("session", ["thread-1", "told"])
async def test_000_08_codex_counts_the_tokens_of_a_resumed_thread_once(session: str, tmp_path: Path) -> None:
    sessions = SessionFile()
    await sessions.put("codex", "c", session)
    result = await ask(await backend(tmp_path, CODEX, codex.CLI, sessions=sessions))
    assert "thread/resume" in asked(tmp_path)
    assert result.usage == Usage(8, 3, 2)


def test_000_08_codex_shows_what_it_changes_in_files() -> None:
    adapter = codex.CodexAdapter(ProgramRequest("p", "", "", "/"))
    changes = [{"path": "a.py", "kind": {"type": "update"}, "diff": "+1", "more": 1}]
    item = {"type": "fileChange", "id": "f1", "changes": changes}
    shown = {"changes": [{"path": "a.py", "kind": {"type": "update"}, "diff": "+1"}]}
    assert adapter.read({"method": "item/started", "params": {"item": item}}) == [
        ToolCall("f1", "file_change", shown)
    ]
    request = {"method": "item/fileChange/requestApproval", "id": 9, "params": {"itemId": "f1"}}
    assert adapter.read(request) == [PermissionRequest(9, "file_change", shown)]
    ended = {**item, "status": "declined"}
    assert adapter.read({"method": "item/completed", "params": {"item": ended}}) == [
        ToolResult("f1", "declined", True)
    ]
    unknown = adapter.read({"method": "item/tool/call", "id": 10, "params": {}})
    assert [event.message["error"]["code"] for event in unknown if isinstance(event, Outgoing)] == [-32601]
    failed = {"method": "turn/completed", "params": {"turn": {"status": "interrupted"}}}
    assert adapter.read(failed) == [Finished("the turn was interrupted")]


async def test_000_09_gemini_uses_its_key_if_it_has_one(tmp_path: Path) -> None:
    key = await backend(tmp_path / "a", ACP, gemini.CLI, api_key="sk-mine", model="gemini-2.5-pro")
    await spoken(await ask(key))
    assert ["authenticate", {"methodId": "gemini-api-key"}] in noted(tmp_path / "a", "asked")
    assert noted(tmp_path / "a", "arguments") == [["--acp", "-m", "gemini-2.5-pro"]]
    await spoken(await ask(await backend(tmp_path / "b", ACP, gemini.CLI)))
    assert "authenticate" not in asked(tmp_path / "b"), "whoever has logged in on this machine is used"


async def test_000_10_opencode_has_keys_of_many_providers_and_asks(tmp_path: Path) -> None:
    body = 'note("env", dict(os.environ))\n' + ACP
    environ = {"PATH": os.defpath, "GROQ_API_KEY": "g", "MISTRAL_API_KEY": "m", "SLACK_TOKEN": "s"}
    made = await backend(tmp_path, body, opencode.CLI, environ, model="groq/x")
    await spoken(await ask(made))
    env = noted(tmp_path, "env")[0]
    assert (env["GROQ_API_KEY"], env["MISTRAL_API_KEY"], "SLACK_TOKEN" in env) == ("g", "m", False)
    config = json.loads(env[CONFIG])
    assert config["model"] == "groq/x"
    assert config["permission"]["*"] == "ask"
    assert config["permission"]["read"] == "allow"


@pytest.mark.parametrize("given", ["{broken", "[]", '{"theme": "x"}'])
def test_000_10_settings_of_opencode_are_kept(given: str) -> None:
    config = json.loads(extra_variables("", {CONFIG: given})[CONFIG])
    assert config["permission"]["*"] == "ask"
    assert ("theme" in config) == ("theme" in given)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".opencode/plugin/trap.js", "run()"),
        (".opencode/plugins/trap.ts", "run()"),
        ("opencode.json", '{"plugin": ["./trap.js"]}'),
        (".opencode/opencode.jsonc", '{"plugins": ["./trap.js"]}'),
    ],
)
async def test_000_10_opencode_is_not_started_where_a_folder_would_run_something(
    name: str, text: str, tmp_path: Path
) -> None:
    folder = tmp_path / "project" / "below"
    folder.mkdir(parents=True)
    made = await backend(tmp_path / "bin", ACP, opencode.CLI)
    assert (await ask(made, working_directory=str(folder))).success
    trap = tmp_path / "project" / name
    trap.parent.mkdir(parents=True, exist_ok=True)
    trap.write_text(text)
    result = await ask(made, working_directory=str(folder))
    assert result.error is not None
    assert result.error.code == "SPAWN_FAILURE"
    assert "without approval" in str(result.error)
    home = {"PATH": os.defpath, "HOME": str(tmp_path / "project")}
    made = await backend(tmp_path / "bin", ACP, opencode.CLI, home)
    assert (await ask(made, working_directory=str(folder))).success, "its user's own are not in question"
    assert len(noted(tmp_path / "bin", "pids")) == 2


@pytest.mark.parametrize(
    ("tools", "sandbox"),
    [(None, "workspace-write"), (("file_change", "shell"), "workspace-write"), (("shell",), "read-only")],
)
def test_codex_without_the_right_to_change_files_has_a_sandbox_for_reading(
    tools: tuple[str, ...] | None, sandbox: str
) -> None:
    adapter = codex.CodexAdapter(ProgramRequest("p", "", "", "/", tools=tools))
    adapter.begin()
    adapter.read({"id": 1, "result": {}})
    [opened] = adapter.read({"id": 2, "result": {"account": {"type": "apiKey"}}})
    assert isinstance(opened, Outgoing)
    assert opened.message["params"]["sandbox"] == sandbox
