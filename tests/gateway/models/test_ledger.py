"""The ledger, on both databases."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from sqlalchemy import select

from gateway.contract.deltas import Tokens
from gateway.models import Caller, Ledger
from gateway.models.ledger import to_nano
from gateway.models.report import UsageQuery, usage_report
from gateway.store import Store
from gateway.store import schema as t

DAY = 86_400_000
COUNTS = ("seq", "messages", "input_tokens", "output_tokens", "context_from", "created_at", "updated_at")
NEW: dict[str, Any] = {"owner": "", "title": "", **dict.fromkeys(COUNTS, 0)}
"""The columns of a conversation without messages."""
ADA = Caller("s", "web", "web:ada", "main", "openai", "gpt-4o")
BOB = Caller("t", "web", "web:bob", "critic", "mistral", "large")


async def kept(store: Store) -> None:
    """Wait for what was handed in."""
    await store.write()


async def test_what_was_reserved_is_replaced_by_what_it_came_to(store: Store) -> None:
    ledger = Ledger(store)
    await ledger.reserve("a", ADA, 5, Tokens(10, 4096), 900)
    await ledger.reserve("b", ADA, 5, Tokens(10, 4096), 800)
    assert await ledger.spent(0, None, ()) == 1700
    ledger.record("a", ADA, 5, "counted", Tokens(11, 7, 3, 2), 40)
    ledger.release("b")
    await kept(store)
    assert await ledger.spent(0, None, ()) == 40
    assert await ledger.spent(6, None, ()) == 0
    assert await ledger.spent(0, "person", {"web:ada"}) == 40
    assert await ledger.spent(0, "person", {"web:bob"}) == 0
    assert await ledger.spent(0, "model", {"openai/gpt-4o"}) == 40
    [row] = await ledger.usage_by("agent", 0, 10)
    assert (row.key, row.calls, row.input_tokens, row.output_tokens, row.cached_tokens) == (
        "main",
        1,
        11,
        7,
        3,
    )


async def test_sums_are_exact_however_large(store: Store) -> None:
    ledger, much = Ledger(store), 2**60
    for number in range(3):
        ledger.record(f"{number}", ADA, 1, "counted", Tokens(2**40, 1), much + number)
    await kept(store)
    assert await ledger.spent(0, None, ()) == 3 * much + 3
    [row] = await ledger.usage_by("provider", 0, 2)
    assert (row.nano_usd, row.input_tokens) == (3 * much + 3, 3 * 2**40)


async def test_days_come_in_order_and_others_the_dearest_first(store: Store) -> None:
    ledger: Any = Ledger(store)
    ledger.record("1", ADA, 2 * DAY + 1, "counted", Tokens(1, 1), 5)
    ledger.record("2", BOB, DAY - 1, "counted", Tokens(1, 1), 7)
    ledger.record("3", BOB, 2 * DAY, "estimated", Tokens(9, 9), None)
    await kept(store)
    days = await ledger.usage_by("day", 0, 3 * DAY)
    assert [(row.key, row.calls, row.nano_usd, row.unpriced) for row in days] == [
        ("1970-01-01", 1, 7, 0),
        ("1970-01-03", 2, 5, 1),
    ]
    people = await ledger.usage_by("person", 0, 3 * DAY)
    assert [(row.key, row.nano_usd) for row in people] == [("web:bob", 7), ("web:ada", 5)]
    assert [row.key for row in await ledger.usage_by("day", DAY, 2 * DAY)] == []
    assert [
        row.key for row in await ledger.usage_by("session", 0, 3 * DAY, channel="web", agent="critic")
    ] == ["t"]


async def test_amounts_are_grouped_by_two_keys_and_by_message(store: Store) -> None:
    ledger = Ledger(store)
    ledger.record("1", ADA, DAY, "counted", Tokens(1, 1), 5)
    ledger.record("2", BOB, DAY + 1, "counted", Tokens(1, 1), 7)
    ledger.record("3", replace(BOB, message="m1"), 2 * DAY, "counted", Tokens(9, 9), 2)
    await kept(store)
    rows = await ledger.usage(("day", "model"), 0, 3 * DAY, {})
    assert {(row.keys, row.nano_usd) for row in rows} == {
        (("1970-01-02", "openai/gpt-4o"), 5),
        (("1970-01-02", "mistral/large"), 7),
        (("1970-01-03", "mistral/large"), 2),
    }
    only = await ledger.usage(("person",), 0, 3 * DAY, {"model": "mistral/large"})
    assert [(row.keys, row.nano_usd) for row in only] == [(("web:bob",), 9)]
    dear = await ledger.dearest(0, 3 * DAY, {}, most=1)
    assert [(one.session, one.title, one.calls, one.tokens, one.nano_usd) for one in dear] == [
        ("t", "", 2, 20, 9)
    ]
    assert await ledger.after_this_time_of_day(DAY, 2 * DAY, {}) == 7
    assert (await ledger.first_at(DAY + 1, {}), await ledger.first_at(3 * DAY, {})) == (DAY + 1, None)
    of_message = select(t.spend.c.nano_usd).where(t.spend.c.session == "t", t.spend.c.message == "m1")
    assert await store.read(lambda c: c.execute(of_message).scalars().all()) == [2]


async def test_conversations_of_a_room_count_together(store: Store) -> None:
    ledger, add = Ledger(store), store.engine.begin
    places = {"a": ("tg", "-1"), "b": ("tg", "-1"), "c": ("tg", "-12"), "d": ("web", "d")}
    with add() as connection:
        for session, (channel, chat) in places.items():
            address = f'{{"channel":"{channel}","chat":"{chat}"}}'
            row = {"id": session, "channel": channel, "address": address}
            connection.execute(t.sessions.insert().values(**row, **NEW))
    for number, session in enumerate(("a", "b", "c", "d", "deleted")):
        caller = replace(ADA, session=session, channel="tg")
        ledger.record(f"{number}", caller, DAY, "counted", Tokens(1, 1), 10**number)
    await kept(store)
    query = UsageQuery("room", split="agent")
    report = await usage_report(ledger, (), query, DAY)
    found = {row.key: (row.calls, to_nano(row.usd)) for row in report.rows}
    assert found == {"tg:-1": (2, 11), "tg:-12": (1, 100), "web": (1, 1000), "": (1, 10_000)}
    for room, total in (("tg:-1", 11), ("web", 1000), ("tg:nothing", 0)):
        report = await usage_report(ledger, (), UsageQuery("day", room=room), DAY)
        assert to_nano(report.total.usd) == total
