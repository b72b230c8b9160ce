"""A plugin with a manifest: what it declares, decides, offers and may not do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway import ErrorPart, Plugin, Tool, ToolContext, ToolResultPart
from gateway.contract.errors import PluginError
from gateway.events import PermissionReplied, SessionCompacted
from gateway.extensions.admission.capabilities import Capabilities
from gateway.extensions.admission.manifest import Limits, Schedule, Trust
from gateway.extensions.confined.inprocess import InProcess
from gateway.provider_http import ToolDefinition
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Reply, Use

from .conftest import CapabilityDenied, RecordingBroker, Start, Write

BLOCKING = Capabilities(tools="block")
SOON = {"approval_timeout_ms": 20}
DECIDING = Capabilities(tools="decide")
CHANGING = Capabilities(messages="change")


async def outcome(chat: Chat, call: Use, text: str = "go") -> ToolResultPart:
    """The result of a call that the model is made to ask for."""
    chat.model.then(Reply((call,), "tools"))
    answer = await chat.say(text)
    [result] = [part for part in answer.parts if isinstance(part, ToolResultPart)]
    return result


SECURITY = """
from trunkline_plugin import Block, plugin

@plugin
async def security(ctx):
    async def before(event):
        assert event.event == "tool.execute.before" and event.timestamp > 0 and event.session_id == "s"
        if event.tool == "calculator" and "666" in event.args["expression"]:
            raise Block("a dangerous number")
        if "crash" in event.args["expression"]:
            raise KeyError("what")
    return {"on": {"tool.execute.before": before}}
"""


async def test_001_10_a_handler_that_raises_blocks_the_call_and_its_text_is_the_reason(
    tmp_path: Path, write: Write
) -> None:
    plugin = write(SECURITY, events=("tool.execute.before",), needs=BLOCKING)
    async with chatting(tmp_path, plugin) as chat:
        blocked = await outcome(chat, Use("calculator", '{"expression": "666 + 1"}'))
        assert blocked.is_error
        assert blocked.output == "Error: blocked by the plugin 'guarded': a dangerous number"
        crashed = await outcome(chat, Use("calculator", '{"expression": "crash"}'))
        assert crashed.is_error
        assert "plugin 'guarded' failed in tool.execute.before" in crashed.output
        assert "KeyError: 'what'" in crashed.output
        fine = await outcome(chat, Use("calculator", '{"expression": "1 + 1"}'))
        assert not fine.is_error


async def test_001_10_a_deciding_handler_that_is_stopped_blocks_and_an_open_one_does_not(
    tmp_path: Path, write: Write
) -> None:
    closed = write(SECURITY, events=("tool.execute.before",), needs=BLOCKING)
    call = Use("calculator", '{"expression": "1 + 1"}')
    async with chatting(tmp_path, closed) as chat:
        await closed.process.stop()
        result = await outcome(chat, call)
        assert result.is_error
        assert "plugin 'guarded' failed in tool.execute.before: ProcessEnded: it was stopped" in result.output


async def test_an_open_plugin_that_is_stopped_lets_the_call_pass(tmp_path: Path, write: Write) -> None:
    plugin = write(SECURITY, events=("tool.execute.before",), needs=BLOCKING)
    settings = {"plugins": {"guarded": {"on_failure": "open"}}}
    async with chatting(tmp_path, plugin, **settings) as chat:
        await plugin.process.stop()
        assert not (await outcome(chat, Use("calculator", '{"expression": "1 + 1"}'))).is_error


async def test_a_handler_that_misses_its_deadline_blocks(tmp_path: Path, write: Write) -> None:
    code = """
import asyncio
from trunkline_plugin import plugin

@plugin
async def slow(ctx):
    async def before(event):
        await asyncio.Event().wait()
    return {"on": {"tool.execute.before": before}}
"""
    plugin = write(code, events=("tool.execute.before",), needs=BLOCKING)
    settings = {"plugins": {"guarded": {"hook_timeout_ms": 50}}}
    async with chatting(tmp_path, plugin, **settings) as chat:
        result = await outcome(chat, Use("calculator", '{"expression": "1 + 1"}'))
    assert "guarded' failed in tool.execute.before: TimeoutError: no result within 0.05 s" in result.output


async def test_the_model_reads_that_a_tool_missed_its_deadline(tmp_path: Path, write: Write) -> None:
    code = """
import asyncio
from trunkline_plugin import plugin, tool

@plugin
async def slow(ctx):
    async def wait(args, call):
        await asyncio.Event().wait()
    return {"tools": [tool(name="wait", description="Wait.", schema={"type": "object"}, execute=wait)]}
"""
    plugin = write(code, tools=("wait",))
    settings = {"plugins": {"guarded": {"tool_timeout_ms": 1_000}}, "permissions": {"wait": "allow"}}
    async with chatting(tmp_path, plugin, **settings) as chat:
        result = await outcome(chat, Use("wait", "{}"))
    assert "no result within 1 s" in result.output


EVERYTHING = """
from trunkline_plugin import Command, plugin, tool

@plugin
def many(ctx):
    async def scan(args, call):
        call.progress("scanning")
        if args["path"] == "bad":
            return {"success": False, "error": "no such path"}
        await ctx.kv.set("last", args.path)
        return {"success": True, "data": {"path": args.path, "user": call.user, "session": ctx.session.id}}

    def audit(args, call):
        return f"audited {args} for {call.role}"

    paths = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    return {
        "tools": [tool(name="scan", description="Scan a path.", schema=paths, execute=scan)],
        "commands": [
            {"name": "audit", "description": "Audit.", "execute": audit},
            Command("admins", "A.", audit, admin=True),
        ],
    }
"""


async def test_001_15_tools_run_in_the_process_and_return_success_data_or_an_error(
    tmp_path: Path, write: Write
) -> None:
    broker = RecordingBroker()
    plugin = write(EVERYTHING, tools=("scan",), commands=("audit", "admins"), broker=broker)
    async with chatting(tmp_path, plugin, permissions={"scan": "allow"}) as chat:
        good = await outcome(chat, Use("scan", '{"path": "a/b"}'))
        assert (good.output, good.is_error) == ('{"path": "a/b", "user": "ada", "session": "s"}', False)
        bad = await outcome(chat, Use("scan", '{"path": "bad"}'))
        assert (bad.output, bad.is_error) == ("no such path", True)
        missing = await outcome(chat, Use("scan", "{}"))
        assert missing.output == 'Error: wrong arguments: "path" is a required property'
        wrong = await outcome(chat, Use("scan", '{"path": ["a"]}'))
        assert wrong.output == 'Error: wrong arguments: ["a"] is not of type "string"'
    [(method, params)] = broker.calls
    assert method == "kv.set"
    assert (params["key"], params["value"], params["session"]) == ("last", "a/b", "s")
    assert broker.open == []


async def test_001_16_slash_commands_answer_and_admin_commands_are_for_admins(
    tmp_path: Path, write: Write
) -> None:
    plugin = write(EVERYTHING, tools=("scan",), commands=("audit", "admins"))
    async with chatting(tmp_path, plugin) as chat:
        assert (await chat.say("/audit all of it")).text == "audited all of it for user"
        assert (await chat.say("/admins")).text == "/admins is for admins."


async def test_tools_of_confined_plugins_ask_although_the_default_allows(
    tmp_path: Path, write: Write
) -> None:
    plugin = write(EVERYTHING, tools=("scan",), commands=("audit", "admins"))
    async with chatting(tmp_path, plugin, permissions={"*": "allow"}, limits=SOON) as chat:
        result = await outcome(chat, Use("scan", '{"path": "a"}'))
        assert result.is_error
        assert "approval timed out" in result.output


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tools": ()}, "its code has 'scan', which tools in plugin.yml does not list"),
        ({"tools": ("scan", "more")}, "tools in plugin.yml lists 'more', which its code does not have"),
        ({"tools": ("scan",), "commands": ("audit",)}, "its code has 'admins', which commands"),
        ({"tools": ("scan",), "hooks": ("filter_tools",)}, "filter_tools needs the capability tools"),
        ({"tools": ("scan",), "events": ("session.idle",)}, "events in plugin.yml lists 'session.idle'"),
    ],
)
async def test_001_14_the_declaration_of_the_code_must_match_the_manifest(
    tmp_path: Path, write: Write, fields: dict[str, Any], reason: str
) -> None:
    plugin = write(EVERYTHING, **{"commands": ("audit", "admins"), **fields})
    with pytest.raises(PluginError, match=reason):
        async with chatting(tmp_path, plugin):
            pass


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys\nsys.exit(3)", r"main.py ended with sys.exit\(3\)"),
        ("x = 1", "must have one function with @plugin, not 0"),
        (
            "from trunkline_plugin import plugin\n@plugin\ndef f(ctx): return 3",
            "must return a mapping, not int",
        ),
        ("1 +", "SyntaxError"),
        (
            "from trunkline_plugin import plugin\n@plugin\ndef f(ctx): return {'providers': []}",
            r'it returns providers, .* needs trust = "full" in \[plugins.guarded\]',
        ),
    ],
)
async def test_001_14_a_factory_that_fails_fails_its_plugin_with_the_reason(
    tmp_path: Path, write: Write, code: str, reason: str
) -> None:
    with pytest.raises(PluginError, match=reason):
        async with chatting(tmp_path, write(code)):
            pass


SCHEDULING = """
from trunkline_plugin import plugin

@plugin
def f(ctx):
    async def digest(job):
        if job.due == 13:
            raise ValueError("unlucky")
        await ctx.kv.set("ran", [job.name, job.due, job.key])
    return {"schedule": {"digest": digest}}
"""
DIGEST = (Schedule("digest", "0 8 * * *"),)
SCHEDULED = Capabilities(schedule=True)


async def test_a_scheduled_job_runs_with_its_due_time_and_key(tmp_path: Path, write: Write) -> None:
    broker = RecordingBroker()
    plugin = write(SCHEDULING, schedule=DIGEST, needs=SCHEDULED, broker=broker)
    async with chatting(tmp_path, plugin):
        assert plugin.is_ready()
        assert await plugin.run_job("digest", 7)
        assert [(method, given.get("value")) for method, given in broker.calls] == [
            ("schedule", None),
            ("kv.set", ["digest", 7, "digest 7"]),
        ]
        # A job that fails, or may not run, is over; one whose process ended runs again.
        assert await plugin.run_job("digest", 13)
        broker.answers["schedule"] = CapabilityDenied("schedule was revoked")
        assert await plugin.run_job("digest", 8)
        assert len([method for method, _ in broker.calls if method == "kv.set"]) == 1
        del broker.answers["schedule"]
        await plugin.process.stop()
        assert not plugin.is_ready()
        assert not await plugin.run_job("digest", 9)


BUSY = """
import asyncio
from trunkline_plugin import plugin

@plugin
async def f(ctx):
    await asyncio.gather(*(ctx.kv.set(str(n), n) for n in range(6)))
"""


async def test_calls_above_the_limit_of_the_manifest_wait(tmp_path: Path, write: Write) -> None:
    broker = RecordingBroker()
    plugin = write(BUSY, limits=Limits(in_flight=2), broker=broker)
    async with chatting(tmp_path, plugin):
        assert [method for method, _ in broker.calls] == ["kv.set"] * 6


async def test_scheduled_jobs_must_match_the_manifest_and_be_granted(tmp_path: Path, write: Write) -> None:
    for name, code, fields, reason in (
        ("one", SCHEDULING, {}, "its code has 'digest', which schedule in plugin.yml does not list"),
        ("two", EVERYTHING, {"schedule": DIGEST}, "schedule in plugin.yml lists 'digest', which its code"),
        (
            "three",
            SCHEDULING,
            {"schedule": DIGEST, "granted": False},
            "not granted; grant it with: trunkline plugin approve three --allow schedule",
        ),
    ):
        with pytest.raises(PluginError, match=reason):
            async with chatting(tmp_path, write(code, name, needs=SCHEDULED, **fields)):
                pass


async def test_a_plugin_with_full_trust_may_bring_what_cannot_cross_a_process(
    tmp_path: Path, write: Write
) -> None:
    code = """
from trunkline_plugin import plugin

@plugin
def f(ctx):
    return {"shortcuts": {"x": lambda: "pressed"}}
"""
    plugin = write(code, trust="full")
    async with chatting(tmp_path, plugin) as chat:
        (handler,) = chat.gateway.registry.contributions.find("shortcut", "x")
        assert handler() == "pressed"
        assert not plugin.asks_by_default


@pytest.mark.parametrize("trust", ["sandbox", "full"])
async def test_001_19_config_cannot_be_changed(
    tmp_path: Path, write: Write, confined: Start, trust: Trust
) -> None:
    code = """
from trunkline_plugin import plugin

def attempt(change):
    try:
        change()
    except (TypeError, AttributeError) as error:
        return type(error).__name__
    return "changed"

@plugin
async def f(ctx):
    async def command(args, call):
        def assign(): ctx.config["max"] = 4
        def nested(): ctx.config["deep"]["a"] = 4
        def replace(): ctx.config = {}
        tried = [attempt(each) for each in (assign, nested, replace)]
        return f"{ctx.config['max']} {ctx.config['deep']['a']} {tried}"
    return {"commands": [{"name": "try", "description": "T.", "execute": command}]}
"""
    start = confined if trust == "sandbox" else InProcess
    plugin = write(code, commands=("try",), trust=trust, start=start)
    settings = {"plugins": {"guarded": {"max": 3, "deep": {"a": 1}}}}
    async with chatting(tmp_path, plugin, **settings) as chat:
        assert (await chat.say("/try")).text == "3 1 ['TypeError', 'TypeError', 'TypeError']"


async def test_a_command_that_fails_gives_its_reason_and_no_class_name(tmp_path: Path, write: Write) -> None:
    code = """
from trunkline_plugin import plugin

@plugin
async def f(ctx):
    async def command(args, call):
        raise ValueError("the line is busy")
    return {"commands": [{"name": "try", "description": "T.", "execute": command}]}
"""
    async with chatting(tmp_path, write(code, commands=("try",))) as chat:
        [failed] = [part for part in (await chat.say("/try")).parts if isinstance(part, ErrorPart)]
        assert failed.message == "plugin 'guarded' failed in /try: the line is busy"


async def test_001_18_the_context_is_scoped(tmp_path: Path, write: Write) -> None:
    code = """
from .helper import NAME
from trunkline_plugin import CapabilityDenied, plugin

@plugin
async def f(ctx):
    async def command(args, call):
        try:
            await ctx.http.get("https://example.org")
        except CapabilityDenied as error:
            denied = str(error)
        return f"{NAME} {denied} {ctx.name} {call.project.root}"
    return {"commands": [{"name": "try", "description": "T.", "execute": command}]}
"""
    denied = CapabilityDenied("network: 'example.org' is not declared")
    broker = RecordingBroker(**{"http.request": denied})
    plugin = write(code, commands=("try",), broker=broker)
    (plugin.admitted.folder / "helper.py").write_text("NAME = 'helped'")
    async with chatting(tmp_path, plugin) as chat:
        text = (await chat.say("/try")).text
    assert text == f"helped network: 'example.org' is not declared guarded {Path.cwd()}"


PERMITTING = """
from trunkline_plugin import plugin, tool

@plugin
def f(ctx):
    def ask(event):
        assert event.role == "user" and event.user == "ada"
        if "install" in str(event.args):
            return {"allow": True}
        if "rm" in str(event.args):
            return {"allow": False}
    async def own(args, call):
        return "ran"
    return {"on": {"permission.ask": ask},
            "tools": [tool({"name": "own", "description": "Own.", "execute": own})]}
"""


class Programs(Plugin):
    """A plugin with a tool that asks, because no rule names it."""

    name = "programs"

    def tools(self) -> list[Tool]:
        async def run(arguments: Mapping[str, Any], _context: ToolContext) -> str:
            return f"ran {arguments['command']}"

        definition = ToolDefinition("program", "Run.", {"type": "object"})
        return [Tool(definition=definition, execute=run, match_key=lambda given: given["command"])]


def command(text: str) -> Use:
    return Use("program", f'{{"command": "{text}"}}')


async def test_001_11_a_decision_of_a_plugin_replaces_the_question(tmp_path: Path, write: Write) -> None:
    plugin = write(PERMITTING, events=("permission.ask",), tools=("own",), needs=DECIDING)
    replied: list[PermissionReplied] = []
    async with chatting(tmp_path, plugin, Programs(), permissions={}, limits=SOON) as chat:
        chat.gateway.events.subscribe(PermissionReplied, replied.append)
        assert (await outcome(chat, command("npm install"))).output == "ran npm install"
        denied = await outcome(chat, command("rm -r x"))
        assert denied.output == "Error: Tool 'program' denied by the plugin 'guarded'."
        passed = await outcome(chat, command("other"))
        assert "approval timed out" in passed.output
        # Its own tool: an approval of the plugin does not count.
        own = await outcome(chat, Use("own", '{"what": "install"}'))
        assert "approval timed out" in own.output
    assert [(each.command, each.outcome, each.by) for each in replied] == [
        ("npm install", "once", "plugin:guarded"),
        ("rm -r x", "deny", "plugin:guarded"),
        ("other", "timeout", ""),
        ('{"what":"install"}', "timeout", ""),
    ]


@pytest.mark.parametrize(
    ("rules", "output"),
    [
        ({"program": "deny"}, "denied by the permissions"),
        ({"program": "ask"}, "approval timed out"),
        ({"program": {"npm *": "ask"}}, "approval timed out"),
        ({"*": "ask"}, "approval timed out"),
        ({"program": "allow"}, "ran npm install"),
    ],
)
async def test_001_11_no_plugin_overrides_a_rule(
    tmp_path: Path, write: Write, rules: dict[str, Any], output: str
) -> None:
    plugin = write(PERMITTING, events=("permission.ask",), tools=("own",), needs=DECIDING)
    async with chatting(tmp_path, plugin, Programs(), permissions=rules, limits=SOON) as chat:
        assert output in (await outcome(chat, command("npm install"))).output


async def test_001_11_deny_of_a_later_plugin_overrides_allow(tmp_path: Path, write: Write) -> None:
    first = write(PERMITTING, events=("permission.ask",), tools=("own",), needs=DECIDING)
    refusing = """
from trunkline_plugin import plugin

@plugin
def f(ctx):
    return {"on": {"permission.ask": lambda event: {"allow": False}}}
"""
    second = write(refusing, "second", events=("permission.ask",), needs=DECIDING)
    async with chatting(tmp_path, first, second, Programs(), permissions={}, limits=SOON) as chat:
        result = await outcome(chat, command("npm install"))
    assert result.output == "Error: Tool 'program' denied by the plugin 'second'."


async def test_001_11_an_approval_does_not_count_for_a_call_that_the_model_repeats(
    tmp_path: Path, write: Write
) -> None:
    plugin = write(PERMITTING, events=("permission.ask",), tools=("own",), needs=DECIDING)
    async with chatting(tmp_path, plugin, Programs(), permissions={}, limits=SOON) as chat:
        for _ in range(3):
            chat.model.then(Reply((command("npm install"),), "tools"))
        answer = await chat.say("go")
    results = [part.output for part in answer.parts if isinstance(part, ToolResultPart)]
    assert results[:2] == ["ran npm install"] * 2
    assert "approval timed out" in results[2]


async def test_a_deciding_handler_needs_its_capability(tmp_path: Path, write: Write) -> None:
    undeclared = write(PERMITTING, events=("permission.ask",), tools=("own",), needs=BLOCKING)
    with pytest.raises(PluginError, match=r"add to plugin.yml: capabilities.tools: decide"):
        async with chatting(tmp_path, undeclared):
            pass
    ungranted = write(PERMITTING, "ungranted", events=("permission.ask",), needs=DECIDING, granted=False)
    with pytest.raises(PluginError, match=r"trunkline plugin approve ungranted --allow 'tools:decide'"):
        async with chatting(tmp_path, ungranted):
            pass


CHATTING = """
from trunkline_plugin import plugin

@plugin
def f(ctx):
    def message(event):
        if event.text == "ping":
            return {"answer": "pong"}
        if "secret" in event.text:
            return {"text": event.text.replace("secret", "***")}
        if event.text == "break":
            raise ValueError("broken")
    return {"on": {"chat.message": message}}
"""


async def test_001_13_chat_message_passes_changes_or_answers(tmp_path: Path, write: Write) -> None:
    plugin = write(CHATTING, events=("chat.message",), needs=CHANGING)
    async with chatting(tmp_path, plugin) as chat:
        assert (await chat.say("ping")).text == "pong"
        assert chat.model.calls == []
        assert (await chat.say("my secret")).text == "You said: my ***"
        assert (await chat.say("plain")).text == "You said: plain"
        assert (await chat.say("break")).text == "You said: break", "it fails open"
        assert (await chat.say("/unknown secret")).text.startswith("Unknown command"), (
            "commands are not asked"
        )


async def test_a_closed_filter_of_messages_blocks_what_it_cannot_check(tmp_path: Path, write: Write) -> None:
    plugin = write(CHATTING, events=("chat.message",), needs=CHANGING)
    settings = {"plugins": {"guarded": {"on_failure": "closed"}}}
    async with chatting(tmp_path, plugin, **settings) as chat:
        answer = str((await chat.say("break")).parts)
        assert "plugin 'guarded' failed in chat.message" in answer
        assert chat.model.calls == []


async def test_001_12_a_plugin_gives_the_summary_or_the_instructions(tmp_path: Path, write: Write) -> None:
    code = """
from trunkline_plugin import plugin

@plugin
def f(ctx):
    async def compacting(event):
        assert event.trigger == "manual"
        if event.instructions == "mine":
            return {"summary": "All that matters."}
    return {"on": {"session.compacting": compacting}}
"""
    plugin = write(code, events=("session.compacting",))
    compacted: list[SessionCompacted] = []
    async with chatting(tmp_path, plugin) as chat:
        chat.gateway.events.subscribe(SessionCompacted, compacted.append)
        await chat.say("word " * 200)
        await chat.say("word " * 200)
        assert (await chat.say("/compact mine")).text.startswith("Summarized 4 messages")
        [event] = compacted
        assert event.trigger == "manual"
        assert event.before > event.after > 0


async def test_a_hook_changes_only_what_it_may(tmp_path: Path, write: Write) -> None:
    code = """
from trunkline_plugin import plugin

@plugin
def f(ctx):
    def words(text, turn):
        return text.upper()
    def prompt(prompt, turn):
        return prompt + " Be brief."
    return {"hooks": {"transform_user_input": words, "transform_system_prompt": prompt}}
"""
    hooks = ("transform_user_input", "transform_system_prompt")
    reading = write(code, "reader", hooks=hooks, needs=Capabilities(messages="read"))
    async with chatting(tmp_path / "1", reading) as chat:
        text = (await chat.say("hello")).parts[-1]
        assert "transform_user_input may not change messages" in str(text)
    changing = write(code, "changer", hooks=hooks, needs=CHANGING)
    async with chatting(tmp_path / "2", changing) as chat:
        assert (await chat.say("hello")).text == "You said: HELLO"
        assert chat.model.calls[-1].options.system_prompt.endswith("Be brief.")
