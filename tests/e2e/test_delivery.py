"""Accepted once, answered once: with real processes that are killed, stopped, starved and locked out."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy import create_engine, make_url, select, text, update

from gateway.contract.messages import Message
from gateway.session.log import read_messages
from gateway.settings import Settings
from gateway.store import schema as t
from gateway.testing.fake_models.script import Reply, Say, Stall, Use, paced
from gateway.testing.fake_models.server import FakeModels
from tests.e2e.gateway_process import GatewayProcess

POISON = """
import os
from gateway import Plugin

class Poison(Plugin):
    name = "poison"

    async def transform_user_input(self, text, ctx):
        if "poison" in text:
            os.abort()

plugin = Poison()
"""

FRAGILE = """
import os, signal
from pathlib import Path
from gateway import Plugin, tool_from

async def launch() -> str:
    '''Launch it.'''
    with Path("launches").open("a") as launches:
        launches.write("launched\\n")
    os.kill(os.getpid(), signal.SIGKILL)
    return "launched"

class Fragile(Plugin):
    name = "fragile"

    def tools(self):
        return (tool_from(launch),)

plugin = Fragile()
"""


FRAGILE_SETTINGS = 'plugins.enabled = ["fragile"]\npermissions.launch = "allow"'

GUARDED = """
import asyncio
from pathlib import Path
from gateway import Plugin, tool_from

async def launch(site: str) -> str:
    '''Launch it.'''
    with Path("launches").open("a") as launches:
        launches.write("launched\\n")
    return "launched"

class Guarded(Plugin):
    name = "guarded"

    def tools(self):
        return (tool_from(launch, match_key=lambda arguments: arguments["site"]),)

    async def before_tool_exec(self, call, ctx):
        while Path("hold").exists():
            await asyncio.sleep(0.01)

plugin = Guarded()
"""


@pytest.fixture
async def models() -> AsyncGenerator[FakeModels]:
    async with FakeModels() as fake:
        yield fake


async def rows(gateway: GatewayProcess, table: Any) -> list[dict[str, Any]]:
    async with gateway.database() as engine:
        with engine.connect() as connection:
            return [dict(row) for row in connection.execute(select(table)).mappings()]


async def log(gateway: GatewayProcess, session: str) -> list[Message]:
    async with gateway.database() as engine:
        with engine.connect() as connection:
            return [message for _, message in read_messages(connection, session)]


def said(message: Message) -> str:
    return "".join(getattr(part, "content", "") for part in message.parts)


async def all_settled(gateway: GatewayProcess) -> list[dict[str, Any]]:
    """The inbox, once nothing in it is open."""
    async with asyncio.timeout(60):
        while True:
            found = await rows(gateway, t.inbox)
            if all(row["state"] != "new" for row in found):
                return found
            await asyncio.sleep(0.05)


@pytest.mark.timeout(120)
async def test_a_message_that_kills_the_gateway_becomes_a_dead_letter(
    tmp_path: Path, models: FakeModels
) -> None:
    (tmp_path / "poison.py").write_text(POISON)
    settings = 'plugins.enabled = ["poison"]\nlimits.max_attempts = 3'
    async with GatewayProcess(tmp_path, models.openai_url, settings) as gateway:
        assert await gateway.start()
        async with gateway.client() as client:
            await client.send(type="message", client_msg_id="1", session="s", text="poison")
            await client.send(type="message", client_msg_id="2", session="s", text="hello")
            assert await gateway.ended() == -signal.SIGABRT
        for _ in range(2):
            assert not await gateway.start() or not await _survives(gateway)
        assert await gateway.start()
        async with gateway.client() as client:
            await client.say("hello", session="s", client_msg_id="2")
            found = await all_settled(gateway)
        assert [(row["dedup_key"].split(":")[-1], row["state"]) for row in found] == [
            ("1", "dead"),
            ("2", "done"),
        ]
        assert found[0]["attempts"] == 3
        assert len(await rows(gateway, t.dead_letter)) == 1
        notice, answer = [message for message in await log(gateway, "s") if message.role == "assistant"]
        assert [part.error_name for part in notice.parts] == ["PoisonedMessageError"]
        assert said(answer) == "You said: hello"


async def _survives(gateway: GatewayProcess) -> bool:
    """Whether it lives until the first message of the inbox is settled."""
    ending = asyncio.timeout(60)
    async with ending:
        while (await rows(gateway, t.inbox))[0]["state"] == "new":
            if gateway.status is not None:
                return False
            await asyncio.sleep(0.05)
    return True


async def test_an_old_backlog_is_answered_with_one_notice_and_one_turn(
    tmp_path: Path, models: FakeModels
) -> None:
    models.then(Reply((Stall(),)))
    async with GatewayProcess(tmp_path, models.openai_url) as gateway:
        assert await gateway.start()
        async with gateway.client() as client:
            for number in range(4):
                await client.say(f"question {number}", session="s")
            await gateway.stop(signal.SIGKILL)
        async with gateway.database() as engine:
            with engine.begin() as connection:
                connection.execute(update(t.inbox).values(received_at=t.inbox.c.received_at - 20 * 60_000))
        assert await gateway.start()
        found = await all_settled(gateway)
        assert [row["state"] for row in sorted(found, key=lambda row: row["ord"])] == ["merged"] * 3 + [
            "done"
        ]
        messages = await log(gateway, "s")
    assert [m.role for m in messages] == ["assistant", "user", "user", "user", "user", "assistant"]
    assert messages[0].custom_type == "notice"
    assert len(models.requests) == 2


@pytest.mark.timeout(90)
async def test_told_to_stop_under_load_it_ends_in_time_and_loses_nothing(
    tmp_path: Path, models: FakeModels
) -> None:
    slow = FakeModels(lambda asked: Reply(paced([f"About {asked.user_text}", "."], 300)))
    async with slow, GatewayProcess(tmp_path, slow.openai_url) as gateway:
        assert await gateway.start()
        async with gateway.client() as client:
            for number in range(30):
                await client.say(f"question {number}", session=f"s{number % 10}")
            async with asyncio.timeout(25):
                assert await gateway.stop() == 0
        assert any(row["state"] == "new" for row in await rows(gateway, t.inbox))
        assert await gateway.start()
        assert {row["state"] for row in await all_settled(gateway)} == {"done"}
        for session in range(10):
            asked = [f"question {number}" for number in range(session, 30, 10)]
            shown = [said(message) for message in await log(gateway, f"s{session}")]
            assert shown == [line for question in asked for line in (question, f"About {question}.")]


@pytest.mark.timeout(60)
async def test_a_turn_that_takes_too_long_to_end_is_run_again_and_not_blamed(
    tmp_path: Path, models: FakeModels
) -> None:
    models.then(Reply((Say("half of it"), Stall())))
    async with GatewayProcess(tmp_path, models.openai_url, "limits.drain_seconds = 1") as gateway:
        assert await gateway.start()
        async with gateway.client() as client:
            await client.say("hello", session="s")
            await client.until("text_delta")
            assert await gateway.stop() == 0
        [row] = await rows(gateway, t.inbox)
        assert (row["state"], row["attempts"]) == ("new", 0)
        assert [message.role for message in await log(gateway, "s")] == []
        assert await gateway.start()
        assert [row["state"] for row in await all_settled(gateway)] == ["done"]
        assert [said(message) for message in await log(gateway, "s")] == ["hello", "You said: hello"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory with a file system of 4 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    disk = tmp_path / "data"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4M", "tmpfs", disk], check=False)
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount a file system")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.mark.timeout(90)
async def test_a_full_disk_ends_the_gateway_before_it_promises_what_it_cannot_keep(
    tmp_path: Path, small_disk: Path, models: FakeModels
) -> None:
    acked: list[str] = []
    async with GatewayProcess(tmp_path, models.openai_url) as gateway:
        assert await gateway.start()
        async with gateway.client() as client:
            await client.say("before", session="s")
            await client.until("complete")
            _fill(small_disk / "ballast")
            with suppress(ConnectionError):
                while True:
                    ack = await client.say("x" * 20_000, session="s")
                    acked.append(ack["message_id"])
        assert await gateway.ended() == 70
        (small_disk / "ballast").unlink()
        assert await gateway.start()
        found = await all_settled(gateway)
    assert {row["id"] for row in found if row["state"] == "done"} >= set(acked)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(b"\0" * 4096)
        except OSError:
            return


async def test_a_second_gateway_on_the_same_file_is_refused_in_one_line(
    tmp_path: Path, models: FakeModels
) -> None:
    async with GatewayProcess(tmp_path, models.openai_url) as first:
        assert await first.start()
        async with GatewayProcess(tmp_path, models.openai_url, "store.wait_ms = 0") as second:
            before = len(first.errors)
            assert not await second.start()
            assert await second.ended() == 75
            line = second.errors[before:]
    assert line.count("\n") == 1
    assert "another gateway already uses" in line


@pytest.mark.timeout(120)
async def test_a_locked_database_ends_the_gateway_without_an_ack(tmp_path: Path, models: FakeModels) -> None:
    async with GatewayProcess(tmp_path, models.openai_url) as gateway:
        assert await gateway.start()
        locker = sqlite3.connect(gateway.data / "trunkline.db", isolation_level=None)
        async with gateway.client() as client:
            locker.execute("BEGIN IMMEDIATE")
            with pytest.raises((ConnectionError, TimeoutError)):
                await client.say("hello", session="s")
            assert not any(frame["type"] == "ack" for frame in client.frames)
        assert await gateway.ended() == 70
        locker.close()
        assert await gateway.start()
        async with gateway.client() as client:
            await client.say("hello", session="s")
            await client.until("complete")


async def test_a_server_that_may_lose_what_it_acknowledged_is_refused(
    tmp_path: Path, models: FakeModels, postgres_url: str
) -> None:
    name = make_url(postgres_url).database
    engine = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = off"))
    engine.dispose()
    settings = f'store.url = "{postgres_url}"'
    async with GatewayProcess(tmp_path, models.openai_url, settings) as gateway:
        assert not await gateway.start()
        assert await gateway.ended() == 2
        assert "synchronous_commit = off" in gateway.errors
        gateway.configure(models.openai_url, f'durability = "relaxed"\n{settings}')
        assert await gateway.start()


async def test_a_session_takes_what_disk_has_room_for_and_the_gateway_only_so_much(
    tmp_path: Path, models: FakeModels
) -> None:
    limits = Settings().limits
    assert (limits.session_inbox, limits.session_backlog, limits.sender_backlog) == (50, 1_000, 200)
    assert limits.global_inbox == 100_000
    models.then(*(Reply((Stall(),)) for _ in range(10)))
    async with GatewayProcess(tmp_path, models.openai_url, "limits.global_inbox = 255") as gateway:
        assert await gateway.start()
        async with gateway.client() as client:
            heard = [await client.say("hello", session="a") for _ in range(253)]
            heard += [await client.say("hello", session=f"b{number}") for number in range(5)]
        accepted = await rows(gateway, t.inbox)
    assert [frame["type"] for frame in heard] == ["ack"] * 257 + ["error"]
    assert [frame.get("refused", False) for frame in heard[:-1]] == [False] * 251 + [True] * 2 + [False] * 4
    assert (heard[-1]["error_name"], heard[-1]["retryable"]) == ("OverloadedError", True)
    assert len(accepted) == 257


async def test_the_model_learns_that_a_tools_outcome_is_unknown(tmp_path: Path, models: FakeModels) -> None:
    (tmp_path / "fragile.py").write_text(FRAGILE)
    models.then(Reply((Use("launch"),), "tools"))
    async with GatewayProcess(tmp_path, models.openai_url, FRAGILE_SETTINGS) as gateway:
        assert await gateway.start()
        async with gateway.client() as client:
            await client.say("launch it", session="s")
            assert await gateway.ended() == -signal.SIGKILL
        models.then(Reply((Say("I do not know whether it was launched."),)))
        assert await gateway.start()
        assert [row["state"] for row in await all_settled(gateway)] == ["done"]
    assert (tmp_path / "launches").read_text() == "launched\n"
    assert "outcome is unknown" in models.requests[-1].results[0]


@pytest.mark.timeout(90)
async def test_a_decision_that_was_acknowledged_survives_a_kill_and_is_used_once(
    tmp_path: Path, models: FakeModels
) -> None:
    (tmp_path / "guarded.py").write_text(GUARDED)
    (tmp_path / "hold").touch()
    models.then(Reply((Use("launch", '{"site": "A"}'),), "tools"))
    async with GatewayProcess(tmp_path, models.openai_url, 'plugins.enabled = ["guarded"]') as gateway:
        assert await gateway.start()
        async with gateway.client() as client:
            await client.send(type="message", client_msg_id="1", session="s", text="go")
            asked = await client.until("approval_request")
            assert (asked["tool_name"], asked["always"]) == ("launch", "A")
            url = f"{gateway.url}/api/sessions/s/approvals/{asked['approval_id']}"
            async with aiohttp.ClientSession() as http, http.post(url, json={"decision": "once"}) as done:
                assert done.status == 200
            await gateway.stop(signal.SIGKILL)
        assert not (tmp_path / "launches").exists()
        (tmp_path / "hold").unlink()
        # The second call is the same, and asks again: a decision is used once.
        models.then(Reply((Use("launch", '{"site": "A"}'),), "tools"))
        assert await gateway.start()
        async with gateway.client() as client:
            await client.send(type="resume", session="s", after=0)
            again = await client.until("approval_request")
            assert (tmp_path / "launches").read_text() == "launched\n"
            await client.send(type="approval", session="s", approval_id=again["approval_id"], decision="deny")
            await all_settled(gateway)
        assert {row["inbox_id"] for row in await rows(gateway, t.question)} == {""}, "all were used"
        told = [(row["action"], row["subject"]) for row in await rows(gateway, t.audit)]
        assert sorted(told) == [("approval.deny", "launch"), ("approval.once", "launch")]
        assert (tmp_path / "launches").read_text() == "launched\n"


@pytest.mark.timeout(90)
async def test_an_open_question_survives_a_kill_and_its_decision_counts_for_the_repeated_turn(
    tmp_path: Path, models: FakeModels
) -> None:
    """The answer is given while the repeated turn waits, and before that, to the question as it was asked."""
    (tmp_path / "guarded.py").write_text(GUARDED)
    models.then(Reply((Use("launch", '{"site": "A"}'),), "tools"))
    async with GatewayProcess(tmp_path, models.openai_url, 'plugins.enabled = ["guarded"]') as gateway:
        assert await gateway.start()
        async with gateway.client() as client:
            await client.send(type="message", client_msg_id="1", session="s", text="go")
            asked = await client.until("approval_request")
            await gateway.stop(signal.SIGKILL)
        assert await gateway.start()
        async with gateway.client() as client:
            await client.send(type="resume", session="s", after=0)
            again = await client.until("approval_request")
            assert {**again, "seq": 0, "timeout_ms": 0} == {**asked, "seq": 0, "timeout_ms": 0}
            decide = {"type": "approval", "session": "s", "approval_id": asked["approval_id"]}
            await client.send(**decide, decision="once")
            await all_settled(gateway)
        [row] = await rows(gateway, t.question)
        assert (row["id"], row["inbox_id"], row["answer"]) == (asked["approval_id"], "", '["once"]')
        assert [row["action"] for row in await rows(gateway, t.audit)] == ["approval.once"]
    assert (tmp_path / "launches").read_text() == "launched\n"
