"""Teams: each agent has a worktree, their changes are shown side by side, and the user keeps one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway import ErrorPart, ToolResultPart
from tests.plugins.coding_agents.tools.room import Place, coding, content

pytestmark = pytest.mark.slow


async def start(place: Place) -> None:
    """Start two agents that write different files."""
    task = "basename $PWD > who.txt; echo own > $(basename $PWD).txt"
    said = await place.ask(f"/agents new 2 shell {place.repo} {task}")
    assert said.count("**Shell** works in") == 2
    await place.until(lambda records: [one.public_status for one in records] == ["completed"] * 2)


async def test_each_agent_of_a_team_has_its_own_worktree(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        await start(place)
        first, second = await place.records()
        assert first.workdir != second.workdir
        for record in (first, second):
            assert content(record, "who.txt").strip() == Path(record.workdir).name
        workspaces = (await place.agents.desk()).services.workspaces.list("owner")
        assert len({one.branch for one in workspaces}) == 2


async def test_compare_shows_the_changes_side_by_side_and_keeps_the_one_of_the_button(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        await start(place)
        first, second = await place.records()
        await place.say("/compare")
        shown = await place.announced(lambda one: one.text.startswith("| file |"))
        rows = shown.text.splitlines()
        assert rows[0] == "| file | 1 shell | 2 shell |"
        assert "| `who.txt` | +1 -0 | +1 -0 |" in rows
        assert sum(row.endswith("| - |") or "| - |" in row for row in rows) == 2
        files = [
            file.name for part in shown.parts if isinstance(part, ToolResultPart) for file in part.attachments
        ]
        assert files == ["1-shell.patch", "2-shell.patch"]
        asked = await place.question("Which changes do you keep?")
        assert [choice["label"] for choice in asked["choices"]] == [
            "Keep 1 shell",
            "Keep 2 shell",
            "Keep all",
        ]
        await place.press(asked, "2")
        await place.announced(lambda one: one.text.startswith(f"Kept 2 shell `{second.short_id}`"))
        assert (await place.records())[0].is_ended
        assert not content(first, "who.txt")
        assert content(second, "who.txt")


async def test_one_is_kept_by_a_command_alone(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        await start(place)
        first, second = await place.records()
        assert (await place.ask("/compare keep 1")).startswith(
            f"Kept 1 shell `{first.short_id}`; 1 other was"
        )
        assert not content(second, "who.txt")
        answer = await place.say("/compare")
        assert answer is not None
        (error,) = answer.parts
        assert isinstance(error, ErrorPart)
        assert error.error_name == "NO_WORKSPACE"


async def test_a_team_needs_a_repository(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        answer = await place.say("/agents new 2 shell echo hello")
        assert answer is not None
        (error,) = answer.parts
        assert isinstance(error, ErrorPart)
        assert error.error_name == "MISSING_REPO"
        assert await place.records() == []
