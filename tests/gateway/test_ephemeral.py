"""Ephemeral answers: rules, hooks and budgets apply, and nothing of them is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from gateway import Intercept, Plugin, Tool, Transform, TurnContext, UserInput, tool_from
from gateway.channel import Address, InboundMessage, Sender
from gateway.testing.chat import Chat
from gateway.testing.fake_models.script import Gate, Reply, Say
from tests.gateway.access.rooms import guarded


class Filter(Plugin):
    """Plugin with a tool that changes or intercepts what users write."""

    name = "filter"

    def tools(self) -> Sequence[Tool]:
        async def look() -> str:
            """Look."""
            return "seen"

        return [tool_from(look)]

    async def transform_user_input(self, text: str, ctx: TurnContext) -> UserInput:
        return Intercept("no") if text == "stop" else Transform(text.upper())


def typed(text: str, user: str = "ada") -> InboundMessage:
    """Return a message to the bot that is not sent yet."""
    address = Address("home", "bot", user)
    return InboundMessage(
        session="home:bot:typed", dedup_key="1", address=address, sender=Sender(user), text=text
    )


async def answer(chat: Chat, message: InboundMessage, seconds: float = 60) -> str:
    return await chat.host.answer("home", message, seconds, 100)


async def test_it_is_answered_without_history_and_leaves_nothing_but_its_cost(tmp_path: Path) -> None:
    async with guarded(tmp_path, Filter()) as (chat, _):
        assert await answer(chat, typed("hi")) == "You said: HI"
        assert await answer(chat, typed("again")) == "You said: AGAIN"
        assert await answer(chat, typed("stop")) == "no"
        assert len(chat.model.calls) == 2
        said = chat.model.calls[-1]
        assert [one.text for one in said.messages] == ["AGAIN"], "the next one does not know the first"
        assert said.options.tools == ()
        assert await chat.gateway.parts.sessions.list() == []
        assert chat.gateway.parts.sessions.live() == ()
        assert chat.gateway.counters.turns["home", "end_turn", ""] == 2


async def test_who_may_not_use_the_bot_gets_nothing(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, _):
        assert await answer(chat, typed("hi", "eve")) == ""
        assert chat.model.calls == []


async def test_an_answer_that_takes_too_long_is_cut(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, _):
        chat.model.then(Reply((Say("Once upon"), Gate(asyncio.Event()), Say(" a time"))))
        assert await answer(chat, typed("a story"), 0.5) in ("", "Once upon")
        assert chat.gateway.counters.turns["home", "aborted", ""] == 1
