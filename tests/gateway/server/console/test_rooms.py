"""The screen Rooms: chats with their settings and the sources of these, for admins and for viewers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, Page, expect

from gateway.access.rooms import ADD_ROOM
from gateway.contract.deltas import Tokens
from gateway.contract.messages import now_ms
from gateway.models import Caller, Ledger
from gateway.settings import load_settings
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.polling_platform import PollingPlatform
from gateway.testing.served import serving
from tests.e2e.page_browser import chat
from tests.gateway.server.console.test_frame import FOREIGN, ROWS, WIDTHS, is_narrow, violations
from tests.gateway.server.console.test_login import EYES, OWNER
from tests.gateway.why.cases import Case, Pier

__all__ = ["FOREIGN"]

MARKUP = "<img src=x onerror=alert(1)>"
SECRET = "Speak like a pirate of the kitchen"
FILE = f"""\
[server]
token = "{OWNER}"

[server.tokens.eyes]
token = "{EYES}"
role = "viewer"

[agents.cook]
description = "Knows the oven"

[channels.line]
allow = ["ada", "ben"]
groups = "reply"

[channels.line.rooms.kitchen]
agent = "cook"
system_prompt = "{SECRET}"
allow = ["cleo-of-the-list"]

[channels.line.rooms.cellar]
enabled = false
"""


@asynccontextmanager
async def house(tmp_path: Path, text: str = FILE) -> AsyncIterator[tuple[Case, Path]]:
    """Yield a gateway whose settings are from a file, with a kitchen that cost something, and the file."""
    file = tmp_path / "trunkline.toml"
    file.write_text(text, encoding="utf-8")
    async with FakeModels() as fake, PollingPlatform() as platform:
        pier = Pier(platform)
        async with serving(tmp_path / "data", pier, fake=fake, file=file) as served:
            case = Case(served, platform, file, pier)
            await case.write("Hello", "ada", "garden", group=True, addressed="mention")
            await case.write("Hello", "ada", "porch")
            kitchen = await case.write("Hello", "cleo-of-the-list", "kitchen", group=True, addressed="reply")
            await case.settled()
            store = served.gateway.parts.store
            session = "line:bot:kitchen"
            caller = Caller(session, "line", "line:ada", "cook", "groq", "oss", message=kitchen.message_id)
            Ledger(store).record(None, caller, now_ms(), "counted", Tokens(1_000, 10), 1_250_000_000)
            old = (ADD_ROOM, ("pigeon:x:attic", "pigeon", "x", "attic", MARKUP, 1, 1_700_000_000_000))
            await store.write(old)
            yield case, file


def headers(token: str) -> dict[str, Any]:
    return {"headers": {"Authorization": f"Bearer {token}"}}


async def test_rooms_have_their_rules_costs_and_sources(tmp_path: Path) -> None:
    async with house(tmp_path) as (case, _file):
        owner, served = headers(OWNER), case.served
        _, listed = await served.ask("GET", "/api/console/rooms", **owner)
        rooms = {(one["channel"], one["chat"]): one for one in listed["rooms"]}
        facts = {
            key: tuple(one[name] for name in ("kind", "state", "agent", "groups", "allow"))
            for key, one in rooms.items()
        }
        assert facts == {
            ("line", "garden"): ("group", "on", "main", "reply", 2),
            ("line", "porch"): ("private", "on", "main", "reply", 2),
            ("line", "kitchen"): ("group", "on", "cook", "reply", 1),
            ("line", "cellar"): ("group", "unseen", "main", "reply", 2),
            ("pigeon", "attic"): ("group", "gone", "main", "mention", 0),
        }
        kitchen = rooms["line", "kitchen"]
        assert kitchen["usd"] == 1.25
        assert kitchen["account"] == "bot"
        assert rooms["line", "cellar"]["seen_at"] is None
        _, used = await served.ask("GET", "/api/console/agents", **owner)
        counts = {one["name"]: one["conversations"] for one in used["agents"]}
        assert (counts["cook"], counts["main"]) == (1, 1)

        async def shown(chat: str) -> tuple[dict[str, tuple[Any, str, bool, bool]], dict[str, Any]]:
            _, found = await served.ask("GET", f"/api/console/room?channel=line&chat={chat}", **owner)
            rows = {
                row["key"].rpartition(".")[2]: (
                    row["value"],
                    Path(row["source"]).name,
                    row["inherited"],
                    row["needs_restart"],
                )
                for row in (*found["settings"], *found["texts"])
            }
            return rows, found

        rows, found = await shown("kitchen")
        assert rows == {
            "enabled": (True, "default", False, True),
            "agent": ("cook", "trunkline.toml:16", False, True),
            "groups": ("reply", "trunkline.toml:13", True, True),
            "envelope": ("full", "default", True, True),
            "context_messages": (20, "default", True, True),
            "tools": (None, "default", False, True),
            "allow": (["cleo-of-the-list"], "trunkline.toml:18", False, True),
            "system_prompt": (SECRET, "trunkline.toml:17", False, True),
        }
        assert [one["session"] for one in found["conversations"]] == ["line:bot:kitchen"]
        assert found["conversations"][0]["usd"] == 1.25
        assert found["fixed"] == ""
        by_key = {row["key"]: row for row in (*found["settings"], *found["texts"])}
        assert by_key["channels.line.rooms.kitchen.groups"]["choices"] == [
            *("command", "reply", "mention", "always")
        ]
        assert by_key["channels.line.rooms.kitchen.agent"]["choices"][:2] == ["main", "cook"]
        allow = by_key["channels.line.rooms.kitchen.allow"]
        assert (allow["kind"], allow["choices"], allow["needs_proof"]) == ("array", [], True)
        rows, _ = await shown("garden")
        assert rows["agent"] == ("main", "default", True, True)
        assert rows["allow"] == (["ada", "ben"], "trunkline.toml:12", True, True)
        assert (await shown("cellar"))[0]["enabled"] == (False, "trunkline.toml:21", False, True)
        status, refusal = await served.ask("GET", "/api/console/room?channel=line&chat=loft", **owner)
        assert (status, "loft" in refusal["message"]) == (404, True)
        _, gone = await served.ask("GET", "/api/console/room?channel=pigeon&chat=attic", **owner)
        assert gone["fixed"] == "channel"


@pytest.mark.parametrize(
    ("named", "key", "enabled"),
    [
        ("", "channels.pigeon.accounts.north.rooms.loft.groups", (False, "trunkline.toml:4")),
        ("[channels.pigeon.rooms.loft]\n", "channels.pigeon.rooms.loft.groups", (True, "default")),
        (
            "[channels.pigeon.rooms.loft]\n[channels.pigeon.accounts.north.rooms.loft]\n",
            "channels.pigeon.accounts.north.rooms.loft.groups",
            (True, "default"),
        ),
    ],
)
async def test_a_room_of_an_account_is_changed_where_its_table_is(
    tmp_path: Path, named: str, key: str, enabled: tuple[bool, str]
) -> None:
    file = tmp_path / "trunkline.toml"
    file.write_text(f"""\
[channels.pigeon]
groups = "command"
[channels.pigeon.rooms]
default = "deny"
[channels.pigeon.accounts.north]
groups = "always"
{named}""")
    async with serving(tmp_path / "data", file=file) as served:
        seen = (ADD_ROOM, ("k", "pigeon.north", "n", "loft", "Loft", 1, now_ms()))
        await served.gateway.parts.store.write(seen)
        _, found = await served.ask("GET", "/api/console/room?channel=pigeon.north&chat=loft")
        rows = {row["key"]: row for row in found["settings"]}
        assert (rows[key]["value"], Path(rows[key]["source"]).name) == ("always", "trunkline.toml:6")
        row = next(row for name, row in rows.items() if name.endswith(".enabled"))
        assert (row["value"], Path(row["source"]).name) == enabled
        assert row["running"] == row["value"]
        _, listed = await served.ask("GET", "/api/console/rooms")
        assert listed["rooms"][0]["chat"] == "loft"


async def sign_in(page: Page, token: str) -> None:
    """Sign in with a token, by the keyboard."""
    await page.get_by_label("Token or code").fill(token)
    await page.keyboard.press("Enter")


async def test_a_room_is_found_and_changed_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    async with (
        house(tmp_path) as (case, file),
        chat(browser, f"{case.served.url}/console/rooms", connected=False) as page,
    ):
        await sign_in(page, OWNER)
        await expect(page.locator(ROWS)).to_have_count(5)
        await expect(page.get_by_text("5 rooms")).to_be_visible()
        gone = page.locator(ROWS).filter(has_text=MARKUP)
        await expect(gone).to_contain_text("channel is gone")
        assert await page.locator("#main img").count() == 0
        await page.get_by_role("searchbox", name="Find a room").fill("kit cook")
        await expect(page.locator(ROWS)).to_have_count(1)
        assert page.url.endswith("/console/rooms?q=kit+cook")
        await page.reload()
        await expect(page.locator(ROWS)).to_have_count(1)
        await page.locator("h1").focus()
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        form = page.get_by_role("region", name="The room", exact=True)
        await expect(form.get_by_role("heading", name="kitchen")).to_be_visible()
        await expect(form).to_contain_text(SECRET)
        await expect(form).to_contain_text("trunkline.toml:16")
        await form.get_by_role("button", name="Change groups").press("Enter")
        dialog = page.get_by_role("dialog", name="channels.line.rooms.kitchen.groups")
        await expect(dialog.get_by_label("New value")).to_have_value('"reply"')
        await dialog.get_by_label("New value").select_option("always")
        await dialog.get_by_role("button", name="Show the change").press("Enter")
        await expect(dialog.get_by_text('+groups = "always"')).to_be_visible()
        await expect(dialog).to_contain_text("trunkline config set channels.line.rooms.kitchen.groups always")
        await expect(dialog.get_by_role("button", name="Save")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(form.get_by_text("waits for the next start")).to_be_visible()
        assert 'groups = "always"' in file.read_text()
        # A change in a terminal meanwhile is not overwritten.
        await form.get_by_role("button", name="Change agent").press("Enter")
        dialog = page.get_by_role("dialog", name="channels.line.rooms.kitchen.agent")
        await dialog.get_by_label("New value").select_option("main")
        await dialog.get_by_role("button", name="Show the change").press("Enter")
        await expect(dialog.get_by_role("button", name="Save")).to_be_focused()
        text = f"{file.read_text()}\n# edited\n"
        file.write_text(text)
        await page.keyboard.press("Enter")
        await expect(dialog.get_by_role("alert")).to_contain_text("was changed meanwhile")
        await page.keyboard.press("Escape")
        assert file.read_text() == text
        link = form.get_by_role("link", name="Hello")
        await expect(link).to_have_attribute(
            "href", f"/console/conversations/{quote('line:bot:kitchen', safe='')}"
        )
        await page.goto(f"{case.served.url}/console/rooms/pigeon/attic")
        await expect(form).to_contain_text("The settings have no table of this channel")
        await expect(form.get_by_role("button")).to_have_count(0)
        await page.goto(f"{case.served.url}/console/rooms/line/loft")
        await expect(form).to_contain_text("There is no such room")


async def test_a_viewer_sees_rooms_without_texts_and_changes_nothing(
    browser: Browser, tmp_path: Path
) -> None:
    async with house(tmp_path) as (case, _file):
        _, found = await case.served.ask(
            "GET", "/api/console/room?channel=line&chat=kitchen", **headers(EYES)
        )
        assert "texts" not in found
        assert "title" not in found["conversations"][0]
        assert SECRET not in str(found)
        assert "cleo-of-the-list" not in str(found)
        assert "trunkline.toml" not in str(found)
        async with chat(browser, f"{case.served.url}/console/rooms", connected=False) as page:
            await sign_in(page, EYES)
            await expect(page.locator(ROWS)).to_have_count(5)
            await page.locator(ROWS).filter(has_text="kitchen").get_by_role("link").press("Enter")
            form = page.get_by_role("region", name="The room", exact=True)
            await expect(form.get_by_role("listitem").filter(has_text="Agent for this room")).to_contain_text(
                "cook"
            )
            await expect(form.get_by_role("button")).to_have_count(0)
            await expect(form.locator("a[href*='/conversations']")).to_have_count(0)
            assert SECRET not in await page.content()
            assert "cleo-of-the-list" not in await page.content()


async def test_rooms_are_accessible_in_german_at_every_width(
    browser: Browser, foreign: Path, tmp_path: Path
) -> None:
    axe = (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()
    how: dict[str, Any] = {"locale": "de-AT", "bypass_csp": True}
    # Without a token the gateway asks for nothing on this machine.
    text = FILE[FILE.index("[agents") :]
    async with (
        house(tmp_path, text) as (case, _file),
        chat(browser, f"{case.served.url}/console/rooms/line/kitchen", connected=False, **how) as page,
    ):
        await expect(page.get_by_role("button", name="allow ändern")).to_be_visible()
        await expect(page.locator(ROWS)).to_have_count(5)
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 800})
            assert await is_narrow(page), width
            if width in (320, 1280):
                assert await violations(page, axe) == [], width
        await page.set_viewport_size({"width": 1280, "height": 800})
        await expect(page.locator(".table-scroll")).to_have_count(1)
        whole = "(table) => table.scrollWidth <= table.clientWidth"
        assert await page.locator(".table-scroll").evaluate(whole), "the column of costs is cut off"


async def test_ten_thousand_rooms_are_windowed(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as served:
        rows = [
            (ADD_ROOM, (f"r{n}", "line", "bot", f"c{n}", f"Room {n}", 1, 1_700_000_000_000 - n))
            for n in range(10_000)
        ]
        await served.gateway.parts.store.write(*rows)
        async with chat(browser, f"{served.url}/console/rooms", connected=False) as page:
            table = page.get_by_role("table", name="Rooms")
            await expect(table).to_have_attribute("aria-rowcount", "10001")
            assert await page.locator(ROWS).count() <= 200
            await expect(page.locator(f"{ROWS}[aria-current]")).to_have_count(0)
            await page.keyboard.press("j")
            await page.keyboard.press("End")
            last = page.locator(ROWS).filter(has=page.locator(":focus"))
            await expect(last).to_contain_text("Room 9999")
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", name="Room 9999")).to_be_visible()
            await expect(last).to_have_attribute("aria-current", "true")
            await page.get_by_role("searchbox", name="Find a room").fill("room 777")
            await expect(table).to_have_attribute("aria-rowcount", "20")


async def test_a_room_is_made_by_an_admin_who_proves_who_it_is(browser: Browser, tmp_path: Path) -> None:
    async with house(tmp_path) as (case, file):
        address = f"{case.served.url}/console/rooms"
        async with chat(browser, address, connected=False) as page:
            await sign_in(page, EYES)
            await expect(page.get_by_role("table", name="Rooms")).to_be_visible()
            assert await page.get_by_role("button", name="New room").count() == 0
            await page.context.clear_cookies()
            await page.reload()
            await sign_in(page, OWNER)
            await page.get_by_role("button", name="New room").press("Enter")
            dialog = page.get_by_role("dialog", name="New room")
            await expect(dialog.get_by_label("Channel")).to_have_value("line")
            await dialog.get_by_label("Chat", exact=True).fill("attic 7")
            await dialog.get_by_label("Agent").fill("cook")
            await dialog.get_by_label("Answers").select_option("always")
            await dialog.get_by_role("button", name="Show the change").press("Enter")
            await expect(dialog.locator("pre")).to_contain_text('+[channels.line.rooms."attic 7"]')
            await expect(dialog).to_contain_text("confirm your identity")
            await page.keyboard.press("Enter")
            await expect(dialog).to_have_count(0)
        text = file.read_text()
        assert '[channels.line.rooms."attic 7"]\nagent = "cook"\ngroups = "always"\n' in text
        assert load_settings(file, environ={}).channels["line"].rooms.named["attic 7"].agent == "cook"
