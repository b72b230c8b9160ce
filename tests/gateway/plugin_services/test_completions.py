"""Model calls of confined plugins: metered, within budgets, and never without end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.contract.errors import BudgetExceededError, OverloadedError
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Gate, Reply, Say

PRICED: dict[str, Any] = {"models": {"script/one": {"input_price": 100_000, "output_price": 100_000}}}


async def complete(chat: Chat, budget: float | None = None, **options: Any) -> Any:
    completions = chat.gateway.parts.completions
    return await completions.complete("weather", "s", "What is new?", budget=budget, **options)


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
        # Readers of the conversation see nothing of it.
        session = await chat.gateway.parts.sessions.find("s")
        assert [message.role for message in session.messages()] == ["user", "assistant"]


async def test_001_25_at_its_budget_in_a_conversation_a_plugin_calls_no_model(tmp_path: Path) -> None:
    async with chatting(tmp_path, **PRICED) as chat:
        await chat.say("hello")
        cost = (await complete(chat, budget=0.01)).cost
        assert cost > 0.01
        calls = len(chat.model.calls)
        with pytest.raises(BudgetExceededError, match="the plugin 'weather' has spent its"):
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
