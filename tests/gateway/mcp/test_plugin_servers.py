"""MCP servers of plugins: shown at the installation, started once granted, and gone with their plugin."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gateway import SettingsError
from gateway.app import Gateway
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.packages.installer import Installer
from gateway.plugin_services import read_parts
from gateway.settings import Settings
from gateway.settings.sections import Origin
from gateway.testing.chat import Chat, chatting
from gateway.testing.plugins import approve, running

from .conftest import HOSTILE, server, until, use

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "./server.py", "plain", "."]
GRANT = f"exec:{shlex.join(COMMAND)}"
MANIFEST = "api: 1\nname: kit\nversion: 1.0\ncapabilities: {capabilities}\n"
EXEC = {"exec": {"enabled": True, "allowlist": [shlex.join(COMMAND)]}}
NETWORK = {"network": {"enabled": True, "allowlist": ["mcp.example.org"], "methods": ["GET", "POST"]}}
SERVER = f"[notes]\ncommand = {json.dumps(COMMAND)}\n"


class Desk:
    """A folder with settings, and a plugin that has a server and no code."""

    def __init__(self, root: Path) -> None:
        self.root, self.file, self.folder = root, root / "config/trunkline.toml", root / "kit"
        self.file.parent.mkdir()
        self.file.write_text("")

    def write(self, servers: str = SERVER, capabilities: Any = EXEC) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "plugin.yml").write_text(MANIFEST.replace("{capabilities}", json.dumps(capabilities)))
        (self.folder / "mcp.toml").write_text(servers)
        (self.folder / "server.py").write_bytes(HOSTILE.read_bytes())

    def approve(self, grants: Sequence[str] = ()) -> None:
        settings = Settings(data_dir=self.root / "data").with_origin(Origin(file=self.file))
        admission = Admission(settings, self.root, self.root / "home")
        Installer(admission, {}).approve(str(self.folder), tuple(grants), "operator")

    def processes(self) -> list[Path]:
        """The processes of the server."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if f"{self.folder}/server.py".encode() in path.read_bytes().split(b"\0"):
                    found.append(path)
        return found

    @asynccontextmanager
    async def chat(self, *enabled: Path) -> AsyncGenerator[Chat]:
        desk = self

        class Here(Gateway):
            def __init__(self, settings: Settings, **options: Any) -> None:
                super().__init__(settings.with_origin(Origin(file=desk.file)), **options)

        plugins = {"enabled": [str(each) for each in enabled]}
        rules = {f"kit-notes_{name}": "allow" for name in ("add", "look")} if enabled else {}
        async with chatting(self.root / "data", kind=Here, plugins=plugins, permissions=rules) as chat:
            yield chat


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def tools(chat: Chat) -> set[str]:
    return {tool.name for tool in chat.gateway.registry.get_tools() if tool.name.startswith("kit-")}


async def test_a_server_of_a_plugin_works_once_it_is_granted_and_ends_with_it(desk: Desk) -> None:
    desk.write()
    desk.approve()
    async with desk.chat(desk.folder) as chat:
        assert chat.gateway.registry.get("mcp") is None
    desk.approve([GRANT])
    (desk.root / "private").write_text("secret")
    async with desk.chat(desk.folder) as chat:
        await until(lambda: server(chat, "kit-notes").status.tools)
        assert (await use(chat, "kit-notes_add", a=1, b=2)).output == "3"
        assert "mcp.toml" in (await use(chat, "kit-notes_look", path=str(desk.folder))).output
        refused = (await use(chat, "kit-notes_look", path=str(desk.root / "private"))).output
        assert ("Error" in refused, "secret" in refused) == (True, False)
        assert desk.processes()
        await chat.gateway.registry.unregister("kit")
        assert tools(chat) == set()
        assert "Unknown tool" in (await use(chat, "kit-notes_add", a=1, b=2)).output
        await until(lambda: not desk.processes())


async def test_a_plugin_that_is_replaced_brings_and_takes_its_servers(desk: Desk, tmp_path: Path) -> None:
    desk.write()
    servers = desk.folder / "mcp.toml"
    text = servers.read_text()
    servers.unlink()
    (desk.folder / "commands").mkdir()
    (desk.folder / "commands/hi.md").write_text("Say hi.")
    place = tmp_path / "place"
    place.mkdir()
    async with running(desk.folder, place, permissions={"kit-notes_add": "allow"}) as chat:
        assert chat.gateway.registry.get("mcp") is None
        (place / "plugin/mcp.toml").write_text(text)
        approve(chat.gateway.settings, place / "plugin", [GRANT])
        assert (await chat.gateway.live_plugins.apply("kit", 60)).outcome == "replaced"
        await until(lambda: tools(chat))
        assert (await use(chat, "kit-notes_add", a=1, b=2)).output == "3"
        (place / "plugin/mcp.toml").unlink()
        approve(chat.gateway.settings, place / "plugin")
        assert (await chat.gateway.live_plugins.apply("kit", 60)).outcome == "replaced"
        await until(lambda: not tools(chat))


def test_the_servers_are_shown_before_the_installation(desk: Desk) -> None:
    desk.write(SERVER + '[far]\nurl = "https://mcp.example.org/mcp"\n', EXEC | NETWORK)
    assert read_parts(desk.folder).describe() == [
        "has the MCP server far, which connects to mcp.example.org",
        f"has the MCP server notes, which runs {shlex.join(COMMAND)}",
    ]


@pytest.mark.parametrize(
    ("servers", "capabilities", "said"),
    [
        (SERVER, {}, "in capabilities.exec.allowlist of plugin.yml; add it"),
        (SERVER + 'trust = "full"\n', EXEC, "notes.trust: a server of a plugin has command"),
        (SERVER + "capabilities = {}\n", EXEC, "notes.capabilities: a server of a plugin has command"),
        (
            '[far]\nurl = "https://other.example.org"\n',
            NETWORK,
            "'other.example.org' in capabilities.network",
        ),
        (
            '[far]\nurl = "https://mcp.example.org"\n',
            {"network": {"enabled": True, "allowlist": ["mcp.example.org"]}},
            "needs POST in capabilities.network.methods",
        ),
        ("[notes]\ncommand = []\n", EXEC, "must have either command"),
        ("notes = 1\n", EXEC, "write a table like"),
        ("[notes\n", EXEC, "mcp.toml"),
        ("".join(f'[s{number}]\ncommand = ["x"]\n' for number in range(17)), EXEC, "at most 16"),
    ],
)
async def test_a_mistake_in_the_file_fails_the_plugin(
    desk: Desk, servers: str, capabilities: Any, said: str
) -> None:
    desk.write(servers, capabilities)
    desk.approve()
    with pytest.raises(SettingsError) as raised:
        async with desk.chat(desk.folder):
            pass
    assert said in str(raised.value)
