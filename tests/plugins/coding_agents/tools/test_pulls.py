"""News of pull requests in the chat, and the button that lets the agent fix what a review found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins.coding_agents.tools.room import Place, coding

pytestmark = pytest.mark.slow


async def pull_request(place: Place) -> None:
    """Open a pull request of a shell's change."""
    await place.ask(f"/agents new shell {place.repo} branch=fix echo wrong > src/auth.py")
    await place.until(lambda records: records[0].public_status == "completed")
    assert (await place.ask("/pr Fix the login")).endswith("/5")


@pytest.mark.parametrize("kind", ["github", "gitlab", "gitea"])
async def test_checks_and_comments_are_reported_and_the_button_lets_the_agent_fix_them(
    tmp_path: Path, kind: str
) -> None:
    async with coding(tmp_path, kind) as place:
        place.fake.checks.append(("test", "failed"))
        place.fake.add_comment("Wrong <b>variable</b>", "line", "eve", path="src/auth.py", line=1)
        await pull_request(place)
        told = await place.announced(lambda one: "checks failed" in one.text)
        assert told.text.startswith("**PR #5** `Fix the login`: checks failed")
        told = await place.announced(lambda one: "new comments" in one.text)
        assert "`eve` on `src/auth.py:1`" in told.text
        assert "> Wrong <b>variable</b>" in told.text
        asked = await place.question("let the agent fix it?")
        assert [choice["label"] for choice in asked["choices"]] == ["Let the agent fix it", "Not now"]
        await place.press(asked, "fix")
        await place.announced(lambda one: one.text.startswith('Sent "Pull request #5'))
        (record,) = await place.records()
        assert record.workspace


async def test_the_agent_is_started_again_in_its_worktree_if_it_has_ended(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        place.fake.add_comment("Please fix the spelling", author="eve")
        await pull_request(place)
        asked = await place.question("let the agent fix it?")
        await place.ask("/agents 1 stop")
        await place.press(asked, "fix")
        told = await place.announced(lambda one: " works on it in " in one.text)
        first, second = await place.records()
        assert first.is_ended
        assert second.workdir == first.workdir
        assert second.resumes == first.id
        assert "Please fix the spelling" in second.task
        assert second.short_id in told.text


async def test_not_now_changes_nothing(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        place.fake.add_comment("Please fix the spelling", author="eve")
        await pull_request(place)
        await place.press(await place.question("let the agent fix it?"), "no")
        assert len(await place.records()) == 1


@pytest.mark.parametrize("state", ["merged", "closed"])
async def test_the_end_of_a_pull_request_is_reported_and_noted(tmp_path: Path, state: str) -> None:
    async with coding(tmp_path) as place:
        await place.ask(f"/agents new shell {place.repo} branch=fix echo right > src/auth.py")
        await place.until(lambda records: records[0].public_status == "completed")
        # Merged at once, by a rule of the forge.
        place.fake.state_of_new = state
        await place.ask("/pr Fix the login")
        told = await place.announced(lambda one: f"was {state}" in one.text)
        assert told.text == f"**PR #5** `Fix the login` was {state}: {place.fake.url}/pull/5"
        (workspace,) = (await place.agents.desk()).services.workspaces.list("owner")
        assert workspace.pr_state == state
