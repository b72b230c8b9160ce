"""What was spent, as the chat, REST and the command line tell it."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec.structs import replace
from sqlalchemy import select

from gateway.contract.channel import InboundMessage
from gateway.contract.deltas import Tokens as Took
from gateway.models import Budget, Caller, Ledger
from gateway.models.report import UsageQuery, usage_report
from gateway.server.responses import csv_response
from gateway.settings import BudgetSettings
from gateway.store import Store
from gateway.store import schema as t
from gateway.testing.chat import chatting, written
from gateway.testing.fake_models.script import Reply, Say, Tokens
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import serving
from tests.gateway.cli.processes import Terminal, gateway, trunkline

pytestmark = pytest.mark.slow

PRICED = {"models": {"script/one": {"input_price": 1, "output_price": 2}}}
"""One dollar for a million tokens in, two out."""
ANSWER = Reply((Say("well"),), tokens=Tokens(250_000, 125_000))
"""Costs half a dollar."""
DAY = 86_400_000
EVENING = round(datetime(2026, 3, 10, 20, tzinfo=UTC).timestamp() * 1000)


async def test_usage_tells_of_the_conversation_and_of_its_user(tmp_path: Path) -> None:
    budgets = {
        "mine": {"scope": "user", "per": "day", "stop": 4},
        "theirs": {"scope": "user", "only": ["test:bob"], "stop": 1},
        "all": {"per": "ever", "warn": 1.5, "stop": 8},
    }
    async with chatting(tmp_path, budgets=budgets, **PRICED) as chat:
        chat.model.then(ANSWER, ANSWER, ANSWER)
        await chat.say("one")
        await chat.say("two", session="t")
        await chat.say("three", session="u", user="bob")
        lines = (await chat.say("/usage")).text.splitlines()
        assert lines[:3] == [
            "- this conversation: 250,000 tokens in, 125,000 out, $0.50",
            "- you, today: 500,000 tokens in, 250,000 out, $1.00",
            "- you, in 30 days: 500,000 tokens in, 250,000 out, $1.00",
        ]
        assert lines[3].startswith("- $1.00 of $4.00 of your budget for today is spent; it resets on ")
        assert lines[4:] == ["- $1.50 of $8.00 of the budget is spent"]
        assert (await chat.say("/usage what")).text.startswith("Type `/usage`, or")


async def test_in_a_group_no_user_reads_what_another_spends(tmp_path: Path) -> None:
    async with chatting(tmp_path, **PRICED) as chat:
        chat.model.then(ANSWER)
        await chat.say("one")
        room = await chat.host.submit(in_a_group("/usage"))
        assert room is not None
        assert room.text == "- this conversation: 0 tokens in, 0 out, $0.00"


async def test_what_everybody_spends_is_for_admins(tmp_path: Path) -> None:
    async with chatting(tmp_path, **PRICED) as chat:
        chat.model.then(ANSWER)
        await chat.say("one", user="bob", session="t")
        await chat.say("two, for nothing", model="script/other")
        assert (await chat.say("/usage all")).text == "`/usage all` is for admins."
        told = (await chat.say("/usage all", role="admin")).text.splitlines()
        assert told[0].startswith("- all users, today: 250,0")
        assert told[0].endswith(", $0.50 (1 of 2 calls have no known price)")
        assert told[2].startswith("- `script`: 250,0")


def in_a_group(text: str) -> InboundMessage:
    """What Ada writes where others read it."""
    message = written(text, session="g")
    return replace(message, address=replace(message.address, group=True))


async def test_days_without_a_call_are_reported_too(store: Store) -> None:
    ledger = Ledger(store)
    caller = Caller("s", "web", "web:ada", "main", "p", "m")
    for days in (40, 3, 1):
        ledger.record(None, caller, EVENING - days * DAY, "counted", Took(10, 1), 500_000_000)
    await store.write()
    found = await usage_report(ledger, (), UsageQuery(days=30), EVENING)
    assert [(row.key, row.calls) for row in found.rows] == [
        ("2026-03-07", 1),
        ("2026-03-08", 0),
        ("2026-03-09", 1),
        ("2026-03-10", 0),
    ]
    assert (found.total.calls, found.total.usd) == (2, Decimal(1))
    assert (await usage_report(ledger, (), UsageQuery(days=1), EVENING)).rows == []
    assert (await usage_report(ledger, (), UsageQuery(days=60, user="web:bob"), EVENING)).total.calls == 0


async def test_budgets_are_reported_with_those_who_spent_most(store: Store) -> None:
    ledger = Ledger(store)
    for person, amount in (("web:ada", 3), ("web:bob", 5)):
        caller = Caller("s", "web", person, "main", "p", "m")
        ledger.record(None, caller, EVENING, "counted", Took(10, 1), amount * 10**9)
    await store.write()
    budgets = [
        Budget.of("each", BudgetSettings(scope="user", per="day", stop=Decimal(6))),
        Budget.of("bob", BudgetSettings(scope="user", per="month", only=("web:bob",), warn=Decimal(1))),
        Budget.of("all", BudgetSettings(per="ever", ask=Decimal(9))),
    ]
    told = (await usage_report(ledger, budgets, UsageQuery(), EVENING)).budgets
    assert [(budget.name, budget.period) for budget in told] == [
        ("each", "2026-03-10"),
        ("bob", "2026-03"),
        ("all", "ever"),
    ]
    assert [[(holder.id, holder.usd) for holder in budget.holders] for budget in told] == [
        [("web:bob", 5), ("web:ada", 3)],
        [("web:bob", 5)],
        [("", 8)],
    ]


async def test_a_second_key_divides_the_rows_and_the_period_is_compared_with_the_one_before(
    store: Store,
) -> None:
    ledger = Ledger(store)
    ada, bob = (Caller(f"s-{who}", "web", f"web:{who}", "main", "p", "m") for who in ("ada", "bob"))
    for caller, days, amount in ((ada, 0, 2), (ada, 1, 3), (bob, 1, 4), (bob, 31, 5), (bob, 29 + 31, 6)):
        ledger.record(None, caller, EVENING - days * DAY, "counted", Took(10, 1), amount * 10**9)
    ledger.record(None, replace(ada, model="free"), EVENING, "counted", Took(7, 1), None)
    # Later in the evening of yesterday: what today will cost, too, by the average of its two days.
    ledger.record(None, ada, EVENING - DAY + 3_600_000, "counted", Took(0, 0), 8 * 10**9)
    ledger.record(None, ada, EVENING - 2 * DAY, "counted", Took(0, 0), 0)
    await store.write()
    found = await usage_report(ledger, (), UsageQuery(split="person"), EVENING)
    assert [(row.key, row.usd, [(part.key, part.usd) for part in row.parts]) for row in found.rows] == [
        ("2026-03-08", 0, [("web:ada", 0)]),
        ("2026-03-09", 15, [("web:ada", 11), ("web:bob", 4)]),
        ("2026-03-10", 2, [("web:ada", 2)]),
    ]
    assert [(row.key, row.usd, row.previous_usd) for row in found.splits] == [
        ("web:ada", 13, 0),
        ("web:bob", 4, 5),
    ]
    assert (found.total.usd, found.previous.usd) == (17, 5)
    assert (found.projection.usd, found.projection.expected_usd, found.projection.days) == (2, 6, 2)
    assert [(one.session, one.usd) for one in found.top] == [("s-ada", 13), ("s-bob", 4)]
    assert [(row.key, row.unpriced, row.input_tokens) for row in found.unpriced] == [("p/free", 1, 7)]
    by_user = await usage_report(ledger, (), UsageQuery("user", model="p/m"), EVENING)
    assert [(row.key, row.previous_usd) for row in by_user.rows] == [("web:ada", 0), ("web:bob", 5)]
    assert (by_user.unpriced, by_user.splits) == ([], [])


async def test_a_budget_says_when_its_next_limit_is_reached(store: Store) -> None:
    ledger, caller = Ledger(store), Caller("s", "web", "web:ada", "main", "p", "m")
    for days in range(7):
        ledger.record(None, caller, EVENING - days * DAY, "counted", Took(1, 1), 10**9)
    ledger.record(None, caller, EVENING - 7 * DAY, "counted", Took(1, 1), 0)
    await store.write()
    written = {
        "month": BudgetSettings(warn=Decimal(3), ask=Decimal(10), stop=Decimal(20)),
        "ever": BudgetSettings(per="ever", stop=Decimal(14)),
        "day": BudgetSettings(scope="user", per="day", stop=Decimal(9)),
    }
    budgets = [Budget.of(name, settings) for name, settings in written.items()]
    holders = [one.holders[0] for one in (await usage_report(ledger, budgets, UsageQuery(), EVENING)).budgets]
    assert [(holder.reaches, holder.reaches_at) for holder in holders] == [
        ("ask", EVENING + 3 * DAY),
        ("stop", EVENING + 7 * DAY),
        (None, None),
    ]
    assert [holder.expected_usd for holder in holders] == [
        Decimal("28.1667"),
        None,
        Decimal("1.3333"),
    ]


@pytest.mark.parametrize(
    ("earlier", "expected"),
    [
        # 7 in the last week, and 21.17 days until April.
        (20 * DAY, ["28.1667", "8.1667"]),
        # Of a gateway that is two hours old: 7 a day, and 3.5 an hour.
        (2 * 3_600_000, ["155.1667", "21.0000"]),
    ],
)
async def test_the_pace_of_a_forecast_counts_hours_without_a_call(
    store: Store, earlier: int, expected: list[str]
) -> None:
    ledger, caller = Ledger(store), Caller("s", "web", "web:ada", "main", "p", "m")
    ledger.record(None, caller, EVENING - earlier, "counted", Took(1, 1), 0)
    ledger.record(None, caller, EVENING - 3_600_000, "counted", Took(1, 1), 7 * 10**9)
    await store.write()
    written = {
        "month": BudgetSettings(warn=Decimal(999)),
        "day": BudgetSettings(per="day", warn=Decimal(999)),
    }
    budgets = [Budget.of(name, settings) for name, settings in written.items()]
    found = (await usage_report(ledger, budgets, UsageQuery(), EVENING)).budgets
    assert [str(one.holders[0].expected_usd) for one in found] == expected


async def test_a_spreadsheet_runs_no_key_as_a_formula(tmp_path: Path) -> None:
    async with serving(tmp_path, model="openai/gpt-4o") as served:
        for user in ("=1+1", "ada,1"):
            await served.gateway.parts.host.submit(written("hello", user=user))
        spent = select(t.spend.c.message).where(t.spend.c.person == "test:ada,1")
        [message] = await served.gateway.parts.store.read(lambda c: c.execute(spent).scalars().all())
        accepted = select(t.inbox.c.id).where(t.inbox.c.sender == "ada,1")
        assert await served.gateway.parts.store.read(lambda c: c.execute(accepted).scalar()) == message
        async with served.http.get(f"{served.url}/api/usage?by=day&split=user&format=csv") as answer:
            assert answer.content_type == "text/csv"
            head, *lines = csv.reader(io.StringIO(await answer.text()))
        assert head == [
            *("day", "user", "calls", "input_tokens", "output_tokens", "cached_tokens", "usd", "unpriced")
        ]
        assert sorted(line[1] for line in lines) == ["test:=1+1", "test:ada,1"]
        # A chat may be called anything.
        table = csv_response([["=1+1", "+a", "-2", "@b", "\tc", "\rd", "e=", 7]], "x").body
        assert table == b"'=1+1,'+a,'-2,'@b,'\tc,\"'\rd\",e=,7\r\n"


async def test_rest_and_metrics_tell_what_was_spent(tmp_path: Path) -> None:
    async with serving(tmp_path, model="openai/gpt-4o") as served:
        _, before = await served.ask("GET", "/api/usage?by=provider")
        assert (before["rows"], before["total"]["usd"]) == ([], "0")
        answer = await served.gateway.parts.host.submit(written("hello"))
        assert answer is not None
        _, after = await served.ask("GET", "/api/usage?by=model&user=test:ada")
        [row] = after["rows"]
        assert (row["key"], row["calls"], row["unpriced"]) == ("openai/gpt-4o", 1, 0)
        assert float(row["usd"]) == answer.metadata.cost > 0
        async with served.http.get(f"{served.url}/metrics") as metrics:
            told = await metrics.text()
        assert 'trunkline_model_calls_total{model="gpt-4o",provider="openai"} 1.0' in told
        assert (
            f'trunkline_model_cost_dollars_total{{model="gpt-4o",provider="openai"}} {float(row["usd"])!r}'
            in told
        )


async def test_a_provider_that_is_like_another_costs_what_that_does(tmp_path: Path) -> None:
    async with FakeModels() as models:
        desk = {"like": "openai", "base_url": models.openai_url, "api_key": "k"}
        async with serving(tmp_path, fake=models, model="desk/gpt-4o", providers={"desk": desk}) as served:
            answer = await served.gateway.parts.host.submit(written("hello"))
            assert answer is not None
            assert (answer.metadata.provider, bool(answer.metadata.cost)) == ("desk", True)


async def test_a_client_of_openai_is_refused_as_it_knows_it(tmp_path: Path) -> None:
    async with serving(tmp_path, model="openai/gpt-4o", budgets={"closed": {"stop": 0}}) as served:
        asked = {"model": "openai/gpt-4o", "messages": [{"role": "user", "content": "hello"}]}
        status, answer = await served.ask("POST", "/v1/chat/completions", json=asked)
        assert (status, answer["error"]["code"]) == (402, "insufficient_quota")
        assert answer["error"]["message"].startswith("$0.00 of $0.00 of the budget for this month is spent")
        assert not served.models.requests


@pytest.mark.parametrize("query", ["days=0", "days=x", "by=planet", "days=4000"])
async def test_rest_refuses_what_makes_no_sense(tmp_path: Path, query: str) -> None:
    async with serving(tmp_path) as served:
        status, _ = await served.ask("GET", f"/api/usage?{query}")
        assert status == 400


async def fill(home: Path) -> None:
    """Have two users spend something."""
    budgets = {"each": {"scope": "user", "stop": 0.75}}
    async with chatting(home / "data", budgets=budgets, **PRICED) as chat:
        chat.model.then(ANSWER, ANSWER)
        await chat.say("one")
        await chat.say("two", session="t", user="b\x1b[31mob")


ALONE = {"TRUNKLINE_SERVER__PORT": "1"}
"""No gateway listens there: the command reads the store, whatever else runs on this machine."""
BUDGET = {"TRUNKLINE_BUDGETS__EACH__SCOPE": "user", "TRUNKLINE_BUDGETS__EACH__STOP": "0.75"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    asyncio.run(fill(tmp_path))
    return tmp_path


def test_the_command_line_shows_a_table_a_plot_and_the_budgets(home: Path) -> None:
    done = trunkline("usage", home=home, **BUDGET, **ALONE)
    assert (done.returncode, done.stderr) == (0, "")
    today = f"{datetime.now(UTC) - timedelta(seconds=30):%Y-%m}"
    assert f"{today}" in done.stdout
    assert "$1.00" in done.stdout
    assert "█" in done.stdout
    assert "each" in done.stdout
    assert "stop $0.75" in done.stdout
    assert re.search(r"by midnight|stop on", done.stdout), "the budget's forecast"
    users = trunkline("usage", "--by", "model", "--split", "user", home=home, **ALONE)
    assert "script/one" in users.stdout
    assert "test:ada" in users.stdout
    assert "\x1b" not in users.stdout, "no user's id can steer the terminal"


def test_a_narrow_terminal_gets_each_amount_whole(home: Path) -> None:
    terminal = Terminal(home, "usage", "--by", "user", COLUMNS="40", NO_COLOR="1", **BUDGET, **ALONE)
    try:
        assert terminal.wait() == 0
    finally:
        terminal.close()
    shown = [" ".join(re.sub(r"\x1b\[\d*m", "", line).split()) for line in terminal.screen.splitlines()]
    assert shown.count("cost $0.50") == 2
    assert "user all" in shown
    assert "cost $1.00" in shown
    assert "limit stop $0.75" in shown
    assert not any("…" in line for line in shown)


def test_machines_get_exact_amounts(home: Path) -> None:
    told = json.loads(trunkline("usage", "--by", "user", "--json", home=home, **ALONE).stdout)
    assert [row["usd"] for row in told["rows"]] == ["0.5", "0.5"]
    assert told["total"] == {
        "key": "",
        "calls": 2,
        "input_tokens": 500_000,
        "output_tokens": 250_000,
        "cached_tokens": 0,
        "usd": "1.0",
        "unpriced": 0,
    }


def test_a_running_gateway_tells_the_same(home: Path) -> None:
    alone = trunkline("usage", "--by", "session", "--days", "2", "--json", home=home, **BUDGET, **ALONE)
    with gateway(home, "--port", "0", **BUDGET) as served:
        port = {"TRUNKLINE_SERVER__PORT": served.port, **BUDGET}
        running = trunkline("usage", "--by", "session", "--days", "2", "--json", home=home, **port)
    assert running.returncode == 0
    told, before = json.loads(running.stdout), json.loads(alone.stdout)
    for each in (told, before):  # the forecast depends on the time of the question
        del each["budgets"][0]["holders"]
    assert told == before
    assert len(before["rows"]) == 2


def test_a_gateway_that_was_never_used_says_so(tmp_path: Path) -> None:
    trunkline("db", "upgrade", home=tmp_path)
    done = trunkline("usage", home=tmp_path, **ALONE)
    assert (done.returncode, done.stdout.strip()) == (0, "No model was called in the last 30 days.")
