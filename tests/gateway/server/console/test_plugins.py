"""The screen Plugins in a browser: states, settings, the log of a confined plugin, and what a viewer sees."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from gateway.contract.plugin import Plugin
from gateway.mcp import McpPlugin
from gateway.server import Server
from gateway.tables.audit import AuditLog
from gateway.testing.plugins import running
from gateway.testing.served import serving, until
from tests.e2e.page_browser import chat
from tests.gateway.mcp.conftest import Servers
from tests.gateway.server.console.test_frame import FOREIGN, WIDTHS, is_narrow, violations
from tests.gateway.server.console.test_login import EYES, OWNER, SERVER

__all__ = ["FOREIGN"]

MARKUP = "<img src=x onerror=alert(1)>"
MANIFEST = """\
api: 1
name: greeter
version: 1.0
description: Greets people.
commands: [greet]
capabilities:
  messages: read
config:
  properties:
    greeting: {type: string, title: Greeting, default: Hello}
"""
CODE = f"""\
import sys
from trunkline_plugin import plugin


@plugin
async def greeter(ctx):
    async def greet(args, call):
        print("greeted {MARKUP}", file=sys.stderr, flush=True)
        return "hello"

    return {{"commands": [{{"name": "greet", "description": "Greet", "execute": greet}}]}}
"""


class Beacon(Plugin):
    """A plugin with a hook."""

    name = "beacon"
    version = "2.1.0"

    async def transform_system_prompt(self, prompt: str, ctx: Any) -> str:
        return prompt


async def sign_in(page: Page, token: str) -> None:
    """Sign in at the console by keyboard."""
    await page.get_by_label("Token or code").fill(token)
    await page.keyboard.press("Enter")


@pytest.mark.skipif(sys.platform != "linux", reason="confinement needs Linux")
async def test_a_confined_plugin_is_shown_with_its_rights_log_and_settings(
    browser: Browser, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "plugin.yml").write_text(MANIFEST)
    (source / "main.py").write_text(CODE)
    async with (
        running(source, tmp_path, options={"activate_timeout_ms": 60_000}, server={"port": 0}) as talk,
        Server(talk.gateway) as server,
        chat(
            browser, f"{server.url}/console/plugins/greeter", connected=False, expected="status of 4"
        ) as page,
    ):
        panel = page.get_by_role("region", name="greeter")
        await expect(panel).to_contain_text("Greets people.")
        await expect(panel).to_contain_text("confined")
        await expect(panel).to_contain_text("messages:read")
        await expect(panel).to_contain_text("/greet")
        await talk.say("/greet one")
        await page.reload()
        await expect(panel.get_by_role("table", name="Calls since the start")).to_contain_text("greet")
        await panel.get_by_role("button", name="Log").press("Enter")
        await expect(page.get_by_role("dialog").locator("pre")).to_contain_text(f"greeted {MARKUP}")
        assert await page.locator("dialog img").count() == 0
        await page.keyboard.press("Escape")
        await panel.get_by_role("button", name="Its settings").press("Enter")
        form = page.get_by_role("dialog", name="greeter")
        await form.get_by_label("Greeting").fill("Ahoy")
        await page.keyboard.press("Enter")
        # This gateway has its settings from a JSON file, which no command and no page edits.
        await expect(form.get_by_role("alert")).to_contain_text("only TOML files are edited")
        await page.keyboard.press("Escape")
        # A dialog that closes gives the focus back.
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await expect(panel.get_by_role("button", name="Its settings")).to_be_focused()
        await panel.get_by_role("button", name="Give all rights").press("Enter")
        await expect(page.get_by_role("dialog")).to_contain_text(
            "trunkline config set plugins.greeter.trust full"
        )


@pytest.mark.skipif(sys.platform != "linux", reason="confinement needs Linux")
async def test_a_plugin_is_confined_changed_applied_and_disabled(browser: Browser, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "plugin.yml").write_text(MANIFEST)
    (source / "main.py").write_text(CODE)
    file = tmp_path / "trunkline.toml"
    options = {"activate_timeout_ms": 60_000, "trust": "full"}
    async with (
        running(source, tmp_path, options=options, edited=True, server={"port": 0}) as talk,
        Server(talk.gateway) as server,
        chat(browser, f"{server.url}/console/plugins/greeter", connected=False) as page,
    ):
        panel, dialog = page.get_by_role("region", name="greeter"), page.get_by_role("dialog")
        await panel.get_by_role("button", name="Confine").press("Enter")
        await dialog.get_by_role("button", name="Show the change").press("Enter")
        await dialog.get_by_role("button", name="Save").press("Enter")
        await expect(dialog).to_have_count(0)
        await expect(panel).to_contain_text("messages:read")
        await expect(panel.get_by_role("button", name="Give all rights")).to_be_visible()
        assert 'trust = "sandbox"' in file.read_text()
        await panel.get_by_role("button", name="Its settings").press("Enter")
        await dialog.get_by_label("Greeting").fill("Ahoy")
        await page.keyboard.press("Enter")
        await expect(dialog.get_by_role("status")).to_contain_text("Saved")
        assert 'greeting = "Ahoy"' in file.read_text()
        await page.keyboard.press("Escape")
        await panel.get_by_role("button", name="Apply again").press("Enter")
        await expect(page.locator("body")).to_contain_text("greeter: ")
        await panel.get_by_role("button", name="Disable").press("Enter")
        await dialog.get_by_role("button", name="Show the change").press("Enter")
        await dialog.get_by_role("button", name="Save").press("Enter")
        await expect(dialog).to_have_count(0)
        # Its entry is a path, which only the settings know.
        assert 'disabled = ["greeter"]' in file.read_text()
        assert talk.gateway.registry.get("greeter") is None
        await panel.get_by_role("button", name="Enable").press("Enter")
        await dialog.get_by_role("button", name="Show the change").press("Enter")
        await dialog.get_by_role("button", name="Save").press("Enter")
        await expect(dialog).to_have_count(0)
        await expect(panel.get_by_role("button", name="Disable")).to_be_visible()
        assert "disabled = []" in file.read_text()
        assert talk.gateway.registry.get("greeter") is not None
        log = (await AuditLog(talk.gateway.parts.store).page()).rows
        assert {"plugins.settings.done", "plugins.apply.done", "settings.change.done"} <= {
            row.action for row in log
        }


async def test_mcp_servers_show_their_tools_to_admins_and_their_states_to_viewers(
    browser: Browser, tmp_path: Path
) -> None:
    servers = Servers(tmp_path)
    async with (
        serving(tmp_path / "data", mcp={"demo": servers.settings()}, server=SERVER) as served,
        chat(browser, f"{served.url}/console/plugins", connected=False) as page,
    ):
        found = served.gateway.registry.get("mcp")
        assert isinstance(found, McpPlugin)
        await until(lambda: bool(found.server("demo").status.tools or found.server("demo").problem))
        await sign_in(page, OWNER)
        row = page.get_by_role("table", name="List of MCP servers").get_by_role("row").filter(has_text="demo")
        await expect(row).to_contain_text("3")
        await row.get_by_role("button").press("Enter")
        await expect(page.get_by_role("dialog", name="demo")).to_contain_text("add")
        await page.keyboard.press("Escape")
        await page.context.clear_cookies()
        await page.reload()
        await sign_in(page, EYES)
        await expect(row).to_contain_text("demo")
        await expect(row).to_contain_text("3")
        assert await row.get_by_role("button").count() == 0
        eyes = {"headers": {"Authorization": f"Bearer {EYES}"}}
        _, states = await served.ask("GET", "/api/plugins/states", **eyes)
        assert [{*one} for one in states["servers"]] == [{"name", "state", "tools", "waiting"}]
        assert str(servers.folder) not in str(states)
        assert (await served.ask("GET", "/api/plugins/mcp/servers", **eyes))[0] == 403


async def test_plugins_by_keyboard_and_for_a_viewer(browser: Browser, tmp_path: Path) -> None:
    async with (
        serving(tmp_path, Beacon(), server=SERVER) as served,
        chat(browser, f"{served.url}/console/plugins", connected=False) as page,
    ):
        served.gateway.activator.failed["broken"] = f"cannot start: {MARKUP}"
        await sign_in(page, OWNER)
        table = page.get_by_role("table", name="List of plugins")
        await expect(table.get_by_role("row").filter(has_text="beacon")).to_contain_text("runs")
        await page.get_by_role("link", name="broken").press("Enter")
        await expect(page).to_have_url(f"{served.url}/console/plugins/broken")
        await expect(page.get_by_role("region", name="broken")).to_contain_text(MARKUP)
        assert await page.locator("#main img").count() == 0
        await page.get_by_role("link", name="beacon").press("Enter")
        await expect(page.get_by_role("region", name="beacon")).to_contain_text("transform_system_prompt")
        await page.context.clear_cookies()
        await page.reload()
        await sign_in(page, EYES)
        panel = page.get_by_role("region", name="beacon")
        await expect(panel).to_contain_text("runs")
        assert await panel.get_by_role("button").count() == 0


async def test_plugins_are_accessible_in_german_at_every_width(
    browser: Browser, foreign: Path, tmp_path: Path
) -> None:
    axe = (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()
    how: dict[str, Any] = {"locale": "de-AT", "bypass_csp": True}
    async with (
        serving(tmp_path, Beacon()) as served,
        chat(browser, f"{served.url}/console/plugins/beacon", connected=False, **how) as page,
    ):
        served.gateway.activator.failed["broken"] = "cannot start: " + "x" * 300
        await page.reload()
        await expect(page.get_by_role("region", name="beacon")).to_contain_text("läuft")
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 800})
            assert await is_narrow(page), width
            if width in (320, 1280):
                assert await violations(page, axe) == [], width
