"""Coding agents in a chat: by commands alone, and by sentences for which a model calls tools."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import ErrorPart, ToolCallPart, ToolResultPart
from plugins.coding_agents.adapters import adapters
from plugins.coding_agents.errors import SessionNotFoundError
from plugins.coding_agents.tools.services import Caller
from tests.plugins.coding_agents.tools.room import Place, coding, content

pytestmark = pytest.mark.slow

ASK = "read -p 'Apply the fix? [y/n] ' a; echo $a > answer.txt"
"""A task for a shell, which asks as a coding agent does."""


def blocked(place: Place, number: int = 0):
    return lambda records: records[number].public_status == "blocked"


def completed(number: int = 0):
    return lambda records: records[number].public_status == "completed"


async def test_003_01_a_start_shows_agent_folder_id_and_status(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        said = await place.ask("/agents new shell echo hello > made.txt")
        (record,) = await place.until(completed())
        assert said == f"**Shell** works in `{record.workdir}`.\n\nSession `{record.short_id}` · running"
        assert content(record, "made.txt") == "hello\n"


async def test_003_02_text_and_keys_are_sent_and_confirmed(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        await place.ask(f"/agents new shell {ASK}")
        (record,) = await place.until(blocked(place))
        assert await place.ask("/agents 1 y") == f'Sent "y" to shell `{record.short_id}`.'
        await place.until(completed())
        assert content(record, "answer.txt") == "y\n"
        said = await place.ask(f"/agents {record.short_id} keys e x i t enter")
        assert said == f'Sent "e x i t enter" to shell `{record.short_id}`.'
        await place.until(lambda records: records[0].is_ended)


async def test_003_03_a_session_is_stopped(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        await place.ask("/agents new shell sleep 1000")
        await place.ask("/agents new shell sleep 1000")
        first, second = await place.records()
        assert await place.ask("/agents 1 stop") == f"Stopped shell `{first.short_id}`."
        assert await place.ask("/agents stop all") == f"Stopped shell `{second.short_id}`."
        assert all(record.is_ended for record in await place.records())
        answer = await place.say("/agents stop all")
        assert answer is not None
        (error,) = answer.parts
        assert isinstance(error, ErrorPart)
        assert error.error_name == "NO_SESSION"


async def test_003_04_the_list_has_numbers_programs_ids_statuses_and_folders(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        assert (await place.ask("/agents")).startswith("No coding agents are running.")
        await place.ask("/agents new shell")
        await place.ask(f"/agents new shell {ASK}")
        first, second = await place.until(blocked(place, 1))
        lines = (await place.ask("/agents")).splitlines()
        assert lines[0] == f"1. **shell** `{first.short_id}` · running · `{first.workdir}`"
        assert lines[1].startswith(f"2. **shell** `{second.short_id}` · blocked: `Apply the fix? [y/n]`")


async def test_003_05_a_workspace_is_prepared_from_a_url_and_from_a_parent(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        said = await place.tell("clone acme/app", "provision_workspace", repo=place.repo, branch="fix-auth")
        assert "on the branch `fix-auth` in `" in said
        await place.ask("/agents new shell cat src/app.py > seen.txt")
        (record,) = await place.until(completed())
        assert f" in `{record.workdir}`" in said
        assert content(record, "seen.txt") == "print(1)\n"
        desk = await place.agents.desk()
        (first,) = desk.services.workspaces.list("owner")
        said = await place.tell("another branch of it", "provision_workspace", parent=first.id)
        assert re.search(r"on the branch `trunkline/\d{8}-", said)


async def test_003_06_finalize_shows_the_commit_and_the_pull_request(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        await place.ask(f"/agents new shell {place.repo} branch=fix-auth echo fixed > src/auth.py")
        await place.until(completed())
        said = await place.ask("/pr 1 Fix the login")
        (made,) = place.fake.pulls
        commit = place.hub.log("fix-auth", form="%H")[0]
        assert said == (f"Committed `{commit[:8]}` on `fix-auth`.\n\nPR #5: {place.fake.url}/pull/5")
        assert (made.title, made.head, made.base) == ("Fix the login", "fix-auth", "main")
        again = await place.ask("/pr")
        assert again.startswith(f"There is nothing new to commit; the last commit is `{commit[:8]}`")
        assert again.endswith("/pull/5")
        assert len(place.fake.pulls) == 1


async def test_003_07_a_program_that_is_not_known_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        answer = await place.say("/agents new nosuch fix it")
        assert answer is not None
        (error,) = answer.parts
        assert isinstance(error, ErrorPart)
        assert error.error_name == "UNKNOWN_AGENT"
        known = error.message.rpartition("known ones: ")[2].split(", ")
        assert {"claude", "codex", "gemini", "aider", "pi", "shell"} <= set(known)


@pytest.fixture
def distribution(tmp_path: Path) -> Iterator[None]:
    """Install a distribution with an adapter: a module, and metadata with an entry point."""
    site = tmp_path / "site"
    info = site / "other_agent-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-agent\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[trunkline.coding_agents]\nother = other_agent:ADAPTER\n")
    (site / "other_agent.py").write_text(
        "from msgspec.structs import replace\n"
        "from plugins.coding_agents.adapters.shell import ADAPTER as SHELL\n"
        "ADAPTER = replace(SHELL, name='other', title='Other Agent', aliases=('another',))\n"
    )
    sys.path.insert(0, str(site))
    adapters.cache_clear()
    yield
    sys.path.remove(str(site))
    adapters.cache_clear()


@pytest.mark.usefixtures("distribution")
async def test_003_14_a_new_program_needs_a_distribution_with_an_adapter_only(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        assert (await place.ask("/agents new another echo hello")).startswith("**Other Agent** works in")
        (record,) = await place.until(completed())
        assert record.agent == "other"


async def test_003_08_the_four_sentences_work_through_a_model(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        said = await place.tell(
            "fix the auth bug with Claude Code",
            "spawn_coding_agent",
            agent="shell",
            task=f"echo fixed > src/auth.py; {ASK}",
            repo=place.repo,
        )
        (record,) = await place.until(blocked(place))
        assert said.startswith(f"**Shell** works in `{record.workdir}`.")
        assert "`" + record.short_id in await place.tell("what is running", "list_coding_agents")
        said = await place.tell("tell it to accept", "send_to_coding_agent", text="y")
        assert said == f'Sent "y" to shell `{record.short_id}`.'
        await place.until(completed())
        said = await place.tell("create a PR", "finalize_workspace", title="Fix the auth bug")
        assert re.fullmatch(r"Committed `[0-9a-f]{8}` on `[\w/-]+`\.\n\nPR #5: \S+/pull/5", said)
        assert [pull.title for pull in place.fake.pulls] == ["Fix the auth bug"]


async def test_003_08_the_four_sentences_work_by_commands_alone(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        await place.ask(f"/agents new shell {place.repo} echo fixed > src/auth.py; {ASK}")
        (record,) = await place.until(blocked(place))
        assert record.short_id in await place.ask("/agents")
        assert (await place.ask("/agents 1 y")).startswith('Sent "y"')
        await place.until(completed())
        assert (await place.ask("/pr Fix the auth bug")).endswith("/pull/5")
        assert place.served.models.requests == []


@pytest.mark.parametrize("name", ["SPAWN_CODING_AGENT", "Spawn_Coding_Agent"])
async def test_the_names_of_the_seed_call_the_same_tools(tmp_path: Path, name: str) -> None:
    async with coding(tmp_path) as place:
        await place.tell("start a shell", name, agent="bash")
        (record,) = await place.records()
        assert await place.tell("what runs", "LIST_CODING_AGENTS") == await place.ask("/agents")
        said = await place.tell("stop it", "STOP_CODING_AGENT", session=record.short_id)
        assert said == f"Stopped shell `{record.short_id}`."


async def test_a_diff_has_a_stat_one_folded_block_for_each_file_and_the_patch_as_a_file(
    tmp_path: Path,
) -> None:
    async with coding(tmp_path) as place:
        task = r"echo fixed > src/auth.py; printf 'a\033[31mb\n' > src/app.py"
        await place.ask(f"/agents new shell {place.repo} branch=fix {task}")
        await place.until(completed())
        await place.say("/diff 1")
        shown = await place.announced(lambda one: "2 files changed" in one.text)
        calls = [part for part in shown.parts if isinstance(part, ToolCallPart)]
        results = [part for part in shown.parts if isinstance(part, ToolResultPart)]
        assert [call.arguments for call in calls] == [{"path": "src/app.py"}, {"path": "src/auth.py"}]
        assert all(one.display is not None and one.display.kind == "diff" for one in results)
        assert "+fixed" in results[1].output
        assert all("\x1b" not in one.output for one in results)
        (patch,) = (file for one in results for file in one.attachments)
        assert patch.name == "changes.patch"
        output = await place.tell("show me the changes", "show_changes")
        assert "+fixed" in output


async def test_another_users_agents_do_not_exist(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        await place.ask("/agents new shell")
        (record,) = await place.records()
        desk = await place.agents.desk()
        other = Caller(owner="test:eve", user="eve", session="e", address={})
        assert desk.list(other).startswith("No coding agents")
        for name in (record.id, record.short_id):
            with pytest.raises(SessionNotFoundError):
                (await place.agents.service()).get(name, other.owner)


async def test_003_06_work_in_a_folder_is_pushed_there_without_a_pull_request(tmp_path: Path) -> None:
    async with coding(tmp_path, allowed_roots=[str(tmp_path)]) as place:
        folder = place.hub.bare()
        await place.tell("a branch of my folder", "provision_workspace", repo=str(folder), branch="work")
        desk = await place.agents.desk()
        (record,) = desk.services.workspaces.list("owner")
        (desk.services.workspaces.places.tree(record.id) / "new").write_text("x\n")
        said = await place.tell("push it", "finalize_workspace", message="New")
        assert said.startswith("Committed `")
        assert said.endswith("The repository is a folder, which has no pull requests.")
        assert place.hub.log("work") == ["New", "First"]
