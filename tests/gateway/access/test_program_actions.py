"""Permissions of programs that plugins run: rules, earlier answers, and the users who may answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import Plugin, PluginContext
from gateway.access.people import UserRef
from gateway.access.permissions import Rule
from gateway.api import PermissionService, ProgramAction
from gateway.contract.errors import InvalidRequestError, NotFoundError
from gateway.testing.chat import Chat, chatting

NAME = "runner:claude:Bash"


class Runner(Plugin):
    """A plugin whose programs ask."""

    name = "runner"

    def __init__(self) -> None:
        self.permissions: PermissionService | None = None

    async def activate(self, ctx: PluginContext) -> None:
        self.permissions = ctx.permissions


def action(text: str = "npm test", **fields: Any) -> ProgramAction:
    given = {"folder": "/work", "user": "phone:ada", "session": "s", **fields}
    return ProgramAction(
        name=NAME, text=text, address={"channel": "phone", "account": "bot", "chat": "room"}, **given
    )


@asynccontextmanager
async def running(
    tmp_path: Path, rules: Mapping[str, Rule] | None = None, **channel: Any
) -> AsyncGenerator[tuple[Chat, PermissionService]]:
    runner = Runner()
    access = {"allow": ["ada", "eve"], "admins": ["root"], **channel}
    permissions = {"*": "allow", **(rules or {})}
    async with chatting(
        tmp_path, runner, permissions=permissions, channels={"phone": {"enabled": False, **access}}
    ) as chat:
        assert runner.permissions is not None
        yield chat, runner.permissions


@pytest.mark.parametrize(
    ("rule", "text", "expected"),
    [
        (None, "npm test", "ask"),
        ("allow", "npm test; rm -rf ~", "allow"),
        ("deny", "npm test", "deny"),
        ({"npm *": "allow"}, "npm test", "allow"),
        ({"npm *": "allow"}, "npm test && rm -rf ~", "ask"),
        ({"npm *": "allow"}, "npm test\nrm -rf ~", "ask"),
        ({"rm *": "deny", "*": "ask"}, "rm -rf ~", "deny"),
        ({"npm *": "allow"}, "rm -rf ~", "deny"),
    ],
)
async def test_only_its_own_rule_allows_an_action(
    tmp_path: Path, rule: Rule | None, text: str, expected: str
) -> None:
    async with running(tmp_path, {} if rule is None else {NAME: rule}) as (_, permissions):
        assert await permissions.decide(action(text)) == expected


async def test_an_always_covers_the_same_text_in_the_same_folder_and_chat_of_the_same_user(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as (chat, permissions):
        await chat.say("Hello.")
        await permissions.record(action(), "always", "phone:ada", "question 1")
        await permissions.record(action(), "always", "phone:ada", "question 1")
        assert await permissions.decide(action()) == "allow"
        others = [
            action("npm run"),
            action(folder="/home"),
            action(session="t"),
            action(user="phone:eve"),
        ]
        assert [await permissions.decide(other) for other in others] == ["ask"] * 4
        access = chat.gateway.parts.access
        assert [one.matches for one in await access.grants.all()] == ["npm test (in /work)"]
        await access.grants.revoke("question 1", UserRef("phone", "ada"))
        assert await permissions.decide(action()) == "ask"
        with pytest.raises(NotFoundError):
            await access.grants.revoke("question 1", UserRef("phone", "ada"))


async def test_only_the_answer_always_allows_later_calls(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, permissions):
        await permissions.record(action(), "once", "phone:ada", "question 1")
        assert await permissions.decide(action()) == "ask"


async def test_a_user_who_may_no_longer_use_the_bot_is_denied(tmp_path: Path) -> None:
    async with running(tmp_path, {NAME: "allow"}) as (_, permissions):
        assert await permissions.decide(action(user="phone:mallory")) == "deny"
        assert await permissions.decide(action(user="owner")) == "allow"


async def test_a_user_may_answer_on_their_own_channel(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, permissions):
        assert permissions.answerers(action()) == ("ada",)
        assert permissions.answerers(action(user="letters:ada")) == ()


async def test_a_plugin_cannot_decide_about_the_actions_of_another(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, permissions):
        foreign = ProgramAction(name="other:claude:Bash", text="ls", folder="/", user="owner", address={})
        with pytest.raises(InvalidRequestError, match="runner:"):
            await permissions.decide(foreign)
