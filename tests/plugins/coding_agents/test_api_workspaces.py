"""The routes of workspaces, over a real server, with a host of repositories and a forge."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.coding_agents.tools.room import Place, coding

pytestmark = pytest.mark.slow

BASE = "/api/workspaces"


async def created(place: Place, **body: Any) -> dict[str, Any]:
    status, view = await place.served.ask("POST", BASE, json=body)
    assert status == 200, view
    return view


async def test_003_15_and_16_a_workspace_is_made_of_a_url_and_of_a_parent_over_http(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        assert await place.served.ask("GET", BASE) == (200, {"workspaces": []})
        # The names of the seed.
        first = await created(place, repoUrl=place.repo, branch="fix-auth")
        assert (first["branch"], first["status"], first["strategy"]) == ("fix-auth", "ready", "worktree")
        assert first["repository"].endswith("/acme/app")
        second = await created(place, useWorktree=True, parentWorkspaceId=first["id"], branch="other")
        assert second["path"] != first["path"]
        listed = await place.served.ask("GET", BASE)
        assert {one["id"] for one in listed[1]["workspaces"]} == {first["id"], second["id"]}
        shown = await place.served.ask("GET", f"{BASE}/{first['short_id']}")
        assert shown == (200, first)


async def test_003_17_to_19_changes_are_shown_committed_pushed_and_proposed_over_http(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        view = await created(place, repo=place.repo, branch="fix-auth")
        one = f"{BASE}/{view['id']}"
        (Path(view["path"]) / "new.txt").write_text("new\n")
        status, diff = await place.served.ask("GET", f"{one}/diff")
        assert status == 200
        assert diff["files"] == [{"path": "new.txt", "status": "A", "added": 1, "removed": 0}]
        assert "+new" in diff["patch"]
        assert not diff["truncated"]
        body = {"message": "Add a file", "title": "A file", "body": "It was missing."}
        status, done = await place.served.ask("POST", f"{one}/finalize", json=body)
        assert status == 200, done
        assert (done["branch"], done["pr_number"], done["nothing_to_commit"]) == ("fix-auth", 5, False)
        assert place.hub.log("fix-auth")[0] == "Add a file"
        assert [(pull.title, pull.body) for pull in place.fake.pulls] == [("A file", "It was missing.")]
        status, again = await place.served.ask("POST", f"{one}/finalize", json={})
        assert (status, again["nothing_to_commit"], again["pr_number"]) == (200, True, 5)


async def test_the_end_of_a_pull_request_without_a_chat_is_noted(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        view = await created(place, repo=place.repo, branch="fix-auth")
        (Path(view["path"]) / "new.txt").write_text("new\n")
        place.fake.state_of_new = "merged"
        assert (await place.served.ask("POST", f"{BASE}/{view['id']}/finalize", json={}))[0] == 200
        async with asyncio.timeout(60):
            while True:
                _, shown = await place.served.ask("GET", f"{BASE}/{view['id']}")
                watched = await (await place.agents.desk()).services.table("pull_requests").items()
                if shown["pr_state"] == "merged" and not watched:
                    break
                await asyncio.sleep(0.02)


async def test_a_repeated_idempotency_key_makes_one_workspace(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        headers = {"Idempotency-Key": "k"}
        made = [
            (await place.served.ask("POST", BASE, json={"repo": place.repo}, headers=headers))[1]["id"]
            for _ in range(2)
        ]
        assert made[0] == made[1]


async def test_work_that_is_nowhere_else_is_removed_by_force_only(tmp_path: Path) -> None:
    async with coding(tmp_path) as place:
        view = await created(place, repo=place.repo)
        one = f"{BASE}/{view['id']}"
        (Path(view["path"]) / "new.txt").write_text("new\n")
        status, error = await place.served.ask("DELETE", one)
        assert status == 503, error
        assert (await place.served.ask("DELETE", one, params={"force": "true"}))[0] == 204
        status, error = await place.served.ask("GET", one)
        assert (status, error["error_name"]) == (404, "WORKSPACE_NOT_FOUND")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "MISSING_REPO"),
        ({"repo": "ext::sh -c id"}, "INVALID_REPO_DOMAIN"),
        ({"repo": "https://example.org/acme/app"}, "INVALID_REPO_DOMAIN"),
        ({"parent": "ws-1-00000000"}, "MISSING_PARENT"),
    ],
)
async def test_what_cannot_be_made_has_a_code(tmp_path: Path, body: dict[str, Any], code: str) -> None:
    async with coding(tmp_path) as place:
        status, error = await place.served.ask("POST", BASE, json=body)
        assert 400 <= status < 500
        assert error["error_name"] == code
