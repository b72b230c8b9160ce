"""Model calls of confined plugins: metered, within budgets, and never without end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.contract.errors import BudgetExceededError, OverloadedError, StreamAbortedError
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Cut, Gate, Reply, Say

PRICED: dict[str, Any] = {"models": {"script/one": {"input_price": 100_000, "output_price": 100_000}}}


MOST = 40.0
"""Pays for the prompt and one answer of 64 tokens and more, at ten cents a token."""


async def complete(chat: Chat, session: str = "s", budget: float | None = None, **options: Any) -> Any:
    completions = chat.gateway.parts.completions
    return await completions.complete("weather", session, "What is new?", budget=budget, **options)


async def test_a_plugin_gets_the_answer_of_the_sessions_model(tmp_path: Path) -> None:
    async with chatting(tmp_path, **PRICED) as chat:
        await chat.say("hello")
        chat.model.then(Reply((Say("Nothing."),)))
        made = await complete(chat, system="Be brief.", max_tokens=50)
        call = chat.model.calls[-1]
        options = call.options
        assert (made.text, [message.text for message in call.messages]) == ("Nothing.", ["What is new?"])
        assert (options.system_prompt, options.max_tokens, options.tools) == ("Be brief.", 50, ())
        assert made.cost > 0
        # Reasoning counts, so the default leaves room for an answer after it.
        await complete(chat)
        assert chat.model.calls[-1].options.max_tokens == 4_096
        # Readers of the conversation see nothing of it.
        session = await chat.gateway.parts.sessions.find("s")
        assert [message.role for message in session.messages()] == ["user", "assistant"]


async def test_001_25_at_its_budget_in_a_conversation_a_plugin_calls_no_model(tmp_path: Path) -> None:
    async with chatting(tmp_path, **PRICED) as chat:
        await chat.say("hello")
        assert (await complete(chat, budget=MOST)).cost <= MOST
        calls = len(chat.model.calls)
        with pytest.raises(BudgetExceededError, match=r"see capabilities\.llm\.budget of 'weather'"):
            await complete(chat, budget=0.01)
        assert len(chat.model.calls) == calls
        ledger = chat.gateway.parts.spending.ledger
        # A turn does not wait until its cost is written.
        while sorted(row.key for row in await ledger.usage_by("plugin", 0, 1 << 60)) != ["", "weather"]:
            await asyncio.sleep(0)
    # Counted in the ledger, so a restart changes nothing.
    async with chatting(tmp_path, **PRICED) as chat:
        with pytest.raises(BudgetExceededError):
            await complete(chat, budget=0.01)
        assert (await complete(chat, budget=MOST)).cost > 0


async def test_the_calls_of_a_plugin_at_once_do_not_exceed_its_budget_together(tmp_path: Path) -> None:
    async with chatting(tmp_path, **PRICED) as chat:
        await chat.say("hello")
        opened = asyncio.Event()
        chat.model.then(Reply((Gate(opened), Say("One."))))
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(complete(chat, budget=MOST))
            while len(chat.model.calls) < 2:
                await asyncio.sleep(0)
            # Nothing is spent yet, but all of it is reserved; another conversation has its own budget.
            with pytest.raises(BudgetExceededError, match="not enough for another answer"):
                await complete(chat, budget=MOST)
            await chat.say("hello", session="t")
            assert (await complete(chat, session="t", budget=MOST)).cost > 0
            opened.set()
        assert (await first).text == "One."


async def test_one_call_does_not_exceed_the_budget_of_a_plugin(tmp_path: Path) -> None:
    async with chatting(tmp_path, **PRICED) as chat:
        await chat.say("hello")
        with pytest.raises(BudgetExceededError):
            await complete(chat, budget=0.01)
        assert len(chat.model.calls) == 1
        await complete(chat, budget=MOST, max_tokens=32_000)
        longest = chat.model.calls[-1].options.max_tokens
        assert longest is not None
        assert longest * 0.1 < MOST


async def test_a_call_that_fails_counts_for_the_budget_of_a_plugin(tmp_path: Path) -> None:
    async with chatting(tmp_path, **PRICED) as chat:
        await chat.say("hello")
        chat.model.then(Reply((Say("word " * 300), Cut())))
        with pytest.raises(StreamAbortedError):
            await complete(chat, budget=MOST)
        with pytest.raises(BudgetExceededError):
            await complete(chat, budget=MOST)


async def test_a_budget_of_plugins_holds_for_their_calls_alone(tmp_path: Path) -> None:
    budgets = {"plugins": {"scope": "plugin", "per": "ever", "stop": 0.000001}}
    async with chatting(tmp_path, **PRICED, budgets=budgets) as chat:
        assert (await chat.say("hello")).text == "You said: hello"
        with pytest.raises(BudgetExceededError, match="this plugin's budget"):
            await complete(chat)


async def test_a_plugin_makes_few_calls_at_once(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hello")
        opened = asyncio.Event()
        chat.model.then(*(Reply((Gate(opened), Say("Done."))) for _ in range(4)))
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(complete(chat)) for _ in range(4)]
            while len(chat.model.calls) < 5:
                await asyncio.sleep(0)
            with pytest.raises(OverloadedError):
                await complete(chat)
            opened.set()
        assert [(await one).text for one in running] == ["Done."] * 4
        assert (await complete(chat)).text == "You said: What is new?"
