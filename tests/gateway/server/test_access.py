"""Access over REST: pairing codes and allowed users."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from yarl import URL

from gateway.channel import Sender
from gateway.testing.chat import written
from gateway.testing.served import Served, serving
from tests.gateway.access.rooms import code_in

TOKEN = "t" * 32


async def knock(served: Served, user: str, channel: str = "home") -> str:
    """Let an unauthorized user write, and return the pairing code."""
    told = await served.gateway.parts.access.pairing.greet(channel, Sender(user, "Eve"))
    assert told is not None
    return code_in(told)


def role_of(served: Served, user: str) -> str | None:
    """Return the role of a user."""
    return served.gateway.parts.access.policy.role("home", written("hi", user=user, role=None))


async def test_who_waits_is_listed_let_in_and_out_again(tmp_path: Path) -> None:
    async with serving(tmp_path, channels={"home": {"enabled": False}}) as served:
        code = await knock(served, "a/b ü")
        _, pairs = await served.ask("GET", "/api/pairs")
        assert [(w["code"], w["user"], w["name"]) for w in pairs["waiting"]] == [(code, "a/b ü", "Eve")]
        status, let = await served.ask("POST", "/api/pairs", json={"code": code})
        assert (status, let["channel"], let["role"], let["approved_by"]) == (200, "home", "user", "owner")
        assert role_of(served, "a/b ü") == "user"


@pytest.mark.parametrize("user", ["666", "a/b", "U%2f:1", "ü"])
async def test_a_user_of_any_id_can_be_let_out(tmp_path: Path, user: str) -> None:
    async with serving(tmp_path, channels={"home": {"enabled": False}}) as served:
        await served.ask("POST", "/api/pairs", json={"code": await knock(served, user), "role": "admin"})
        assert role_of(served, user) == "admin"
        url = URL(f"{served.url}/api/pairs/home/{quote(user, safe='')}", encoded=True)
        for status in (204, 404):
            async with served.http.delete(url) as answer:
                assert answer.status == status
            assert role_of(served, user) is None


@pytest.mark.parametrize("body", [{}, {"code": ""}, {"code": "x", "role": "owner"}, {"code": "x", "more": 1}])
async def test_what_is_not_an_approval_is_refused(tmp_path: Path, body: dict[str, object]) -> None:
    async with serving(tmp_path) as served:
        assert (await served.ask("POST", "/api/pairs", json=body))[0] == 400


async def test_guesses_are_limited(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        statuses = [(await served.ask("POST", "/api/pairs", json={"code": "x"}))[0] for _ in range(6)]
        assert statuses == [404] * 5 + [429]


async def test_without_the_token_no_user_is_listed_or_paired(tmp_path: Path) -> None:
    async with serving(tmp_path, server={"token": TOKEN}, channels={"home": {"enabled": False}}) as served:
        code = await knock(served, "666")
        for method, path, body in (
            ("GET", "/api/pairs", None),
            ("POST", "/api/pairs", {"code": code}),
            ("DELETE", "/api/pairs/home/666", None),
        ):
            assert (await served.ask(method, path, json=body))[0] == 401
        assert served.gateway.parts.access.members.list() == []
