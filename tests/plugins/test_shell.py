"""The tool ``shell``: real commands, their output, their limits, and that nothing of them remains."""

from __future__ import annotations

import asyncio
import shlex
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway import Message, SettingsError, ToolResultPart
from gateway.contract.deltas import ToolResultDelta
from gateway.session.frames import ApprovalAsked
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Reply, Say, Use
from plugins.shell import KEPT_BYTES, Shell


def shelling(
    tmp_path: Path, *, plugin: Shell | None = None, limits: Any = None, permissions: Any = None, **more: Any
) -> Any:
    """A gateway with the tool; ``tmp_path/work`` and ``tmp_path/other`` are its roots."""
    for name in ("work", "other"):
        (tmp_path / name).mkdir(exist_ok=True)
    own = {"shell": True, "roots": [str(tmp_path / "work"), str(tmp_path / "other")], **more}
    rules = {"shell": "allow"} if permissions is None else permissions
    settings = {"plugins": {"shell": own}, "permissions": rules, "limits": limits or {}}
    return chatting(tmp_path / "data", plugin or Shell(), **settings)


def use(*argv: str, **more: Any) -> Reply:
    arguments = msgspec.json.encode({"argv": argv, **more}).decode()
    return Reply((Use("shell", arguments),), "tools")


def result(message: Message) -> ToolResultPart:
    return next(part for part in message.parts if isinstance(part, ToolResultPart))


async def run(chat: Chat, *argv: str, session: str = "s", **more: Any) -> ToolResultPart:
    chat.model.then(use(*argv, **more), Reply((Say("Done."),)))
    return result(await chat.say("go", session))


def python(code: str) -> Sequence[str]:
    return (sys.executable, "-c", code)


def text_of(path: Path) -> str:
    """The text of a file, "" while there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""


def unique_seconds() -> str:
    """A time that no other process sleeps: commands have their own namespace of process ids."""
    return f"1000.{uuid.uuid4().int % 10**9:09}"


def sleepers(seconds: str) -> list[str]:
    """The processes that sleep so long."""
    paths = Path("/proc").glob("[0-9]*/cmdline")
    return [path.parent.name for path in paths if f"sleep\0{seconds}" in text_of(path)]


async def gone(seconds: str) -> None:
    """Wait until no process sleeps so long; the test's time limit is the limit."""
    while sleepers(seconds):
        await asyncio.sleep(0.02)


async def sleeping(seconds: str) -> None:
    """Wait until a process sleeps so long."""
    while not sleepers(seconds):
        await asyncio.sleep(0.02)


async def test_004_t15_a_command_runs_in_the_first_root_and_returns_its_output(tmp_path: Path) -> None:
    async with shelling(tmp_path) as chat:
        found = await run(chat, "pwd")
        assert (found.output, found.is_error) == (str(tmp_path / "work"), False)
        found = await run(chat, "pwd", cwd=str(tmp_path / "other"))
        assert found.output == str(tmp_path / "other")
        found = await run(
            chat, *python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
        )
        assert found.is_error
        assert sorted(found.output.splitlines()) == ["[exit status 3]", "err", "out"]
        assert found.metadata is not None
        assert found.metadata.exit_code == 3
        assert (await run(chat, "true")).output == "[no output]"


async def test_no_argument_is_read_by_a_shell(tmp_path: Path) -> None:
    async with shelling(tmp_path) as chat:
        words = ("; echo no", "$(echo no)", "`echo no`", "a | b", "*", "&& x", "\n")
        code = "import sys; print(sys.argv[1:])"
        assert (await run(chat, *python(code), *words)).output == str(list(words))


async def test_no_variable_of_the_gateway_reaches_a_command(tmp_path: Path) -> None:
    async with shelling(tmp_path, environment={"EXTRA": "given"}) as chat:
        found = await run(chat, "env")
    names = {line.partition("=")[0] for line in found.output.splitlines()}
    assert names <= {
        *("EXTRA", "TRUNKLINE_SHELL", "TERM", "NO_COLOR", "PAGER", "GIT_PAGER", "GIT_EDITOR", "PATH"),
        *("GIT_TERMINAL_PROMPT", "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0", "HOME"),
        *("GIT_CONFIG_KEY_1", "GIT_CONFIG_VALUE_1", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "USER", "TZ"),
        "TMPDIR",
    }
    assert "EXTRA=given" in found.output


@pytest.mark.parametrize("cwd", ["..", "../..", "/", "/etc", "link", "absent", "file", "a\0b"])
async def test_004_t17_no_command_runs_outside_of_the_roots(tmp_path: Path, cwd: str) -> None:
    async with shelling(tmp_path) as chat:
        (tmp_path / "work/link").symlink_to("/etc")
        (tmp_path / "work/file").write_text("")
        found = await run(chat, "pwd", cwd=cwd)
        assert found.is_error
        assert "Error: " in found.output


async def test_a_program_that_is_absent_is_named(tmp_path: Path) -> None:
    async with shelling(tmp_path) as chat:
        assert "there is no program 'made-up'" in (await run(chat, "made-up")).output
        assert "cannot be started: " in (await run(chat, "/usr/bin/made-up")).output
        (tmp_path / "work/text").write_text("")
        assert "cannot be started: Permission denied" in (await run(chat, "./text")).output


async def test_output_is_shown_while_the_command_runs_and_cut_in_the_middle(tmp_path: Path) -> None:
    """The command waits for a file that the test writes once it has seen its first line."""
    async with shelling(tmp_path) as chat:
        code = (
            "import pathlib, time\nprint('first', flush=True)\n"
            "while not pathlib.Path('seen').exists(): time.sleep(0.02)\n"
            f"print('x' * {4 * KEPT_BYTES})\nprint('last')"
        )
        chat.model.then(use(*python(code)), Reply((Say("Done."),)))
        answer_id = await chat.accept("go")
        watcher = await chat.watch()
        await watcher.until(lambda f: isinstance(f, ToolResultDelta) and "first" in f.content)
        (tmp_path / "work/seen").write_text("")
        found = result(await chat.answer(answer_id))
        assert found.output.startswith("first\nxxx")
        assert found.output.endswith("last")
        assert len(found.output) < 3 * KEPT_BYTES


async def test_escape_sequences_are_removed(tmp_path: Path) -> None:
    async with shelling(tmp_path) as chat:
        found = await run(chat, "printf", r"\033[31mred\033[0m\033]0;title\007 \000\010end\r\n")
        assert found.output == "red end"


@pytest.mark.parametrize("confined", [True, False])
@pytest.mark.parametrize(
    "start", ["sleep N &", "setsid sleep N &", "set -m; env -i sleep N &", "(sleep N; true) &"]
)
async def test_nothing_that_a_command_starts_outlives_it(tmp_path: Path, start: str, confined: bool) -> None:
    """Neither in its group, nor in another one, nor in another session, although it holds the output open."""
    seconds = unique_seconds()
    async with shelling(tmp_path, confined=confined) as chat:
        found = await run(chat, "bash", "-c", f"{start.replace('N', seconds)} echo done")
        assert found.output == "done"
        await gone(seconds)


@pytest.mark.parametrize("confined", [True, False])
async def test_a_command_that_takes_too_long_ends_with_its_children(tmp_path: Path, confined: bool) -> None:
    seconds = unique_seconds()
    async with shelling(tmp_path, confined=confined) as chat:
        script = f"trap '' TERM; sleep {seconds} & echo begun; wait; sleep 1000"
        found = await run(chat, "bash", "-c", script, timeout=3)
        assert found.is_error
        assert found.output.endswith("[stopped after 3 s]")
        await gone(seconds)


@pytest.mark.parametrize("confined", [True, False])
async def test_stop_and_shutdown_end_a_command_with_its_children(tmp_path: Path, confined: bool) -> None:
    one, two = unique_seconds(), unique_seconds()
    async with shelling(tmp_path, limits={"drain_seconds": 0}, confined=confined) as chat:
        chat.model.then(use("bash", "-c", f"setsid sleep {one} & wait"))
        await chat.accept("go")
        await sleeping(one)
        assert (await chat.say("/stop")).text == "Stopped."
        await gone(one)
        chat.model.then(use("bash", "-c", f"sleep {two} & wait"))
        await chat.accept("go", "other")
        await sleeping(two)
    await gone(two)


async def test_a_confined_command_reaches_neither_other_files_nor_a_network(tmp_path: Path) -> None:
    """Where the kernel cannot confine, commands have all rights, and the log says so."""
    (tmp_path / "secret").write_text("a secret")
    plugin = Shell()
    async with shelling(tmp_path, plugin=plugin) as chat:
        if chat.gateway.processes.missing_layers():
            pytest.skip("the kernel cannot confine")
        found = await run(chat, "cat", str(tmp_path / "secret"))
        assert "No such file" in found.output
        found = await run(chat, "bash", "-c", "echo > made; touch /usr/made; cat /proc/net/dev | wc -l")
        assert "Read-only" in found.output or "denied" in found.output
        assert found.output.endswith("3"), "two lines of headings, and the loopback interface"
        assert (tmp_path / "work/made").exists()
        found = await run(chat, "bash", "-c", "kill -9 $$")
        assert found.output.endswith("[exit status -9]")
    # The same object, as when the plugin is disabled and enabled again.
    async with shelling(tmp_path, plugin=plugin, confined=False) as chat:
        assert (await run(chat, "cat", str(tmp_path / "secret"))).output == "a secret"
    async with shelling(tmp_path, readable=[str(tmp_path / "secret")]) as chat:
        assert (await run(chat, "cat", str(tmp_path / "secret"))).output == "a secret"


async def test_the_processes_of_a_confined_command_are_limited(tmp_path: Path) -> None:
    async with shelling(tmp_path, processes=20) as chat:
        found = await run(chat, "bash", "-c", "for i in $(seq 100); do sleep 60 & done; wait")
        assert found.output.endswith("[stopped: it had more than 20 processes]")


async def test_004_t21_a_command_asks_and_always_covers_program_and_leading_arguments(tmp_path: Path) -> None:
    async with shelling(tmp_path, permissions={}) as chat:
        chat.model.then(use("git", "status", "-s"), Reply((Say("Done."),)))
        answer_id = await chat.accept("go")
        watcher = await chat.watch()
        asked = await watcher.until(lambda f: isinstance(f, ApprovalAsked))
        program, *rest = shlex.split(asked.always)
        assert program.startswith("/")
        assert (Path(program).name, rest) == ("git", ["status", "*"])
        await chat.host.settle(asked.approval_id, "always", session="s")
        await chat.answer(answer_id)
        assert "approval" not in (await run(chat, "git", "status", "--long")).output
        for argv, cwd, always in (
            (("git", "-c", "core.pager=id", "status"), "", f"{program} -c core.pager=id status"),
            (("bash", "-c", "git status"), "", None),
            (("git", "status"), "../other", None),
        ):
            chat.model.then(use(*argv, cwd=cwd), Reply((Say("Done."),)))
            answer_id = await chat.accept("again")
            seen = {frame.approval_id for frame in watcher.frames if isinstance(frame, ApprovalAsked)}
            asked = await watcher.until(lambda f: isinstance(f, ApprovalAsked) and f.approval_id not in seen)  # noqa: B023
            assert always is None or asked.always == always
            assert asked.always is None or not asked.always.endswith(" *") or asked.always.startswith("cd ")
            await chat.host.settle(asked.approval_id, "deny", session="s")
            assert result(await chat.answer(answer_id)).is_error


async def test_004_t21_a_program_in_a_root_is_not_one_of_the_path(tmp_path: Path) -> None:
    """A rule for ``git`` does not cover a file of this name that a tool wrote."""
    async with shelling(tmp_path, permissions={"shell": {"git *": "allow", "*": "deny"}}) as chat:
        fake = tmp_path / "work/git"
        fake.write_text("#!/bin/sh\necho fake\n")
        fake.chmod(0o755)
        assert "denied by the permissions" in (await run(chat, "./git", "status")).output
        assert "denied by the permissions" in (await run(chat, str(fake), "status")).output
        assert "fake" not in (await run(chat, "git", "status")).output


async def test_a_root_with_the_data_of_the_gateway_does_not_show_it(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    async with shelling(tmp_path, roots=[str(tmp_path)]) as chat:
        rows = str(tmp_path / "data/trunkline.db")
        script = f"echo made > work/new; ls data; cat {rows}; cp {rows} work; ls work"
        found = await run(chat, "sh", "-c", script)
    assert "new" in found.output.split()
    assert "trunkline.db" not in found.output.split()
    assert (tmp_path / "work/new").read_text() == "made\n"


async def test_it_is_off_by_default_and_needs_roots(tmp_path: Path) -> None:
    async with chatting(tmp_path / "a", Shell()) as chat:
        assert "shell" not in {tool.name for tool in chat.gateway.registry.get_tools()}
    for number, (settings, said) in enumerate(
        (
            ({"shell": True}, "plugins.shell.roots is empty"),
            ({"shell": True, "roots": ["relative"]}, "not the absolute path of a folder"),
            ({"shell": True, "roots": ["/absent/folder"]}, "not the absolute path of a folder"),
            ({"shell": True, "roots": ["/tmp"], "seconds": 0}, r"plugins\.shell\.seconds"),
            (
                {"shell": True, "roots": [str(tmp_path / "4")]},
                "the data directory of the gateway; use a folder",
            ),
        )
    ):
        with pytest.raises((SettingsError, Exception), match=said):
            async with chatting(tmp_path / str(number), Shell(), plugins={"shell": settings}):
                pass
