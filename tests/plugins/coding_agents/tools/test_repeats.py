"""Requests that are repeated, as after a crash, and restarts: everything happens once."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugins.coding_agents.records import SessionRecord
from plugins.coding_agents.tools.desk import Start
from plugins.coding_agents.tools.services import Caller
from tests.plugins.coding_agents.tools.room import SESSION, Place, coding, content, gateway, outside

pytestmark = pytest.mark.slow

ADA = Caller(
    owner="owner",
    user="owner",
    session=SESSION,
    address={"channel": "websocket", "chat": SESSION},
    name="Ada",
)


async def test_a_repeated_start_makes_one_workspace_and_one_session(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        desk = await place.agents.desk()
        start = Start(agents=("shell",), task="echo once >> made.txt", repo=place.repo)
        first = await desk.spawn(ADA, start, "key")
        (record,) = await place.until(lambda records: records[0].public_status == "completed")
        again = await desk.spawn(ADA, start, "key")
        assert again.partition("\n")[0] == first.partition("\n")[0]
        assert len(await place.records()) == 1
        assert len(desk.services.workspaces.list("owner")) == 1
        assert content(record, "made.txt") == "once\n"


async def test_repeated_input_is_typed_once(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        desk = await place.agents.desk()
        await place.ask("/agents new shell")
        await place.until(lambda records: records[0].status == "ready")
        await desk.send(ADA, "key", text="echo typed >> made.txt")
        await desk.send(ADA, "key", text="echo typed >> made.txt")
        (record,) = await place.until(lambda records: bool(content(records[0], "made.txt")))
        await place.until(lambda records: records[0].status == "ready")
        assert content(record, "made.txt") == "typed\n"


async def test_a_pull_request_is_watched_on_after_a_restart(tmp_path: Path) -> None:
    async with outside(tmp_path) as (hub, fake):
        async with gateway(tmp_path, hub, fake, keep=True) as place:
            await place.ask(f"/agents new shell {place.repo} branch=fix echo wrong > src/auth.py")
            await place.until(lambda records: records[0].public_status == "completed")
            fake.add_comment("first", author="eve")
            await place.ask("/pr Fix the login")
            await place.announced(lambda one: "> first" in one.text)
            await due_now(place)
        fake.add_comment("second", author="eve")
        async with gateway(tmp_path, hub, fake) as place:
            assert "1. **shell**" in await place.ask("/agents")
            told = await place.announced(lambda one: "> second" in one.text)
            assert "first" not in told.text
            texts = [one.text for one in await place.log()]
            assert sum("> first" in text for text in texts) == 1
            # The button of before the restart still works, for the session that went on.
            await place.press(await place.question("let the agent fix it?"), "fix")
            await place.announced(lambda one: one.text.startswith('Sent "Pull request #5'))
            assert len(await place.records()) == 1


async def due_now(place: Place) -> None:
    """Let the next look at the pull request be due, as if a minute had gone."""
    table = (await place.agents.desk()).services.table("pull_requests")
    while True:
        ((key, stored),) = await table.items()
        if not stored.get("pending") and await table.put(key, {**stored, "next_at": 0}, expected=stored):
            return


async def test_the_setup_of_a_repository_is_shown(tmp_path: Path) -> None:
    async with outside(tmp_path) as (hub, fake):
        setup = {f"{hub.host}/acme/app": {"command": ["sh", "-c", "echo prepared; exit 3"]}}
        own = {"hosts": [hub.url], "setup": setup}
        async with gateway(tmp_path, hub, fake, workspaces=own) as place:
            said = await place.ask(f"/agents new shell {place.repo} echo hello")
            assert "The setup of the workspace failed with status 3.\n\n```\nprepared\n```" in said


async def test_a_workspace_over_its_limit_pauses_its_agent_until_it_is_within_it_again(
    tmp_path: Path,
) -> None:
    async with outside(tmp_path) as (hub, fake):
        own = {"hosts": [hub.url], "max_bytes": 4_000_000}
        async with gateway(tmp_path, hub, fake, workspaces=own) as place:
            await place.ask(f"/agents new shell {place.repo} head -c 8000000 /dev/zero > big")
            (record,) = await place.until(lambda records: records[0].public_status == "completed")
            desk = await place.agents.desk()
            await desk.services.workspaces.sweep()
            (workspace,) = desk.services.workspaces.list("owner")
            assert workspace.paused
            await desk.send(ADA, "key", keys=[*"echo", "space", *"a>f", "enter"])
            assert not content(record, "f")
            remove(record, "big")
            await desk.services.workspaces.sweep()
            await place.until(lambda records: content(records[0], "f") == "a\n")


def remove(record: SessionRecord, name: str) -> None:
    Path(record.workdir, name).unlink()


async def test_the_files_of_before_a_text_are_restored(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        await place.ask(f"/agents new shell {place.repo} echo good > result.txt")
        await place.until(lambda records: records[0].public_status == "completed")
        await place.ask("/agents 1 echo bad > result.txt")
        (record,) = await place.until(
            lambda records: (
                content(records[0], "result.txt") == "bad\n" and records[0].public_status == "completed"
            )
        )
        said = await place.ask("/agents 1 undo")
        assert said == "Restored the files as they were before `echo bad > result.txt` (checkpoint 1)."
        assert content(record, "result.txt") == "good\n"
