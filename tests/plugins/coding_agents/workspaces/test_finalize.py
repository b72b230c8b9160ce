"""Finalize: one commit, one push, one pull request, whatever happens in between."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from plugins.coding_agents.errors import FinalizeError, InvalidRefError, ServiceUnavailableError
from plugins.coding_agents.forges.contract import ForgeError
from plugins.coding_agents.workspaces import WorkspaceRecord, Workspaces
from tests.plugins.coding_agents.workspaces.forge import TOKEN, Desk, run_git

pytestmark = pytest.mark.slow


async def changed(desk: Desk, branch: str = "work") -> tuple[Workspaces, WorkspaceRecord, Path]:
    """A workspace with a change."""
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url, branch=branch)
    tree = workspaces.places.tree(record.id)
    (tree / "src/app.py").write_text("print(2)\n")
    return workspaces, record, tree


async def test_003_06_changes_become_a_commit_a_branch_and_a_pull_request(desk: Desk) -> None:
    workspaces, record, tree = await changed(desk)
    result = await workspaces.finalize(
        record.id,
        "ada",
        message="Fix the bug\n\nIt was wrong.",
        title="Fix",
        body="See.",
        by=("Ada L.", "ada@x.org"),
    )
    assert (result.branch, result.pr_number, result.nothing_to_commit) == ("work", 1, False)
    assert result.pr_url == "https://git.example.org/acme/app/pull/1"
    assert desk.hub.log("work", form="%H")[0] == result.commit
    assert desk.hub.log("work") == ["Fix the bug", "First"]
    form = "%an <%ae>|%cn|%(trailers:key=Co-authored-by,valueonly)"
    assert desk.hub.log("work", form=form)[0].rstrip("|") == (
        "Workspace Agent <agent@trunkline.invalid>|Workspace Agent|Ada L. <ada@x.org>"
    )
    (draft,) = desk.pulls.made
    assert (draft.head, draft.base, draft.title, draft.body, draft.draft) == (
        "work",
        "main",
        "Fix",
        "See.",
        False,
    )
    assert run_git(tree, "status", "--porcelain", "--branch") == "## work...origin/work", "with its upstream"
    assert run_git(tree, "log", "--format=%s", "-1") == "Fix the bug"
    kept = workspaces.get(record.id, "ada")
    assert (kept.status, kept.pr_number, kept.pr_state, kept.finalizing) == ("ready", 1, "open", None)
    assert desk.names[3:] == ["workspace:finalizing", "pr:created", "workspace:ready"]
    again = await workspaces.finalize(record.id, "ada", message="Again")
    assert (again.commit, again.pr_number, again.nothing_to_commit) == (result.commit, 1, True)
    (tree / "more").write_text("x\n")
    more = await workspaces.finalize(record.id, "ada", message="More")
    assert desk.hub.log("work") == ["More", "Fix the bug", "First"]
    assert (more.pr_number, len(desk.pulls.made)) == (1, 1), "the same pull request"
    await workspaces.remove(record.id, "ada")
    assert all(TOKEN not in path for path, _ in desk.hub.asked)


async def test_003_18_nothing_to_commit_is_a_success(desk: Desk) -> None:
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url, branch="work")
    result = await workspaces.finalize(record.id, "ada")
    assert (result.nothing_to_commit, result.pr_number) == (True, 0)
    assert "work" not in run_git(desk.hub.bare(), "branch", "--list")
    await workspaces.remove(record.id, "ada")


async def test_003_18_commits_of_the_agent_are_pushed_too_and_a_pull_request_is_optional(desk: Desk) -> None:
    workspaces, record, tree = await changed(desk)
    run_git(tree, "checkout", "-q", "-b", "of-the-agent")
    run_git(tree, "commit", "-q", "-a", "-m", "By the agent")
    result = await workspaces.finalize(record.id, "ada", pr=False)
    assert (result.pr_number, desk.pulls.made) == (0, [])
    assert desk.hub.log("work") == ["By the agent", "First"]
    (tree / "rest").write_text("x\n")
    await workspaces.finalize(record.id, "ada", title="The rest", draft=True, base="main")
    assert desk.hub.log("work")[0] == "The rest"
    assert desk.pulls.made[0].draft


async def test_003_17_all_changes_are_committed_and_pushed_with_upstream(desk: Desk) -> None:
    workspaces, record, tree = await changed(desk)
    (tree / "new").write_text("x\n")
    made = await workspaces.finalize(record.id, "ada", message="fix: auth bug", push=False)
    assert run_git(tree, "log", "--format=%H %s", "-1") == f"{made.commit} fix: auth bug"
    assert run_git(tree, "status", "--porcelain") == ""
    assert "work" not in run_git(desk.hub.bare(), "branch", "--list")
    with pytest.raises(ServiceUnavailableError, match="not pushed"):
        await workspaces.remove(record.id, "ada")
    pushed = await workspaces.finalize(record.id, "ada", pr=False)
    assert (pushed.commit, pushed.pr_number, desk.pulls.made) == (made.commit, 0, [])
    assert desk.hub.log("work", form="%H")[0] == made.commit
    assert run_git(tree, "rev-parse", "--abbrev-ref", "@{upstream}") == "origin/work"
    assert run_git(tree, "rev-list", "--count", "@{upstream}..") == "0"


@pytest.mark.parametrize("ends", ["commit", "move_branch", "push", "keep"])
async def test_003_18_a_crash_after_any_step_makes_no_second_commit_or_pull_request(
    desk: Desk, ends: str
) -> None:
    """The gateway ends right after a step, before the step is stored."""
    workspaces, record, tree = await changed(desk)
    checkout = workspaces.checkout(record)
    reached = asyncio.Event()
    step = getattr(checkout, ends)

    async def end(*arguments: object) -> object:
        await step(*arguments)
        reached.set()
        return await asyncio.Event().wait()

    async def create(draft: object) -> object:
        await desk.pulls.__class__.create_pr(desk.pulls, draft)  # type: ignore[arg-type]
        reached.set()
        return await asyncio.Event().wait()

    if ends == "keep":  # the last step is one of the forge
        desk.pulls.create_pr = create  # type: ignore[method-assign,assignment]
    else:
        setattr(checkout, ends, end)
    workspaces.checkout = lambda _record: checkout  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(workspaces.finalize(record.id, "ada", message="Fix", by=("Ada", "a@x.org")))
        await reached.wait()
        task.cancel()
    if ends == "keep":
        del desk.pulls.create_pr
    assert workspaces.get(record.id, "ada").status == "finalizing"
    desk.now += 60_000
    again = await desk.open()
    ((resumed, outcome),) = await again.recover()
    assert resumed.id == record.id
    assert not isinstance(outcome, Exception)
    assert desk.hub.log("work") == ["Fix", "First"]
    assert len(desk.pulls.made) == 1
    assert (outcome.pr_number, outcome.commit) == (1, desk.hub.log("work", form="%H")[0])
    assert run_git(tree, "status", "--porcelain") == ""
    assert await again.recover() == []


async def test_a_commit_that_cannot_be_handed_over_names_the_cause_and_is_repeated(desk: Desk) -> None:
    workspaces, record, _ = await changed(desk)
    blocked = workspaces.places.repository(record.id) / f"worktrees/{record.id}/index.trunkline"
    blocked.mkdir()  # by the agent; a full disk is reported likewise
    with pytest.raises(FinalizeError, match=r"index.* cannot be replaced") as failed:
        await workspaces.finalize(record.id, "ada", message="Fix")
    assert failed.value.step == "commit"
    assert workspaces.get(record.id, "ada").status == "ready"
    blocked.rmdir()
    await workspaces.finalize(record.id, "ada", message="Again")
    assert desk.hub.log("work") == ["Fix", "First"], "the commit of the first attempt"


async def test_003_18_a_refused_push_names_the_step_and_the_cause(desk: Desk) -> None:
    workspaces, record, tree = await changed(desk)
    hook = desk.hub.bare() / "hooks/pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho 'the branch is protected' >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(FinalizeError, match="the branch is protected") as failed:
        await workspaces.finalize(record.id, "ada", message="Fix")
    assert failed.value.step == "push"
    hook.unlink()
    # Another one pushed to the branch meanwhile.
    other = desk.hub.root / "work/acme/app"
    run_git(other, "commit", "-q", "--allow-empty", "-m", "Other")
    run_git(other, "push", "-q", str(desk.hub.bare()), "HEAD:work")
    with pytest.raises(FinalizeError, match="nothing is overwritten"):
        await workspaces.finalize(record.id, "ada", message="Fix")
    assert desk.hub.log("work") == ["Other", "First"]
    run_git(desk.hub.bare(), "update-ref", "-d", "refs/heads/work")
    await workspaces.finalize(record.id, "ada", message="Fix")
    assert desk.hub.log("work") == ["Fix", "First"], "the commit of the first attempt"
    assert run_git(tree, "log", "--format=%s") == "Fix\nFirst"


async def test_003_19_a_refused_pull_request_leaves_the_push_and_is_opened_later(desk: Desk) -> None:
    workspaces, record, _ = await changed(desk)
    desk.pulls.failures.append(ForgeError("422 the base branch does not exist"))
    with pytest.raises(FinalizeError, match="422 the base") as failed:
        await workspaces.finalize(record.id, "ada", message="Fix")
    assert failed.value.step == "create_pr"
    assert desk.hub.log("work") == ["Fix", "First"]
    result = await workspaces.finalize(record.id, "ada", title="Fix")
    assert (result.pr_number, result.nothing_to_commit) == (1, True)
    assert workspaces.get(record.id, "ada").pr_number == 1


async def test_a_revoked_token_of_the_gateway_is_named(desk: Desk) -> None:
    workspaces, record, _ = await changed(desk)
    desk.hub.tokens.clear()
    with pytest.raises(FinalizeError, match="Authentication failed"):
        await workspaces.finalize(record.id, "ada", message="Fix")
    with pytest.raises(InvalidRefError):
        await workspaces.finalize(record.id, "ada", base="--mirror")
