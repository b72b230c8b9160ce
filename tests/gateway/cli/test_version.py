"""``trunkline version``, the help of every command, and completion."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from gateway.cli import COMMANDS, app
from gateway.cli.command_group import Group
from gateway.version import VERSION
from tests.gateway.cli.processes import ROOT, trunkline

ALONE = ("run", "setup", "chat", "send", "doctor", "usage", "version")
SESSIONS = ("list", "show", "replay", "export", "undo", "redo", "delete")


def test_version_is_that_of_the_project(tmp_path: Path) -> None:
    assert trunkline("version", home=tmp_path).stdout.startswith(f"Trunkline {VERSION} (Python ")


def test_version_is_an_option_too(tmp_path: Path) -> None:
    assert trunkline("--version", home=tmp_path).stdout == trunkline("version", home=tmp_path).stdout


def test_the_project_takes_its_version_from_there() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["project"]["dynamic"] == ["version"]
    source = settings["tool"]["hatch"]["version"]
    assert (
        re.search(rf'^{source["expression"]} = "(.+)"$', (ROOT / source["path"]).read_text(), re.M)[1]
        == VERSION
    )


def test_version_speaks_json() -> None:
    told = json.loads(CliRunner().invoke(app, ["version", "--json"]).stdout)
    assert told["version"] == VERSION
    assert set(told) == {"version", "python", "platform"}


@pytest.mark.parametrize(
    "command", [*((name,) for name in ALONE), *(("sessions", name) for name in SESSIONS)]
)
def test_every_command_has_help_with_examples(command: tuple[str, ...]) -> None:
    told = CliRunner().invoke(app, [*command, "--help"])
    assert told.exit_code == 0
    assert f"  trunkline {' '.join(command)}" in told.stdout.partition("Examples:")[2]


def test_the_table_says_what_the_help_of_each_command_begins_with() -> None:
    entries = {(name,): entry for name, entry in COMMANDS.items()}
    entries |= {
        (group, name): entry
        for group, table in COMMANDS.items()
        if isinstance(table, Group)
        for name, entry in table.commands.items()
    }
    for path, entry in entries.items():
        command: Any = get_command(app)
        for name in path:
            command = command.commands[name]
        first = re.sub(r"\s+", " ", command.help)
        assert f"{first}. ".startswith(f"{entry.help}."), path


def test_the_words_of_a_command_can_be_completed(tmp_path: Path) -> None:
    words = {"_TRUNKLINE_COMPLETE": "complete_bash", "COMP_WORDS": "trunkline se", "COMP_CWORD": "1"}
    assert trunkline(home=tmp_path, **words).stdout.split() == ["setup", "send", "search", "sessions"]


def test_the_commands_of_a_group_with_a_default_can_be_completed(tmp_path: Path) -> None:
    words = {"_TRUNKLINE_COMPLETE": "complete_bash", "COMP_WORDS": "trunkline nodes r", "COMP_CWORD": "2"}
    assert trunkline(home=tmp_path, **words).stdout.split() == ["resume", "rotate"]


def test_fish_gets_one_line_for_each_completion(tmp_path: Path) -> None:
    words = {"_TYPER_COMPLETE_ARGS": "trunkline mcp ", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    shown = trunkline(home=tmp_path, _TRUNKLINE_COMPLETE="complete_fish", COLUMNS="40", **words).stdout
    names = [line.partition("\t")[0] for line in shown.splitlines()]
    assert names == ["list", "add", "test", "login", "tools", "approve"]


def test_the_script_for_a_shell_is_shown(tmp_path: Path) -> None:
    shown = trunkline(
        "--show-completion", "bash", home=tmp_path, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1"
    )
    assert "complete -o default -F" in shown.stdout


def test_a_mistyped_command_is_corrected() -> None:
    done = CliRunner().invoke(app, ["docter"])
    assert (done.exit_code, "doctor" in done.output) == (2, True)


def test_the_command_line_loads_nothing_heavy_before_a_command_runs() -> None:
    assert get_command(app).name == "trunkline"
    heavy = {"aiohttp", "sqlalchemy", "pydantic", "alembic", "pygments"}
    code = f"import sys; from gateway.cli import app; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
