"""Which changes of settings take effect at once: what the console says is what the gateway does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.contract.plugin import Plugin
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.packages.installer import Installer
from gateway.extensions.confined.plugin import ConfinedPlugin
from gateway.settings import load_settings
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import serving
from tests.gateway.server.console.test_login import Browser, browsing
from tests.gateway.server.console.test_settings import plan, save

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="confinement needs Linux"),
]

MANIFEST = """\
api: 1
name: weather
version: "1.0"
config:
  type: object
  properties:
    days: {type: integer, default: 3}
"""
CODE = "from trunkline_plugin import plugin\n\n\n@plugin\nasync def weather(ctx):\n    return {}\n"
MODULE = """\
from gateway import Plugin


class Counting(Plugin):
    name = "counting"


plugin = Counting()
"""


async def row(browser: Browser, key: str) -> tuple[Any, Any, bool]:
    """Return the value of a setting in the file, the one in effect, and whether a change needs a restart."""
    _, found = await browser.ask("GET", "/api/settings")
    one = next(one for one in found["settings"] if one["key"] == key)
    return one["value"], one["running"], one["needs_restart"]


async def change(browser: Browser, key: str, value: Any) -> tuple[bool, str]:
    """Change a setting; return what the plan said about a restart, and why a plugin did not take it over."""
    planned = await plan(browser, key, value)
    status, outcome = await save(browser, key, value, planned["digest"])
    assert status == 200, outcome
    if not outcome["problem"]:
        assert outcome["needs_restart"] == planned["needs_restart"]
    return planned["needs_restart"], outcome["problem"]


async def test_only_what_the_gateway_reads_again_takes_effect_at_once(tmp_path: Path) -> None:
    file, folder, module = tmp_path / "trunkline.toml", tmp_path / "weather", tmp_path / "counting.py"
    folder.mkdir()
    (folder / "plugin.yml").write_text(MANIFEST)
    (folder / "main.py").write_text(CODE)
    module.write_text(MODULE)
    data = tmp_path / "data"
    file.write_text(f"""\
data_dir = "{data}"
[plugins]
enabled = ["./weather", "./counting.py"]
[plugins.weather]
days = 3
activate_timeout_ms = 60000
[plugins.counting]
step = 1
[agents.desk]
temperature = 0.5
[mcp.shelf]
enabled = false
url = "http://127.0.0.1:1/mcp"
""")
    Installer(Admission(load_settings(file, environ={}, cwd=tmp_path)), {}).approve(
        str(folder), (), "operator"
    )
    async with serving(data, file=file) as served, browsing(served) as browser:
        registry = served.gateway.registry

        def weather() -> ConfinedPlugin | None:
            found: Plugin | None = registry.get("weather")
            assert found is None or isinstance(found, ConfinedPlugin)
            return found

        # A plugin with a manifest is replaced by one with the new value.
        assert await row(browser, "plugins.weather.days") == (3, 3, False)
        assert await change(browser, "plugins.weather.days", 7) == (False, "")
        first = weather()
        assert first is not None
        assert first.made_of[2]["days"] == 7
        assert await row(browser, "plugins.weather.days") == (7, 7, False)
        # A value that it refuses is in the file, and what ran goes on.
        assert "plugins.weather.days" in (await change(browser, "plugins.weather.days", "many"))[1]
        assert weather() is first
        assert await row(browser, "plugins.weather.days") == ("many", 7, False)
        assert await change(browser, "plugins.weather.days", 8) == (False, "")
        # The code of a module is imported once.
        assert await row(browser, "plugins.counting.step") == (1, 1, True)
        assert await change(browser, "plugins.counting.step", 2) == (True, "")
        assert await row(browser, "plugins.counting.step") == (2, 1, True)
        # Plugins start and stop at once.
        assert await change(browser, "plugins.enabled", ["./weather"]) == (False, "")
        assert registry.get("counting") is None
        assert weather() is not None
        assert await row(browser, "plugins.counting.step") == (2, 2, False)
        assert await change(browser, "plugins.enabled", ["./weather", "./counting.py"]) == (False, "")
        assert registry.get("counting") is not None
        assert await row(browser, "plugins.enabled") == (
            ["./weather", "./counting.py"],
            ["./weather", "./counting.py"],
            False,
        )
        # An edit in a terminal waits until the gateway is told, or starts.
        file.write_text(file.read_text().replace('"./weather", ', ""))
        assert (await row(browser, "plugins.enabled"))[:2] == (
            ["./counting.py"],
            ["./counting.py", "./weather"],
        )
        for key, value in (
            ("agents.desk.temperature", 1.5),
            ("mcp.shelf.timeout", 1_000),
            ("plugins.sandbox", "strict"),
            ("history_window", 20_000),
        ):
            before = (await row(browser, key))[1]
            assert await change(browser, key, value) == (True, ""), key
            assert (await row(browser, key))[1:] == (before, True), key
        assert served.gateway.profiles.get("desk").temperature == 0.5


async def test_a_key_takes_effect_with_the_next_call(tmp_path: Path) -> None:
    file = tmp_path / "trunkline.toml"
    async with FakeModels() as fake:
        file.write_text(f"""\
model = "groq/fake-small"
[providers.groq]
base_url = "{fake.openai_url}"
api_key = "first-key-0123456789"
""")
        given = {"model": None, "providers": {}}
        async with (
            serving(tmp_path / "data", fake=fake, file=file, **given) as served,
            browsing(served) as browser,
            served.socket() as client,
        ):

            async def key_of_next_call() -> str:
                await client.say("Hi", session="a")
                await client.until("complete")
                return fake.requests[-1].headers["authorization"]

            assert await key_of_next_call() == "Bearer first-key-0123456789"
            key = "providers.groq.api_key"
            assert (await row(browser, key))[2] is False
            assert await change(browser, key, "second-key-0123456789") == (False, "")
            assert await key_of_next_call() == "Bearer second-key-0123456789"
            assert (await row(browser, "providers.groq.max_retries"))[2] is True
