"""The nodes of a cluster on the screen Now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect
from sqlalchemy import create_engine, text

from gateway.cluster import request_drain, resume
from gateway.testing.served import serving
from tests.channels.websocket.test_page_axe import violations
from tests.e2e.page_browser import chat
from tests.gateway.cluster.nodes import working_beside
from tests.gateway.server.console.test_frame import FOREIGN, WIDTHS, is_narrow

__all__ = ["FOREIGN"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_nodes_are_shown_at_every_width(
    browser: Browser, foreign: Path, tmp_path: Path, postgres_url: str, scheme: Any
) -> None:
    axe = (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()
    how: dict[str, Any] = {"color_scheme": scheme, "bypass_csp": True}
    engine = create_engine(postgres_url)
    async with (
        working_beside(tmp_path, postgres_url) as url,
        chat(browser, f"{url}/console/now", connected=False, expected="api/now", **how) as page,
    ):
        rows = page.get_by_role("region", name="Nodes").get_by_role("listitem")
        await expect(rows).to_have_count(2)
        await expect(rows.first).to_contain_text("one")
        await expect(rows.first).to_contain_text("works since")
        await expect(rows.first).to_contain_text("took over in 750 ms")
        await expect(rows.last).to_contain_text("stands by since")
        with engine.begin() as connection:
            request_drain(connection, "two", "test")
        await expect(rows.last).to_contain_text("hands over since")
        with engine.begin() as connection:
            resume(connection, "two", "test")
        await expect(rows.last).to_contain_text("stands by since")
        await expect(rows.last).not_to_contain_text("other settings")
        with engine.begin() as connection:
            connection.execute(text("UPDATE node SET settings = '{\"model\": \"0\"}' WHERE name = 'two'"))
        await expect(rows.last).to_contain_text("other settings than the node that works: ")
        await expect(rows.last).to_contain_text("model")
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 800})
            assert await is_narrow(page), width
            if width in (320, 1280):
                assert await violations(page, axe) == [], width
    engine.dispose()


async def test_without_a_cluster_no_nodes_are_shown(browser: Browser, tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as served,
        chat(browser, f"{served.url}/console/now", connected=False, expected="api/now") as page,
    ):
        await page.goto("about:blank")
        async with page.expect_response("**/api/nodes") as answered:
            await page.goto(f"{served.url}/console/now")
        assert await (await answered.value).json() == {"node": "", "nodes": []}
        await expect(page.get_by_role("region", name="Queues")).to_be_visible()
        await expect(page.get_by_role("region", name="Nodes")).to_have_count(0)
