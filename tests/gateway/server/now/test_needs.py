"""What needs a person, of the kinds that need a stranger, a slow database, a broken plugin or a full disk."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.contract.messages import now_ms
from gateway.server.now.needs import Needs, StoredReader, StoredState
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import Served, serving
from tests.gateway.why.cases import line

pytestmark = pytest.mark.slow
GB = 1 << 30


async def need(served: Served, kind: str) -> dict[str, Any]:
    """Return the need of a kind, as soon as there is one."""
    async with asyncio.timeout(60):
        while True:
            _, now = await served.ask("GET", "/api/now")
            found = [one for one in now["needs"] if one["kind"] == kind]
            if found:
                return found[0]
            await asyncio.sleep(0.1)


async def test_a_stranger_waits_to_be_let_in(tmp_path: Path) -> None:
    async with FakeModels() as fake, line(tmp_path, fake) as case:
        began = now_ms()
        await case.write("Let me in", user="eve", chat="porch")
        one = await need(case.served, "pairing")
        assert (one["text"], one["count"]) == ("1 person waits for access", 1)
        assert began <= one["since"] <= now_ms()
        assert one["action"] == {
            "kind": "open",
            "label": "Decide",
            "target": "/console/waiting",
            "command": "trunkline pair list",
        }
        await case.write("Me, too", user="mallory", chat="garden")
        async with asyncio.timeout(60):
            while (await need(case.served, "pairing"))["text"] != "2 people wait for access":
                await asyncio.sleep(0.1)
        # A user who is paired by the code needs no decision any more.
        access = case.served.gateway.parts.access
        for code in await access.pairing.waiting():
            assert (await case.served.ask("POST", "/api/pairs", json={"code": code.code}))[0] == 200
        async with asyncio.timeout(60):
            while any(
                each["kind"] == "pairing" for each in (await case.served.ask("GET", "/api/now"))[1]["needs"]
            ):
                await asyncio.sleep(0.1)


async def test_a_database_that_does_not_commit_is_slow(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        intruder = sqlite3.connect(tmp_path / "trunkline.db", isolation_level=None)
        intruder.execute("BEGIN IMMEDIATE")
        accepted = asyncio.ensure_future(served.ask("POST", "/api/sessions/s/messages", json={"text": "Hi"}))
        one = await need(served, "store")
        intruder.close()
        assert one["text"] == "The database is slow"
        assert one["cause"].startswith("a write has been waiting for ")
        assert (one["action"]["target"], one["action"]["command"]) == (
            "/console/settings",
            "trunkline doctor",
        )
        assert (await accepted)[0] == 202


async def test_a_plugin_that_fails_is_named_with_its_reason(tmp_path: Path) -> None:
    plugins = {"enabled": ["gone"], "gone": {"optional": True}}
    async with serving(tmp_path, plugins=plugins) as served:
        one = await need(served, "plugin")
        assert (one["name"], one["text"]) == ("gone", "The plugin gone failed")
        assert "gone" in one["cause"]
        assert one["action"]["target"] == "/console/plugins/gone"
        assert one["action"]["command"] == "trunkline plugin info gone"


@pytest.mark.parametrize(
    ("free", "whole", "is_full"),
    [
        (GB - 1, 4 * GB, True),
        (GB, 4 * GB, False),
        (9 * GB, 400 * GB, True),
        (9 * GB, 100 * GB, False),
        (11 * GB, 4_000 * GB, False),
        (0, 0, False),
    ],
)
def test_a_disk_is_nearly_full_by_its_free_bytes_and_their_share(
    free: int, whole: int, is_full: bool
) -> None:
    found = Needs().find([], [], [], {}, StoredState(free_bytes=free, disk_bytes=whole), 1_000)
    assert [(one.kind, one.text, one.since) for one in found] == (
        [("disk", "The disk is nearly full", 1_000)] if is_full else []
    )
    if is_full:
        assert found[0].cause == f"{free >> 20:,} MB of {whole >> 20:,} MB are free"
        assert found[0].action.target == "/console/settings"
        assert found[0].action.command == "trunkline doctor"


async def test_the_disk_is_the_one_of_the_data(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        stored = await StoredReader(served.gateway).read()
        assert stored.disk_bytes > stored.free_bytes > 0
        full = replace(stored, free_bytes=1)
        needs = Needs()
        (one,) = needs.find([], [], [], {}, full, 1_000)
        # It has been so since it was first seen.
        (again,) = needs.find([], [], [], {}, full, 9_000)
        assert one.since == again.since == 1_000
