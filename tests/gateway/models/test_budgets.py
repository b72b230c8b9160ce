"""Budgets: what a call may cost is reserved before it is made, and no user spends more than the limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway import ErrorPart, Message, Plugin, PluginContext, TextPart
from gateway.access.people import UserRef
from gateway.contract.deltas import MetadataDelta
from gateway.contract.deltas import Tokens as Took
from gateway.contract.errors import BudgetExceededError
from gateway.contract.messages import is_notice, now_ms
from gateway.contract.provider import ChatOptions
from gateway.models import Account, Budget, Caller, Ledger, Meter, Prices, format_usd, to_usd
from gateway.models.budgets import Budgets, period_at
from gateway.models.catalog import Catalog
from gateway.provider_http import ServerFailedError
from gateway.session.frames import ApprovalAsked
from gateway.settings import BudgetSettings
from gateway.store import Store
from gateway.testing.chat import Chat, ScriptedModel, chatting
from gateway.testing.fake_models.script import Cut, Gate, Reply, Say, Tokens

pytestmark = pytest.mark.slow

PROVIDER, MODEL = "moonshotai", "kimi-k2-0711-preview"
MILLION = Tokens(1_000_000, 0)


def price(sent: int, got: int = 0) -> Decimal:
    """What so many tokens of the model cost."""
    found = Prices(Catalog()).cost(PROVIDER, MODEL, Took(sent, got))
    assert found is not None
    return found


EACH = price(1_000_000)
"""What one answer costs whose input is a million tokens."""


class Paid(Plugin):
    """A model that has a price."""

    name = "paid"

    def __init__(self) -> None:
        self.model = ScriptedModel()
        self.model.id = PROVIDER

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.providers is not None
        ctx.providers.register(self.model)


@asynccontextmanager
async def paying(data_dir: Path, **budget: Any) -> AsyncGenerator[tuple[Chat, ScriptedModel]]:
    """A gateway with one budget. Its model answers what the tests let it, each answer for ``EACH``."""
    paid, more = Paid(), budget.pop("settings", {})
    budgets = {"purse": budget} if budget else {}
    async with chatting(data_dir, paid, model=f"{PROVIDER}/{MODEL}", budgets=budgets, **more) as chat:
        yield chat, paid.model


def answers(model: ScriptedModel, count: int = 1) -> None:
    """Let the model answer."""
    model.then(*[Reply((Say("well"),), tokens=MILLION)] * count)


def refusal(message: Message) -> ErrorPart:
    """The one error that an answer is."""
    [part] = message.parts
    assert isinstance(part, ErrorPart)
    return part


async def test_001_25_at_the_ceiling_the_model_is_not_asked_any_more(tmp_path: Path) -> None:
    async with paying(tmp_path, scope="session", per="ever", stop=float(EACH)) as (chat, model):
        answers(model, 2)
        assert (await chat.say("one")).text == "well"
        refused = refusal(await chat.say("two"))
        assert len(model.calls) == 1
        assert refused.error_name == BudgetExceededError.__name__
        assert refused.message.startswith(
            f"{format_usd(EACH)} of {format_usd(EACH)} of this conversation's budget is spent"
        )
        assert "(see budgets.purse)" in refused.message
        assert (await chat.say("another conversation", session="t")).text == "well"


async def test_what_is_spent_is_known_after_a_restart(tmp_path: Path) -> None:
    budget = {"scope": "user", "per": "month", "stop": float(EACH)}
    async with paying(tmp_path, **budget) as (chat, model):
        answers(model)
        await chat.say("one")
    async with paying(tmp_path, **budget) as (chat, model):
        answers(model)
        refused = refusal(await chat.say("two"))
        assert not model.calls
        assert "your budget for this month is spent" in refused.message
        assert "it resets on " in refused.message
        assert (await chat.say("two", session="t", user="bob")).text == "well"


async def test_what_was_reserved_when_the_gateway_died_counts_as_spent(
    tmp_path: Path, fatal: list[Any]
) -> None:
    async with paying(tmp_path):
        pass
    store = Store.open(f"sqlite:///{tmp_path}/trunkline.db", "full", fatal.append)
    caller = Caller("s", "test", "test:ada", "main", PROVIDER, MODEL)
    await Ledger(store).reserve("call", caller, now_ms(), Took(1_000_000, 0), int(EACH * 10**9))
    await store.close()
    async with paying(tmp_path, stop=float(EACH)) as (chat, model):
        assert "is spent" in refusal(await chat.say("one")).message
        assert not model.calls


async def test_a_call_of_a_clock_that_was_ahead_counts_in_the_period_of_its_time_alone(store: Store) -> None:
    ledger, day, now = Ledger(store), 86_400_000, now_ms()
    caller = Caller("s", "test", "test:ada", "main", PROVIDER, MODEL)
    await ledger.reserve("call", caller, now + 40 * day, Took(1_000_000, 0), 900_000_000)

    async def linked(_person: str) -> set[str]:
        return set()

    for per, left in (("day", 1_000_000_000), ("month", 1_000_000_000), ("ever", 100_000_000)):
        budget = Budget.of("purse", BudgetSettings(scope="user", per=per, stop=1))
        budgets = Budgets([budget], store, ledger, linked)
        accounts = [(await budgets.accounts_for(caller, at))[0] for at in (now, now + 40 * day)]
        assert [account.remaining for account in accounts] == [left, 100_000_000]


async def test_calls_side_by_side_do_not_pass_a_limit_together(tmp_path: Path) -> None:
    room = float(price(0, 18_000))
    async with paying(tmp_path, stop=room) as (chat, model):
        gate = asyncio.Event()
        model.then(*[Reply((Gate(gate), Say("well")), tokens=Tokens(10, 10))] * 2)
        first = asyncio.create_task(chat.say("one", session="a"))
        while not model.calls:
            await asyncio.sleep(0)
        second = asyncio.create_task(chat.say("two", session="b"))
        while len(model.calls) < 2:
            await asyncio.sleep(0)
        longest = [call.options.max_tokens or 0 for call in model.calls]
        assert longest[0] == 16_384
        assert 64 <= longest[1] < 18_000 - 16_384, "the second may only be as long as there is money for"
        refused = refusal(await chat.say("three", session="c"))
        assert refused.error_name == "BudgetExceededError"
        gate.set()
        assert [(await first).text, (await second).text] == ["well", "well"]
        assert (await chat.say("three", session="c")).text == "You said: three"


async def test_people_who_are_one_share_a_budget(tmp_path: Path) -> None:
    async with paying(tmp_path, scope="user", per="day", stop=float(EACH)) as (chat, model):
        links = chat.gateway.parts.access.links
        code = await links.begin(UserRef("test", "ada"))
        assert code is not None
        await links.finish(code.code, UserRef("other", "countess"))
        answers(model, 3)
        await chat.say("one")
        assert (
            "your budget for today"
            in refusal(await chat.say("two", session="o", user="countess", channel="other")).message
        )
        assert (await chat.say("two", session="p", user="countess", channel="third")).text == "well"


@pytest.mark.parametrize(
    ("scope", "only"),
    [
        ("channel", "test"),
        ("provider", PROVIDER),
        ("model", f"{PROVIDER}/{MODEL}"),
        ("agent", "main"),
        ("user", "test:ada"),
    ],
)
async def test_a_budget_may_be_for_some_alone(tmp_path: Path, scope: str, only: str) -> None:
    async with paying(tmp_path, scope=scope, only=["another"], stop=0) as (chat, model):
        answers(model)
        assert (await chat.say("hello")).text == "well"
    async with paying(tmp_path, scope=scope, only=["another", only], stop=0) as (chat, model):
        assert refusal(await chat.say("hello")).error_name == "BudgetExceededError"
        assert not model.calls


async def test_a_chat_gets_one_notice_that_money_runs_low(tmp_path: Path) -> None:
    budget = {"scope": "user", "per": "day", "warn": float(EACH), "stop": float(10 * EACH)}
    line = f"{format_usd(EACH)} of {format_usd(10 * EACH)} of your budget for today is spent; it resets on "
    async with paying(tmp_path, **budget) as (chat, model):
        answers(model, 3)
        assert (await chat.say("one")).text == "well"
        told = await chat.say("two")
        warning, said = told.parts
        assert isinstance(warning, TextPart)
        assert (warning.kind, said) == ("notice", TextPart("well"))
        assert warning.content.startswith(line)
        assert (await chat.say("three")).text == "well"
        for call in model.calls[1:]:
            assert call.messages[-1].role == "user"
            assert not [part for m in call.messages for part in m.parts if is_notice(part)]
    async with paying(tmp_path, **budget) as (chat, model):
        answers(model)
        assert (await chat.say("four")).text == "well", "not again after a restart"


async def test_a_person_may_let_it_continue_and_is_asked_again_after_as_much(tmp_path: Path) -> None:
    budget = {"scope": "user", "per": "day", "ask": float(EACH)}
    async with paying(tmp_path, **budget) as (chat, model):
        answers(model, 4)
        await chat.say("one")
        answer = await chat.accept("two")
        watcher = await chat.watch()
        question = await chat.decide("once")
        assert question.tool_name == "spend-more"
        assert question.arguments["budget"] == "purse"
        assert question.arguments["spent"] == format_usd(EACH)
        assert len(model.calls) == 1
        assert (await chat.answer(answer)).text == "well"
        answer = await chat.accept("three")
        again = await watcher.until(
            lambda f: isinstance(f, ApprovalAsked) and f.approval_id != question.approval_id
        )
        await chat.host.settle(again.approval_id, "deny", session="s")
        refused = refusal(await chat.answer(answer))
        assert "more was not approved" in refused.message
        assert len(model.calls) == 2


async def test_what_was_allowed_holds_after_a_restart(tmp_path: Path) -> None:
    budget = {"scope": "user", "per": "day", "ask": float(2 * EACH)}
    async with paying(tmp_path, **budget) as (chat, model):
        answers(model, 3)
        await chat.say("one")
        await chat.say("two")
        answer = await chat.accept("three")
        await chat.decide("once")
        await chat.answer(answer)
    async with paying(tmp_path, **budget) as (chat, model):
        answers(model)
        assert (await chat.say("four")).text == "well"


async def test_a_call_that_came_to_nothing_costs_nothing(tmp_path: Path) -> None:
    async with paying(tmp_path, stop=float(EACH)) as (chat, model):
        model.then(ServerFailedError("oh"))
        assert refusal(await chat.say("one")).error_name == "ServerFailedError"
        assert await chat.gateway.parts.spending.ledger.usage_by("model", 0, 2**60) == []
        answers(model)
        assert (await chat.say("two")).text == "well"


async def test_what_was_said_before_a_cut_is_estimated_and_counted(tmp_path: Path) -> None:
    async with paying(tmp_path, stop=100) as (chat, model):
        model.then(Reply((Say("word " * 600), Cut())))
        await chat.say("one")
        [row] = await chat.gateway.parts.spending.ledger.usage_by("model", 0, 2**60)
        assert row.key == f"{PROVIDER}/{MODEL}"
        assert row.output_tokens == 1000
        assert row.nano_usd is not None
        assert to_usd(row.nano_usd) >= price(0, 1000)


async def test_004_T12_each_call_is_written_down_with_whose_it_was(tmp_path: Path) -> None:
    async with paying(tmp_path) as (chat, model):
        answers(model, 3)
        answer = await chat.say("one")
        assert answer.metadata.cost == float(EACH)
        await chat.say("two", session="t")
        await chat.say("three", session="u", user="bob", channel="other")
        ledger, found = chat.gateway.parts.spending.ledger, {}
        for dimension in ("session", "channel", "person", "agent", "provider", "model"):
            rows = await ledger.usage_by(dimension, 0, 2**60)
            found[dimension] = {row.key: (row.calls, to_usd(row.nano_usd or 0)) for row in rows}
        assert found == {
            "session": {"s": (1, EACH), "t": (1, EACH), "u": (1, EACH)},
            "channel": {"test": (2, 2 * EACH), "other": (1, EACH)},
            "person": {"test:ada": (2, 2 * EACH), "other:bob": (1, EACH)},
            "agent": {"main": (3, 3 * EACH)},
            "provider": {PROVIDER: (3, 3 * EACH)},
            "model": {f"{PROVIDER}/{MODEL}": (3, 3 * EACH)},
        }
        [day] = await ledger.usage_by("day", 0, 2**60)
        assert day.calls == 3
        [mine] = await ledger.usage_by("channel", 0, 2**60, person="test:ada")
        assert mine.calls == 2


async def test_the_cost_is_estimated_while_an_answer_grows(tmp_path: Path) -> None:
    async with paying(tmp_path) as (chat, model):
        await chat.say("hello")
        gate = asyncio.Event()
        model.then(Reply((*[Say("some words ")] * 40, Gate(gate)), tokens=Tokens(10, 10)))
        answer = await chat.accept("go")
        watcher = await chat.watch()
        shown = await watcher.until(lambda f: isinstance(f, MetadataDelta) and f.message_id == answer)
        assert shown.output_tokens >= 32 * len("some words ") // 3
        assert shown.cost > 0
        gate.set()
        assert (await chat.answer(answer)).metadata.output_tokens == 10


async def test_a_model_without_a_price_is_held_by_no_budget(tmp_path: Path) -> None:
    budgets = {"purse": {"stop": 0.01}}
    with capture_logs() as logs:
        async with chatting(tmp_path, budgets=budgets) as chat:
            chat.model.then(*[Reply((Say("well"),), tokens=MILLION)] * 3)
            for number in range(3):
                assert (await chat.say(f"{number}")).text == "well"
            [row] = await chat.gateway.parts.spending.ledger.usage_by("provider", 0, 2**60)
    assert (row.calls, row.unpriced, row.nano_usd) == (3, 3, None)
    [told] = [entry for entry in logs if "do not cover" in entry["event"]]
    assert told["setting"] == 'models."script/one".input_price', "once, and with the way out"


async def test_a_budget_may_refuse_models_without_a_price(tmp_path: Path) -> None:
    budgets = {"purse": {"stop": 100, "unpriced": "refuse"}, "other": {"stop": 100}}
    async with chatting(tmp_path, budgets=budgets) as chat:
        refused = refusal(await chat.say("one"))
        assert refused.error_name == "BudgetExceededError"
        assert refused.message == (
            "the budget for this month excludes models without a known price, such as script/one; "
            'set models."script/one".input_price and output_price, or budgets.purse.unpriced = "allow"'
        )
        assert chat.model.calls == []
    free = {"script/one": {"input_price": 0, "output_price": 0}}
    async with chatting(tmp_path, budgets=budgets, models=free) as chat:
        assert (await chat.say("two")).text == "You said: two"


async def test_a_model_that_has_a_price_answers_in_the_place_of_one_that_has_none(tmp_path: Path) -> None:
    chain = {"model": "script/one", "fallback": [f"{PROVIDER}/{MODEL}"]}
    purse = {"purse": {"stop": 100, "unpriced": "refuse"}}
    paid = Paid()
    async with chatting(tmp_path, paid, budgets=purse, **chain) as chat:
        answers(paid.model)
        answer = await chat.say("one")
        assert answer.parts == (
            TextPart(f"script is over its budget. Answering with {PROVIDER} instead.", "notice"),
            TextPart("well"),
        )
        assert chat.model.calls == []


async def test_prices_of_the_settings_count(tmp_path: Path) -> None:
    priced = {"script/one": {"input_price": 0.5, "output_price": 2}}
    async with chatting(tmp_path, models=priced, budgets={"purse": {"stop": 0.5}}) as chat:
        chat.model.then(*[Reply((Say("well"),), tokens=MILLION)] * 2)
        assert (await chat.say("one")).metadata.cost == 0.5
        assert refusal(await chat.say("two")).error_name == "BudgetExceededError"


async def test_a_call_that_is_stopped_while_its_money_is_set_aside_gives_it_back(
    tmp_path: Path, fatal: list[Any]
) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/t.db", "full", fatal.append)
    ledger, caller = Ledger(store), Caller("s", "test", "test:ada", "main", PROVIDER, MODEL)
    budget = Budget.of("purse", BudgetSettings(stop=Decimal(1)))
    account = Account("purse", budget, period_at("month", now_ms()), spent=0)
    meter = Meter(ledger, Prices(Catalog()), caller, (), ChatOptions(model=MODEL), now_ms())
    reserving = asyncio.create_task(meter.reserve([account], 500, 100))
    while not account.reserved:
        await asyncio.sleep(0)
    reserving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reserving
    meter.finish(MetadataDelta("m", 0, 0, 0.0), 0, finished=False)
    await store.write()
    assert (account.reserved, account.spent, await ledger.spent(0, None, ())) == (0, 0, 0)
    await store.close()


@pytest.mark.parametrize("scope", ["provider", "model"])
async def test_where_a_providers_budget_is_spent_the_next_one_answers(tmp_path: Path, scope: str) -> None:
    chain = {"settings": {"fallback": ["script/one"]}}
    async with paying(tmp_path, scope=scope, per="day", stop=float(EACH), **chain) as (chat, model):
        answers(model)
        assert (await chat.say("one")).text == "well"
        for text in ("two", "three", "four", "five"):
            answer = await chat.say(text)
            line = f"{PROVIDER} is over its budget. Answering with script instead."
            assert answer.parts == (TextPart(line, "notice"), TextPart(f"You said: {text}"))
            assert answer.metadata.provider == "script"
        assert len(model.calls) == 1


async def test_a_budget_of_a_user_does_not_ask_another_user(tmp_path: Path) -> None:
    chain = {"settings": {"fallback": ["script/one"]}}
    async with paying(tmp_path, scope="user", stop=0, **chain) as (chat, model):
        assert refusal(await chat.say("one")).error_name == "BudgetExceededError"
        assert model.calls == chat.model.calls == []
