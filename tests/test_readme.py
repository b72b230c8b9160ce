"""What the READMEs promise: short, true, and their code runs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command

from gateway.app import Gateway
from gateway.cli import app
from gateway.server import Server
from gateway.settings import load_settings

ROOT = Path(__file__).parents[1]
READMES = [
    ROOT / "README.md",
    ROOT / "channels/README.md",
    ROOT / "plugins/README.md",
    ROOT / "plugins/providers/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
VARIABLES = dict.fromkeys(
    (
        "TELEGRAM_TOKEN",
        "DISCORD_TOKEN",
        "SLACK_BOT_TOKEN",
        "SLACK_APP_TOKEN",
        "EMAIL_PASSWORD",
        "MATRIX_TOKEN",
        "COLLECTOR_TOKEN",
    ),
    "x" * 40,
)
VARIABLES |= dict.fromkeys(("TRUNKLINE_TOKEN", "OPS_TOKEN", "WALL_TOKEN"), "0123456789abcdef" * 4)
VARIABLES |= {"POSTGRES_PASSWORD": "secret", "RABBITMQ_PASSWORD": "secret"}


def python_of(readme: Path) -> str:
    """The one program a README shows."""
    (code,) = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    return code


def loaded(name: str, code: str, folder: Path) -> ModuleType:
    file = folder / f"{name}.py"
    file.write_text(code)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("readme", READMES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_command_that_is_named_exists(readme: Path) -> None:
    """A word after a command is a subcommand only where the command has any."""
    root: Any = get_command(app)
    for line in re.findall(r"\btrunkline ([a-z][^`\n]*)", readme.read_text(encoding="utf-8")):
        command = root
        for word in line.split():
            if not hasattr(command, "commands") or not word.isalpha() or not word.islower():
                break
            if command is root and word not in root.commands:
                break  # prose such as "trunkline is"
            assert word in command.commands, line
            command = command.commands[word]
        flags = {
            flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)
        }
        used = set(re.findall(r"(?<!\S)--[a-z-]+", line.split("|")[0])) - {"--help"}
        assert used <= flags, line


@pytest.mark.parametrize(
    "readme", [READMES[1], *READMES[4:]], ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_every_table_of_settings_is_accepted(readme: Path, tmp_path: Path) -> None:
    for table in re.findall(r"```toml\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL):
        file = tmp_path / "trunkline.toml"
        file.write_text(table, encoding="utf-8")
        load_settings(file, environ=VARIABLES, cwd=tmp_path)


@pytest.mark.parametrize("readme", READMES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_link_leads_somewhere(readme: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", readme.read_text(encoding="utf-8"))
    assert [link for link in links if not (readme.parent / link).exists()] == []


def test_the_first_screen_is_short_and_begins_with_a_command() -> None:
    text = READMES[0].read_text(encoding="utf-8")
    assert len(text.split()) < 550
    assert "make run" in "\n".join(text.split("\n")[:25])
    assert text.count("img.shields.io") <= 3
    assert 8 <= len([line for line in python_of(READMES[0]).split("\n") if line.strip()]) <= 20


@pytest.mark.parametrize(("guests", "reply"), [('["owner"]', "built-in demo"), ("[]", "not on the list")])
async def test_the_plugin_of_the_readme_does_what_it_says(tmp_path: Path, guests: str, reply: str) -> None:
    from gateway.cli.chat.send import SendRequest, exchange

    plugin = loaded("guest_list", python_of(READMES[0]), tmp_path).plugin
    file = tmp_path / "trunkline.toml"
    file.write_text(
        f'data_dir = "{tmp_path}"\nmodel = "demo/demo"\n[plugins.guest_list]\nguests = {guests}\n'
    )
    gateway = Gateway(load_settings(file, flags={"server": {"port": 0}}), plugins=[plugin])
    async with gateway.running(), Server(gateway) as server:
        said = await exchange(server.url, None, SendRequest("s", "Hello"))
    assert said.answer is not None
    assert reply in said.answer.text
