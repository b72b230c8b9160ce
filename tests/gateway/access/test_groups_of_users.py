"""Roles and user groups in ``allow`` and ``admins``: confirmed by the platform, and never for long."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from gateway import PluginContext
from gateway.channel import Address, UnauthorizedError
from gateway.session.frames import ApprovalAsked
from gateway.settings import Settings
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Gate, Reply, Say, Use
from gateway.testing.letterbox import Letterbox
from tests.gateway.access.rooms import Platforms, Room
from tests.gateway.access.test_approvals import Shell


class Guild(Letterbox):
    """A channel whose users have roles. ``roles`` are those on the platform, ``confirmed`` those it read."""

    def __init__(self) -> None:
        super().__init__("home")
        self.roles: dict[str, set[str]] = {"ada": {"role:1"}, "root": {"role:9"}}
        self.confirmed: dict[str, set[str]] = {}
        self.asked: list[str] = []
        self.error: Exception | None = None
        self.answers = asyncio.Event()
        self.answers.set()

    def groups_of(self, user: str) -> Collection[str]:
        return self.confirmed.get(user, ())

    async def refresh_groups(self, user: str, address: Address) -> None:
        self.asked.append(user)
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        self.confirmed[user] = set(self.roles.get(user, ()))

    def remove(self, user: str) -> None:
        """Take a user's roles; five minutes pass, so that earlier ones are not confirmed any more."""
        del self.roles[user]
        self.confirmed.clear()


class World(Platforms):
    """Brings the channel with roles."""

    def __init__(self) -> None:
        super().__init__()
        self.home: Guild = Guild()

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.channels is not None
        ctx.channels.register(self.home)

    @property
    def group(self) -> Room:
        """A group of several users."""
        return self.room("g", group=True)


RULES: dict[str, Any] = {"allow": ["bob", "T1:U2", "role:1"], "admins": ["role:9"]}


def running(tmp_path: Path, world: World, *plugins: Any, **fields: Any) -> Any:
    """A gateway whose channel has these rules."""
    plain = {"envelope": "off", "context_messages": 0}
    rules = {"home": {**plain, **fields.pop("rules", RULES)}}
    return chatting(tmp_path, world, *plugins, channels=rules, **fields)


async def test_members_of_a_role_are_answered_and_have_its_rank(tmp_path: Path) -> None:
    world = World()
    async with running(tmp_path, world):
        for user in ("ada", "root", "bob"):
            assert await world.group.ask(user, "hi") == "You said: hi"
        assert (await world.group.write("eve", "hi")).ignored
        assert world.heard == [("hi", "user"), ("hi", "admin"), ("hi", "user")]
        assert "You are not authorised" in await world.room("1").ask("eve", "hi")


async def test_the_platform_is_asked_only_where_a_rule_names_a_group_that_is_not_confirmed(
    tmp_path: Path,
) -> None:
    world = World()
    rooms = {"plain": {"allow": ["T1:U2", "ada"]}, "staff": {"allow": ["usergroup:S1"]}}
    async with running(tmp_path, world, rules={"allow": ["T1:U2", "ada"], "rooms": rooms}):
        assert await world.group.ask("T1:U2", "hi") == "You said: hi"
        assert (await world.group.write("eve", "hi")).ignored
        assert (await world.room("plain", group=True).write("eve", "hi")).ignored
        assert world.home.asked == []
        world.home.roles["kim"] = {"usergroup:S1"}
        staff = world.room("staff", group=True)
        assert await staff.ask("kim", "hi") == "You said: hi"
        assert await staff.ask("kim", "again") == "You said: again"
        assert world.home.asked == ["kim"]


async def test_groups_that_cannot_be_read_do_not_count_and_delay_nothing_for_long(tmp_path: Path) -> None:
    world = World()
    world.home.error = ConnectionError("the platform is away")
    async with running(tmp_path, world) as chat:
        for _ in range(5):
            assert (await world.group.write("ada", "hi")).ignored
        assert world.home.asked == ["ada"], "it is not asked again at once"
        assert await world.group.ask("bob", "hi") == "You said: hi"
        assert len(chat.model.calls) == 1


async def test_a_platform_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    world = World()
    world.home.answers.clear()
    async with running(tmp_path, world):
        assert (await world.group.write("ada", "hi")).ignored


async def test_a_member_that_was_removed_is_not_answered_although_the_message_waited(tmp_path: Path) -> None:
    world, gate = World(), asyncio.Event()
    async with running(tmp_path, world) as chat:
        chat.model.then(Reply((Gate(gate), Say("Done."))))
        await world.group.write("bob", "go")
        waiting = await world.group.write("ada", "and now me")
        assert not waiting.ignored
        world.home.remove("ada")
        gate.set()
        await world.home.until(1)
        assert await world.group.ask("bob", "next") == "You said: next"
        assert [sent.message.text for sent in world.home.sent] == ["Done.", "You said: next"]
        assert len(chat.model.calls) == 2


async def asked(chat: Chat, session: str) -> ApprovalAsked:
    """The question of a running turn."""
    watcher = await chat.watch(session)
    return await watcher.until(lambda frame: isinstance(frame, ApprovalAsked))


async def test_a_member_that_was_removed_decides_nothing(tmp_path: Path) -> None:
    world, shell = World(), Shell()
    async with running(tmp_path, world, shell, permissions={"shell": "ask"}) as chat:
        await world.group.ask("bob", "hi")
        chat.model.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"))
        viewer = chat.host.feed(lambda: None)
        await chat.host.follow(world.group.session, viewer, 0)
        await world.group.write("ada", "go")
        question = await asked(chat, world.group.session)
        world.home.remove("ada")
        with pytest.raises(UnauthorizedError):
            await chat.host.settle(question.approval_id, "once", session=world.group.session, user="ada")
        await chat.host.settle(question.approval_id, "deny", session=world.group.session)
        assert shell.ran == []


@pytest.mark.parametrize("listed", ["role:", "@ada", "role: 1"])
def test_names_and_empty_groups_are_refused(listed: str) -> None:
    with pytest.raises(ValueError, match="must hold ids"):
        Settings(channels={"home": {"allow": [listed]}})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("listed", ["role:1", "usergroup:S1", "T1:U2", "@ada:example.org", "ada@example.org"])
def test_ids_and_groups_of_every_platform_are_accepted(listed: str) -> None:
    settings = Settings(channels={"home": {"allow": [listed]}})  # pyright: ignore[reportArgumentType]
    assert settings.channels["home"].allow == (listed,)
