"""The form of a plugin's settings, which the page makes of the schema in its manifest."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.packages.installer import Installer
from gateway.extensions.admission.secrets import PluginSecrets
from gateway.extensions.confined.plugin import ConfinedPlugin
from gateway.settings import load_settings
from gateway.testing.served import serving
from tests.e2e.page_browser import chat

pytestmark = pytest.mark.slow

MANIFEST = """\
api: 1
name: weather
version: "1.0"
description: Tells the <b>weather</b>
secrets: [API_TOKEN]
config:
  type: object
  properties:
    days: {type: integer, default: 3, minimum: 1, description: How far to look}
    city: {type: string, pattern: "^[A-Z]"}
    pin: {type: string, writeOnly: true}
    unit: {enum: [celsius, kelvin], default: celsius}
    loud: {type: boolean, default: true}
    names: {type: array, items: {type: string}}
    server: {type: object, properties: {host: {type: string}}}
    extra: {type: array, default: [1]}
"""
CODE = "from trunkline_plugin import plugin\n\n\n@plugin\nasync def weather(ctx):\n    return {}\n"


@pytest.mark.parametrize("width", [1280, 390])
async def test_the_form_of_a_plugin_is_filled_and_saved(browser: Browser, tmp_path: Path, width: int) -> None:
    file, folder = tmp_path / "trunkline.toml", tmp_path / "weather"
    folder.mkdir()
    (folder / "plugin.yml").write_text(MANIFEST)
    (folder / "main.py").write_text(CODE)
    data = tmp_path / "data"
    file.write_text(f'data_dir = "{data}"\nplugins.enabled = ["./weather"]\nplugins.weather.pin = "1234"\n')
    settings = load_settings(file, environ={}, cwd=tmp_path)
    Installer(Admission(settings), {}).approve(str(folder), (), "operator")
    async with (
        serving(data, file=file) as served,
        chat(browser, served.url, expected="status of 400", viewport={"width": width, "height": 800}) as page,
    ):
        if width < 800:
            await page.get_by_role("button", name="Conversations").click()
        await page.get_by_role("button", name="Settings").click()
        await page.get_by_role("button", name="Plugins").click()
        await page.get_by_role("button", name="weather").click()
        form = page.get_by_role("dialog", name="weather")
        await expect(form.get_by_text("Tells the <b>weather</b>")).to_be_visible()
        await expect(form.get_by_label("days")).to_have_value("3")
        await expect(form.get_by_label("pin")).to_have_attribute("placeholder", "Set; empty keeps it")
        await expect(form.get_by_label("pin")).to_have_value("")
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await form.get_by_label("days").fill("7")
        await form.get_by_label("city").fill("berlin")
        await form.get_by_label("unit").select_option("kelvin")
        await form.get_by_label("loud").uncheck()
        await form.get_by_label("names").fill("Ada\nBob\n")
        await form.get_by_role("group", name="server").get_by_label("host").fill("${HOME}")
        await form.get_by_label("API_TOKEN").fill("t0ps3cret")
        await form.get_by_label("extra").fill("[1,")
        save = form.get_by_role("button", name="Save")
        await save.click()
        await expect(form.get_by_role("alert")).to_have_text("One value is not valid JSON.")
        await form.get_by_label("extra").fill("[1, 2]")
        await save.click()
        await expect(form.get_by_role("alert")).to_contain_text("plugins.weather.city is wrong")
        assert "days" not in tomllib.loads(file.read_text())["plugins"]["weather"]
        await form.get_by_label("city").fill("Berlin")
        await save.click()
        await expect(form.get_by_role("status")).to_have_text("Saved.")
        plugin = served.gateway.registry.get("weather")
        assert isinstance(plugin, ConfinedPlugin)
        assert plugin.made_of[2]["days"] == 7
        await expect(form.get_by_label("API_TOKEN")).to_have_value("")
        assert tomllib.loads(file.read_text())["plugins"]["weather"] == {
            "pin": "1234",
            "days": 7,
            "city": "Berlin",
            "unit": "kelvin",
            "loud": False,
            "names": ["Ada", "Bob"],
            "server": {"host": "$${HOME}"},
            "extra": [1, 2],
        }
        assert PluginSecrets(data).of("weather") == {"API_TOKEN": "t0ps3cret"}
        await form.get_by_label("days").fill("")
        await save.click()
        await expect(form.get_by_label("days")).to_have_value("3")
        assert "days" not in tomllib.loads(file.read_text())["plugins"]["weather"]
        assert "t0ps3cret" not in await page.content()
