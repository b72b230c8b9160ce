"""Both pages for people who zoom, need strong colours or no motion: the chat, and all screens of /console."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from gateway.testing.fake_models.script import Refusal
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import serving
from tests.channels.websocket.test_page_axe import violations
from tests.channels.websocket.test_page_pictures import Garden, talk
from tests.e2e.page_browser import answers, chat, message_field, questions, say
from tests.gateway.server.console.test_pictures import live, spend
from tests.gateway.why.cases import line

pytestmark = pytest.mark.slow
FOREIGN = Path(__file__).parents[1] / "channels" / "websocket" / "foreign"

WIDTHS = (320, 390, 768, 1024, 1280, 1440)
ZOOMED: dict[str, Any] = {"viewport": {"width": 640, "height": 400}, "device_scale_factor": 2}
"""A window of 1280 by 800 at 200 %."""
FITS = "document.documentElement.scrollWidth <= innerWidth"
MOVING = """() => [...document.querySelectorAll("*")].filter((one) =>
  ["", "::before", "::after"].some((part) => {
    const { animationName, transitionDuration } = getComputedStyle(one, part || null);
    return animationName !== "none" || transitionDuration.split(", ").some((time) => parseFloat(time) > 0);
  })).map((one) => one.outerHTML.slice(0, 80))
"""
UNSEEN = r"""() => {
  const clear = (colour) => /^rgba\(.*, 0\)$/.test(colour);
  const ground = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const { backgroundColor } = getComputedStyle(at);
      if (!clear(backgroundColor)) return backgroundColor;
    }
    return "rgb(255, 255, 255)";
  };
  const isShown = (one) => one.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  const icons = [...document.querySelectorAll("svg.icon")].filter(
    (one) => getComputedStyle(one).stroke === ground(one.parentElement));
  const marks = [...document.querySelectorAll("i, .tool-mark")].filter((one) => {
    const { borderTopWidth, borderTopColor, backgroundColor } = getComputedStyle(one);
    const under = ground(one.parentElement);
    return (parseFloat(borderTopWidth) === 0 || borderTopColor === under)
      && (clear(backgroundColor) || backgroundColor === under);
  });
  return [...icons, ...marks].filter(isShown).map((one) => one.outerHTML.slice(0, 120));
}
"""


@asynccontextmanager
async def console(tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    """A gateway with something to tell on each screen: its address, and a message without an answer."""
    opened = asyncio.Event()
    async with FakeModels() as first, FakeModels() as second:
        urls = {"openai": first.openai_url, "groq": second.openai_url}
        providers = {name: {"base_url": url, "api_key": "k", "max_retries": 0} for name, url in urls.items()}
        async with line(tmp_path, first, providers=providers, fallback=("groq/fake-small",)) as case:
            await spend(case)
            failed = await live(case, first, second, opened)
            yield case.served.url, failed
            opened.set()
            await case.settled()


async def screens(page: Page) -> list[str]:
    """Return the names of all screens of the console."""
    await expect(page.locator("nav.side")).to_be_attached()
    names = await page.evaluate(
        "import('/console/page/screens.js').then(({ SCREENS }) => SCREENS.map(({ name }) => name))"
    )
    assert len(names) > 5
    return names


async def each_screen(page: Page, url: str, failed: str) -> AsyncIterator[str]:
    """Open each screen of the console, one after the other, when its content is there."""
    for name in await screens(page):
        await page.goto(f"{url}/console/{name}{f'/{failed}' if name == 'why' else ''}")
        await expect(page.locator("h1").first).to_be_visible()
        await expect(page.locator(".loading")).to_have_count(0)
        await expect(page.locator(".screen")).not_to_be_empty()
        yield name


@pytest.fixture
def axe(foreign: Path) -> str:
    """Return the source of axe-core."""
    return (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_on_any_screen(
    browser: Browser, axe: str, tmp_path: Path, scheme: Any
) -> None:
    how: dict[str, Any] = {"bypass_csp": True, "color_scheme": scheme, "connected": False}
    async with console(tmp_path) as (url, failed), chat(browser, f"{url}/console", **how) as page:
        async for name in each_screen(page, url, failed):
            assert await violations(page, axe) == [], name


async def test_every_screen_fits_any_width_and_a_zoom_of_200_percent(
    browser: Browser, tmp_path: Path
) -> None:
    async with console(tmp_path) as (url, failed):
        async with chat(browser, f"{url}/console", connected=False) as page:
            async for name in each_screen(page, url, failed):
                for width in WIDTHS:
                    await page.set_viewport_size({"width": width, "height": 800})
                    assert await page.evaluate(FITS), (name, width)
        async with chat(browser, f"{url}/console", connected=False, **ZOOMED) as page:
            async for name in each_screen(page, url, failed):
                assert await page.evaluate(FITS), name


async def test_no_screen_moves_or_hides_states_when_users_ask_for_that(
    browser: Browser, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"reduced_motion": "reduce", "forced_colors": "active", "connected": False}
    async with console(tmp_path) as (url, failed), chat(browser, f"{url}/console", **how) as page:
        async for name in each_screen(page, url, failed):
            assert await page.evaluate(MOVING) == [], name
            assert await page.evaluate(UNSEEN) == [], name


@asynccontextmanager
async def talked(browser: Browser, tmp_path: Path, **how: Any) -> AsyncIterator[Page]:
    """The chat with versions, a tool and a table; below an error."""
    share = {"enabled": True, "base_url": "http://127.0.0.1"}
    async with (
        FakeModels() as models,
        serving(tmp_path, Garden(), fake=models, share=share) as served,
        chat(browser, served.url, **how) as page,
    ):
        await talk(page, models)
        models.then(Refusal(401, "invalid_api_key"))
        await say(page, "And indoors?")
        await expect(answers(page).locator(".error-part")).to_be_visible()
        yield page


async def each_state(page: Page) -> AsyncIterator[str]:
    """Show each state of the chat, by the keyboard alone."""
    yield "thread"
    for name, role in (("Share…", "dialog"), ("Actions for this conversation", "menu"), ("2 of 2", "menu")):
        await page.get_by_role("button", name=name).press("Enter")
        await expect(page.get_by_role(role)).to_be_visible()
        yield name
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("button", name=name)).to_be_focused()
    picker = page.get_by_role("button", name="Agent and model of this conversation")
    await picker.press("Enter")
    await expect(page.get_by_role("option", name="main")).to_be_visible()
    yield "picker"
    await page.keyboard.press("Escape")
    await expect(picker).to_be_focused()
    await page.keyboard.press("Control+Shift+O")
    await expect(page.get_by_role("heading", name="What can I do for you?")).to_be_visible()
    yield "empty"


async def test_the_chat_fits_any_width_and_a_zoom_of_200_percent(browser: Browser, tmp_path: Path) -> None:
    async with talked(browser, tmp_path, viewport={"width": 1280, "height": 800}) as page:
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 800})
            assert await page.evaluate(FITS), width
        await page.set_viewport_size({"width": 640, "height": 400})
        async for name in each_state(page):
            assert await page.evaluate(FITS), name


async def test_the_chat_does_not_move_or_hide_states_when_users_ask_for_that(
    browser: Browser, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"reduced_motion": "reduce", "forced_colors": "active"}
    async with talked(browser, tmp_path, **how) as page:
        async for name in each_state(page):
            assert await page.evaluate(MOVING) == [], name
            assert await page.evaluate(UNSEEN) == [], name


async def test_the_list_is_resized_by_the_keyboard_and_keeps_its_width(
    browser: Browser, tmp_path: Path
) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        edge = page.get_by_role("separator", name="Width of the list")
        await edge.focus()
        await page.keyboard.press("ArrowRight")
        await expect(edge).to_have_attribute("aria-valuenow", "288")
        await page.keyboard.press("End")
        await expect(edge).to_have_attribute("aria-valuenow", "520")
        await page.reload()
        await expect(edge).to_have_attribute("aria-valuenow", "520")
        assert await page.locator("tl-sidebar nav").evaluate("(one) => one.offsetWidth") == 520


async def test_why_is_asked_about_an_own_message_that_failed(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        served.models.then(Refusal(401, "invalid_api_key: sk-secret"))
        await say(page, "Are you there?")
        error = answers(page).get_by_role("group", name="Error: API key rejected")
        await expect(error).to_contain_text("The operator has to replace the key.")
        await error.get_by_role("button", name="Why?").press("Enter")
        await expect(questions(page).nth(1)).to_contain_text("/why ")
        told = answers(page).nth(1)
        await expect(told).to_contain_text("No answer")
        await expect(told).not_to_contain_text("sk-secret")
        await expect(message_field(page)).to_have_value("")
