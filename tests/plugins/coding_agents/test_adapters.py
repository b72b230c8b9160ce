"""The adapters: names, preflight, and the shell's readings; ``test_screens.py`` has the recorded screens."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from plugins.coding_agents.adapters import GROUP, adapters, find_adapter
from plugins.coding_agents.adapters.contract import AgentRequest, Launch, Reading
from plugins.coding_agents.adapters.preflight import (
    check_folder,
    check_program,
    prepare_home,
    with_instructions,
)
from plugins.coding_agents.adapters.shell import ADAPTER as SHELL
from plugins.coding_agents.errors import FolderTrustError, UnknownAgentError

ALIASES = [
    *[("claude", "claude"), ("claude-code", "claude"), ("Claude Code", "claude"), ("openai", "codex")],
    *[("google", "gemini"), ("bash", "shell"), (" Shell ", "shell"), ("pi-coding-agent", "pi")],
    *[("pi-ai", "pi"), ("piai", "pi"), ("picodingagent", "pi"), ("aider", "aider"), ("opencode", "opencode")],
]


@pytest.mark.parametrize(("name", "found"), ALIASES)
def test_an_agent_is_found_by_name_and_alias(name: str, found: str) -> None:
    assert find_adapter(name).name == found


def test_an_unknown_agent_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(UnknownAgentError) as caught:
        find_adapter("clod")
    assert caught.value.name == "UNKNOWN_AGENT"
    assert all(name in str(caught.value) for name in adapters())


def shell_reads(*lines: str, column: int | None = None) -> Reading:
    return SHELL.read(lines, (len(lines) - 1, len(lines[-1]) if column is None else column))


@pytest.mark.parametrize("line", ["pty>", "pty> ", "root@host:/srv#", "user@host:~/app$ ", "$"])
def test_the_shell_is_ready_at_an_empty_prompt(line: str) -> None:
    assert shell_reads("some output", line) == Reading("ready", input="", done=True)


@pytest.mark.parametrize(
    "line", ["> ", ">", "", "exit", "downloading 5", "Really? ", "password: ", "pty> ls", "it costs 5 $ each"]
)
def test_the_shell_is_not_ready_elsewhere(line: str) -> None:
    assert shell_reads("pty> make", line).state != "ready"


def test_the_shell_shows_what_is_typed_after_the_prompt() -> None:
    assert shell_reads("old", "pty> ls -l").input == "ls -l"
    assert (
        shell_reads("old", "pty> for x in a b", "do echo $x", "done").input
        == "for x in a b\ndo echo $x\ndone"
    )
    assert shell_reads("pty> sleep 5", "").input is None


@pytest.mark.parametrize("line", ["Continue? [y/N]", "Overwrite it (yes/no)?", "Continue? [y/N] y"])
def test_a_yes_or_no_in_the_line_of_the_cursor_has_keys(line: str) -> None:
    question = shell_reads("pty> apt-get install x", line).question
    assert question is not None
    assert (question.yes, question.no) == (("y", "enter"), ("n", "enter"))


def test_the_digest_of_a_yes_or_no_does_not_depend_on_what_is_typed() -> None:
    digests = {shell_reads(line).question for line in ("Continue? [y/N]", "Continue? [y/N] y")}
    assert len(digests) == 1


@pytest.mark.parametrize("line", ["Which one do you want?", "Password for root:"])
def test_another_question_has_no_keys(line: str) -> None:
    question = shell_reads("pty> x", line).question
    assert question is not None
    assert (question.yes, question.no) == ((), ())


def test_a_question_above_the_cursor_is_output() -> None:
    assert shell_reads("pty> cat file", "Do you want to proceed? [y/N]", "pty>").question is None


def test_the_shell_starts_without_files_of_the_user() -> None:
    launch = SHELL.launch(AgentRequest(workdir="/w", home="/h"))
    assert {"--noprofile", "--norc"} <= set(launch.argv)
    assert launch.env["PS1"] == "pty> "


def test_no_name_or_alias_is_used_twice() -> None:
    names = [name for adapter in adapters().values() for name in (adapter.name, *adapter.aliases)]
    assert len(names) == len(set(names))


def test_a_distribution_adds_an_adapter_by_an_entry_point(tmp_path: Path) -> None:
    info = tmp_path / "trunkline_more-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trunkline-more\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        f"[{GROUP}]\nmore = trunkline_more:ADAPTER\n"
        "taken = trunkline_more:TAKEN\nwrong = trunkline_more:WRONG\n"
    )
    (tmp_path / "trunkline_more.py").write_text(
        "from msgspec import structs\nfrom plugins.coding_agents.adapters.shell import ADAPTER as shell\n"
        "ADAPTER = structs.replace(shell, name='more', aliases=())\nTAKEN = shell\nWRONG = 1\n"
    )
    sys.path.append(str(tmp_path))
    adapters.cache_clear()
    try:
        assert find_adapter("more").title == "Shell"
        assert adapters()["shell"] is SHELL
    finally:
        sys.path.remove(str(tmp_path))
        adapters.cache_clear()


# preflight


def program(folder: Path, name: str, says: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\necho '{says}'\n")
    (folder / name).chmod(0o755)


async def test_the_check_names_the_release_that_an_old_node_limits_a_program_to(tmp_path: Path) -> None:
    program(tmp_path / "bin", "claude", "2.1.197 (Claude Code)")
    program(tmp_path / "bin", "node", "v20.20.2")
    checked = await check_program(find_adapter("claude"), {"PATH": str(tmp_path / "bin")}, str(tmp_path))
    assert (checked.found, checked.version) == (str(tmp_path / "bin" / "claude"), "2.1.197")
    assert (checked.node, checked.release_limit, checked.known) == ("20.20.2", "2.1.197", True)
    assert "Node.js 20.20.2 limits Claude Code to 2.1.197" in checked.problem
    assert checked.logged_in is False
    program(tmp_path / "bin", "node", "v22.1.0")
    checked = await check_program(find_adapter("claude"), {"PATH": str(tmp_path / "bin")}, str(tmp_path))
    assert (checked.release_limit, checked.problem) == ("", "")


async def test_the_check_reports_an_unknown_version_and_a_missing_program(tmp_path: Path) -> None:
    program(tmp_path / "bin", "codex", "codex-cli 0.999.0")
    environ = {"PATH": str(tmp_path / "bin"), "OPENAI_API_KEY": "sk-test"}
    checked = await check_program(find_adapter("codex"), environ, str(tmp_path))
    assert (checked.version, checked.known, checked.logged_in) == ("0.999.0", False, True)
    assert "no screens of Codex 0.999.0 are recorded" in checked.problem
    missing = await check_program(find_adapter("gemini"), environ, str(tmp_path))
    assert (missing.found, missing.known) == ("", False)
    assert missing.problem.endswith("npm install -g @google/gemini-cli")


def test_the_files_of_a_home_keep_what_the_program_wrote(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".claude.json").write_text('{"theme": "dark", "projects": {"/a": {"x": 1}}, "keys": ["old"]}')
    given = {"projects": {"/b": {"hasTrustDialogAccepted": True}}, "keys": ["new", "old"]}
    launch = Launch(settings={".claude.json": given}, files={".config/x.toml": "a = 1\n"})
    for _ in range(2):
        prepare_home(home, launch)
    assert json.loads((home / ".claude.json").read_text()) == {
        "theme": "dark",
        "projects": {"/a": {"x": 1}, "/b": {"hasTrustDialogAccepted": True}},
        "keys": ["old", "new"],
    }
    assert (home / ".config/x.toml").read_text() == "a = 1\n"
    assert stat.S_IMODE((home / ".claude.json").stat().st_mode) == 0o600
    assert {path.name for path in home.iterdir()} == {".claude.json", ".config"}


def test_a_home_gives_no_permissions_of_an_earlier_session(tmp_path: Path) -> None:
    """Any command of that session could have written them."""
    planted = [
        ("codex", ".codex/.env"),
        ("codex", ".codex/config.toml"),
        ("codex", ".codex/hooks.json"),
        ("codex", ".codex/rules/default.rules"),
        ("gemini", ".env"),
        ("gemini", ".gemini/.env"),
        ("gemini", ".gemini/extensions/theirs/gemini-extension.json"),
        ("gemini", ".gemini/policies/allow.toml"),
        ("opencode", ".config/opencode/opencode.json"),
        ("aider", ".aider.conf.yml"),
        ("aider", ".env"),
    ]
    for agent, path in planted:
        file = tmp_path / agent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("everything is allowed")
        if len(Path(path).parts) > 2:
            (file.parent / "link").symlink_to(tmp_path)
    own = {"security": {"auth": {"selectedType": "oauth-personal"}, "folderTrust": {"enabled": False}}}
    settings = tmp_path / "gemini/.gemini/settings.json"
    settings.write_text(json.dumps({"ui": {"theme": "dark"}, "tools": {"allowed": ["shell"]}, **own}))
    for agent, path in planted:
        for _ in range(2):
            prepare_home(tmp_path / agent, started(agent, key=""))
        assert not (tmp_path / agent / path).exists()
    kept = json.loads(settings.read_text())
    assert "tools" not in kept
    assert (kept["ui"], kept["security"]) == ({"theme": "dark"}, {"auth": {"selectedType": "oauth-personal"}})
    assert "--setting-sources  " in " ".join(started("claude", session_id="1").argv)


def test_a_folder_does_not_configure_a_program_that_would_ask_nothing_then(tmp_path: Path) -> None:
    """Aider has no switch for its settings in the folder, which others may have written."""
    folder = tmp_path / "repository" / "part"
    folder.mkdir(parents=True)
    (tmp_path / ".env").write_text("AIDER_YES_ALWAYS=true")
    aider = find_adapter("aider")
    check_folder(aider, str(folder))
    (tmp_path / "repository" / ".git").write_text("gitdir: elsewhere")
    (tmp_path / ".git").mkdir()
    check_folder(aider, str(folder))
    for place, name in ((folder, ".aider.conf.yml"), (folder.parent, ".env")):
        (place / name).symlink_to("nowhere")
        with pytest.raises(FolderTrustError, match=f"{name} configures Aider.*aider.trust_folder = true"):
            check_folder(aider, str(folder))
        check_folder(find_adapter("claude"), str(folder))
        (place / name).unlink()


def test_the_first_task_names_the_instructions_of_the_folder(tmp_path: Path) -> None:
    """The programs load none from a folder whose settings are not trusted."""
    (tmp_path / "AGENTS.md").write_text("Use tabs.")
    for agent in ("claude", "codex", "gemini", "opencode"):
        told = with_instructions(find_adapter(agent), "Fix it", str(tmp_path))
        assert told == "Fix it\n\nFollow the instructions in AGENTS.md."
    (tmp_path / "CLAUDE.md").write_text("Use spaces.")
    assert with_instructions(find_adapter("claude"), "Fix it", str(tmp_path)).endswith("in CLAUDE.md.")
    assert with_instructions(find_adapter("claude"), "", str(tmp_path)) == ""
    assert with_instructions(SHELL, "ls", str(tmp_path)) == "ls"


def test_the_files_of_a_home_never_leave_it(tmp_path: Path) -> None:
    home, outside = tmp_path / "home", tmp_path / "outside"
    home.mkdir()
    outside.mkdir()
    (outside / "secret.json").write_text('{"a": 1}')
    (home / ".gemini").symlink_to(outside)
    with pytest.raises(OSError, match="not below"):
        prepare_home(home, Launch(files={".gemini/settings.json": "{}"}))
    (home / "link.json").symlink_to(outside / "secret.json")
    prepare_home(home, Launch(settings={"link.json": {"b": 2}}))
    assert (outside / "secret.json").read_text() == '{"a": 1}'
    assert json.loads((home / "link.json").read_text()) == {"b": 2}, (
        "the program cannot read what it links to"
    )
    os.mkfifo(home / "pipe.json")
    prepare_home(home, Launch(settings={"pipe.json": {"b": 2}}))
    assert json.loads((home / "pipe.json").read_text()) == {"b": 2}


# launches: what must never be missing


def started(agent: str, **request: object) -> Launch:
    given = {"workdir": "/w", "home": "/h", "key": "sk-0123456789abcdefghijklmnop", **request}
    return find_adapter(agent).launch(AgentRequest(**given))


def test_codex_starts_without_a_daemon_and_without_trust() -> None:
    assert "--no-daemon" in started("codex").argv
    assert "--no-daemon" in started("codex", version="0.169.0").argv
    assert "--no-daemon" not in started("codex", version="0.120.1").argv
    assert 'projects={"/w"={trust_level="untrusted"}}' in started("codex").argv
    assert started("codex", resume="last").argv[-2:] == ("resume", "--last")
    assert started("codex", resume="01f").argv[-2:] == ("resume", "01f")


def test_claude_starts_with_its_onboarding_settled_and_asks_by_default() -> None:
    launch = started("claude", session_id="8f14e45f-ceea-467f-9c2f-0a1b2c3d4e5f")
    settings = launch.settings[".claude.json"]
    assert settings["projects"] == {"/w": {"hasTrustDialogAccepted": True}}
    assert settings["customApiKeyResponses"] == {"approved": ["6789abcdefghijklmnop"]}
    assert "--permission-mode default --setting-sources  " in " ".join(launch.argv)
    assert launch.argv[-2:] == ("--session-id", "8f14e45f-ceea-467f-9c2f-0a1b2c3d4e5f")
    assert started("claude", resume="8f").argv[-2:] == ("--resume", "8f")


def test_gemini_and_opencode_start_without_settings_of_the_folder() -> None:
    gemini = started("gemini")
    assert gemini.settings[".gemini/trustedFolders.json"] == {"/w": "DO_NOT_TRUST"}
    opencode = started("opencode", model="a/b")
    assert opencode.env["OPENCODE_DISABLE_PROJECT_CONFIG"] == "1"
    config = json.loads(opencode.env["OPENCODE_CONFIG_CONTENT"])
    assert (config["permission"]["*"], config["model"]) == ("ask", "a/b")
