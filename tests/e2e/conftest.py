"""One Chromium for every test that asks for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest


@pytest.fixture
async def browser(chromium_path: Path) -> AsyncIterator[object]:
    """A headless browser. As root its own sandbox is not to be had, so it runs without."""
    # Only tests that have a Chromium need Playwright.
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium_path, args=["--no-sandbox"])
        yield browser
        await browser.close()
