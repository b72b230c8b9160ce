"""A scheduled job of a confined plugin in a real gateway that is killed while the job runs."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from channels.telegram.fake import FakeTelegram
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.packages.installer import Installer
from gateway.settings import load_settings
from gateway.testing.fake_models.server import FakeModels

from .gateway_process import GatewayProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="confinement needs Linux"),
]

MANIFEST = """\
api: 1
name: bell
version: 1.0.0
commands: [follow]
capabilities: {schedule: true, send: true, storage_mb: 1}
schedule: [{name: ring, cron: "0 0 1 1 *", timezone: UTC}]
"""
CODE = """\
import asyncio
from trunkline_plugin import Command, plugin

@plugin
def bell(ctx):
    async def follow(args, call):
        await ctx.kv.set("session", call.session_id)
        return "It rings here."

    async def ring(job):
        if await ctx.kv.get("first") is None:
            await ctx.kv.set("first", job.key)
            await asyncio.Event().wait()
        await ctx.send(await ctx.kv.get("session"), f"ding {job.key}", job.key)
        await ctx.kv.set("rung", job.key)

    return {"commands": [Command("follow", "Ring here", follow)], "schedule": {"ring": ring}}
"""


async def until(found: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(120):
        while not (value := await found()):
            await asyncio.sleep(0.05)
        return value


async def query(gateway: GatewayProcess, statement: str) -> Any:
    async with gateway.database() as engine:
        with engine.begin() as connection:
            found = connection.execute(text(statement))
            return found.first() if found.returns_rows else None


@pytest.mark.timeout(600)
async def test_a_missed_job_runs_once_although_the_gateway_is_killed_during_its_run(tmp_path: Path) -> None:
    (tmp_path / "bell").mkdir()
    (tmp_path / "bell/plugin.yml").write_text(MANIFEST)
    (tmp_path / "bell/main.py").write_text(CODE)
    async with FakeTelegram() as telegram, FakeModels() as models:
        settings = (
            '[plugins]\nenabled = ["./bell"]\n'
            f'[channels.telegram]\ntoken = "{telegram.token}"\napi_base_url = "{telegram.url}"\nallow = "*"\n'
        )
        gateway = GatewayProcess(tmp_path, models.openai_url, settings)
        admission = Admission(load_settings(tmp_path / "trunkline.toml", environ={}, cwd=tmp_path))
        Installer(admission, {}).approve("./bell", ("schedule", "send", "storage"), "cli:test")
        chat = telegram.private("Ada")

        async def said(word: str) -> list[str]:
            return [line for line in telegram.answers(chat) if word in line]

        async def value(key: str) -> Any:
            row = await query(gateway, f"SELECT value FROM plugin_entry WHERE key = '{key}'")
            return None if row is None else json.loads(row[0])

        async with gateway:
            assert await gateway.start()
            telegram.say(chat, "/follow")
            await until(lambda: said("It rings here."))
            assert await gateway.stop() == 0
            # The last 1 January was missed three times.
            await query(gateway, "UPDATE plugin_job SET next_at = 1704067200000")
            assert await gateway.start()
            key = await until(lambda: value("first"))
            assert key == "ring 1704067200000"
            await gateway.stop(signal.SIGKILL)
            claimed = await query(gateway, "SELECT next_at, claimed FROM plugin_job")
            assert claimed[0] == 1704067200000
            assert claimed[1]
            assert await said("ding") == []
            noted = (
                "SELECT id FROM plugin_action WHERE action = 'schedule' AND value = 'ring' AND allowed = 1"
            )
            for _ in range(2):
                assert await gateway.start()
                await until(lambda: said("ding"))
                await until(lambda: value("rung"))
                # The audit log is written soon after the run.
                await until(lambda: query(gateway, noted))
                await gateway.stop(signal.SIGKILL)
            assert await gateway.start()

            async def settled() -> bool:
                row = await query(gateway, "SELECT next_at, claimed FROM plugin_job")
                return row[0] > 1704067200000 and row[1] == ""

            await until(settled)
            assert await said("ding") == ["ding ring 1704067200000"]
            assert await gateway.stop() == 0
        telegram.transcript.check()
