"""Sessions with real shells: started once, found by their users, limited, reaped, and attached again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway import Answer
from gateway.app import Gateway
from gateway.events import BusEvent
from gateway.testing.chat import chatting
from plugins.coding_agents import CodingAgents, events, keeper_client
from plugins.coding_agents.adapters import find_adapter
from plugins.coding_agents.errors import (
    FolderTrustError,
    NoInputError,
    NotInstalledError,
    NotReadyError,
    OutputGoneError,
    ServiceUnavailableError,
    SessionLimitError,
    SessionNotFoundError,
    StaleQuestionError,
    UnknownAgentError,
    WorkdirError,
)
from plugins.coding_agents.records import public_status
from plugins.coding_agents.session import REPLAY_BYTES
from plugins.coding_agents.sessions import SpawnRequest, free_memory_mb
from plugins.coding_agents.tools.replies import listed
from tests.plugins.coding_agents.rig import (
    OWNER,
    SECONDS,
    Agents,
    agents,
    processes,
    until,
    until_shown,
    until_status,
)

pytestmark = pytest.mark.slow

LETTERS: dict[str, Any] = {"letters": {"enabled": False, "allow": "*"}}
ADA: dict[str, Any] = {
    "owner": "letters:ada",
    "address": {"channel": "letters", "account": "bot", "chat": "room"},
}
"""A user who may use the bot on a channel that is off: no rule answers a question, and no chat shows it."""


async def test_003_01_a_session_has_agent_workdir_id_and_status(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    async with agents(tmp_path, allowed_roots=[str(tmp_path)]) as rig:
        session = await rig.spawn(workdir=str(work))
        record = rig.record(session)
        assert (record.agent, record.workdir, record.public_status) == ("shell", str(work), "running")
        assert record.id.startswith("pty-")
        assert record.id.endswith(record.short_id)
        assert rig.sessions.get(record.short_id, OWNER) == record
        await session.stop()


async def test_003_02_text_and_keys_are_typed(tmp_path: Path) -> None:
    async with agents(tmp_path) as rig:
        session = await rig.spawn()
        await until_status(session, "ready")
        await rig.sessions.send(session.record.id, OWNER, text="echo $((6 * 7))")
        await until_shown(session, "42")
        await until_status(session, "ready")
        await rig.sessions.send(session.record.id, OWNER, keys=["e", "c", "h", "o", "space", "9", "enter"])
        await until_shown(session, "pty> echo 9", "9")
        with pytest.raises(NoInputError):
            await rig.sessions.send(session.record.id, OWNER)
        await session.stop()


async def test_003_03_a_stopped_session_leaves_nothing_behind(tmp_path: Path) -> None:
    async with agents(tmp_path) as rig:
        session = await rig.spawn("sleep 1000 & sleep 1000")
        await until_status(session, "busy")
        assert len(processes(session.record.id)) >= 3
        stopped = await rig.sessions.stop(session.record.id, OWNER)
        assert stopped.public_status == "completed"
        await _gone(session.record.id, tmp_path)
        with pytest.raises(NotReadyError):
            await rig.sessions.send(session.record.id, OWNER, text="ls")
        with pytest.raises(OutputGoneError):
            await session.read_output(0)


async def test_003_03_a_program_that_ignores_signals_is_killed(tmp_path: Path) -> None:
    async with agents(tmp_path) as rig:
        session = await rig.spawn("trap '' HUP TERM INT")
        await until(session, lambda: session.record.task_done)
        await rig.sessions.stop(session.record.id, OWNER, force=True)
        assert rig.record(session).exit_status == -signal.SIGKILL
        await _gone(session.record.id, tmp_path)


async def test_003_04_sessions_are_listed_by_user_and_age(tmp_path: Path) -> None:
    async with agents(tmp_path) as rig:
        first, second = await rig.spawn(), await rig.spawn()
        other = await rig.spawn(owner="test:eve")
        assert [one.id for one in rig.sessions.list(OWNER)] == [first.record.id, second.record.id]
        assert rig.sessions.list("test:mallory") == []
        for call in (rig.sessions.stop, rig.sessions.send, rig.sessions.resume):
            with pytest.raises(SessionNotFoundError):
                await call(other.record.id, OWNER)
        for session in (first, second, other):
            await session.stop(force=True)


async def test_003_09_spawn_send_get_and_stop_are_callable(tmp_path: Path) -> None:
    async with agents(tmp_path) as rig:
        session = await rig.spawn()
        await until_status(session, "ready")
        await rig.sessions.send(session.record.id, OWNER, text="echo from the service")
        await until_shown(session, "pty> echo from the service", "from the service")
        assert rig.sessions.get(session.record.id, OWNER).public_status in ("running", "completed")
        await rig.sessions.stop(session.record.id, OWNER)
        assert rig.sessions.get(session.record.id, OWNER).public_status == "completed"


async def test_003_09_one_key_starts_one_session(tmp_path: Path) -> None:
    async with agents(tmp_path) as rig:
        made = await asyncio.gather(*(rig.spawn(key="message 1") for _ in range(3)))
        assert len({session.record.id for session in made}) == 1
        other = await rig.spawn(key="message 1", owner="test:eve")
        assert other.record.id != made[0].record.id
        await made[0].stop(force=True)
        again = await rig.spawn(key="message 1")
        assert again.record.id == made[0].record.id
        await other.stop(force=True)


async def test_003_09_what_cannot_start_is_refused(tmp_path: Path) -> None:
    async with agents(
        tmp_path, agents={"shell": {"binary": "no-such-program"}}, allowed_roots=[str(tmp_path / "code")]
    ) as rig:
        with pytest.raises(UnknownAgentError, match="shell"):
            await rig.spawn(agent="nonesuch")
        with pytest.raises(NotInstalledError, match="apt-get install bash"):
            await rig.spawn()
        assert rig.sessions.list(OWNER) == []
    async with agents(tmp_path, allowed_roots=[str(tmp_path / "code")]) as rig:
        (tmp_path / "code").mkdir()
        (tmp_path / "code" / "out").symlink_to("/")
        for workdir in (
            "/",
            str(tmp_path),
            str(tmp_path / "code/../.."),
            str(tmp_path / "code/out/etc"),
            "code",
        ):
            with pytest.raises(WorkdirError):
                await rig.spawn(workdir=workdir)
        with pytest.raises(WorkdirError, match="no folder"):
            await rig.spawn(workdir=str(tmp_path / "code" / "missing"))
    fake = {"aider": {"binary": "bash"}}
    async with agents(tmp_path, allowed_roots=[str(tmp_path / "code")], agents=fake) as rig:
        (tmp_path / "code" / ".env").write_text("AIDER_YES_ALWAYS=true")
        with pytest.raises(FolderTrustError, match="trust_folder"):
            await rig.spawn(agent="aider", workdir=str(tmp_path / "code"))
        assert rig.sessions.list(OWNER) == []


async def test_003_10_running_blocked_and_completed_are_observed(tmp_path: Path) -> None:
    async with agents(tmp_path, channels=LETTERS) as rig:
        session = await rig.spawn(**ADA)
        seen = [session.record.public_status]
        session.subscribe(lambda _event: seen.append(session.record.public_status))
        await until_status(session, "ready")
        await session.send_text("read -p 'Overwrite the file? [y/n] ' answer; echo got $answer")
        await until_status(session, "blocked")
        await session.send_text("y")
        await until_shown(session, "got y")
        await until(session, lambda: session.record.public_status == "completed")
        await session.stop()
        ordered = list(dict.fromkeys(seen))
        assert ordered == ["running", "blocked", "completed"]


@pytest.mark.parametrize("debug", [False, True])
async def test_003_20_debug_logs_each_state_of_a_session(debug: bool, tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with agents(tmp_path, debug=debug) as rig:
            session = await rig.spawn("echo secret")
            await until(session, lambda: session.record.task_done)
            await session.stop()
    logged = [one for one in logs if one["event"] == "event of a session"]
    told = [(one["name"], one["status"]) for one in logged]
    wanted = [("Ready", "ready"), ("StatusChanged", "busy"), ("TaskDone", "ready"), ("Exited", "stopped")]
    assert [one for one in told if one in wanted] == (wanted if debug else [])
    assert "secret" not in str(logged)


async def test_003_11_the_initial_task_is_delivered_once_when_the_agent_is_ready(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with agents(tmp_path) as rig:
        session = await rig.spawn(f"echo once >> {log}")
        await until(session, lambda: session.record.task_done)
        await until_status(session, "ready")
        await session.stop()
    assert log.read_text() == "once\n"


async def test_003_12_the_sixth_session_is_refused_and_the_five_are_named(tmp_path: Path) -> None:
    async with agents(tmp_path) as rig:
        five = [await rig.spawn() for _ in range(4)]
        five.append(await rig.spawn(owner="test:eve"))
        with pytest.raises(SessionLimitError) as refused:
            await rig.spawn()
        assert all(session.record.short_id in str(refused.value) for session in five[:4])
        assert "1 of other users" in str(refused.value)
        assert five[4].record.short_id not in str(refused.value)
        await five[0].stop(force=True)
        five.append(await rig.spawn())
        for session in five:
            await session.stop(force=True)


async def test_003_12_too_little_memory_is_a_limit_too(tmp_path: Path) -> None:
    free = free_memory_mb()
    assert free is not None
    async with agents(tmp_path, min_free_memory_mb=2 * free) as rig:
        with pytest.raises(SessionLimitError, match="memory"):
            await rig.spawn()


async def test_003_13_a_session_is_reaped_after_30_minutes_without_input_and_output(tmp_path: Path) -> None:
    async with agents(tmp_path) as rig:
        session = await rig.spawn()
        await until_status(session, "ready")
        now = session.record.last_activity
        rig.sessions.clock = lambda: now + 29 * 60_000
        await rig.sessions.reap()
        assert session.record.status == "ready"
        rig.sessions.clock = lambda: now + 31 * 60_000
        await rig.sessions.reap()
        assert (session.record.status, session.record.stop_reason) == ("stopped", "idle")


async def test_003_13_a_blocked_session_is_announced_once_and_stopped_after_a_day(tmp_path: Path) -> None:
    async with agents(tmp_path, channels=LETTERS) as rig:
        session = await rig.spawn("read -p 'Overwrite the file? [y/n] ' answer", **ADA)
        # The chat has no buttons, and is told of the question otherwise.
        await until(
            session, lambda: session.record.question is not None and session.record.question.id == "-"
        )
        since = session.record.blocked_at
        told = session.record.told
        rig.sessions.clock = lambda: since + 31 * 60_000
        await rig.sessions.reap()
        await rig.sessions.reap()
        assert (session.record.status, session.record.told) == ("blocked", told + 1)
        rig.sessions.clock = lambda: since + 25 * 3_600_000
        await rig.sessions.reap()
        assert session.record.stop_reason == "blocked"


async def test_a_question_takes_no_text_and_one_answer(tmp_path: Path) -> None:
    async with agents(tmp_path, channels=LETTERS) as rig:
        session = await rig.spawn("read -p 'Overwrite the file? [y/n] ' answer; echo got $answer", **ADA)
        await until_status(session, "blocked")
        asked = session.record.question
        assert asked is not None
        assert (asked.key, asked.prompt) == (f"{session.record.id}:0", "Overwrite the file? [y/n]")
        with pytest.raises(NotReadyError):
            await session.send_text("rm -rf everything")
        with pytest.raises(StaleQuestionError):
            await session.answer("another digest", "once")
        await session.answer(asked.digest, "once", "answer 1")
        await session.answer(asked.digest, "once", "answer 1")
        with pytest.raises(StaleQuestionError):
            await session.answer(asked.digest, "once", "answer 2")
        await until_shown(session, "got y")
        await until(session, lambda: session.record.question is None)
        await session.stop()


async def test_one_key_types_a_text_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with agents(tmp_path) as rig:
        session = await rig.spawn()
        await until_status(session, "ready")
        for _ in range(3):
            await rig.sessions.send(session.record.id, OWNER, text=f"echo sent >> {log}", key="call 1")
        await until(session, lambda: session.record.task_done)
        await session.stop()
    assert log.read_text() == "sent\n"


async def test_a_program_that_ends_is_reported_with_its_status(tmp_path: Path) -> None:
    async with agents(tmp_path) as rig:
        session = await rig.spawn("exit 3")
        await session.ended.wait()
        record = rig.record(session)
        assert (record.status, record.exit_status) == ("error", 3)
        assert [notice.kind for notice in record.notices][-1] == "failed"
        assert public_status(record.status) == "error"


async def test_sessions_survive_the_gateway_with_their_screens(tmp_path: Path) -> None:
    async with agents(tmp_path) as rig:
        session = await rig.spawn("echo before")
        await until(session, lambda: session.record.task_done)
        typed = session.record.machine["next_id"]
    assert processes(session.record.id)
    async with agents(tmp_path) as rig:
        again = rig.sessions.session(session.record.id, OWNER)
        assert (again.record.status, again.record.pid) == ("ready", session.record.pid)
        await until_shown(again, "pty> echo before", "before")
        await again.send_text("echo after")
        await until_shown(again, "pty> echo after", "after")
        assert again.record.machine["next_id"] > typed
        await again.stop()
        await _gone(again.record.id, tmp_path)


async def test_20_sessions_have_a_status_soon_after_a_restart(tmp_path: Path) -> None:
    async with agents(tmp_path, max_sessions=20) as rig:
        ids = [(await rig.spawn()).record.id for _ in range(20)]
    async with agents(tmp_path, max_sessions=20) as rig:
        assert [one.id for one in rig.sessions.list(OWNER)] == ids
        assert all(session.is_attached for session in rig.sessions.running())
        assert rig.sessions.attach_seconds < 10
        await asyncio.gather(*(session.stop(force=True) for session in rig.sessions.running()))


async def test_a_session_whose_keeper_was_killed_is_lost(tmp_path: Path) -> None:
    async with agents(tmp_path) as rig:
        session = await rig.spawn("sleep 1000")
        await until_status(session, "busy")
        os.kill(_keeper(session.record.id), signal.SIGKILL)
        await session.ended.wait()
        assert (rig.record(session).status, rig.record(session).notices[-1].kind) == ("lost", "lost")
        await _gone(session.record.id, tmp_path)


async def test_a_program_that_is_killed_fails_with_its_signal_and_can_be_resumed(tmp_path: Path) -> None:
    async with agents(tmp_path) as rig:
        session = await rig.spawn()
        await until_status(session, "ready")
        os.kill(session.record.pid, signal.SIGKILL)
        await session.ended.wait()
        record = rig.record(session)
        assert (record.status, record.exit_status) == ("error", -signal.SIGKILL)
        await _gone(record.id, tmp_path)
        again = await rig.sessions.resume(record.id, OWNER)
        await rig.sessions.stop(again.id, OWNER, force=True)


async def test_what_is_sent_while_the_keeper_is_suspended_is_typed_once_afterwards(tmp_path: Path) -> None:
    async with agents(tmp_path) as rig:
        session = await rig.spawn()
        await until_status(session, "ready")
        keeper = _keeper(session.record.id)
        os.kill(keeper, signal.SIGSTOP)
        await session.send_text("echo once")
        os.kill(keeper, signal.SIGCONT)
        await until_shown(session, "pty> echo once", "once")
        await until_status(session, "ready")
        assert "\n".join(session.tail(40)).count("echo once") == 1
        await session.stop(force=True)


async def test_a_keeper_that_does_not_answer_after_a_restart_is_attached_later(tmp_path: Path) -> None:
    async with agents(tmp_path) as rig:
        session = await rig.spawn("echo before")
        await until(session, lambda: session.record.task_done)
    keeper = _keeper(session.record.id)
    os.kill(keeper, signal.SIGSTOP)
    async with agents(tmp_path) as rig:
        assert rig.record(session).status == "ready", "its program may be at work"
        os.kill(keeper, signal.SIGCONT)
        async with asyncio.timeout(SECONDS):
            while not (again := rig.sessions.session(session.record.id, OWNER)).is_attached:
                await asyncio.sleep(0.02)
        await again.send_text("echo after")
        await until_shown(again, "pty> echo after", "after")
        await again.stop(force=True)


async def test_a_session_whose_socket_was_removed_is_lost_after_a_restart(tmp_path: Path) -> None:
    async with agents(tmp_path) as rig:
        session = await rig.spawn("sleep 1000")
        await until_status(session, "busy")
        (session.folder / keeper_client.SOCKET).unlink()
    async with agents(tmp_path) as rig:
        assert rig.record(session).status == "lost"
        await _gone(session.record.id, tmp_path)


async def test_a_program_that_prints_without_a_pause_does_not_delay_a_restarted_session(
    tmp_path: Path,
) -> None:
    async with agents(tmp_path) as rig:
        paint = r"\e[1;1H\e[31mx\e[0m\e[2;2Hy%.0s"
        session = await rig.spawn(f"while :; do printf '{paint}' {{1..1000}}; done")
        await until_status(session, "busy")
        await until(session, lambda: session.end > REPLAY_BYTES)
        await session.change()
    try:
        async with agents(tmp_path) as rig:
            again = rig.sessions.session(session.record.id, OWNER)
            # Its state is known soon, although more output always waits.
            async with asyncio.timeout(SECONDS):
                said = ""
                while "is busy" not in said:
                    with pytest.raises(NotReadyError) as refused:
                        await again.send_text("echo no")
                    said = str(refused.value)
            async with asyncio.timeout(4 * SECONDS):
                await again.stop(force=True)
                await again.ended.wait()
            await _gone(again.record.id, tmp_path)
    finally:
        # Otherwise a failure leaves a program that takes a core from all later tests.
        _kill(session.record.id)


def _kill(session: str) -> None:
    for pid in processes(session):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("boot", ["", "another boot"])
async def test_a_session_whose_keeper_is_gone_after_a_restart_is_lost(tmp_path: Path, boot: str) -> None:
    async with agents(tmp_path) as rig:
        session = await rig.spawn("echo before")
        await until(session, lambda: session.record.task_done)
        if boot:
            await session.change(boot_id=boot)
    _kill(session.record.id)
    async with agents(tmp_path) as rig:
        record = rig.record(session)
        assert (record.status, record.public_status) == ("lost", "error")
        assert ("started again" in record.error) == bool(boot)
        again = await rig.sessions.resume(record.id, OWNER)
        assert (again.resumes, again.workdir) == (record.id, record.workdir)
        assert (await rig.sessions.resume(record.id, OWNER)).id == again.id
        await rig.sessions.stop(again.id, OWNER, force=True)


async def _leave_on(tmp_path: Path, node: str) -> str:
    """Leave a running session on a machine that is not this one. Return its id."""
    async with agents(tmp_path, node=node) as rig:
        session = await rig.spawn("echo before")
        await until(session, lambda: session.record.task_done)
        await session.change(boot_id="another machine")
        return session.record.id


async def test_a_session_on_another_machine_continues_and_is_used_when_its_node_works_again(
    tmp_path: Path,
) -> None:
    left = await _leave_on(tmp_path, "one")
    running = processes(left)
    async with agents(tmp_path, node="two") as rig:
        [record] = rig.sessions.list(OWNER)
        assert (record.status, record.error) == ("ready", "unavailable: it runs on node one")
        assert "unavailable: it runs on node one" in listed([record])
        with pytest.raises(ServiceUnavailableError, match="a node of that machine is back"):
            await rig.sessions.send(left, OWNER, text="echo no")
        with pytest.raises(ServiceUnavailableError, match="kill"):
            await rig.sessions.stop(left, OWNER)
        # An answer to its question is kept until its node works.
        answer = Answer(question_id="q", key=f"{left}:1", state="answered", values=("once",), by=OWNER)
        chats = rig.plugin._chats  # pyright: ignore[reportPrivateUsage]
        assert chats is not None
        with pytest.raises(ServiceUnavailableError):
            await chats.answered(answer)
    assert processes(left) == running
    async with agents(tmp_path, node="one") as rig:
        again = rig.sessions.session(left, OWNER)
        await again.send_text("echo after")
        await until_shown(again, "after")
        await again.stop()


async def test_a_session_on_another_machine_is_given_up_and_ended_by_its_own_node(tmp_path: Path) -> None:
    left = await _leave_on(tmp_path, "one")
    async with agents(tmp_path, node="two") as rig:
        record = await rig.sessions.stop(left, OWNER, force=True)
        assert (record.status, record.error) == ("lost", "it was given up while it ran on node one")
    assert processes(left)
    async with agents(tmp_path, node="one") as rig:
        await _gone(left, tmp_path)


@pytest.mark.parametrize("shared", [True, False])
async def test_a_session_is_not_resumed_in_a_folder_of_another_machine(tmp_path: Path, shared: bool) -> None:
    """The same path may be another folder here, unless it is in the data directory."""
    root = tmp_path / "roots"
    root.mkdir()
    given = {} if shared else {"workdir": str(root)}
    async with agents(tmp_path / "data", node="one", allowed_roots=[str(root)]) as rig:
        session = await rig.spawn("echo before", **given)
        await until(session, lambda: session.record.task_done)
        await session.change(boot_id="another machine", host="another")
        await session.stop()
    async with agents(tmp_path / "data", node="two", allowed_roots=[str(root)]) as rig:
        if shared:
            again = await rig.sessions.resume(session.record.id, OWNER)
            await rig.sessions.stop(again.id, OWNER, force=True)
        else:
            with pytest.raises(ServiceUnavailableError, match=f"{root} is on the machine of node one"):
                await rig.sessions.resume(session.record.id, OWNER)


async def test_a_session_of_a_former_cluster_is_attached_without_one(tmp_path: Path) -> None:
    left = await _leave_on(tmp_path, "one")
    async with agents(tmp_path) as rig:
        again = rig.sessions.session(left, OWNER)
        await again.send_text("echo after")
        await until_shown(again, "after")
        await again.stop()


async def test_a_session_of_another_node_on_this_machine_is_attached(tmp_path: Path) -> None:
    async with agents(tmp_path, node="one") as rig:
        session = await rig.spawn("echo before")
        await until(session, lambda: session.record.task_done)
    async with agents(tmp_path, node="two") as rig:
        again = rig.sessions.session(session.record.id, OWNER)
        await again.send_text("echo after")
        await until_shown(again, "after")
        await again.stop()


async def test_a_session_that_was_stored_but_not_started_is_started(tmp_path: Path) -> None:
    async with agents(tmp_path) as rig:
        record = await rig.sessions._new_record(  # pyright: ignore[reportPrivateUsage]
            SpawnRequest(agent="shell", owner=OWNER, task="echo at last"), find_adapter("shell")
        )
        await rig.sessions._save(record)  # pyright: ignore[reportPrivateUsage]
    async with agents(tmp_path) as rig:
        session = rig.sessions.session(record.id, OWNER)
        await until_shown(session, "pty> echo at last", "at last")
        await session.stop()


async def test_folders_without_a_session_are_removed(tmp_path: Path) -> None:
    orphan = tmp_path / "coding-agents" / "sessions" / "pty-1-abc"
    orphan.mkdir(parents=True)
    async with agents(tmp_path):
        async with asyncio.timeout(30):
            while orphan.exists():
                await asyncio.sleep(0.01)


async def test_output_is_read_from_an_offset(tmp_path: Path) -> None:
    async with agents(tmp_path) as rig:
        session = await rig.spawn("echo one")
        await until(session, lambda: session.record.task_done)
        whole = await session.read_output(0)
        assert b"one\r\n" in whole
        assert await session.read_output(5, 10) == whole[5:15]
        assert await session.read_output(len(whole)) == b""
        assert await session.read_output(10**9) == b""
        await session.stop()


async def test_a_driver_types_with_ids_that_are_never_used_again(tmp_path: Path) -> None:
    async with agents(tmp_path) as rig:
        session = await rig.spawn()
        await until_status(session, "ready")
        for byte in b"echo driven\r":
            await session.type_raw(bytes([byte]))
        await until_shown(session, "pty> echo driven", "driven")
    async with agents(tmp_path) as rig:
        again = rig.sessions.session(session.record.id, OWNER)
        await until_status(again, "ready")
        await until_shown(again, "driven")
        await again.send_text("echo after the driver")
        await until_shown(again, "pty> echo after the driver", "after the driver")
        await again.stop()


async def test_a_program_that_a_shell_runs_has_its_own_version(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "pi"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n[ "$1" = --version ] && exec echo 0.73.1\nprintf "%s, done.\\n" "$2"\n')
    program.chmod(0o755)

    class InPath(Gateway):
        def __init__(self, *given: Any, **named: Any) -> None:
            path = f"{program.parent}:{os.environ['PATH']}"
            super().__init__(*given, environ={"PATH": path}, **named)

    plugin, table = CodingAgents(), {"sandbox": "off", "min_free_memory_mb": 0}
    async with chatting(tmp_path / "data", plugin, kind=InPath, plugins={"coding_agents": table}) as chat:
        session = await Agents(chat, plugin, await plugin.service()).spawn("Say it.", agent="pi")
        await until(session, lambda: session.record.task_done)
        assert (session.record.version, session.state.known) == ("0.73.1", True)
        assert "Say it., done." in session.tail(5)
        await session.stop()


async def test_events_of_a_session_are_emitted_on_the_bus(tmp_path: Path) -> None:
    heard: list[BusEvent] = []
    async with agents(tmp_path) as rig:
        rig.chat.gateway.events.subscribe_all(heard.append)
        session = await rig.spawn("echo told")
        await until(session, lambda: session.record.task_done)
        await session.stop()
        await session.ended.wait()
    kinds = [event for event in heard if type(event).__module__ == events.__name__]
    names = list(dict.fromkeys(kind.event_name() for kind in kinds))
    assert names == [
        "keeper:attached",
        "coding_agents.session_started",
        "coding_agents.session_status_changed",
        "coding_agents.session_ready",
        "coding_agents.task_complete",
        "coding_agents.session_stopped",
    ]
    stopped = next(event for event in kinds if isinstance(event, events.SessionStopped))
    assert (stopped.session, stopped.reason) == ("s", "user")


def test_nothing_heavy_is_imported_before_the_first_session() -> None:
    script = """
import asyncio, sys, tempfile
from pathlib import Path
from gateway.testing.chat import chatting
from plugins.coding_agents import CodingAgents

async def main():
    async with chatting(Path(tempfile.mkdtemp()), CodingAgents()):
        print(*sorted(n.removeprefix("plugins.coding_agents.") for n in sys.modules))

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    heavy = {
        "pyte",
        "adapters.claude",
        "keeper_client",
        "machine",
        "screen",
        "session",
        "sessions",
        "terminal",
    }
    assert heavy.isdisjoint(done.stdout.splitlines()[-1].split())


def _keeper(session_id: str) -> int:
    """Return the process of a session that is the parent of another one."""
    found = processes(session_id)
    parents = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in found}
    return next(
        pid for pid in found if pid in parents and b"python" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )


async def _gone(session_id: str, tmp_path: Path) -> None:
    deadline = time.monotonic() + 30
    folder = tmp_path / "coding-agents" / "sessions" / session_id
    while processes(session_id) or folder.exists():
        assert time.monotonic() < deadline, processes(session_id)
        await asyncio.sleep(0.02)
