"""A dispatch from beginning to end: which backend, what it is told, what has changed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from plugins.cli_backends.adapters import claude_code
from plugins.cli_backends.backend import SpawnedBackend
from plugins.cli_backends.contract import WEEK_MS, Context, DispatchOptions, DispatchResult
from plugins.cli_backends.dispatcher import AVAILABLE_SECONDS, Dispatcher
from plugins.cli_backends.git import Repository
from plugins.cli_backends.prompt import CONTEXT_CHARS, fit_context, gather_context, render_context
from plugins.cli_backends.settings import CliSettings, SettingsSource
from plugins.cli_backends.state import Memory, SessionFile
from tests.plugins.cli_backends.pretend import Heard, noted, program

NAMES = ("one", "two", "three")
WORKS = 'note("prompts", prompt())\nsay("I am " + os.path.basename(__file__))\ndone()'
FAILS = 'prompt()\nsay("I try. ")\nout(type="result", is_error=True, result="overloaded")'
ENVIRON = {"PATH": os.environ.get("PATH", os.defpath)}


class Desk:
    """A dispatcher of three backends, all in one folder, and its settings."""

    def __init__(
        self, folder: Path, bodies: Mapping[str, str], patience: float = AVAILABLE_SECONDS, **table: Any
    ) -> None:
        self.folder = folder
        for name, body in bodies.items():
            program(folder, body, name)
        plugins = {name: {"binary": str(folder / name)} for name in NAMES}
        table = {"active_plugin": "one", "fallback_plugins": ["one", "two", "three"], **table}
        table["plugins"] = {**plugins, **table.get("plugins", {})}
        self.memory = Memory(folder / "memory.json")
        clis = [msgspec.structs.replace(claude_code.CLI, name=name) for name in NAMES]
        self.now = 1_000_000
        self.sessions = sessions = SessionFile(clock=lambda: self.now)
        self.dispatcher = Dispatcher(
            [SpawnedBackend(cli, ENVIRON, sessions) for cli in clis],
            SettingsSource(CliSettings.model_validate(table), str(folder)),
            self.memory,
            folder / "workspace",
            ENVIRON,
            patience,
            clock=lambda: self.now,
        )

    async def ask(self, prompt: str = "go", heard: Heard | None = None, **options: Any) -> DispatchResult:
        """One dispatch of the active backend."""
        heard = heard or Heard()
        backend = options.pop("backend", None)
        order = DispatchOptions(conversation_id="c", **options)
        result = await self.dispatcher.dispatch(prompt, order, heard.callbacks, backend)
        assert len(heard.ends) == 1
        return result


def write(folder: Path, **content: Any) -> Path:
    file = folder / ".mia" / "mia.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content))
    return file


def code(result: DispatchResult) -> str:
    return "" if result.error is None else result.error.code


def repository(folder: Path) -> Path:
    """A repository with one commit."""
    folder.mkdir(exist_ok=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "kept.txt").write_text("one\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    env = {**ENVIRON, "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    argv = ["git", *who, *arguments]
    return subprocess.run(argv, cwd=folder, env=env, check=True, capture_output=True, text=True).stdout


async def test_000_11_a_file_of_the_other_spelling_is_read(tmp_path: Path) -> None:
    binary = str(program(tmp_path, WORKS, "elsewhere"))
    write(
        tmp_path,
        activePlugin="two",
        fallbackPlugins=["three"],
        plugins={"two": {"name": "two", "enabled": True, "binary": binary, "maxConcurrency": 5,
                         "timeoutMs": 1000, "model": "m", "stallTimeoutMs": 9, "extraArgs": ["x"]}},
        pluginDispatch={"fallback": {"enabled": False, "onDispatchError": True}, "tracing": {}},
        maxConcurrency=10,
    )  # fmt: skip
    settings = await SettingsSource(CliSettings(active_plugin="one"), str(tmp_path)).refresh()
    assert (settings.active_plugin, settings.fallback_plugins) == ("two", ("three",))
    two = settings.of("two")
    assert (two.binary, two.max_concurrency, two.timeout_ms, two.model) == (binary, 5, 1000, "m")
    assert (two.stall_timeout_ms, two.extra_args) == (9, ("x",))
    fallback = settings.plugin_dispatch.fallback
    assert (fallback.enabled, fallback.on_dispatch_error) == (False, True)


async def test_000_11_our_own_table_has_the_same_shape(tmp_path: Path) -> None:
    table = {
        "active_plugin": "codex",
        "fallback_plugins": ["gemini"],
        "plugins": {"codex": {"model": "gpt-5-codex", "timeout_ms": 5}},
        "plugin_dispatch": {"fallback": {"on_dispatch_error": True}},
    }
    settings = await SettingsSource(CliSettings.model_validate(table), "").refresh()
    assert settings.active_plugin == "codex"
    assert settings.of("codex").timeout_ms == 5
    assert settings.plugin_dispatch.fallback.enabled


@pytest.mark.parametrize(
    "content", ["{broken", "[]", '"x"', '{"activePlugin": 5}', "[" * 9000, '{"plugins": {"a": 1}}']
)
async def test_000_11_a_file_that_is_wrong_changes_nothing(tmp_path: Path, content: str) -> None:
    write(tmp_path).write_text(content)
    settings = await SettingsSource(CliSettings(active_plugin="codex"), str(tmp_path)).refresh()
    assert settings.active_plugin == "codex"


async def test_000_06_expired_sessions_are_removed_once_an_hour(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {"one": WORKS})
    for name in NAMES:
        await desk.sessions.put(name, "old", "s1")
    desk.now += WEEK_MS + 1
    await desk.ask()
    assert [desk.sessions.get(name, "old") for name in NAMES] == [None, None, None]
    desk.now -= WEEK_MS + 1
    await desk.sessions.put("two", "other", "s2")
    desk.now += WEEK_MS + 3_600_000
    await desk.ask()
    assert desk.sessions.get("two", "other") == "s2", "less than an hour after the last time"
    desk.now += 1
    await desk.ask()
    assert desk.sessions.get("two", "other") is None


async def test_000_13_changing_the_active_one_suffices(tmp_path: Path) -> None:
    desk = Desk(tmp_path, dict.fromkeys(NAMES, WORKS))
    assert (await desk.ask()).output == "I am one"
    file = write(tmp_path, activePlugin="two")
    assert (await desk.ask()).output == "I am two"
    file.unlink()
    assert (await desk.ask()).output == "I am one"
    assert (await desk.ask(backend="three")).output == "I am three"


async def test_000_14_the_steps_come_in_their_order(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {"two": WORKS})
    heard = Heard()
    with capture_logs() as logs:
        await desk.ask(heard=heard)
    steps = [(entry["step"], entry.get("backend")) for entry in logs if entry["event"] == "dispatch"]
    assert steps == [
        ("load", None),
        ("available", "one"),
        ("available", "two"),
        ("context", None),
        ("spawn", None),
        ("end", None),
        ("changes", None),
    ]
    assert [entry[0] for entry in heard.log] == ["token", "done"]


async def test_000_16_workspace_memory_git_and_instructions_reach_the_program(tmp_path: Path) -> None:
    folder = repository(tmp_path / "project")
    (folder / "src").mkdir()
    (folder / "src" / "main.py").write_text("")
    (folder / "AGENTS.md").write_text("Use tabs.")
    (folder / "CLAUDE.md").write_text("Use spaces.")
    desk = Desk(tmp_path, {"one": WORKS})
    await desk.memory.add("c", "The  user\nlikes tea.")
    await desk.memory.add("other", "Nobody's business.")
    await desk.ask("What now?", working_directory=str(folder))
    told = noted(tmp_path, "prompts")[0]
    for piece in (
        str(folder),
        "src/\n  main.py",
        "- The user likes tea.",
        "## main",
        "?? AGENTS.md",
        "first",
    ):
        assert piece in told
    assert "Use spaces." in told
    assert not any(word in told for word in ("Use tabs.", "Nobody"))
    assert told.endswith("</context>\n\nWhat now?")
    await desk.ask("What now?", working_directory=str(folder), skip_context=True)
    assert noted(tmp_path, "prompts")[1] == "What now?"


async def test_000_16_the_context_keeps_to_its_budget() -> None:
    long = "line\n" * 20_000
    context = Context(long, ("old fact" * 1000, "fact"), long, long)
    small = fit_context(context)
    assert len(render_context(small)) <= CONTEXT_CHARS + 200
    assert small.workspace == ""
    assert small.memory == ("fact",)
    assert len(small.git.splitlines()) == 5
    assert small.instructions.startswith("line")
    assert fit_context(Context("a", ("b",), "c", "d")) == Context("a", ("b",), "c", "d")
    assert fit_context(Context(long, ("b",), "c", "d")).instructions == "d", "the workspace goes first"


async def test_000_16_links_and_pipes_are_not_instructions(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "CLAUDE.md").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "project" / "AGENTS.md")
    assert (await gather_context(str(tmp_path / "project"), (), None)).instructions == ""


async def test_000_18_what_a_dispatch_changed_is_reported(tmp_path: Path) -> None:
    folder = repository(tmp_path / "project")
    (folder / "before.txt").write_text("was changed before\n")
    body = """
    prompt()
    open("kept.txt", "a").write("two\\n")
    open("made.txt", "w").write("new\\n")
    run = lambda *argv: subprocess.run(["git", "-c", "user.name=A", "-c", "user.email=a@b.c", *argv])
    run("add", "made.txt"); run("commit", "-qm", "second")
    done()
    """
    desk = Desk(tmp_path, {"one": body})
    changes = (await desk.ask(working_directory=str(folder))).git_changes
    assert changes is not None
    assert changes.files == ("kept.txt", "made.txt"), "and not what was changed before"
    assert "2 files changed, 2 insertions(+)" in changes.stat
    assert [commit.split(" ", 1)[1] for commit in changes.new_commits] == ["second"]
    assert git(folder, "status", "--short") == " M kept.txt\n?? before.txt\n", "git itself is as it was"
    quiet = Desk(tmp_path, {"one": WORKS})
    assert (await quiet.ask(working_directory=str(folder))).git_changes is None
    assert (await quiet.ask()).git_changes is None, "no repository"


async def test_000_18_a_repository_cannot_run_its_own_programs(tmp_path: Path) -> None:
    folder = repository(tmp_path / "project")
    trap = f"touch {tmp_path}/trapped; cat"
    (folder / ".gitattributes").write_text("*.txt filter=evil diff=evil\n")
    for key, value in {
        "core.fsmonitor": trap,
        "core.sshCommand": trap,
        "core.hooksPath": str(folder / "hooks"),
        "core.pager": trap,
        "diff.external": trap,
        "diff.evil.command": trap,
        "diff.evil.textconv": trap,
        "filter.evil.clean": trap,
        "filter.evil.smudge": trap,
        "filter.evil.process": trap,
        "filter.evil.required": "true",
        "log.showSignature": "true",
        "gpg.program": trap,
    }.items():
        git(folder, "config", key, value)
    (folder / "hooks").mkdir()
    for hook in ("post-index-change", "pre-commit", "reference-transaction"):
        (folder / "hooks" / hook).write_text(f"#!/bin/sh\n{trap}\n")
        (folder / "hooks" / hook).chmod(0o755)
    opened = await Repository.at(str(folder), ENVIRON)
    assert opened is not None
    before = await opened.snapshot()
    (folder / "kept.txt").write_text("changed\n")
    changes = await opened.changes(before)
    assert "main" in await opened.state()
    opened.close()
    assert changes is not None
    assert changes.files == ("kept.txt",)
    assert not (tmp_path / "trapped").exists()


async def test_000_18_files_elsewhere_are_not_looked_at(tmp_path: Path) -> None:
    folder, elsewhere = repository(tmp_path / "project"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    git(folder, "config", "core.worktree", str(elsewhere))
    assert await Repository.at(str(folder), ENVIRON) is None


@pytest.mark.parametrize(
    ("there", "answer", "behind"),
    [(NAMES, "one", None), (("two", "three"), "two", 0), (("three",), "three", 1)],
)
async def test_000_23_who_is_not_there_is_stood_in_for(
    tmp_path: Path, there: Sequence[str], answer: str, behind: int | None
) -> None:
    result = await Desk(tmp_path, dict.fromkeys(there, WORKS)).ask()
    assert result.output == f"I am {answer}"
    assert (result.backend, result.fallback_index) == (answer, behind)
    assert result.fallback_from == (None if behind is None else "one")


async def test_000_23_no_available_backend_is_an_error(tmp_path: Path) -> None:
    result = await Desk(tmp_path, {}).ask()
    assert code(result) == "SPAWN_FAILURE"
    assert result.fallback_chain_exhausted
    assert "npm install" in str(result.error)


async def test_000_23_the_last_backend_of_a_chain_gets_the_full_availability_timeout(
    tmp_path: Path,
) -> None:
    there = {"one": WORKS, "three": WORKS}
    off = {"fallback": {"enabled": False}}
    assert (await Desk(tmp_path, there, 0, plugin_dispatch=off).ask()).output == "I am one"
    assert (await Desk(tmp_path, there, 0).ask()).output == "I am three"


async def test_000_23_it_can_be_switched_off(tmp_path: Path) -> None:
    off = {"fallback": {"enabled": False}}
    result = await Desk(tmp_path, {"two": WORKS}, plugin_dispatch=off).ask()
    assert (code(result), result.backend) == ("SPAWN_FAILURE", "one")
    disabled = {"two": {"enabled": False}}
    result = await Desk(tmp_path, {"two": WORKS, "three": WORKS}, plugins=disabled).ask()
    assert result.backend == "three"


@pytest.mark.parametrize("table", [{"active_plugin": "four"}, {"plugins": {"one": {"enabled": False}}}])
async def test_000_23_an_active_one_that_cannot_be_meant_is_an_error(
    tmp_path: Path, table: dict[str, Any]
) -> None:
    result = await Desk(tmp_path, dict.fromkeys(NAMES, WORKS), **table).ask()
    assert code(result) == "UNKNOWN"
    assert noted(tmp_path, "prompts") == []


async def test_000_24_a_failure_is_final_unless_it_is_said(tmp_path: Path) -> None:
    bodies = {"one": FAILS, "two": FAILS, "three": WORKS}
    result = await Desk(tmp_path, bodies).ask()
    assert (code(result), result.backend) == ("PROVIDER_ERROR", "one")
    retry = {"fallback": {"on_dispatch_error": True}}
    heard = Heard()
    result = await Desk(tmp_path, bodies, plugin_dispatch=retry).ask(heard=heard)
    assert (result.backend, result.fallback_from, result.fallback_index) == ("three", "one", 1)
    assert [entry[0] for entry in heard.log] == ["token", "token", "token", "done"]
    result = await Desk(tmp_path, dict.fromkeys(NAMES, FAILS), plugin_dispatch=retry).ask()
    assert (code(result), result.fallback_chain_exhausted) == ("PROVIDER_ERROR", True)


async def test_000_24_what_was_stopped_or_said_too_much_goes_nowhere_else(tmp_path: Path) -> None:
    retry = {"fallback": {"on_dispatch_error": True}}
    floods = 'prompt()\nwhile True:\n    os.write(1, b"x" * 65536)'
    desk = Desk(tmp_path, {"one": floods, "two": WORKS}, plugin_dispatch=retry)
    assert code(await desk.ask()) == "BUFFER_OVERFLOW"
    desk = Desk(tmp_path, {"one": FAILS + "\n", "two": WORKS}, plugin_dispatch=retry)
    program(tmp_path, 'prompt()\nsay("working")\ntime.sleep(600)', "one")
    result = await desk.ask(heard=Heard(desk.dispatcher.backends["one"].abort))
    assert (code(result), result.backend) == ("ABORTED", "one")
