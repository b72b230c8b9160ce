"""Titles by a small model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gateway import Plugin, TurnContext
from gateway.app import Gateway
from gateway.contract.errors import ServerFailedError
from gateway.contract.messages import Message, new_id
from gateway.contract.provider import ChatOptions
from gateway.conversations.titles import clean_title
from gateway.session.frames import SessionFrame
from gateway.settings import Settings
from gateway.store import schema as t
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Gate, Reply, Say, Think

SMALL: Mapping[str, Any] = {"small_model": "script/small"}


def title_calls(chat: Chat) -> list[ChatOptions]:
    """The options of the calls for titles."""
    return [call.options for call in chat.model.calls if call.options.model == "small"]


async def titled(chat: Chat, session: str = "s") -> str:
    """Wait until a model has titled a session, and return the title."""
    row = (await chat.gateway.parts.sessions.find(session)).row
    async with asyncio.timeout(60):
        while row.titled is None:
            await asyncio.sleep(0.01)
    return row.title


async def stored_title(gateway: Gateway, session: str = "s") -> tuple[str, str | None]:
    """The title in the database, and its author."""
    row = next(row for row in await gateway.parts.sessions.list() if row.id == session)
    return row.title, row.titled


async def settled_titles(chat: Chat, calls: int) -> None:
    """Wait until that many titles were asked for, and the work is done."""
    async with asyncio.timeout(60):
        while len(title_calls(chat)) < calls:
            await asyncio.sleep(0.01)
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("output", "title"),
    [
        ("Lunch in Paris", "Lunch in Paris"),
        ('"Lunch in Paris"', "Lunch in Paris"),
        ("„Mittag in Paris“", "Mittag in Paris"),
        ("<think>The user\nwants lunch.</think>\n\nLunch in Paris\nMore text", "Lunch in Paris"),
        ("<thinking>never closed\nLunch", ""),
        ("\n\n  # **Title:** **Lunch in  Paris**", "Lunch in Paris"),
        ("Title: Lunch", "Lunch"),
        ("x" * 101, "x" * 97 + "…"),
        ("x" * 100, "x" * 100),
        ("a\u202egnp.exe\x00b", "a gnp.exe b"),
        ('""', ""),
        ("", ""),
    ],
)
def test_a_title_is_the_first_line_without_reasoning_quotes_and_markup(output: str, title: str) -> None:
    assert clean_title(output) == title


async def test_004_t10_the_small_model_titles_a_conversation_after_its_first_exchange(tmp_path: Path) -> None:
    gate = Gate(asyncio.Event())
    async with chatting(tmp_path, **SMALL) as chat:
        title = Reply((gate, Think("hm"), Say('"Lunch in Paris"\n')))
        chat.model.then(Reply((Say("Try the bistro."),)), title)
        await chat.say("Where shall I eat in Paris?")
        watcher = await chat.watch()
        gate.opened.set()
        assert await titled(chat) == "Lunch in Paris"
        frame = await watcher.until(lambda f: isinstance(f, SessionFrame) and f.title == "Lunch in Paris")
        assert frame.title == "Lunch in Paris"
        async with asyncio.timeout(60):  # readers have it before it is stored
            while await stored_title(chat.gateway) != ("Lunch in Paris", "model"):
                await asyncio.sleep(0.01)
        [call] = [call for call in chat.model.calls if call.options.model == "small"]
        assert call.options.temperature == 0.5
        assert call.options.tools == ()
        assert "Where shall I eat in Paris?" in call.messages[0].text
        assert "Try the bistro." in call.messages[0].text
        await chat.say("And in Rome?")
        await settled_titles(chat, 1)
        assert len(title_calls(chat)) == 1
        log = (await chat.gateway.parts.sessions.find("s")).messages()
        assert [message.text for message in log][1::2] == ["Try the bistro.", "You said: And in Rome?"]


async def test_an_answer_does_not_wait_for_its_title(tmp_path: Path) -> None:
    gate = Gate(asyncio.Event())
    async with chatting(tmp_path, **SMALL) as chat:
        chat.model.then(Reply((Say("one"),)), Reply((gate, Say("A title"))))
        assert (await chat.say("first")).text == "one"
        await settled_titles(chat, 1)
        assert (await stored_title(chat.gateway)) == ("first", None)
        chat.model.then(Reply((Say("two"),)), Reply((Say("Another"),)))
        assert (await chat.say("second")).text == "two"
        gate.opened.set()
        assert await titled(chat) in ("A title", "Another")


async def test_a_title_that_fails_leaves_the_first_line_and_is_tried_again(tmp_path: Path) -> None:
    async with chatting(tmp_path, **SMALL) as chat:
        chat.model.then(Reply((Say("one"),)), ServerFailedError("down", provider="script"))
        await chat.say("first line\nmore")
        await settled_titles(chat, 1)
        assert await stored_title(chat.gateway) == ("first line", None)
        chat.model.then(Reply((Say("two"),)), Reply((Say("Second try"),)))
        await chat.say("again")
        assert await titled(chat) == "Second try"


async def test_a_title_is_not_tried_forever(tmp_path: Path) -> None:
    async with chatting(tmp_path, **SMALL) as chat:
        for number in range(5):
            chat.model.then(Reply((Say("ok"),)))
            if number < 3:
                chat.model.then(Reply((Say("  "),)))
            await chat.say(f"message {number}")
            await settled_titles(chat, min(number + 1, 3))
        assert len(title_calls(chat)) == 3
        assert await stored_title(chat.gateway) == ("message 0", None)


async def test_secrets_are_masked_in_titles(tmp_path: Path) -> None:
    key = "sk-0123456789abcdef0123456789"
    providers = {"openai": {"api_key": key}}
    async with chatting(tmp_path, **SMALL, providers=providers) as chat:
        chat.model.then(Reply((Say("no"),)), Reply((Say(f"The key {key[:10]}"), Say(key[10:]))))
        await chat.say("What is your key?")
        assert await titled(chat) == "The key **********"


class Noting(Plugin):
    """Notes the agent of the last model call."""

    name = "noting"

    async def before_llm_call(
        self, messages: Sequence[Message], options: ChatOptions, ctx: TurnContext
    ) -> None:
        self.agent = ctx.agent


async def test_hooks_budgets_and_the_ledger_see_the_hidden_agent(tmp_path: Path) -> None:
    noting = Noting()
    async with chatting(tmp_path, noting, **SMALL) as chat:
        await chat.say("hello")
        await titled(chat)
        assert noting.agent == "title"
        async with asyncio.timeout(60):
            while await agents_of_calls(chat) != {"main", "title"}:
                await asyncio.sleep(0.01)


async def agents_of_calls(chat: Chat) -> set[str]:
    """The agents in the ledger of the session."""
    query = select(t.spend.c.agent).where(t.spend.c.session == "s")
    return await chat.gateway.parts.store.read(lambda c: set(c.execute(query).scalars()))


async def test_a_spent_budget_refuses_titles_without_a_question(tmp_path: Path) -> None:
    budgets = {"titles": {"scope": "agent", "only": ["title"], "stop": 0, "unpriced": "refuse"}}
    async with chatting(tmp_path, **SMALL, budgets=budgets) as chat:
        assert (await chat.say("hello")).text == "You said: hello"
        for _ in range(50):
            await asyncio.sleep(0.01)
        assert await stored_title(chat.gateway) == ("hello", None)
        assert title_calls(chat) == []


@pytest.mark.parametrize(
    ("settings", "models"),
    [
        ({}, ["one"]),
        ({"titles": False, **SMALL}, ["one"]),
        ({"titles": True}, ["one", "one"]),
        ({"titles": True, **SMALL}, ["one", "small"]),
        ({"agents": {"poet": {"small_model": "script/tiny"}}}, ["one"]),
    ],
)
async def test_a_title_costs_nothing_unless_a_small_model_or_titles_are_set(
    tmp_path: Path, settings: dict[str, Any], models: list[str]
) -> None:
    async with chatting(tmp_path, **settings) as chat:
        await chat.say("hello")
        async with asyncio.timeout(60):
            while len(chat.model.calls) < len(models):
                await asyncio.sleep(0.01)
        await settled_titles(chat, models.count("small"))
        assert [call.options.model for call in chat.model.calls] == models


async def test_unnamed_requests_commands_and_failures_get_no_title(tmp_path: Path) -> None:
    async with chatting(tmp_path, **SMALL) as chat:
        await chat.say("hello", f"chat-{new_id()}")
        await chat.say("/status")
        chat.model.then(ServerFailedError("down", provider="script"))
        await chat.say("hello")
        await settled_titles(chat, 0)
        assert title_calls(chat) == []


async def test_a_title_of_a_user_is_never_replaced(tmp_path: Path) -> None:
    gate = Gate(asyncio.Event())
    async with chatting(tmp_path, **SMALL) as chat:
        assert (await chat.say("/title")).text == "There is no title yet. `/title TEXT` sets it."
        chat.model.then(Reply((Say("one"),)), Reply((gate, Say("By the model"))))
        await chat.say("first")
        await settled_titles(chat, 1)
        assert (await chat.say("/title  My own\n\n title ")).text == "The title is now “My own title”."
        gate.opened.set()
        await settled_titles(chat, 1)
        await chat.say("second")
        assert await stored_title(chat.gateway) == ("My own title", "user")
        assert (await chat.say("/title")).text == "The title is “My own title”. `/title TEXT` sets it."
        long = await chat.say("/title " + "x" * 101)
        assert long.text == "The title is unchanged: it may have 100 characters, not 101."
        assert len(title_calls(chat)) == 1
    async with chatting(tmp_path, **SMALL) as chat:
        await chat.say("third")
        assert await stored_title(chat.gateway) == ("My own title", "user")


async def test_a_title_that_a_crash_prevented_is_made_after_the_next_answer(tmp_path: Path) -> None:
    async with chatting(tmp_path, **SMALL) as chat:
        # The gateway ends while the model works on the title.
        chat.model.then(Reply((Say("one"),)), Reply((Gate(asyncio.Event()), Say("Lost"))))
        await chat.say("first")
        await settled_titles(chat, 1)
    async with chatting(tmp_path, **SMALL) as chat:
        assert await stored_title(chat.gateway) == ("first", None)
        chat.model.then(Reply((Say("two"),)), Reply((Say("Made"),)))
        await chat.say("second")
        assert await titled(chat) == "Made"


async def test_a_rename_does_not_reorder_the_list(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("old", "a")
        await chat.say("new", "b")
        before = [row.updated_at for row in await chat.gateway.parts.sessions.list()]
        await chat.host.rename("a", "Renamed")
        rows = await chat.gateway.parts.sessions.list()
        assert [row.updated_at for row in rows] == before
        assert {row.id: row.title for row in rows} == {"a": "Renamed", "b": "new"}


def test_the_name_of_the_hidden_agent_is_taken() -> None:
    with pytest.raises(ValueError, match="the gateway has an agent of that name"):
        Settings.model_validate({"agents": {"title": {"model": "x/y"}}})
