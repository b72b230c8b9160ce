"""Opening the web page in a browser, and listening to what it complains about."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Browser, Locator, Page, expect

# What a browser itself reports when a server is gone or refuses; the page cannot keep it from doing so.
_LOST = ("net::ERR_", "WebSocket connection to", "status of 401", "status of 409")


@asynccontextmanager
async def chat(
    browser: Browser, url: str, *, connected: bool = True, expected: str = "", **context: Any
) -> AsyncIterator[Page]:
    """The page at ``url``. Leaving fails on any error, warning or breach of its policy on the console.

    ``expected`` is part of a complaint that the test provokes.
    """
    excused = (*_LOST, expected) if expected else _LOST
    opened = await browser.new_context(**context)
    opened.set_default_timeout(60_000)  # half a minute is too short for two cores with other tests
    page = await opened.new_page()
    complaints: list[str] = []
    page.on(
        "console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    await page.goto(url)
    if connected:
        await expect(connection(page)).to_have_text("Connected")
    yield page
    await opened.close()
    unexpected = [said for said in complaints if not any(sign in said for sign in excused)]
    assert unexpected == [], unexpected


async def say(page: Page, text: str) -> None:
    """Type a message and send it, by the keyboard alone: on a phone Enter breaks the line."""
    await message_field(page).fill(text)
    await page.keyboard.press("Control+Enter")


async def act(page: Page, title: str, action: str) -> None:
    """Open the menu of a conversation and choose an action."""
    row = page.get_by_role("navigation").get_by_role("listitem").filter(has_text=title)
    await row.get_by_role("link").focus()
    await row.get_by_role("button", name=f"Actions for {title}").click()
    await page.get_by_role("menuitem", name=action).click()


async def scroll_list_to(page: Page, title: str) -> None:
    """Scroll the list of conversations down until a row is in the document."""
    await page.evaluate(
        """async (title) => {
            const list = document.querySelector("tl-list");
            const isThere = () => [...list.querySelectorAll(".title")].some((e) => e.textContent === title);
            for (let tries = 0; tries < 2000 && !isThere(); tries++) {
                list.scrollTo(0, list.scrollHeight);
                await new Promise((done) => setTimeout(done, 20));
            }
        }""",
        title,
    )


async def place_of(shown: Locator) -> object:
    """Where something is, once it does not move any more."""
    place = None
    while place != (now := await shown.bounding_box()):
        place = now
        await shown.evaluate("() => new Promise(d => requestAnimationFrame(() => requestAnimationFrame(d)))")
    return place


def message_field(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message")


def answers(page: Page) -> Locator:
    return page.get_by_role("article", name="Assistant")


def questions(page: Page) -> Locator:
    return page.get_by_role("article", name="You")


def words(articles: Locator) -> Locator:
    """What is said in them, without names and figures."""
    return articles.locator(".body")


def connection(page: Page) -> Locator:
    return page.locator(".connection")


def session_of(page: Page) -> str:
    """The session in the page's address."""
    return page.url.rpartition("#/s/")[2]
