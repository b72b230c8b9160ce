"""Inline mode: short answers to what allowed users type behind the bot's name in any chat."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from channels.telegram.fake import FakeTelegram
from channels.telegram.updates.objects import INLINE_KINDS, KINDS
from gateway import Intercept, Pass, Plugin, TurnContext, UserInput
from gateway.testing.fake_models.script import Gate, Reply, Say
from tests.channels.telegram.lab import lab, until

pytestmark = pytest.mark.slow


@pytest.fixture
async def fake() -> AsyncIterator[FakeTelegram]:
    """Yield a fake platform whose bot has the inline mode."""
    async with FakeTelegram(inline=True) as fake:
        yield fake


async def connected(fake: FakeTelegram) -> None:
    """Wait until the bot polls, so that it gets the updates of its kinds."""
    await until(lambda: fake.world.updates.polled)


def text_of(answer: Any) -> str:
    """Return the text that the only result of an answer would send."""
    [result] = answer["results"]
    return result["input_message_content"]["message_text"]


class Guard(Plugin):
    """Plugin that keeps a word from the model, and records what it saw."""

    name = "guard"

    def __init__(self) -> None:
        self.saw: list[str] = []

    async def transform_user_input(self, text: str, ctx: TurnContext) -> UserInput:
        self.saw.append(text)
        return Intercept("That is a secret.") if "secret" in text else Pass()


async def test_an_allowed_user_gets_an_answer_that_is_stored_nowhere(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    async with lab(tmp_path, fake, inline=True) as running:
        await connected(fake)
        assert fake.world.updates.allowed == (*KINDS, *INLINE_KINDS)
        query = fake.ask_inline("what **time**  is it?")
        await until(lambda: query.answer)
        assert query.answer is not None
        assert text_of(query.answer) == "You said: what time is it?"
        assert (query.answer["is_personal"], query.answer["cache_time"]) == (True, 300)
        request = running.models.requests[-1].body
        assert not request.get("tools")
        assert 4_096 in (request.get("max_tokens"), request.get("max_completion_tokens"))
        assert fake.ask_inline("what **time**  is it?") is query
        assert await running.states() == []
        assert await running.gateway.parts.sessions.list() == []
        assert running.gateway.counters.turns["telegram", "end_turn", ""] == 1
    fake.transcript.check()


async def test_it_is_off_by_default(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake) as running:
        await connected(fake)
        query = fake.ask_inline("hello")
        fake.deliver_raw({"inline_query": {"id": "1", "from": {"id": 5}, "query": "hi", "offset": ""}})
        fake.say(chat, "hello")
        await running.answers(chat, "You said: hello")
        assert len(running.models.requests) == 1
    assert query.answer is None
    assert fake.transcript.of("answerInlineQuery") == []


async def test_other_users_get_only_the_way_to_the_bot(tmp_path: Path, fake: FakeTelegram) -> None:
    async with lab(tmp_path, fake, inline=True, allow=["1"]) as running:
        await connected(fake)
        query = fake.ask_inline("hello", "Eve")
        await until(lambda: query.answer)
        assert query.answer is not None
        assert (query.answer["results"], query.answer["cache_time"]) == ([], 0)
        assert query.answer["button"]["start_parameter"] == "inline"
        assert running.models.requests == []
    fake.transcript.check()


async def test_only_the_newest_text_of_a_user_is_answered(tmp_path: Path, fake: FakeTelegram) -> None:
    async with lab(tmp_path, fake, inline=True) as running:
        await connected(fake)
        typed = [fake.ask_inline("what is the time"[:end]) for end in (4, 7, 11, 16)]
        other = fake.ask_inline("hello", "Ben")
        await until(lambda: typed[-1].answer and other.answer)
        assert [one.answer is None for one in typed] == [True, True, True, False]
        assert len(running.models.requests) == 2
    fake.transcript.check()


async def test_our_own_cache_answers_again_when_the_platform_forgot(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    async with lab(tmp_path, fake, inline=True) as running:
        await connected(fake)
        first = fake.ask_inline("hello")
        await until(lambda: first.answer)
        first.cached_until = 0
        second = fake.ask_inline("hello")
        await until(lambda: second.answer)
        assert second is not first
        assert second.answer == first.answer
        foreign = fake.ask_inline("hello", "Ben")
        await until(lambda: foreign.answer)
        assert len(running.models.requests) == 2, "each user has a cache of their own"
    fake.transcript.check()


async def test_a_query_that_takes_long_delays_no_message(tmp_path: Path, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with lab(tmp_path, fake, inline=True) as running:
        await connected(fake)
        gate = asyncio.Event()
        running.models.then(Reply((Say("Once upon"), Gate(gate), Say(" a time"))))
        query = fake.ask_inline("a story")
        await until(lambda: running.models.requests)
        fake.say(chat, "hello")
        await running.answers(chat, "You said: hello")
        assert query.answer is None
        gate.set()
        await until(lambda: query.answer)
        assert text_of(query.answer) == "Once upon a time"
    fake.transcript.check()


async def test_a_newer_text_ends_the_answer_to_an_older_one(tmp_path: Path, fake: FakeTelegram) -> None:
    async with lab(tmp_path, fake, inline=True) as running:
        await connected(fake)
        running.models.then(Reply((Say("Once upon"), Gate(asyncio.Event()), Say(" a time"))))
        older = fake.ask_inline("a story")
        await until(lambda: running.models.requests)
        newer = fake.ask_inline("a story, please")
        await until(lambda: newer.answer)
        assert text_of(newer.answer) == "You said: a story, please"
        assert older.answer is None
    fake.transcript.check()


async def test_hooks_and_budgets_apply(tmp_path: Path, fake: FakeTelegram) -> None:
    guard = Guard()
    spent = {"budgets": {"all": {"stop": 1, "unpriced": "refuse"}}}
    async with lab(tmp_path, fake, guard, inline=True) as running:
        await connected(fake)
        query = fake.ask_inline("the secret")
        await until(lambda: query.answer)
        assert (text_of(query.answer), guard.saw) == ("That is a secret.", ["the secret"])
        command = fake.ask_inline("/new")
        await until(lambda: command.answer)
        assert command.answer is not None
        assert command.answer["results"] == []
        assert running.models.requests == []
    async with lab(tmp_path / "spent", fake, settings=spent, inline=True) as running:
        await connected(fake)
        query = fake.ask_inline("hello")
        await until(lambda: query.answer)
        assert query.answer is not None
        assert query.answer["results"] == []
        assert running.models.requests == []
        assert running.gateway.counters.turns["telegram", "failed", "BudgetExceededError"] == 1
    fake.transcript.check()
