"""Plugins of Claude Code: what becomes of their parts, and what is left out and said."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import PluginError
from gateway.extensions.admission.manifest import read_manifest
from gateway.extensions.admission.packages.claude import convert, tool_name
from gateway.plugin_services import check_servers, read_parts
from gateway.skills import ToolRule
from tests.gateway.extensions.admission.conftest import Desk

PLUGIN = {
    "name": "review-kit",
    "version": "1.2.0",
    "description": "Reviews changes",
    "author": {"name": "Ada"},
    "commands": ["./extra/deploy.md"],
    "mcpServers": {"db": {"command": "${CLAUDE_PLUGIN_ROOT}/db", "args": ["-v"], "env": {"KEY": "${KEY}"}}},
}
HOOKS = {
    "hooks": {"PreToolUse": [{"matcher": "Write", "hooks": [{"type": "command", "command": "lint.sh"}]}]}
}
FILES = {
    ".claude-plugin/plugin.json": json.dumps(PLUGIN),
    "agents/code-reviewer.md": (
        "---\nname: code-reviewer\ndescription: Use it so: after a change\n"
        "tools: Read, Grep, Bash(git log:*)\nmodel: sonnet\ncolor: red\n---\nYou review.\n"
    ),
    "commands/fix.md": (
        "---\nargument-hint: [issue]\nallowed-tools: Bash(git:*)\n---\nFix $1.\nStatus: !`git status`\n"
    ),
    "commands/team/plan.md": "Plan $ARGUMENTS.\n",
    "extra/deploy.md": "---\ndescription: Deploy\n---\nDeploy it.\n",
    "skills/pdf/SKILL.md": (
        "---\nname: PDF\ndescription: Reads PDF\nversion: 1.0\nallowed-tools: Read\n---\nRead it.\n"
    ),
    "skills/pdf/fields.md": "Fields",
    "hooks/hooks.json": json.dumps(HOOKS),
    ".mcp.json": json.dumps(
        {"mcpServers": {"Remote API": {"type": "http", "url": "https://mcp.example.org/"}}}
    ),
    "output-styles/short.md": "Be short.",
}


def write(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def test_skills_agents_and_commands_become_a_bundle_and_the_rest_is_listed(tmp_path: Path) -> None:
    folder = write(tmp_path / "kit", FILES)
    notes = convert(folder)
    manifest = read_manifest(folder)
    assert (manifest.name, manifest.version, manifest.author, manifest.entry) == (
        "review-kit",
        "1.2.0",
        "Ada",
        "",
    )
    parts = read_parts(folder)
    assert [(each.name, each.hint) for each in parts.prompts] == [
        ("deploy", ""),
        ("fix", "[issue]"),
        ("team-plan", ""),
    ]
    agent = parts.agents["code-reviewer"]
    assert (agent.description, agent.tools) == ("Use it so: after a change", ("read", "grep", "shell"))
    assert (agent.model, agent.system_prompt) == (None, "You review.")
    [skill] = parts.skills
    assert (skill.name, skill.description, skill.body) == ("pdf", "Reads PDF", "Read it.")
    assert (skill.allowed_tools, list(skill.digests)) == ((ToolRule("read"),), ["fields.md"])
    assert "left out: the shell hook PreToolUse (Write): lint.sh" in notes
    assert "left out: outputStyles, which plugins of this gateway do not have" in notes
    assert "/fix: lines with !`…` run no command; the model gets them as text" in notes
    shown = "\n".join(notes)
    assert '[mcp.remote-api]\nurl = "https://mcp.example.org/"' in shown
    assert '[mcp.db]\ncommand = ["${CLAUDE_PLUGIN_ROOT}/db", "-v"]\nenv = { "KEY" = "${KEY}" }' in shown
    [remote] = parts.servers
    assert (remote.name, remote.grant) == ("remote_api", "network:mcp.example.org")
    assert [*manifest.capabilities.grants()] == ["network:mcp.example.org"]
    check_servers(manifest, parts.servers)
    left = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert not left & {
        "hooks/hooks.json",
        ".mcp.json",
        "output-styles/short.md",
        ".claude-plugin/plugin.json",
    }
    assert convert(folder) == []


def test_servers_without_further_needs_become_servers_of_the_bundle(tmp_path: Path) -> None:
    servers: dict[str, Any] = {
        "db": {"command": "node", "args": ["${CLAUDE_PLUGIN_ROOT}/db.js", "-v"], "env": {"MODE": "fast"}},
        "odd": {"command": "node", "args": ["--root=${CLAUDE_PLUGIN_ROOT}"]},
        "glob": {"command": "node", "args": ["*.js"]},
        "secret": {"url": "https://a.example.org", "headers": {"Authorization": "x"}},
        "plain": {"url": "http://a.example.org"},
    }
    plugin = {"name": "kit", "version": "1.0", "mcpServers": servers}
    folder = write(tmp_path / "kit", {".claude-plugin/plugin.json": json.dumps(plugin)})
    notes = convert(folder)
    assert [note.split(" is ")[0].removeprefix("the MCP server ") for note in notes] == [*servers]
    assert [" is not started by the plugin" in note for note in notes] == [False, True, True, True, True]
    [db] = read_parts(folder).servers
    manifest = read_manifest(folder)
    check_servers(manifest, (db,))
    assert (db.grant, db.settings.command[1]) == ("exec:node ./db.js -v", f"{folder}/db.js")
    assert [*manifest.capabilities.grants()] == ["exec:node ./db.js -v"]


def test_an_installed_one_is_locked_and_can_be_restored(desk: Desk) -> None:
    source = write(desk.cwd / "kit", FILES)
    assert desk.install(source) == "review-kit"
    locked = desk.admission.lock().get("review-kit")
    assert locked is not None
    installed = desk.admission.locations.folder("review-kit", locked.digest)
    assert (installed / "agents/code-reviewer.md").is_file()
    assert (source / ".claude-plugin/plugin.json").is_file()
    shutil.rmtree(installed)
    desk.installer.restore("review-kit", locked)
    assert desk.admission.admit("review-kit").digest == locked.digest


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({".claude-plugin/plugin.json": "[]"}, "plugin.json must be a JSON object"),
        (
            {".claude-plugin/plugin.json": '{"name": "x1y", "agents": "../../a.md"}'},
            "leads out of the folder",
        ),
        ({".claude-plugin/plugin.json": '{"name": "x1y", "skills": "/etc"}'}, "leads out of the folder"),
        (
            {".claude-plugin/plugin.json": '{"name": "x1y", "commands": "none.md"}'},
            "none.md, which is missing",
        ),
        ({"main.py": "1"}, "main.py would run as code"),
        ({"commands/a.md": "a", "commands/A.md": "b"}, "two files would be commands/a.md"),
        ({"agents/a.md": "a\u202eb"}, "U+202E"),
    ],
)
def test_what_cannot_be_converted_is_refused(tmp_path: Path, files: dict[str, str], said: str) -> None:
    with pytest.raises(PluginError, match=said.replace("+", r"\+")):
        convert(write(tmp_path / "kit", FILES | files))


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=8),
        lambda each: (
            st.lists(each, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "hooks",
                        "mcpServers",
                        "command",
                        "args",
                        "env",
                        "url",
                        "author",
                        "commands",
                        "PreToolUse",
                    ]
                ),
                each,
                max_size=4,
            )
        ),
    )
)
def test_any_manifest_is_converted_or_refused(value: object) -> None:
    about = (
        {"name": "kit", **value}
        if isinstance(value, dict)
        else {"name": "kit", "hooks": value, "mcpServers": value}
    )
    with TemporaryDirectory() as place, contextlib.suppress(PluginError):
        convert(write(Path(place), {".claude-plugin/plugin.json": json.dumps(about)}))
        read_manifest(Path(place))


def test_tools_have_the_names_of_this_gateway() -> None:
    assert [tool_name(each) for each in ("Bash", "mcp__files__read_file", "weigh")] == [
        "shell",
        "files_read_file",
        "weigh",
    ]
