"""The screen Agents: where each agent is defined, what uses it, and changes of those in the settings."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, expect

from gateway.contract.deltas import Tokens
from gateway.contract.messages import now_ms
from gateway.models import Caller, Ledger
from gateway.settings import AgentSettings
from gateway.testing.served import Served, serving
from tests.e2e.page_browser import chat
from tests.gateway.server.console.test_frame import FOREIGN, ROWS, WIDTHS, is_narrow, violations
from tests.gateway.server.console.test_login import EYES, OWNER
from tests.gateway.server.console.test_rooms import headers, sign_in

__all__ = ["FOREIGN"]

MARKUP = "<img src=x onerror=alert(1)>"
SECRETS = ("Never name the supplier", "Answer in rhymes", "Count the boxes")
LOGINS = f"""\
[server]
token = "{OWNER}"

[server.tokens.eyes]
token = "{EYES}"
role = "viewer"

"""
FILE = f"""\
temperature = 0.4
system_prompt = "{SECRETS[0]}"
fallback = ["groq"]

{{logins}}[permissions]
calculator = "deny"
"calculator@admin" = "ask"

[agents.desk]
description = "{MARKUP} helps"
model = "openai/fake-large"
tools = ["calculator", "gone_tool"]
system_prompt = "{SECRETS[1]}"

[providers.groq]
api_key = "k"
base_url = "http://127.0.0.1:1/v1"
"""


@asynccontextmanager
async def office(tmp_path: Path, logins: str = LOGINS) -> AsyncIterator[tuple[Served, Path]]:
    """Yield a gateway with agents of the settings, of files and of a folder, and its settings file."""
    file, saved = tmp_path / "trunkline.toml", tmp_path / "data" / "saved_agents"
    file.write_text(FILE.replace("{logins}", logins), encoding="utf-8")
    for folder, name, prompt in ((tmp_path / "agents", "store", SECRETS[2]), (saved, "poet", "Rhyme")):
        folder.mkdir(parents=True)
        (folder / f"{name}.md").write_text(f"---\ndescription: The {name}\nmode: plan\n---\n{prompt}\n")
    async with serving(tmp_path / "data", file=file) as served:
        token = None if not logins else OWNER
        async with served.socket(token=token) as client:
            for session, agent in (("a", "desk"), ("b", "desk"), ("c", None)):
                await client.say("Hi", session=session)
                await client.until("complete")
                if agent:
                    row = (await served.gateway.parts.sessions.find(session)).row
                    row.agent = agent
                    await (await served.gateway.parts.sessions.find(session)).save()
        store = served.gateway.parts.store
        caller = Caller("a", "websocket", "owner", "desk", "openai", "fake-large")
        Ledger(store).record(None, caller, now_ms(), "counted", Tokens(1_000, 10), 2_500_000_000)
        Ledger(store).record(None, caller, now_ms() - 40 * 86_400_000, "counted", Tokens(1, 1), 9_000_000_000)
        await store.write()
        yield served, file


async def agents_of(served: Served, token: str) -> dict[str, dict[str, Any]]:
    status, found = await served.ask("GET", "/api/console/agents", **headers(token))
    assert status == 200, found
    return {one["name"]: one for one in found["agents"]}


async def test_agents_say_where_they_are_from_and_what_they_cost(tmp_path: Path) -> None:
    async with office(tmp_path) as (served, file):
        agents = await agents_of(served, OWNER)
        assert next(iter(agents)) == "main"
        assert {name: (one["origin"], one["place"], one["can_change"]) for name, one in agents.items()} == {
            "main": ("settings", str(file), True),
            "desk": ("settings", str(file), True),
            "store": ("file", str(tmp_path / "agents" / "store.md"), False),
            "poet": ("folder", str(tmp_path / "data" / "saved_agents" / "poet.md"), False),
            "explore": ("built-in", "", False),
            "general": ("built-in", "", False),
            "plan": ("built-in", "", False),
        }
        desk, main = agents["desk"], agents["main"]
        assert (desk["model"], desk["fallback"], desk["tools"]) == (
            "openai/fake-large",
            ["groq"],
            ["calculator", "gone_tool"],
        )
        assert (desk["conversations"], desk["usd"], desk["calls"]) == (2, 2.5, 1)
        assert (main["conversations"], main["model"]) == (1, "openai/fake-small")
        rows = {row["path"][-1]: row for row in desk["settings"]}
        assert {*rows, "system_prompt"} == AgentSettings.model_fields.keys()
        line = 8 + LOGINS.count("\n")

        def source(row: dict[str, Any]) -> tuple[Any, str, bool]:
            return row["value"], Path(row["source"]).name, row["inherited"]

        assert source(rows["model"]) == ("openai/fake-large", f"trunkline.toml:{line + 3}", False)
        assert source(rows["temperature"]) == (0.4, "trunkline.toml:1", True)
        assert source(rows["max_tokens"]) == (None, "default", True)
        assert source(rows["fallback"]) == (["groq"], "trunkline.toml:3", True)
        assert all(row["needs_restart"] for row in rows.values())
        assert source(desk["prompt"]) == (SECRETS[1], f"trunkline.toml:{line + 5}", False)
        assert source(main["prompt"]) == (SECRETS[0], "trunkline.toml:2", False)
        store = {row["path"][-1]: row for row in agents["store"]["settings"]}
        assert source(store["mode"]) == ("plan", "store.md:3", False)
        assert source(agents["store"]["prompt"]) == (SECRETS[2], "store.md:5", False)


async def test_the_rules_of_tools_are_those_of_the_permissions(tmp_path: Path) -> None:
    rules = {"web_fetch": {"https://a.example/*": "allow"}, "*": "deny", "utc_time@admin": "ask"}
    async with serving(tmp_path, permissions=rules, plugins={"enabled": ["web"]}) as served:
        _, found = await served.ask("GET", "/api/console/agents")
        tools = {one["name"]: (one["user"], one["admin"]) for one in found["tools"]}
        assert tools["web_fetch"] == ("patterns", "patterns")
        assert tools["utc_time"] == ("deny", "ask")
        assert tools["calculator"] == ("deny", "deny")
        assert {one["name"] for one in found["tools"] if one["changes_nothing"]} >= {"calculator", "utc_time"}


async def test_an_agent_file_is_read_at_the_start_alone(tmp_path: Path) -> None:
    async with office(tmp_path, "") as (served, _file):
        (tmp_path / "agents" / "store.md").write_text("---\nmode: build\n---\nOther\n")
        (row,) = [
            row for row in (await agents_of(served, "x"))["store"]["settings"] if row["path"][-1] == "mode"
        ]
        assert (row["value"], row["running"], row["needs_restart"]) == ("build", "plan", True)
        assert served.gateway.profiles.get("store").mode == "plan"


async def test_an_agent_is_changed_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    async with (
        office(tmp_path) as (served, file),
        chat(browser, f"{served.url}/console/agents", connected=False) as page,
    ):
        await sign_in(page, OWNER)
        await expect(page.locator(ROWS)).to_have_count(7)
        form = page.get_by_role("region", name="The agent", exact=True)
        await expect(form.get_by_role("heading", name="main")).to_be_visible()
        await page.locator("h1").focus()
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(f"{served.url}/console/agents/desk")
        await expect(form.get_by_role("heading", name="desk")).to_be_visible()
        await expect(page.locator(f"{ROWS}[aria-current]")).to_contain_text("desk")
        await expect(form).to_contain_text(MARKUP)
        assert await page.locator("#main img").count() == 0
        await expect(form.locator("pre")).to_have_text(SECRETS[1])
        rule = form.get_by_role("term").filter(has_text="denied; admins: asks first")
        await expect(rule).to_have_count(1)
        await expect(form.get_by_role("term").filter(has_text="tool does not exist")).to_have_count(1)
        cost = form.get_by_role("link", name="$2.50")
        await expect(cost).to_have_attribute("href", "/console/money?agent=desk&by=model&days=30")
        await form.get_by_role("button", name="Change temperature").press("Enter")
        dialog = page.get_by_role("dialog", name="agents.desk.temperature")
        # The value is that of the main settings, so this key has nothing to reset.
        await expect(dialog.get_by_role("button", name="Use the default")).to_have_count(0)
        await dialog.get_by_label("New value").fill("1.5")
        await page.keyboard.press("Enter")
        await expect(dialog.get_by_text("+temperature = 1.5")).to_be_visible()
        await expect(dialog).to_contain_text("trunkline config set agents.desk.temperature 1.5")
        await expect(dialog.get_by_role("button", name="Save")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(form.get_by_text("waits for the next start")).to_be_visible()
        assert "temperature = 1.5" in file.read_text()
        # A prompt keeps its lines.
        await form.get_by_role("button", name="Change system_prompt").press("Enter")
        dialog = page.get_by_role("dialog", name="agents.desk.system_prompt")
        field = dialog.get_by_label("New value")
        await expect(field).to_be_focused()
        await field.fill("First line\nSecond line")
        await dialog.get_by_role("button", name="Show the change").press("Enter")
        await expect(dialog.get_by_role("button", name="Save")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(form.locator("pre")).to_have_text("First line\nSecond line")
        await page.goto(f"{served.url}/console/agents/store")
        await expect(form).to_contain_text(str(tmp_path / "agents" / "store.md"))
        await expect(form).to_contain_text("Edit this file. The gateway reads it at its next start.")
        await expect(form.get_by_role("button", name="Change")).to_have_count(0)
        await page.goto(f"{served.url}/console/agents/nobody")
        await expect(form).to_contain_text("There is no agent nobody")


async def test_a_viewer_sees_agents_without_prompts_and_changes_nothing(
    browser: Browser, tmp_path: Path
) -> None:
    async with office(tmp_path) as (served, _file):
        agents = await agents_of(served, EYES)
        assert "prompt" not in agents["desk"]
        assert not any(secret in json.dumps(agents) for secret in (*SECRETS, "trunkline.toml", "store.md"))
        async with chat(browser, f"{served.url}/console/agents/desk", connected=False) as page:
            await sign_in(page, EYES)
            form = page.get_by_role("region", name="The agent", exact=True)
            await expect(form.get_by_role("heading", name="desk")).to_be_visible()
            await expect(form).to_contain_text("openai/fake-large")
            await expect(form.get_by_role("button")).to_have_count(0)
            await expect(form.locator("a[href*='/conversations']")).to_have_count(0)
            content = await page.content()
            assert not any(secret in content for secret in SECRETS)


async def test_agents_are_accessible_in_german_at_every_width(
    browser: Browser, foreign: Path, tmp_path: Path
) -> None:
    axe = (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()
    how: dict[str, Any] = {"locale": "de-AT", "bypass_csp": True}
    async with (
        office(tmp_path, "") as (served, _file),
        chat(browser, f"{served.url}/console/agents/desk", connected=False, **how) as page,
    ):
        await expect(page.get_by_role("button", name="model ändern", exact=True)).to_be_visible()
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 800})
            assert await is_narrow(page), width
            if width in (320, 1280):
                assert await violations(page, axe) == [], width


async def test_an_agent_is_made_by_keyboard_and_no_agent_replaced(browser: Browser, tmp_path: Path) -> None:
    async with office(tmp_path, "") as (served, file):
        address = f"{served.url}/console/agents"
        async with chat(browser, address, connected=False, expected="status of 4", locale="de-AT") as page:
            before = file.read_text()
            make = page.get_by_role("button", name="Neuer Agent")
            await make.press("Enter")
            dialog = page.get_by_role("dialog", name="Neuer Agent")
            name = dialog.get_by_label("Name", exact=True)
            await expect(name).to_be_focused()
            for taken in ("desk", "main", "Über"):
                await name.fill(taken)
                assert not await name.evaluate("(field) => field.checkValidity()"), taken
            await name.fill("packer")
            await dialog.get_by_label("Beschreibung").fill(f"{MARKUP} packs")
            await dialog.get_by_label("Werkzeuge").fill("shell")
            await page.keyboard.press("Enter")
            await expect(dialog).to_contain_text("trunkline config set agents.packer")
            await expect(dialog.get_by_role("button", name="Speichern")).to_have_count(0)
            await dialog.get_by_label("Werkzeuge").fill("calculator")
            await page.keyboard.press("Enter")
            await expect(dialog.locator("pre")).to_contain_text("+[agents.packer]")
            await expect(dialog).to_contain_text("trunkline config set agents.packer")
            assert await page.locator("dialog img").count() == 0
            assert file.read_text() == before
            # Another program changes the file while the difference is shown.
            file.write_text(before + "\n# edited\n")
            await expect(dialog.get_by_role("button", name="Speichern")).to_be_focused()
            await page.keyboard.press("Enter")
            await expect(dialog.get_by_role("alert")).to_contain_text("changed meanwhile")
            await dialog.get_by_role("button", name="Änderung zeigen").press("Enter")
            await expect(dialog.get_by_role("button", name="Speichern")).to_be_focused()
            await page.keyboard.press("Enter")
            await expect(dialog).to_have_count(0)
            await expect(make).to_be_focused()
            assert '[agents.packer]\ndescription = "<img' in file.read_text()
            assert 'tools = ["calculator"]' in file.read_text()
        for agent in ("packer", "desk"):
            body = {"path": ["agents", agent], "value": {"description": "x"}, "is_new": True}
            status, refusal = await served.ask("POST", "/api/settings/plan", json=body)
            assert (status, "is already in" in refusal["message"]) == (409, True), refusal
