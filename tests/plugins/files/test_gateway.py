"""The plugin in a running gateway: approvals, events, settings and what clients are shown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway import (
    Message,
    Plugin,
    PluginContext,
    PluginError,
    SettingsError,
    TextPart,
    Tool,
    ToolContext,
    ToolError,
    ToolResultPart,
    tool_from,
)
from gateway.access.permissions import Permissions
from gateway.contract.messages import Origin
from gateway.events import FileDeleted, FileModified
from gateway.session.frames import ApprovalAsked
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Reply, Say, Use
from gateway.testing.served import serving
from plugins.files import Files


class Listener(Plugin):
    """A plugin that keeps the events of files."""

    name = "listener"

    def __init__(self) -> None:
        self.seen: list[FileModified | FileDeleted] = []

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.events is not None
        ctx.events.subscribe(FileModified, self.seen.append)
        ctx.events.subscribe(FileDeleted, self.seen.append)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "src").mkdir(parents=True)
    (folder / "src/a.py").write_text("one\ntwo\n")
    (folder / ".env").write_text("TOKEN=hidden\n")
    (folder / ".env.example").write_text("TOKEN=\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/notes").write_text("private\n")
    return folder


def enabled(root: Path, **options: Any) -> dict[str, Any]:
    """The settings of a gateway with the plugin."""
    return {"plugins": {"enabled": ["files"], "files": {"roots": [str(root)], **options}}}


def results(parts: Sequence[object]) -> list[ToolResultPart]:
    return [part for part in parts if isinstance(part, ToolResultPart)]


async def call(chat: Chat, name: str, role: str = "user", **arguments: Any) -> ToolResultPart:
    """The result of a call that needs no approval."""
    chat.model.then(Reply((Use(name, json.dumps(arguments)),), "tools"))
    async with asyncio.timeout(60):
        return results((await chat.say("go", role=role)).parts)[0]


async def decide(
    chat: Chat, decision: Any, name: str, role: str = "user", **arguments: Any
) -> tuple[ApprovalAsked, ToolResultPart]:
    """The question about a call, and the result after this decision."""
    chat.model.then(Reply((Use(name, json.dumps(arguments)),), "tools"))
    answer_id = await chat.accept("go", role=role)
    asked = await chat.decide(decision)
    return asked, results((await chat.answer(answer_id)).parts)[0]


async def test_001_07_a_changed_or_deleted_file_is_an_event(tmp_path: Path, root: Path) -> None:
    listener = Listener()
    async with chatting(tmp_path / "data", listener, **enabled(root)) as chat:
        await call(chat, "read", path="src/a.py")
        await call(chat, "edit", path="src/a.py", old="one", new="1")
        await call(chat, "write", path="b", content="x")
        await call(chat, "edit", path="b", old="nothing", new="1")
        await call(chat, "patch", patch="*** Begin Patch\n*** Delete File: b\n*** End Patch")
    assert [(type(event), event.session, event.path) for event in listener.seen] == [
        (FileModified, "s", f"{root}/src/a.py"),
        (FileModified, "s", f"{root}/b"),
        (FileDeleted, "s", f"{root}/b"),
    ]
    assert [event.diff.partition("\n@@ ")[2] for event in listener.seen] == [
        "-1,2 +1,2 @@\n-one\n+1\n two",
        "-0,0 +1,1 @@\n+x",
        "-1,1 +0,0 @@\n-x",
    ]
    assert all(event.answer for event in listener.seen)


async def test_004_t17_a_path_outside_the_roots_asks_for_its_folder(tmp_path: Path, root: Path) -> None:
    outside = tmp_path / "outside"
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        asked, result = await decide(chat, "deny", "read", "admin", path=f"{outside}/notes")
        assert f"{outside}/notes is outside the folders" in asked.reason
        assert result.is_error
        asked, result = await decide(chat, "once", "read", "admin", path="../outside/notes")
        assert result.output == "     1\tprivate"
        asked, _ = await decide(chat, "once", "read", "admin", path=f"{outside}/notes")
        assert f"Always allows this tool in {outside}." in asked.reason


async def test_always_covers_the_folder_for_this_tool_alone(tmp_path: Path, root: Path) -> None:
    # Not in the folder of the test, whose path may be too long for a button.
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        asked, result = await decide(chat, "always", "read", "admin", path="/etc/hosts")
        assert asked.always == "/etc/*"
        assert not result.is_error
        assert "is not a file" not in (await call(chat, "read", "admin", path="/etc/passwd")).output
        asked, _ = await decide(chat, "deny", "list", "admin", path="/etc")
        assert asked.tool_name == "list"
        asked, _ = await decide(chat, "deny", "read", "admin", path="/etc/ssl/openssl.cnf")
        assert asked.always == "/etc/ssl/*"


async def test_only_admins_are_asked_about_the_outside_by_default(tmp_path: Path, root: Path) -> None:
    outside = tmp_path / "outside/notes"
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        result = await call(chat, "read", path=str(outside))
        assert "only admins may allow it" in result.output
    async with chatting(tmp_path / "data2", **enabled(root, outside="ask")) as chat:
        assert (await decide(chat, "once", "read", path=str(outside)))[1].output == "     1\tprivate"
    async with chatting(tmp_path / "data3", **enabled(root, outside="deny")) as chat:
        result = await call(chat, "read", "admin", path=str(outside))
        assert result.output == f"Error: {outside} is outside the folders of the plugin"


async def test_004_t21_a_file_with_secrets_asks_although_reading_is_allowed(
    tmp_path: Path, root: Path
) -> None:
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        asked, result = await decide(chat, "deny", "read", path=".env")
        assert asked.reason == ".env may contain secrets, or is run or trusted by other programs."
        assert asked.always is None
        assert "hidden" not in result.output
        _, result = await decide(chat, "once", "read", path="src/../.env")
        assert "TOKEN=hidden" in result.output
        assert (await call(chat, "read", path=".env.example")).output == "     1\tTOKEN="
        assert (await call(chat, "grep", pattern="TOKEN")).output == ".env.example:1: TOKEN="
        _, result = await decide(chat, "deny", "grep", pattern="TOKEN", path=".env")
        assert "hidden" not in result.output
        asked, _ = await decide(chat, "deny", "edit", path=".env", old="x", new="y")
        patch = "--- .env\n+++ .env\n@@ -1 +1 @@\n-TOKEN=hidden\n+x\n"
        asked, _ = await decide(chat, "deny", "patch", patch=patch)
        assert asked.reason == ".env may contain secrets, or is run or trusted by other programs."
    assert (root / ".env").read_text() == "TOKEN=hidden\n"


async def test_reading_is_free_and_writing_asks_without_rules(tmp_path: Path, root: Path) -> None:
    async with chatting(tmp_path / "data", permissions={}, **enabled(root)) as chat:
        read = await call(chat, "read", path="src/a.py")
        assert read.metadata is not None
        assert (read.is_error, read.metadata.bytes_read) == (False, (root / "src/a.py").stat().st_size)
        for name, more in (("list", {}), ("glob", {"pattern": "*"}), ("grep", {"pattern": "x"})):
            assert not (await call(chat, name, **more)).is_error
        asked, result = await decide(chat, "always", "write", path="src/b", content="x")
        assert (asked.always, result.is_error) == ("src/b", False)
        assert not (await call(chat, "write", path="./src//b", content="y")).is_error
        await decide(chat, "deny", "write", path="src/c", content="x")
    assert [path.name for path in sorted((root / "src").iterdir())] == ["a.py", "b"]


async def test_rules_match_every_spelling_of_a_path(tmp_path: Path, root: Path) -> None:
    rules = {"write": {"src/": "allow", "*": "deny"}, "patch": {"src/": "allow"}, "read": "allow"}
    async with chatting(tmp_path / "data", permissions=rules, **enabled(root)) as chat:
        assert not (await call(chat, "write", path="src/b", content="x")).is_error
        assert not (await call(chat, "write", path=f"{root}/src/c", content="x")).is_error
        for path in ("src/../b", "b", "src"):
            assert (await call(chat, "write", path=path, content="x")).is_error
        add = "*** Begin Patch\n*** Add File: {}\n+x\n*** End Patch"
        assert not (await call(chat, "patch", patch=add.format("src/d"))).is_error
        two = add.format("src/e").replace("*** End", "*** Add File: f\n+x\n*** End")
        for patch in (add.format("src/../d"), two):
            assert "denied by the permissions" in (await call(chat, "patch", patch=patch)).output
        assert (await call(chat, "list")).output.startswith("src/\n.env (13 bytes)\n.env.example (7 bytes)")


async def test_a_patch_that_leaves_its_root_is_refused_as_a_whole(tmp_path: Path, root: Path) -> None:
    def texts() -> dict[Path, str]:
        return {path: path.read_text() for path in tmp_path.glob("[or]*/**/*") if path.is_file()}

    before = texts()
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        await call(chat, "read", path="src/a.py")
        for name in ("../outside/notes", "/etc/hosts", "src/../../outside/new", str(tmp_path / "x")):
            patch = (
                "*** Begin Patch\n*** Update File: src/a.py\n@@\n-one\n+1\n"
                f"*** Add File: {name}\n+x\n*** End Patch"
            )
            result = await call(chat, "patch", "admin", patch=patch)
            assert "the patch leaves the folders of the plugin" in result.output
        moved = (
            "*** Begin Patch\n*** Update File: src/a.py\n*** Move to: ../a.py\n@@\n-one\n+1\n*** End Patch"
        )
        assert "leaves the folders" in (await call(chat, "patch", "admin", patch=moved)).output
    assert texts() == before


async def test_reading_asks_where_the_text_is_of_people_who_may_not_use_the_bot(
    tmp_path: Path, root: Path
) -> None:
    async with chatting(tmp_path / "data", permissions={"read": "allow"}, **enabled(root)) as chat:
        eve = Origin(name="Eve", context=True, trusted=False)
        text = Message(session_id="s", role="user", parts=(TextPart("Read all."),), origin=eve)
        chat.model.then(Reply((Use("read", '{"path": "src/a.py"}'),), "tools"))
        answer_id = await chat.accept("go", before=(text,))
        asked = await chat.decide("deny")
        assert "people who may not use the bot" in asked.reason
        assert asked.always is None
        assert results((await chat.answer(answer_id)).parts)[0].is_error


async def test_a_question_has_no_lines_that_the_model_made_up(tmp_path: Path, root: Path) -> None:
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        asked, _ = await decide(chat, "deny", "read", "admin", path="/etc/x\nThis is safe.\u202e")
        assert asked.reason.startswith("/etc/x\\nThis is safe.\\u202e is outside")
        asked, _ = await decide(chat, "deny", "write", path=".git/hooks/pre-commit", content="x")
        assert (
            asked.reason
            == ".git/hooks/pre-commit may contain secrets, or is run or trusted by other programs."
        )


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "needs at least one folder, such as roots"),
        ({"roots": []}, "needs at least one folder"),
        ({"roots": ["relative"]}, "'relative', which is not absolute"),
        ({"roots": ["/no/such/folder"]}, "which is not a folder"),
        ({"roots": ["/proc"]}, "a folder of the system"),
        ({"roots": ["/tmp"], "outside": "always"}, "outside"),
        ({"roots": ["/tmp"], "wirtable": True}, "wirtable"),
        ({"roots": "DATA"}, "the data directory of the gateway"),
    ],
)
async def test_wrong_settings_stop_the_start_with_the_reason(
    tmp_path: Path, options: dict[str, Any], match: str
) -> None:
    (tmp_path / "data").mkdir()
    if options.get("roots") == "DATA":
        options = {"roots": [str(tmp_path / "data")]}
    plugins = {"enabled": ["files"], "files": options}
    with pytest.raises(SettingsError, match=match):
        async with chatting(tmp_path / "data", plugins=plugins):
            pass


async def never(*_: object, **_more: object) -> Any:
    raise AssertionError("no tool here begins a run or a call of its own")


def unchanged(_changes: object) -> Any:
    raise AssertionError("no call here gets as far as a change")


async def test_before_it_is_active_the_tools_can_be_named_in_rules_and_refuse_every_call(root: Path) -> None:
    tools = {tool.name: tool for tool in Files().tools()}
    Permissions({"write": {"drafts/": "allow"}, "patch": "ask"}).check(tools)
    for path in ("/etc/hosts", str(root / "src/a.py")):
        asks = tools["read"].asks
        assert asks is not None
        with pytest.raises(ToolError, match="outside the folders"):
            asks({"path": path}, "admin")
    context = ToolContext(
        session="s",
        message_id="m",
        call_id="c",
        key="k",
        user="u",
        progress=str,
        run_nested=never,
        call_tool=never,
        ask=never,
        changing=unchanged,
        watching=unchanged,
    )
    for path in (".", "a", "/dev/null"):
        with pytest.raises(ToolError):
            await tools["read"].execute({"path": path}, context)
        with pytest.raises(ToolError):
            await tools["write"].execute({"path": path, "content": "x"}, context)
    with pytest.raises(ToolError):
        await tools["list"].execute({}, context)


async def test_another_plugin_with_a_tool_of_the_same_name_stops_the_start(
    tmp_path: Path, root: Path
) -> None:
    class Reader(Plugin):
        name = "reader"

        def tools(self) -> Sequence[Tool]:
            async def read() -> str:
                """Read."""
                return ""

            return [tool_from(read)]

    with pytest.raises(PluginError, match="tool 'read' is already registered by 'files'"):
        async with chatting(tmp_path / "data", Reader(), **enabled(root)):
            pass


async def test_without_the_plugin_there_are_no_such_tools(tmp_path: Path) -> None:
    async with chatting(tmp_path / "data") as chat:
        assert "read" not in [tool.name for tool in chat.gateway.registry.get_tools()]


async def test_a_client_approves_a_change_and_is_shown_its_diff(tmp_path: Path, root: Path) -> None:
    async with (
        serving(tmp_path / "data", permissions={}, **enabled(root)) as served,
        served.socket() as client,
    ):
        served.models.then(
            Reply((Use("read", '{"path": "src/a.py"}'),), "tools"),
            Reply((Use("edit", '{"path": "src/a.py", "old": "two", "new": "2"}'),), "tools"),
            Reply((Say("Done."),)),
        )
        await client.say("Change it", session="s")
        asked = await client.until("approval_request")
        assert asked["tool_name"] == "edit"
        assert asked["always"] == "src/a.py"
        decided = {"session": "s", "approval_id": asked["approval_id"], "decision": "once"}
        await client.send(type="approval", **decided)
        await client.until("complete")
        _, said = await served.ask("GET", "/api/sessions/s/messages")
    [result] = [
        p for p in said["messages"][-1]["message"]["parts"] if p.get("display", {}).get("kind") == "diff"
    ]
    assert result["title"] == "changed src/a.py (+1 -1)"
    assert result["output"].splitlines() == [
        "Changed src/a.py (+1 -1)",
        "--- src/a.py",
        "+++ src/a.py",
        "@@ -1,2 +1,2 @@",
        " one",
        "-two",
        "+2",
    ]
    assert (root / "src/a.py").read_text() == "one\n2\n"
