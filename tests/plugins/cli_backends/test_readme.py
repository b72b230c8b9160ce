"""What the page about coding programs says is so."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from gateway.access.permissions import Permissions
from gateway.contract.provider import ToolDefinition
from gateway.contract.tool import Tool
from gateway.settings import Settings
from plugins.cli_backends import CLIS, CliBackends
from plugins.cli_backends.contract import Code
from plugins.cli_backends.settings import BackendSettings, CliSettings

FOLDER = Path(__file__).parents[3] / "plugins" / "cli_backends"
TEXT = (FOLDER / "README.md").read_text(encoding="utf-8")
TABLES = [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)]


def test_the_example_is_accepted() -> None:
    settings = Settings(**TABLES[0])
    assert settings.plugins.enabled == (CliBackends.name,)
    own = settings.plugin((CliBackends.name,), CliSettings)
    assert own.of("claude-code").model == "sonnet"
    assert own.fallback_plugins == ("codex", "gemini")


def test_the_permissions_do_what_is_said() -> None:
    rules = Settings(**TABLES[1]).permissions
    permissions = Permissions(rules)

    def decided(name: str, text: str) -> str:
        async def never(*_: object) -> str:
            return ""

        tool = Tool(definition=ToolDefinition(name, "", {}), execute=never, match_key=lambda _: text)
        return permissions.decide(tool, {}, ask_by_default=True)

    assert decided("claude-code:Bash", '{"command":"git status","description":"look"}') == "allow"
    assert decided("claude-code:Bash", '{"command":"git status; rm -r .","description":"look"}') == "ask"
    assert decided("claude-code:WebFetch", "{}") == "deny"
    assert decided("gemini:execute", "{}") == "ask"


def test_every_setting_room_program_and_code_is_named() -> None:
    words = set(re.findall(r"[\w.-]+", TEXT))
    assert set(BackendSettings.model_fields) <= {word.rpartition(".")[2] for word in words}
    assert {name for name in CliSettings.model_fields if name not in ("plugins", "plugin_dispatch")} <= words
    assert set(Code.__args__) <= words
    assert {cli.name for cli in CLIS} <= words
    assert all(cli.program.install in TEXT for cli in CLIS)
    rooms = {path.name for path in FOLDER.glob("*.py")} - {"__init__.py"}
    assert sorted(room for room in rooms if f"`{room}`" not in TEXT) == []
