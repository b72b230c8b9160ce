"""The routes of sessions, over a real server: one user, whose sessions are those of the token's holder."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.testing.served import Served, serving
from plugins.coding_agents import CodingAgents
from plugins.coding_agents.sessions import Sessions, SpawnRequest
from tests.plugins.coding_agents.rig import end_all, until, until_shown, until_status

pytestmark = pytest.mark.slow

BASE = "/api/coding-agents"


@asynccontextmanager
async def served(tmp_path: Path, **settings: Any) -> AsyncGenerator[tuple[Served, CodingAgents]]:
    plugin = CodingAgents()
    table = {"min_free_memory_mb": 0, **settings}
    async with serving(tmp_path, plugin, plugins={"coding_agents": table}) as one:
        try:
            yield one, plugin
        finally:
            end_all(tmp_path)


async def spawned(one: Served, plugin: CodingAgents, **body: Any) -> tuple[dict[str, Any], Sessions]:
    status, view = await one.ask("POST", BASE, json={"agent": "shell", **body})
    assert status == 200, view
    return view, await plugin.service()


async def test_003_09_a_session_is_started_shown_and_stopped_over_http(tmp_path: Path) -> None:
    async with served(tmp_path) as (one, plugin):
        assert await one.ask("GET", BASE) == (200, {"sessions": []})
        # The names of the seed.
        status, view = await one.ask(
            "POST", BASE, json={"agentType": "bash", "initialTask": "echo over http"}
        )
        assert (status, view["agent"], view["public_status"]) == (200, "shell", "running")
        session = (await plugin.service()).session(view["id"], "owner")
        await until_shown(session, "pty> echo over http", "over http")
        await until(session, lambda: session.record.task_done)
        listed = await one.ask("GET", BASE)
        assert [each["id"] for each in listed[1]["sessions"]] == [view["id"]]
        shown = await one.ask("GET", f"{BASE}/{view['short_id']}")
        assert (shown[0], shown[1]["public_status"]) == (200, "completed")
        send = f"{BASE}/{view['id']}/send"
        await one.ask("POST", send, json={"text": "read -p 'Overwrite it? [y/n] ' answer; echo got $answer"})
        await until_status(session, "blocked")
        asked = await one.ask("GET", f"{BASE}/{view['id']}")
        assert asked[1]["question"]["prompt"] == "Overwrite it? [y/n]"
        await one.ask("POST", send, json={"text": "y"})
        await until_shown(session, "got y")
        stopped = await one.ask("POST", f"{BASE}/{view['id']}/stop", json={"force": True})
        assert (stopped[0], stopped[1]["status"]) == (200, "stopped")


async def test_a_repeated_idempotency_key_starts_and_types_once(tmp_path: Path) -> None:
    async with served(tmp_path) as (one, plugin):
        views = [
            await one.ask("POST", BASE, json={"agent": "shell"}, headers={"Idempotency-Key": "k1"})
            for _ in range(2)
        ]
        assert views[0][1]["id"] == views[1][1]["id"]
        session = (await plugin.service()).session(views[0][1]["id"], "owner")
        await until_status(session, "ready")
        for _ in range(2):
            status, _ = await one.ask(
                "POST",
                f"{BASE}/{session.record.id}/send",
                json={"text": "echo sent >> log"},
                headers={"Idempotency-Key": "k2"},
            )
            assert status == 200
        await until(session, lambda: session.record.task_done)
        typed = await asyncio.to_thread(Path(session.record.workdir, "log").read_text)
        assert typed == "sent\n"


async def test_output_is_bytes_from_an_offset_and_410_for_what_is_gone(tmp_path: Path) -> None:
    async with served(tmp_path) as (one, plugin):
        view, service = await spawned(one, plugin, task="echo one")
        session = service.session(view["id"], "owner")
        await until(session, lambda: session.record.task_done)
        status, output = await one.ask("GET", f"{BASE}/{view['id']}/output?after=0")
        data = base64.b64decode(output["data"])
        assert (status, output["next"]) == (200, len(data))
        assert b"one\r\n" in data
        assert (await one.ask("GET", f"{BASE}/{view['id']}/output?after={output['next']}"))[1]["data"] == ""
        assert (await one.ask("POST", f"{BASE}/{view['id']}/resize", json={"rows": 20, "cols": 90}))[0] == 200
        await session.send_text("stty size")
        await until_shown(session, "20 90")
        await session.stop(force=True)
        status, error = await one.ask("GET", f"{BASE}/{view['id']}/output?after=0")
        assert (status, error["error_name"]) == (410, "OUTPUT_GONE")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("GET", "/output", None),
        ("POST", "/send", {"text": "id"}),
        ("POST", "/stop", {}),
        ("POST", "/resize", {"rows": 1, "cols": 1}),
    ],
)
async def test_a_session_of_another_user_does_not_exist(
    tmp_path: Path, method: str, path: str, body: dict[str, Any] | None
) -> None:
    async with served(tmp_path) as (one, plugin):
        assert (await one.ask(method, f"{BASE}/pty-1-00{path}", json=body))[0] == 404
        service = await plugin.service()
        other = await service.spawn(SpawnRequest(agent="shell", owner="telegram:1"))
        status, error = await one.ask(method, f"{BASE}/{other.id}{path}", json=body)
        assert (status, error["error_name"]) == (404, "SESSION_NOT_FOUND")
        assert await one.ask("GET", BASE) == (200, {"sessions": []})


async def test_refusals_have_their_codes(tmp_path: Path) -> None:
    async with served(tmp_path, max_sessions=1) as (one, plugin):
        view, _ = await spawned(one, plugin)
        send = f"{BASE}/{view['id']}/send"
        found = [
            await one.ask("POST", BASE, json={"agent": "nonesuch"}),
            await one.ask("POST", BASE, json={"agent": "shell"}),
            await one.ask("POST", BASE, json={"agent": "shell", "workdir": "/etc"}),
            await one.ask("POST", send, json={}),
        ]
        assert [(status, error["error_name"]) for status, error in found] == [
            (400, "UNKNOWN_AGENT"),
            (429, "SESSION_LIMIT"),
            (429, "SESSION_LIMIT"),
            (400, "NO_INPUT"),
        ]


async def test_metrics_are_shown_at_both_places(tmp_path: Path) -> None:
    async with served(tmp_path) as (one, plugin):
        view, service = await spawned(one, plugin, task="echo counted")
        session = service.session(view["id"], "owner")
        await until(session, lambda: session.record.task_done)
        status, body = await one.ask("GET", f"{BASE}/metrics")
        assert status == 200
        assert {"sessions", "attach_seconds", "busy_seconds_total"} <= {
            each["name"] for each in body["metrics"]
        }
        async with one.http.get(f"{one.url}/metrics") as response:
            text = await response.text()
        assert 'trunkline_plugin_coding_agents_sessions{agent="shell",status="ready"} 1' in text


def install(folder: Path, name: str, version: str) -> None:
    """Put a program into a folder that only says its version."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\necho {version}\n")
    program.chmod(0o755)


async def test_the_preflight_says_what_is_installed_and_what_confines_it(
    tmp_path: Path,
) -> None:
    install(tmp_path / "bin", "claude", "2.1.330")
    install(tmp_path / "bin", "codex", "9.9.9")
    agents = {name: {"binary": str(tmp_path / "bin" / name)} for name in ("claude", "codex", "gemini")}
    async with served(tmp_path / "data", sandbox="off", agents=agents) as (one, plugin):
        status, report = await one.ask("GET", f"{BASE}/preflight")
        assert status == 200
        found = {each["agent"]: each for each in report["programs"]}
        assert (found["claude"]["found"], found["claude"]["version"]) == (
            str(tmp_path / "bin" / "claude"),
            "2.1.330",
        )
        assert found["claude"]["known"]
        assert not found["codex"]["known"]
        assert "no screens of Codex 9.9.9 are recorded" in found["codex"]["problem"]
        assert "npm install" in found["gemini"]["problem"]
        assert report["git"].endswith("/git")
        assert 'sandbox = "off"' in report["sandbox_problem"]
        # ``trunkline doctor`` names the sandbox, and a program that the settings mention.
        problem = await plugin.find_problem()
        assert 'sandbox = "off"' in problem
        assert "Gemini CLI is not installed" in problem
        assert "Aider" not in problem
        async with one.socket() as client:
            ack = await client.say("/agents check", session="s")
            await client.until(
                lambda frame: frame["type"] == "complete" and frame["message_id"] == ack["answer_id"]
            )
            assert "no screens of Codex 9.9.9 are recorded" in str(client.frames)
