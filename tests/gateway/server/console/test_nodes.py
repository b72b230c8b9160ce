"""The nodes of a cluster on the screen Now."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect
from sqlalchemy import create_engine, text

from gateway.cluster import advance_rotation, request_drain, resume
from gateway.contract.errors import InvalidStateError
from gateway.testing.served import serving
from tests.e2e.page_browser import chat
from tests.gateway.cluster.nodes import working_beside
from tests.gateway.server.console.test_frame import FOREIGN, WIDTHS, is_narrow, violations
from tests.gateway.server.console.test_login import EYES, OWNER
from tests.gateway.server.console.test_viewers import sign_in

__all__ = ["FOREIGN"]


async def test_the_nodes_are_shown_at_every_width(
    browser: Browser, foreign: Path, tmp_path: Path, postgres_url: str
) -> None:
    axe = (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()
    how: dict[str, Any] = {"bypass_csp": True}
    engine, ahead = create_engine(postgres_url), 0.0
    async with (
        working_beside(tmp_path, postgres_url, clock=lambda: time.time() + ahead) as url,
        chat(browser, f"{url}/console/now", connected=False, expected="api/now", **how) as page,
    ):
        rows = page.get_by_role("region", name="Nodes").get_by_role("listitem")
        await expect(rows).to_have_count(2)
        await expect(rows.first).to_contain_text("one")
        await expect(rows.first).to_contain_text("active since")
        await expect(rows.first).to_contain_text("took over in 750 ms")
        await expect(rows.last).to_contain_text("stands by since")
        with engine.begin() as connection:
            request_drain(connection, "two", "test")
        await expect(rows.last).to_contain_text("hands over since")
        # The page reads the nodes by itself; it is only loaded again to read them sooner.
        with engine.begin() as connection:
            resume(connection, "two", "test")
        await page.reload()
        await expect(rows.last).to_contain_text("stands by since")
        await expect(rows.last).not_to_contain_text("other settings")
        with engine.begin() as connection:
            connection.execute(text("UPDATE node SET settings = '{\"model\": \"0\"}' WHERE name = 'two'"))
        await page.reload()
        await expect(rows.last).to_contain_text("other settings than the active node: ")
        await expect(rows.last).to_contain_text("model")
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 800})
            assert await is_narrow(page), width
            if width in (320, 1280):
                assert await violations(page, axe) == [], width
        ahead = 30.0
        await expect(rows.last).to_contain_text("stands by with a wrong clock since")
        await expect(rows.last).to_contain_text(
            re.compile(r"its clock is (29|30)\.\d s ahead of the database's: synchronize it")
        )
        await expect(rows.last.get_by_role("button")).to_have_count(0)
        for name, refused in {"two": "clock of two is", "one": r"two \(wrong_clock\)"}.items():
            with engine.begin() as connection, pytest.raises(InvalidStateError, match=refused):
                request_drain(connection, name, "test")
        with engine.begin() as connection:
            connection.execute(text("UPDATE node SET revision = '0' WHERE name = 'two'"))
        await page.reload()
        await expect(rows.last).to_contain_text("needs the newer version")
        await expect(rows.last.get_by_role("button")).to_have_count(0)
    engine.dispose()


async def test_without_a_cluster_no_nodes_are_shown(browser: Browser, tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as served,
        chat(browser, f"{served.url}/console/now", connected=False, expected="api/now") as page,
    ):
        await page.goto("about:blank")
        async with page.expect_response("**/api/nodes") as answered:
            await page.goto(f"{served.url}/console/now")
        empty = {"node": "", "nodes": [], "drain_seconds": 20, "rotating": False}
        assert await (await answered.value).json() == empty
        await expect(page.get_by_role("region", name="Queues")).to_be_visible()
        await expect(page.get_by_role("region", name="Nodes")).to_have_count(0)


async def test_an_admin_drains_and_resumes_a_node_by_the_keyboard(
    browser: Browser, foreign: Path, tmp_path: Path, postgres_url: str
) -> None:
    axe = (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()
    how: dict[str, Any] = {"bypass_csp": True}
    async with (
        working_beside(tmp_path, postgres_url) as url,
        chat(browser, f"{url}/console/now", connected=False, expected="api/now", **how) as page,
    ):
        two = page.get_by_role("region", name="Nodes").get_by_role("listitem").last
        await two.get_by_role("button", name="Drain two").focus()
        await page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name="Drain two?")
        await expect(dialog).to_contain_text("two stands by. Another node is active")
        await expect(dialog).to_contain_text("trunkline nodes drain two")
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 800})
            assert await is_narrow(page), width
            if width in (320, 1280):
                assert await violations(page, axe) == [], width
        # The focus is at Cancel, so that Enter alone does nothing.
        await page.keyboard.press("Enter")
        await expect(dialog).to_have_count(0)
        await expect(two.get_by_role("button", name="Drain two")).to_be_focused()
        await expect(two).to_contain_text("stands by since")
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await expect(dialog).to_have_count(0)
        resume_two = two.get_by_role("button", name="Resume two")
        await expect(two).to_contain_text("hands over since")
        await expect(resume_two).to_be_focused()

        one = page.get_by_role("region", name="Nodes").get_by_role("listitem").first
        await one.get_by_role("button", name="Drain one").click()
        dialog = page.get_by_role("dialog", name="Drain one?")
        await expect(dialog).to_contain_text("It finishes running answers within 20 s (limits.drain_seconds)")
        await dialog.get_by_role("button", name="Drain", exact=True).click()
        await expect(dialog.get_by_role("alert")).to_contain_text(
            "no other node could take over from one: two (draining)"
        )
        await page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)
        await expect(one).to_contain_text("active since")

        # Also when the nodes were read again, the focus is where it was.
        await resume_two.focus()
        async with page.expect_response("**/api/nodes"):
            pass
        await expect(resume_two).to_be_focused()
        await page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name="Resume two?")
        await expect(dialog).to_contain_text("trunkline nodes resume two")
        await dialog.get_by_role("button", name="Resume", exact=True).click()
        await expect(two).to_contain_text("stands by since")


async def test_an_admin_replaces_the_certificate_and_sees_when_it_is_done(
    browser: Browser, foreign: Path, tmp_path: Path, postgres_url: str
) -> None:
    axe = (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()
    how: dict[str, Any] = {"bypass_csp": True}
    engine = create_engine(postgres_url)

    def follow() -> bool:
        """Let all nodes do the step that was begun. Return whether it was the last one."""
        with engine.begin() as connection:
            connection.execute(text("UPDATE node SET certificate_step = step FROM cluster"))
            return advance_rotation(connection).is_done

    async with (
        working_beside(tmp_path, postgres_url) as url,
        chat(browser, f"{url}/console/now", connected=False, expected="api/now", **how) as page,
    ):
        card = page.get_by_role("region", name="Nodes")
        button = card.get_by_role("button", name="Replace certificate")
        await button.press("Enter")
        dialog = page.get_by_role("dialog", name="Replace the certificate of the link between nodes?")
        await expect(dialog).to_contain_text("up to 20 s more (limits.drain_seconds)")
        await expect(dialog).to_contain_text("trunkline nodes rotate")
        # The focus is at Cancel, so that Enter alone does nothing.
        await page.keyboard.press("Enter")
        await expect(dialog).to_have_count(0)
        await expect(button).to_be_focused()
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        progress = dialog.get_by_role("status")
        await expect(progress).to_have_text("Replacing the certificate…")
        await expect(dialog.get_by_role("button", name="Close").last).to_be_focused()
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 800})
            assert await is_narrow(page), width
            if width in (320, 1280):
                assert await violations(page, axe) == [], width
        # Who closes the dialog sees it at the button, and finds the progress there.
        await page.keyboard.press("Enter")
        running = card.get_by_role("button", name="Replacing the certificate…")
        await expect(running).to_be_focused()
        await page.keyboard.press("Enter")
        await dialog.get_by_role("button", name="Replace certificate").click()
        await expect(progress).to_contain_text("An earlier replacement was not complete.")
        while not follow():
            pass
        await expect(progress).to_contain_text(
            "All live nodes use the new certificate and refuse the old one."
        )
        await page.keyboard.press("Enter")
        await expect(button).to_be_focused()
    engine.dispose()


async def test_a_viewer_has_no_button_for_a_node(browser: Browser, tmp_path: Path, postgres_url: str) -> None:
    server = f'token = "{OWNER}"\ntokens.eyes = {{ token = "{EYES}", role = "viewer" }}'
    async with (
        working_beside(tmp_path, postgres_url, server) as url,
        chat(browser, f"{url}/console/now", connected=False, expected="api/now") as page,
    ):
        await sign_in(page, EYES)
        nodes = page.get_by_role("region", name="Nodes")
        await expect(nodes.get_by_role("listitem")).to_have_count(2)
        await expect(nodes.get_by_role("button")).to_have_count(0)
        await page.get_by_role("button", name="eyes").click()
        await page.get_by_role("menuitem", name="Sign out").click()
        await sign_in(page, OWNER)
        await expect(nodes.get_by_role("button")).to_have_text(["Replace certificate", "Drain", "Drain"])


async def test_the_dialog_of_a_node_is_in_german(browser: Browser, tmp_path: Path, postgres_url: str) -> None:
    async with (
        working_beside(tmp_path, postgres_url) as url,
        chat(browser, f"{url}/console/now", connected=False, expected="api/now", locale="de") as page,
    ):
        one = page.get_by_role("region", name="Knoten").get_by_role("listitem").first
        await one.get_by_role("button", name="one übergeben lassen").click()
        dialog = page.get_by_role("dialog", name="one übergeben lassen?")
        await expect(dialog).to_contain_text("innerhalb von 20 s (limits.drain_seconds)")
        await expect(dialog).to_contain_text("trunkline nodes drain one")
