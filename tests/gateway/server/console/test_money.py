"""The screen Money: sums, stacked days, groups, budgets and what has no price, in a browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, expect

from gateway.contract.deltas import Tokens
from gateway.contract.messages import now_ms
from gateway.models import Caller, Ledger
from gateway.store import schema as t
from gateway.testing.served import Served, serving
from tests.e2e.page_browser import chat
from tests.gateway.models.test_ledger import NEW
from tests.gateway.server.console.test_frame import FOREIGN, WIDTHS, is_narrow, overlaps, violations

__all__ = ["FOREIGN"]

DAY_MS = 86_400_000
MARKUP = "<img src=x onerror=alert(1)>"
CUT_OFF = """[...document.querySelectorAll(".seg, .spend .table-scroll")]
    .filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.textContent)"""
"""Rows of buttons and tables of which one has to scroll sideways to see all."""
BUDGETS = {
    "all": {"per": "day", "warn": 3, "stop": 4},
    "each": {"scope": "agent", "per": "month", "stop": 20},
}


async def spend(served: Served) -> None:
    """Record calls of three days, and of the period before; one model has no price."""
    ledger = Ledger(served.gateway.parts.store)
    calls = (
        (0, "telegram:ada", "main", "openai", "gpt", 3_500_000_000),
        (1, "telegram:ada", "coder", "openai", "gpt", 2_000_000_000),
        (2, "slack:bob", "coder", "anthropic", "opus", 6_500_000_000),
        (2, "slack:bob", MARKUP, "local", "qwen", None),
        (40, "slack:bob", "coder", "openai", "gpt", 11_000_000_000),
    )
    for days, person, agent, provider, model, nano in calls:
        caller = Caller(person.replace(":", "-"), person.partition(":")[0], person, agent, provider, model)
        ledger.record(None, caller, now_ms() - days * DAY_MS, "counted", Tokens(120_000, 800), nano)
    await served.gateway.parts.store.write()


async def test_money_tells_costs_groups_budgets_and_what_has_no_price(
    browser: Browser, tmp_path: Path
) -> None:
    async with serving(tmp_path, budgets=BUDGETS) as served:
        await spend(served)
        async with chat(browser, f"{served.url}/console/money", connected=False) as page:
            await expect(page.locator(".sum strong")).to_have_text("$12.00")
            await expect(page.locator(".sum")).to_contain_text("9 % more than in the 31 before")
            await expect(page.locator(".sum")).to_contain_text("$3.50 so far today")
            await expect(page.get_by_role("img", name="Cost by day and Provider")).to_be_visible()
            assert await page.locator(".plot rect[data-colour]").count() == 3
            rows = page.get_by_role("table", name="By provider").locator("tbody:not([aria-hidden]) tr")
            await expect(rows).to_have_count(3)
            await expect(rows.nth(0)).to_contain_text("anthropic")
            await expect(rows.nth(0)).to_contain_text("$6.50")
            await expect(rows.nth(1)).to_contain_text("50 %")
            await expect(rows.nth(2)).to_contain_text("no price")
            budgets = page.get_by_role("region", name="Budgets").get_by_role("listitem")
            await expect(budgets.nth(0)).to_contain_text("$3.50 of $4.00")
            await expect(budgets.nth(0)).to_contain_text("Warned.")
            await expect(page.get_by_role("region", name="Not counted")).to_contain_text("local/qwen")
            # The table is the text of the chart: its days add up to the sum.
            await page.get_by_text("Figures of each day").click()
            days = page.get_by_role("table", name="Cost by day").locator("tbody tr")
            assert [
                cells[-1] for cells in [(await row.inner_text()).split("\t") for row in await days.all()]
            ] == [
                "$6.50",
                "$2.00",
                "$3.50",
            ]
            # By the keyboard: group by agent, then look into one of them.
            await page.get_by_role("button", name="Agent", exact=True).press("Enter")
            await expect(page).to_have_url(f"{served.url}/console/money?by=agent")
            agents = page.get_by_role("table", name="By agent")
            await expect(agents.get_by_role("button", name=MARKUP)).to_be_visible()
            assert await page.locator("#main img").count() == 0
            await agents.get_by_role("button", name="coder").press("Enter")
            await expect(page.locator(".sum strong")).to_have_text("$8.50")
            await page.reload()
            await expect(page.locator(".sum strong")).to_have_text("$8.50")
            await page.get_by_role("button", name="Agent: coder").press("Enter")
            await expect(page.locator(".sum strong")).to_have_text("$12.00")
            # One chat alone, from its row among the most expensive.
            dearest = page.get_by_role("region", name="Most expensive conversations").get_by_role("listitem")
            await expect(dearest).to_have_count(2)
            await dearest.filter(has_text="TG").get_by_role("button").press("Enter")
            await expect(page).to_have_url(re.compile("session=telegram-ada"))
            await expect(page.locator(".sum strong")).to_have_text("$5.50")
            await expect(dearest).to_have_count(1)
            await expect(dearest.get_by_role("button")).to_have_count(0)
            await page.get_by_role("button", name="Conversation: telegram-ada").press("Enter")
            await expect(page.locator(".sum strong")).to_have_text("$12.00")
            csv = await page.get_by_role("link", name="CSV").get_attribute("href")
            async with served.http.get(f"{served.url}{csv}") as answer:
                assert (await answer.text()).startswith("day,")


async def test_conversations_of_a_room_are_summed_under_its_name(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        store = served.gateway.parts.store
        await spend(served)

        with store.engine.begin() as connection:
            for session in ("telegram-ada", "slack-bob"):
                row = {"id": session, "channel": "telegram", "address": '{"channel":"telegram","chat":"-1"}'}
                connection.execute(t.sessions.insert().values(**row, **NEW))
            seen = {"id": "1", "channel": "telegram", "account": "", "chat": "-1", "title": "Kitchen"}
            connection.execute(t.room.insert().values(**seen, group=1, seen_at=1))
        async with chat(browser, f"{served.url}/console/money", connected=False) as page:
            await page.get_by_role("button", name="Room", exact=True).press("Enter")
            rooms = page.get_by_role("table", name="By room")
            await expect(rooms.locator("tbody:not([aria-hidden]) tr")).to_have_count(1)
            await expect(rooms).to_contain_text("$12.00")
            await rooms.get_by_role("button", name="Kitchen").press("Enter")
            await expect(page).to_have_url(re.compile("room=telegram%3A-1"))
            await expect(page.locator(".sum strong")).to_have_text("$12.00")
            await expect(page.get_by_role("button", name="Room: Kitchen")).to_be_visible()


async def test_money_is_accessible_in_german_at_every_width(
    browser: Browser, foreign: Path, tmp_path: Path
) -> None:
    axe = (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()
    how: dict[str, Any] = {"locale": "de-AT", "bypass_csp": True}
    async with (
        serving(tmp_path, budgets=BUDGETS) as served,
        chat(browser, f"{served.url}/console/money", connected=False, **how) as page,
    ):
        await expect(page.get_by_text("Kein Modell wurde aufgerufen").first).to_be_visible()
        assert await violations(page, axe) == []
        await spend(served)
        ledger = Ledger(served.gateway.parts.store)
        caller = Caller("slack-bob", "slack", "slack:bob", "coder", "anthropic", "opus")
        for days in range(31):
            ledger.record(None, caller, now_ms() - days * DAY_MS, "counted", Tokens(0, 0), 0)
        await served.gateway.parts.store.write()
        await page.reload()
        await expect(page.locator(".sum strong")).to_have_text("$12,00")
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 800})
            assert await is_narrow(page), width
            assert await page.evaluate(CUT_OFF) == [], width
            assert await overlaps(page, ".days span") == [], width
            if width in (320, 1280):
                assert await violations(page, axe) == [], width
