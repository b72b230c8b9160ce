"""Tasks: a killed gateway continues them, and the web page shows them folded under their call."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from playwright.async_api import Browser, expect

from gateway.testing.fake_models.script import Gate, Reply, Say, Use, UseTogether
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import serving
from tests.e2e.gateway_process import ROOT, GatewayProcess
from tests.e2e.page_browser import answers, chat, message_field, say, session_of

PLUGIN = '''
import asyncio, os, signal
from pathlib import Path
from gateway import Plugin, tool_from

HERE = Path(__file__).parent

async def note(text: str) -> str:
    """Write a note."""
    with (HERE / "notes").open("a") as notes:
        notes.write(text + "\\n")
    while (HERE / f"wait-in-{text}").exists():
        await asyncio.sleep(0.01)
    if (HERE / f"die-in-{text}").exists():
        (HERE / f"die-in-{text}").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return "noted"

class Notes(Plugin):
    name = "notes"

    def tools(self):
        return [tool_from(note)]

    async def after_tool_exec(self, call, result, ctx):
        if call.name == "task":
            (HERE / "wait-in-two").unlink(missing_ok=True)
        if call.name == "task" and (HERE / "die-after-task").exists():
            (HERE / "die-after-task").unlink()
            os.kill(os.getpid(), signal.SIGKILL)

plugin = Notes()
'''
SETTINGS = """
[plugins]
enabled = ["./notes.py"]
[permissions]
"*" = "allow"
"""


def task(prompt: str, call: str = "call_0") -> Use:
    arguments = {"description": f"Do {prompt}", "prompt": prompt, "agent": "general"}
    return Use("task", json.dumps(arguments), id=call)


def note(text: str) -> Use:
    return Use("note", json.dumps({"text": text}), id=f"note_{text}")


async def read(url: str, path: str) -> Any:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/api/sessions/{path}") as response:
        assert response.status == 200, await response.text()
        return await response.json()


@asynccontextmanager
async def killed(folder: Path, *files: str, replies: Sequence[Reply]) -> AsyncGenerator[GatewayProcess]:
    """Run a gateway that dies in its turn, starts again and answers. ``files`` tell the plugin where.

    The model makes these replies, the last one of which is "All done."; none is asked for twice.
    """
    (folder / "notes.py").write_text(PLUGIN)
    for file in files:
        (folder / file).touch()
    async with FakeModels() as models, GatewayProcess(folder, models.openai_url, SETTINGS) as gateway:
        models.then(*replies, Reply((Say("All done."),)))
        assert await gateway.start()
        async with gateway.client() as client:
            await client.say("go")
            assert await gateway.ended() == -signal.SIGKILL
        assert await gateway.start()
        await _answered(gateway)
        assert len(models.requests) == len(replies) + 1
        yield gateway


async def test_004_t05_a_finished_task_is_not_run_again_after_a_kill(tmp_path: Path) -> None:
    """The gateway dies in a call after the task: its recorded result counts."""
    replies = (
        Reply((task("first"),), "tools"),
        Reply((note("inside"),), "tools"),
        Reply((Say("The inside is noted."),)),
        Reply((note("after"),), "tools"),
    )
    async with killed(tmp_path, "die-in-after", replies=replies) as gateway:
        child = await _check(gateway, ["inside", "after"], "The inside is noted.")
        shown = await _shown(gateway, str((await read(gateway.url, child))["parent"]["session"]))
        assert f"{child}  Do first (@general)" in shown
        assert "The inside is noted." in await _shown(gateway, child)


async def test_004_t05_a_task_that_ended_before_its_result_was_recorded_is_not_run_again(
    tmp_path: Path,
) -> None:
    """The gateway dies between the end of the task and the record of the call: its stored answer counts."""
    replies = (
        Reply((task("first"),), "tools"),
        Reply((note("inside"),), "tools"),
        Reply((Say("The inside is noted."),)),
    )
    async with killed(tmp_path, "die-after-task", replies=replies) as gateway:
        await _check(gateway, ["inside"], "The inside is noted.")


async def test_004_t05_an_unfinished_task_continues_from_its_recorded_steps(tmp_path: Path) -> None:
    """The gateway dies in the second call of the task; the first one is not made again."""
    replies = (
        Reply((task("first"),), "tools"),
        Reply((note("one"),), "tools"),
        Reply((note("two"),), "tools"),
        Reply((Say("Both are noted, I think."),)),
    )
    async with killed(tmp_path, "die-in-two", replies=replies) as gateway:
        child = await _check(gateway, ["one", "two"], "Both are noted, I think.")
        [_, answer] = (await read(gateway.url, f"{child}/messages"))["messages"]
        results = [part for part in answer["message"]["parts"] if part["type"] == "tool_result"]
        assert [part["output"].split(":")[0] for part in results] == ["noted", "Error"]
        assert "Its outcome is unknown" in results[1]["output"]


async def test_a_kill_between_parallel_tasks_repeats_neither(tmp_path: Path) -> None:
    """The gateway dies in one of two parallel tasks, after the other one has ended."""
    replies = (
        Reply((UseTogether((task("first", "call_0"), task("second", "call_1"))),), "tools"),
        Reply((note("one"),), "tools"),
        Reply((note("two"),), "tools"),
        Reply((Say("One is noted."),)),
        Reply((Say("Two, I think."),)),
    )
    async with killed(tmp_path, "die-in-two", "wait-in-two", replies=replies) as gateway:
        assert sorted((tmp_path / "notes").read_text().split()) == ["one", "two"]
        async with aiohttp.ClientSession() as http, http.get(f"{gateway.url}/api/sessions") as response:
            [session] = (await response.json())["sessions"]
        found = (await read(gateway.url, f"{session['id']}/children"))["children"]
        assert [child["messages"] for child in found] == [2, 2]
        log = (await read(gateway.url, f"{session['id']}/messages"))["messages"]
        parts = [part for part in log[-1]["message"]["parts"] if part["type"] == "tool_result"]
        assert [part["tool_call_id"] for part in parts] == ["call_0", "call_1"]
        texts = sorted(part["output"].split("\n")[0] for part in parts)
        assert texts == ["One is noted.", "Two, I think."]


async def _shown(gateway: GatewayProcess, session: str) -> str:
    """What `trunkline sessions show` prints."""
    directory = gateway.data.parent
    command = ("-m", "gateway", "sessions", "show", session, "--config", "trunkline.toml")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        cwd=directory,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(directory)))},
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


async def _answered(gateway: GatewayProcess) -> None:
    """Wait until the only session's answer is complete."""
    async with asyncio.timeout(60):
        while True:
            async with aiohttp.ClientSession() as http, http.get(f"{gateway.url}/api/sessions") as response:
                [session] = (await response.json())["sessions"]
            if session["messages"] == 2 and session["status"] == "idle":
                return
            await asyncio.sleep(0.05)


async def _check(gateway: GatewayProcess, notes: list[str], result: str) -> str:
    """Check what was noted and said, and that there is one task. Return its session."""
    async with aiohttp.ClientSession() as http, http.get(f"{gateway.url}/api/sessions") as response:
        [session] = (await response.json())["sessions"]
    [child] = (await read(gateway.url, f"{session['id']}/children"))["children"]
    assert (child["messages"], child["task"]["root"]) == (2, session["id"])
    assert (gateway.data.parent / "notes").read_text().split() == notes
    log = (await read(gateway.url, f"{session['id']}/messages"))["messages"]
    parts = log[-1]["message"]["parts"]
    assert parts[-1]["content"] == "All done."
    results = [part for part in parts if part["type"] == "tool_result"]
    [done] = [part for part in results if part["tool_call_id"] == "call_0"]
    assert done["output"] == f"{result}\n\n(task session: {child['id']})"
    return str(child["id"])


async def test_004_t05_the_page_shows_a_task_folded_under_its_call(browser: Browser, tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        served.models.then(
            Reply((task("Count the files"),), "tools"),
            Reply((Say("There are **four**"), Gate(gate), Say(" files."))),
            Reply((Say("Four, then."),)),
        )
        await say(page, "go")
        log = page.locator("tl-task")
        await expect(log.get_by_text("There are")).to_have_count(0)
        await log.get_by_text("Steps of the task").click()
        await expect(log.locator("tl-message[data-role=user] .body")).to_have_text("Count the files")
        running = log.locator("tl-message[data-role=assistant]")
        await expect(running.locator(".body")).to_contain_text("four")
        gate.set()
        await expect(running).to_have_attribute("data-status", "done")
        await expect(running.locator(".body")).to_contain_text("There are four files.")
        await expect(page.locator("tl-sidebar li")).to_have_count(1)
        await page.reload()
        await expect(answers(page).last).to_have_attribute("data-status", "done")
        await page.locator("tl-task").get_by_text("Steps of the task").click()
        await expect(page.locator("tl-task strong")).to_have_text("four")
        await page.get_by_role("link", name="Open this task on its own").click()
        await expect(page.get_by_role("heading", name="Do Count the files (@general)")).to_be_visible()
        assert session_of(page).startswith("task-")
        await expect(message_field(page)).to_be_hidden()
        await expect(page.locator("tl-sidebar li")).to_have_count(1)
