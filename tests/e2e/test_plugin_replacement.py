"""A gateway that is killed while it replaces a plugin: real processes, and every message is answered once."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from gateway.settings import load_settings
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.plugins import approve
from tests.e2e.gateway_process import GatewayProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="confinement needs Linux"),
]

MANIFEST = "api: 1\nname: prompter\nversion: {version}\nhooks: [transform_system_prompt]\n"
CODE = """\
import asyncio, sys
from trunkline_plugin import plugin


@plugin
async def prompter(ctx):
    if {hangs}:
        print("hanging", file=sys.stderr, flush=True)
        await asyncio.sleep(3600)

    async def prompt(text, turn):
        await asyncio.sleep({seconds})
        return "version {version}"

    return {{"hooks": {{"transform_system_prompt": prompt}}}}
"""
SETTINGS = """\
titles = false
[plugins]
enabled = ["./prompter"]
[plugins.prompter]
activate_timeout_ms = "60s"
hook_timeout_ms = "60s"
"""
SESSIONS = [f"s{number}" for number in range(4)]


async def write(home: Path, version: int, *, seconds: float, hangs: bool = False) -> None:
    """Write a version of the plugin, and approve it."""
    folder = home / "prompter"
    folder.mkdir(exist_ok=True)
    (folder / "plugin.yml").write_text(MANIFEST.format(version=version))
    (folder / "main.py").write_text(CODE.format(version=version, seconds=seconds, hangs=hangs))
    settings = load_settings(home / "trunkline.toml", environ={}, cwd=home)
    await asyncio.to_thread(approve, settings, folder)


async def until_hanging(http: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(60):
        while True:
            async with http.get(f"{url}/api/plugins/log?name=prompter") as answer:
                if "hanging" in (await answer.json())["text"]:
                    return
            await asyncio.sleep(0.02)


async def answers(http: aiohttp.ClientSession, url: str, session: str) -> list[str]:
    """Return the answers in a session once the last message has one."""
    async with asyncio.timeout(60):
        while True:
            async with http.get(f"{url}/api/sessions/{session}/messages") as response:
                said = [each["message"] for each in (await response.json())["messages"]]
            if said and said[-1]["role"] == "assistant":
                return [each["parts"][0]["content"] for each in said if each["role"] == "assistant"]
            await asyncio.sleep(0.05)


@pytest.mark.timeout(240)
async def test_001_35_a_gateway_killed_while_it_replaces_a_plugin_answers_each_message_once(
    tmp_path: Path,
) -> None:
    async with FakeModels() as models, GatewayProcess(tmp_path, models.openai_url, SETTINGS) as gateway:
        await write(tmp_path, 1, seconds=3600)
        assert await gateway.start(), gateway.errors
        async with aiohttp.ClientSession() as http:
            for session in SESSIONS:
                url = f"{gateway.url}/api/sessions/{session}/messages"
                async with http.post(url, json={"text": f"for {session}"}) as accepted:
                    assert accepted.status < 300, await accepted.text()
            await write(tmp_path, 2, seconds=0, hangs=True)
            body = {"name": "prompter"}
            replacing = asyncio.ensure_future(http.post(f"{gateway.url}/api/plugins/apply", json=body))
            await until_hanging(http, gateway.url)
            await gateway.stop(signal.SIGKILL)
            (ended,) = await asyncio.gather(replacing, return_exceptions=True)
            # On a slow machine the version may have been given up just before the kill.
            assert isinstance(ended, aiohttp.ClientError) or ended.status == 409
            await write(tmp_path, 3, seconds=0)
            assert await gateway.start(), gateway.errors
            for session in SESSIONS:
                assert await answers(http, gateway.url, session) == [f"You said: for {session}"]
        assert len(models.requests) == len(SESSIONS)
        assert all("version 3" in str(asked.body) for asked in models.requests)
