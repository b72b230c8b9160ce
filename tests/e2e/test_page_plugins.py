"""What plugins contribute takes effect on the web page: renderers, hints, status line, keys, completions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from gateway import (
    DisplayHints,
    MentionCompletion,
    Message,
    Plugin,
    PluginContext,
    StatusSegment,
    TextPart,
    Tool,
    tool_from,
)
from gateway.api import Display
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.packages.installer import Installer
from gateway.settings import load_settings
from gateway.testing.fake_models.script import Gate, Reply, Say, Use
from gateway.testing.served import serving
from tests.e2e.page_browser import answers, chat, message_field, say, session_of, words

EDGE = "(body) => getComputedStyle(body).borderInlineStartWidth"


class Keeping(Plugin):
    """A plugin that keeps its context, for the test to use."""

    name = "keeping"
    ctx: PluginContext

    async def activate(self, ctx: PluginContext) -> None:
        self.ctx = ctx


def status_line(page: Page) -> Locator:
    return page.get_by_role("status", name="Plugins")


async def test_002_23_a_renderer_writes_the_messages_of_its_type(browser: Browser, tmp_path: Path) -> None:
    plugin = Keeping()
    async with serving(tmp_path, plugin) as served, chat(browser, served.url) as page:
        plugin.ctx.register_message_renderer("weather", lambda message: f"It is **{message.text}**.")
        await say(page, "Hi")
        await expect(answers(page)).to_have_attribute("data-status", "done")
        bus = (await served.gateway.parts.sessions.find(session_of(page))).bus
        bus.append(
            Message(session_id="", role="assistant", parts=(TextPart("raining"),), custom_type="weather")
        )
        await expect(answers(page).nth(1).locator("strong")).to_have_text("raining")
        await page.reload()
        await expect(words(answers(page).nth(1))).to_have_text("It is raining.")


async def test_a_message_has_the_label_and_the_colour_that_its_plugin_chose(
    browser: Browser, tmp_path: Path
) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        await say(page, "Hi")
        await expect(answers(page)).to_have_attribute("data-status", "done")
        bus = (await served.gateway.parts.sessions.find(session_of(page))).bus
        display = Display(badge="slow", prefix="*Note:*", color="yellow")
        bus.append(Message(session_id="", role="assistant", parts=(TextPart("95 s"),), display=display))
        noted = answers(page).nth(1)
        await expect(words(noted)).to_have_text("slow Note: 95 s")
        await expect(noted).to_have_attribute("data-color", "yellow")
        plain, edge = [await answers(page).nth(n).locator(".body").evaluate(EDGE) for n in (0, 1)]
        assert (plain, edge) == ("0px", "3px")
        await page.reload()
        await expect(noted).to_have_attribute("data-color", "yellow")


async def test_002_26_the_status_line_shows_what_plugins_push(browser: Browser, tmp_path: Path) -> None:
    plugin = Keeping()
    async with serving(tmp_path, plugin) as served:
        plugin.ctx.set_status_line([StatusSegment("build failed", color="red")])
        async with chat(browser, served.url) as page:
            await expect(status_line(page).locator("[data-color=red]")).to_have_text("build failed")
            plugin.ctx.set_status_line([StatusSegment("build done", dim=True), StatusSegment("2 open")])
            await expect(status_line(page).locator("span")).to_have_text(["build done", "2 open"])
            plugin.ctx.set_status_line([])
            await expect(status_line(page)).to_be_hidden()


async def test_002_26_the_gateway_tells_how_many_answers_are_being_made(
    browser: Browser, tmp_path: Path
) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        served.models.then(Reply((Say("One, "), Gate(asyncio.Event()))))
        await say(page, "Count")
        await expect(status_line(page)).to_have_text("1 answer being made")
        await page.keyboard.press("Alt+r")
        await expect(status_line(page)).to_be_hidden()
        await page.keyboard.press("Alt+r")
        await expect(status_line(page)).to_have_text("1 answer being made")
        await page.get_by_role("button", name="Stop answering").click()
        await expect(status_line(page)).to_be_hidden()


async def test_the_status_line_is_in_the_language_of_the_page(browser: Browser, tmp_path: Path) -> None:
    plugin = Keeping()
    async with serving(tmp_path, plugin, limits={"drain_seconds": 0}) as served:
        plugin.ctx.set_status_line([StatusSegment("build failed")])
        async with chat(browser, served.url, locale="de-AT", connected=False) as page:
            await expect(status_line(page)).to_have_text("build failed")
            served.models.then(Reply((Say("Eins, "), Gate(asyncio.Event()))))
            await page.get_by_role("textbox", name="Nachricht").fill("Zähle")
            await page.keyboard.press("Enter")
            await expect(status_line(page).locator("span")).to_have_text(
                ["1 Antwort entsteht", "build failed"]
            )


async def test_002_24_a_key_of_a_plugin_is_used_up(browser: Browser, tmp_path: Path) -> None:
    pressed: list[str] = []
    plugin = Keeping()
    async with serving(tmp_path, plugin) as served, chat(browser, served.url) as page:
        remove = plugin.ctx.register_shortcut("ctrl+shift+k", lambda: pressed.append("k"))
        shown: Callable[[], None] = plugin.ctx.register_shortcut("x", lambda: _shown(plugin, pressed))
        plugin.ctx.set_status_line([StatusSegment("ready")])
        await expect(status_line(page)).to_have_text("ready")
        await message_field(page).press("Control+Shift+K")
        await message_field(page).press("x")
        await expect(status_line(page)).to_have_text("x after k")
        await expect(message_field(page)).to_have_value("")
        remove()
        shown()
        plugin.ctx.set_status_line([StatusSegment("gone")])
        await expect(status_line(page)).to_have_text("gone")
        await message_field(page).press("x")
        await expect(message_field(page)).to_have_value("x")


def _shown(plugin: Keeping, pressed: Sequence[str]) -> None:
    plugin.ctx.set_status_line([StatusSegment(f"x after {pressed[-1]}")])


async def test_002_25_a_mention_is_completed_by_the_keyboard(browser: Browser, tmp_path: Path) -> None:
    def people(partial: str) -> list[MentionCompletion]:
        names = ("ada", "alan", "grace")
        return [MentionCompletion(f"@{name}", name, "a person") for name in names if name.startswith(partial)]

    plugin = Keeping()
    async with serving(tmp_path, plugin) as served:
        plugin.ctx.register_mention_provider("@", people)
        async with chat(browser, served.url) as page:
            offers = page.get_by_role("option")
            await message_field(page).press_sequentially("ask @a")
            await expect(offers).to_have_count(2)
            await page.keyboard.press("ArrowDown")
            await expect(page.get_by_role("option", selected=True)).to_contain_text("alan")
            await page.keyboard.press("Enter")
            await expect(message_field(page)).to_have_value("ask @alan ")
            await expect(offers).to_have_count(0)
            await message_field(page).press_sequentially("or @zz")
            await expect(page.get_by_role("listbox", name="Suggestions")).to_be_hidden()
            await page.keyboard.press("Enter")
            await expect(answers(page)).to_have_count(1)


async def test_002_25_agents_are_offered_after_their_command(browser: Browser, tmp_path: Path) -> None:
    agents = {"poet": {"description": "Writes verse"}}
    async with serving(tmp_path, agents=agents) as served, chat(browser, served.url) as page:
        await message_field(page).press_sequentially("/agent po")
        await expect(page.get_by_role("option")).to_have_count(1)
        await expect(page.get_by_role("option")).to_contain_text("Writes verse")
        await page.keyboard.press("Tab")
        await expect(message_field(page)).to_have_value("/agent poet ")
        await page.keyboard.press("Enter")
        await expect(words(answers(page))).to_contain_text("This session now uses the agent poet")


async def test_002_13_the_built_in_tools_show_the_argument_that_counts(
    browser: Browser, tmp_path: Path
) -> None:
    counting = Use("slow_count", '{"delay_ms": 0, "n": 3}')
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        served.models.then(Reply((counting,)), Reply((Say("Done."),)))
        await say(page, "Count")
        await expect(answers(page)).to_have_attribute("data-status", "done")
        await expect(page.locator(".tool-name")).to_have_text("counting")
        await expect(page.locator(".tool-hint")).to_have_text("3")


@pytest.mark.parametrize(
    ("hints", "arguments", "name", "hint"),
    [
        (
            DisplayHints(verb="Edit", kind="diff", fields={"path": "where"}),
            '{"what": "-a\\n+b", "where": "notes.txt"}',
            "Edit",
            "notes.txt",
        ),
        (
            DisplayHints(verb="Run", kind="shell", fields={"command": "what"}),
            '{"what": "ls -l", "where": "/tmp"}',
            "Run",
            "$ ls -l",
        ),
    ],
)
async def test_002_13_display_hints_take_effect(
    browser: Browser, tmp_path: Path, hints: DisplayHints, arguments: str, name: str, hint: str
) -> None:
    class Hinted(Plugin):
        name = "hinted"

        def tools(self) -> Sequence[Tool]:
            async def work(what: str, where: str) -> str:
                """Do some work."""
                return what

            return (tool_from(work, display=hints),)

    allowed = {"work": "allow"}
    async with (
        serving(tmp_path, Hinted(), permissions=allowed) as served,
        chat(browser, served.url) as page,
    ):
        served.models.then(Reply((Use("work", arguments),)), Reply((Say("Done."),)))
        await say(page, "Do it")
        await expect(answers(page)).to_have_attribute("data-status", "done")
        for _ in range(2):
            await expect(page.locator(".tool-name")).to_have_text(name)
            await expect(page.locator(".tool-hint")).to_have_text(hint)
            await page.locator("tl-tool summary").click()
            output = page.get_by_role("group", name="Output")
            if hints.kind == "diff":
                await expect(output.locator(".gd")).to_have_text("-a")
                await expect(output.locator(".gi")).to_have_text("+b")
            else:
                await expect(output).to_have_text("ls -l")
            await page.reload()


DRAWING = """\
from trunkline_plugin import plugin


@plugin
async def weather(ctx):
    async def draw(args, call):
        await ctx.page.status("3 open\\u202e", "red")
        await ctx.page.panel(args or PANEL)
        return "drawn"

    async def clear(args, call):
        await ctx.page.status("")
        await ctx.page.panel("")
        return "cleared"

    return {"commands": [
        {"name": "draw", "description": "Draw", "execute": draw},
        {"name": "clear", "description": "Clear", "execute": clear},
    ]}


PANEL = '''**Rain** <script>window.broken = 1</script> <img src=x onerror="window.broken = 2">

![picture](https://pictures.example.org/x.png)

[link](javascript:window.broken=3)
'''
"""


async def test_a_confined_plugin_fills_its_places_and_they_are_inert(
    browser: Browser, tmp_path: Path
) -> None:
    file, folder, data = tmp_path / "trunkline.toml", tmp_path / "weather", tmp_path / "data"
    folder.mkdir()
    manifest = "api: 1\nname: weather\nversion: 1.0\ncommands: [draw, clear]\npage: [status, panel]\n"
    (folder / "plugin.yml").write_text(manifest)
    (folder / "main.py").write_text(DRAWING)
    patient = '[plugins.weather]\nactivate_timeout_ms = "60s"\n'
    file.write_text(f'data_dir = "{data}"\nplugins.enabled = ["./weather"]\n{patient}')
    settings = load_settings(file, environ={}, cwd=tmp_path)
    Installer(Admission(settings), {}).approve(str(folder), (), "operator")
    async with serving(data, file=file) as served, chat(browser, served.url) as page:
        panels = page.get_by_role("region", name="Panels of plugins")
        await expect(panels).to_be_hidden()
        await say(page, "/draw")
        await expect(status_line(page).locator("[data-color=red]")).to_have_text("weather: 3 open")
        await expect(panels.locator("strong")).to_be_hidden()
        await panels.get_by_text("weather", exact=True).click()
        await expect(panels.locator("strong")).to_have_text("Rain")
        await expect(panels).to_contain_text("<script>window.broken = 1</script>")
        await expect(panels.locator("script, img, a[href^=javascript]")).to_have_count(0)
        assert await page.evaluate("window.broken") is None
        await say(page, "/draw *Sun*")
        await expect(panels.locator("em")).to_have_text("Sun")
        await page.reload()
        await expect(panels).to_be_visible()
        await say(page, "/clear")
        await expect(panels).to_be_hidden()
        await say(page, "/draw")
        await expect(panels).to_be_visible()
        await served.gateway.registry.unregister("weather")
        await expect(panels).to_be_hidden()
        await expect(status_line(page)).to_be_hidden()
