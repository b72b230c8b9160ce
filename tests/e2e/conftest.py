"""One Chromium for all tests of the web page, which saves a third of their time. They share its loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from playwright.async_api import Browser


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with the shared browser run in its event loop."""
    for item in items:
        if "shared_chromium" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_chromium(chromium_path: Path) -> AsyncIterator[Browser]:
    """A headless browser with a microphone that beeps. As root its own sandbox is not to be had, so it runs
    without."""
    # Only tests that have a Chromium need Playwright.
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium_path, args=["--no-sandbox", "--use-fake-device-for-media-stream"]
        )
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def browser(shared_chromium: Browser) -> AsyncIterator[Browser]:
    """The browser, in which nothing is open; what a test leaves open is closed."""
    yield shared_chromium
    for context in shared_chromium.contexts:
        await context.close()
