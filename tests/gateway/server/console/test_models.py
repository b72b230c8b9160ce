"""The screen Models in a browser: replacing a key by keyboard, test calls, and what a viewer sees."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, Route, expect

from gateway.provider_http import HttpProvider
from gateway.testing.fake_models.script import Refusal
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import Served, serving, until
from tests.e2e.page_browser import chat
from tests.gateway.server.console.test_frame import FOREIGN, WIDTHS, is_narrow, violations
from tests.gateway.server.console.test_login import EYES, OWNER
from tests.gateway.server.console.test_settings import forget_proof
from tests.gateway.server.test_providers import NEW, OLD, SERVER, written

__all__ = ["FOREIGN"]

MARKUP = "<img src=x onerror=alert(1)> no such key"


async def sign_in(page: Page, token: str) -> None:
    """Sign in at the console by keyboard."""
    await page.get_by_label("Token or code").fill(token)
    await page.keyboard.press("Enter")


async def test_a_key_that_is_typed_stays_when_the_models_arrive(browser: Browser, tmp_path: Path) -> None:
    typed = asyncio.Event()

    async def hold(route: Route) -> None:
        await typed.wait()
        await route.continue_()

    async with FakeModels(key=NEW) as fake:
        file = written(tmp_path, fake, f'api_key = "{OLD}"')
        async with (
            serving(tmp_path, fake=fake, file=file, providers={}, server=SERVER) as served,
            chat(browser, f"{served.url}/console/models/openai?key=1", connected=False) as page,
        ):
            await page.route("**/api/models", hold)
            await sign_in(page, OWNER)
            field = page.get_by_label("New value of key 1")
            await expect(field).to_be_focused()
            await page.keyboard.type(NEW)
            typed.set()
            options = page.get_by_label("Model", exact=True).locator("option")
            await expect(options.nth(1)).to_be_attached()
            await expect(field).to_have_value(NEW)
            await expect(field).to_be_focused()


async def test_a_key_is_replaced_by_keyboard_from_its_address(browser: Browser, tmp_path: Path) -> None:
    async with FakeModels(key=NEW) as fake:
        file = written(tmp_path, fake, f'api_key = "{OLD}"')
        async with (
            serving(tmp_path, fake=fake, file=file, providers={}, server=SERVER) as served,
            # The request that is repeated after the proof.
            chat(
                browser, f"{served.url}/console/models/openai", connected=False, expected="status of 403"
            ) as page,
        ):
            await sign_in(page, OWNER)
            await expect(page.get_by_role("heading", name="OpenAI")).to_be_visible()
            await page.get_by_role("button", name="Send the test call").press("Enter")
            await expect(page.get_by_role("status")).to_contain_text("OpenAI rejected the API key")
            await forget_proof(served)
            await page.goto(f"{served.url}/console/models/openai?key=key+1")
            field = page.get_by_label("New value of key 1")
            await expect(field).to_be_focused()
            await expect(page.get_by_role("form", name="Replace key 1")).to_contain_text(
                "It is written to trunkline.toml:4. The new key is used from the next call on, without a"
            )
            await field.fill(NEW)
            await page.keyboard.press("Enter")
            proof = page.get_by_role("dialog", name="Confirm that it is you")
            await expect(proof.get_by_label("Token or code")).to_be_focused()
            await page.keyboard.type(OWNER)
            await page.keyboard.press("Enter")
            await expect(page).to_have_url(f"{served.url}/console/models/openai")
            await expect(field).to_have_count(0)
            assert NEW in file.read_text()
            assert NEW not in await page.content()
            await page.get_by_role("button", name="Send the test call").press("Enter")
            await expect(page.get_by_role("status")).to_contain_text("answers")


async def test_a_failed_test_call_shows_the_original_as_text(browser: Browser, tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as served,
        chat(browser, f"{served.url}/console/models", connected=False, expected="status of 500") as page,
    ):
        table = page.get_by_role("table", name="Models to choose from")
        await expect(table.get_by_role("row")).to_have_count(3)
        served.models.then(Refusal(404, MARKUP))
        await page.get_by_role("button", name="openai/fake-small").press("Enter")
        await expect(page).to_have_url(f"{served.url}/console/models/openai?model=openai%2Ffake-small")
        await expect(page.get_by_label("Model", exact=True)).to_have_value("openai/fake-small")
        await page.get_by_role("button", name="Send the test call").press("Enter")
        result = page.get_by_role("status")
        await expect(result).to_contain_text("OpenAI does not have the model fake-small: test another model")
        await page.get_by_text("Original text of the provider").press("Enter")
        await expect(result.locator("pre")).to_contain_text(MARKUP)
        assert await page.locator("#main img").count() == 0
        await page.get_by_role("searchbox", name="Search models").fill("nothing of that name")
        await expect(table).to_have_count(0)
        # Before the first key there is nothing to show beside the table.
        nothing = {"providers": [], "chains": [], "costs": []}
        await page.route("**/api/models/providers", lambda route: route.fulfill(json=nothing))
        await page.goto(f"{served.url}/console/models")
        await expect(page.get_by_text("No provider is set up")).to_be_visible()
        await expect(page.get_by_text("Nothing found")).to_be_hidden()
        # The focus stays with what is read again, whether that fails or not.
        await page.route("**/api/models/providers", lambda route: route.fulfill(status=500, json={}))
        await page.goto(f"{served.url}/console/models")
        again = page.get_by_role("button", name="Try now")
        async with page.expect_response("**/api/models/providers"):
            await again.press("Enter")
        await expect(again).to_be_focused()
        await page.unroute("**/api/models/providers")
        await again.press("Enter")
        await expect(page.get_by_role("region", name="Providers")).to_be_focused()


async def test_a_viewer_sees_states_without_places(browser: Browser, tmp_path: Path) -> None:
    async with (
        serving(tmp_path, server=SERVER) as served,
        chat(browser, f"{served.url}/console/models/openai?key=1", connected=False) as page,
    ):
        await sign_in(page, EYES)
        await expect(page.get_by_role("heading", name="OpenAI")).to_be_visible()
        await expect(page.locator(".key-list")).to_contain_text("key 1 usable")
        assert await page.get_by_role("button", name="Replace the key").count() == 0
        assert await page.locator("input[type=password]").count() == 0
        assert await page.get_by_role("button", name="Send the test call").count() == 0
        assert served.models.url not in await page.content()


@pytest.mark.parametrize(
    ("screen", "button"), [("now", "Ask openai again now"), ("models/openai", "Ask OpenAI again now")]
)
async def test_a_provider_that_waits_is_asked_again_by_keyboard(
    browser: Browser, tmp_path: Path, screen: str, button: str
) -> None:
    async with FakeModels() as fake:
        openai = {"base_url": fake.openai_url, "api_key": "k", "max_retries": 2, "timeout": 600_000}
        async with (
            serving(tmp_path, fake=fake, providers={"openai": openai}, server=SERVER) as served,
            served.socket(token=OWNER) as client,
        ):
            fake.then(Refusal(429, "slow down", {"retry-after": "500"}))
            await client.say("Hi", session="s")
            await until(lambda: held(served))
            async with chat(browser, f"{served.url}/console/{screen}", connected=False) as page:
                await sign_in(page, OWNER)
                await page.get_by_role("button", name=button).press("Enter")
                dialog = page.get_by_role("dialog")
                await expect(dialog).to_contain_text("It reached a rate limit that ends at")
                await expect(dialog).to_contain_text("Calls that wait for it (1) are sent now.")
                assert len(fake.requests) == 1
                await dialog.get_by_role("button", name="Try now").press("Enter")
                await client.until("complete")
                await expect(dialog).to_have_count(0)
                await expect(page.get_by_role("button", name=button)).to_have_count(0)
        assert len(fake.requests) == 2


async def test_a_viewer_asks_no_provider_again(browser: Browser, tmp_path: Path) -> None:
    async with FakeModels() as fake:
        openai = {"base_url": fake.openai_url, "api_key": "k", "max_retries": 2, "timeout": 600_000}
        async with (
            serving(
                tmp_path, fake=fake, providers={"openai": openai}, server=SERVER, limits={"drain_seconds": 0}
            ) as served,
            served.socket(token=OWNER) as client,
            chat(browser, f"{served.url}/console/now", connected=False) as page,
        ):
            fake.then(Refusal(429, "slow down", {"retry-after": "500"}))
            await client.say("Hi", session="s")
            await sign_in(page, EYES)
            await expect(page.get_by_text("waits for its rate limit until")).to_be_visible()
            assert await page.get_by_role("button", name="again").count() == 0


def held(served: Served) -> bool:
    """Return whether a key of the provider waits for a rate limit."""
    made = served.gateway.providers.get("openai")
    return isinstance(made, HttpProvider) and made.limits is not None and made.limits.waiting > 0


async def test_models_are_accessible_in_german_at_every_width(
    browser: Browser, foreign: Path, tmp_path: Path
) -> None:
    axe = (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()
    how: dict[str, Any] = {"locale": "de-AT", "bypass_csp": True}
    async with FakeModels() as fake:
        file = written(tmp_path, fake, f'api_keys = ["{OLD}-1", "{OLD}-2"]')
        async with (
            serving(tmp_path, fake=fake, file=file, providers={}) as served,
            chat(browser, f"{served.url}/console/models/openai?key=2", connected=False, **how) as page,
        ):
            await expect(page.get_by_label("Neuer Wert von key 2")).to_be_visible()
            await expect(page.get_by_role("table", name="Modelle zur Auswahl")).to_be_visible()
            fake.then(Refusal(401, "no"), Refusal(401, "no"))
            await page.get_by_role("button", name="Testaufruf senden").press("Enter")
            await expect(page.get_by_text("Originaltext des Anbieters")).to_be_visible()
            await expect(page.get_by_role("status")).to_contain_text("OpenAI hat den Schlüssel abgelehnt")
            for width in WIDTHS:
                await page.set_viewport_size({"width": width, "height": 800})
                assert await is_narrow(page), width
                if width in (320, 1280):
                    assert await violations(page, axe) == [], width
