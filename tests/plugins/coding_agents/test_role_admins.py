"""Admins of a channel whom only a role makes admins, and the questions of coding agents."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from gateway.channel import Address, UnauthorizedError
from tests.gateway.access.test_questions import Brings, Room
from tests.plugins.coding_agents.rig import agents, until_shown
from tests.plugins.coding_agents.test_chat import Place

pytestmark = pytest.mark.slow


class Guild(Room):
    """A platform with roles: ``role:9`` makes kim an admin."""

    def __init__(self) -> None:
        super().__init__()
        self.confirmed: dict[str, set[str]] = {}

    def groups_of(self, user: str) -> Collection[str]:
        return self.confirmed.get(user, ())

    async def refresh_groups(self, user: str, address: Address) -> None:
        self.confirmed[user] = {"role:9"} if user == "kim" else set()


async def test_an_admin_by_a_role_may_answer(tmp_path: Path) -> None:
    channels = {"letters": {"allow": ["ada", "eve", "kim"], "admins": ["role:9"]}}
    room = Guild()
    async with agents(tmp_path, Brings(room), channels=channels) as rig:
        chat = Place(rig, room)
        session = await chat.spawn()
        asked = await chat.asked()
        with pytest.raises(UnauthorizedError, match="only the user who was asked"):
            await chat.press(asked, "once", "eve")
        await chat.press(asked, "deny", "kim")
        await until_shown(session, "got n")
        await session.stop()
