"""Lists of conversations by filters, on both databases."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.contract.channel import Address
from gateway.contract.deltas import Tokens
from gateway.contract.messages import ErrorPart, Message, Metadata, TextPart
from gateway.conversations import ConversationFilter, ConversationFinder, SearchIndex
from gateway.conversations.search import Sort, find_conversations, search_filtered
from gateway.models import Caller, Ledger
from gateway.session.log import SessionRow, put_message
from gateway.store import Op, Store

BEGUN = 1_700_000_000_000


def talk(number: int, **fields: Any) -> list[Op]:
    """Return the writes of a conversation with a question and an answer, later with a higher number."""
    name, at = f"s{number}", BEGUN + number
    row = SessionRow(
        id=name, channel=fields.get("channel", "line"), owner=fields.get("owner", "ada"),
        address=Address("line", "bot", name), seq=2, agent=fields.get("agent"),
        model=fields.get("model"), created_at=at, updated_at=at,
    )  # fmt: skip
    error = fields.get("error")
    parts = (TextPart("It is packed."),) if error is None else (ErrorPart(error, "failed"),)
    usage = Metadata(cost=fields.get("cost"))
    asked = Message(session_id=name, created_at=at, role="user", parts=(TextPart(f"order {number}"),))
    answer = Message(session_id=name, created_at=at, role="assistant", parts=parts, metadata=usage)
    return [row.put(), *put_message(asked, 1), *put_message(answer, 2)]


async def fill(store: Store) -> ConversationFinder:
    await store.write(
        *talk(1, cost=0.5),
        *talk(2, channel="web", owner="ben", cost=0.02),
        *talk(3, error="AuthFailedError", agent="desk"),
        *talk(4, error="RateLimitError", model="groq/oss", cost=0.25),
        *talk(5, owner="room"),
    )
    ledger = Ledger(store)
    caller = Caller("s5", "line", "line:cleo", "desk", "openai", "GPT-5")
    ledger.record(None, caller, BEGUN, "counted", Tokens(1, 1), 5)
    await store.write()
    return ConversationFinder(store)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, "s5 s4 s3 s2 s1"),
        ({"channel": "web"}, "s2"),
        ({"person": "ben"}, "s2"),
        ({"person": "cleo"}, "s5"),
        ({"person": "line:cleo"}, "s5"),
        ({"person": "leo"}, ""),
        ({"agent": "desk"}, "s5 s3"),
        ({"model": "gpt"}, "s5"),
        ({"model": "oss"}, "s4"),
        ({"model": "%"}, ""),
        ({"cost": 0.02}, "s4 s1"),
        ({"error": "any"}, "s4 s3"),
        ({"error": "Auth"}, "s3"),
        ({"error": "Failed"}, ""),
        ({"since": BEGUN + 4}, "s5 s4"),
        ({"cost": 0.1, "error": "any", "channel": "line"}, "s4"),
    ],
)
async def test_conversations_are_filtered(store: Store, wanted: dict[str, Any], expected: str) -> None:
    page = await (await fill(store)).find(ConversationFilter(**wanted), "newest", 10)
    assert [one.id for one in page.sessions] == expected.split()
    assert page.next is None


@pytest.mark.parametrize(
    ("sort", "expected"), [("newest", "s5 s4 s3 s2 s1"), ("cost", "s1 s4 s2"), ("errors", "s4 s3")]
)
async def test_pages_follow_each_other_in_each_order(store: Store, sort: Sort, expected: str) -> None:
    listed, cursor, found = await fill(store), None, list[str]()
    while True:
        page = await listed.find(ConversationFilter(), sort, 2, cursor)
        found += [one.id for one in page.sessions]
        if page.next is None:
            break
        value, _, session = page.next.partition(":")
        cursor = float(value), session
    assert found == expected.split()


async def test_a_page_reads_a_bounded_number_of_conversations(store: Store) -> None:
    await fill(store)
    wanted, cursor, pages = ConversationFilter(person="ada", cost=0.3), None, list[list[str]]()
    while len(pages) < 9:
        page = await store.read(lambda c, at=cursor: find_conversations(c, wanted, "newest", 5, at, window=2))
        pages.append([one.id for one in page.sessions])
        if page.next is None:
            break
        value, _, session = page.next.partition(":")
        cursor = float(value), session
    assert pages == [[], [], ["s1"]]


async def test_matches_are_filtered_and_a_page_compares_a_bounded_number(store: Store) -> None:
    await fill(store)
    index = SearchIndex(store)
    assert (await index.find("order")).behind
    await index.catch_up()
    page = await index.find("order", wanted=ConversationFilter(cost=0.1))
    assert [hit.session for hit in page.results] == ["s4", "s1"]
    assert (page.next, page.behind) == (None, False)
    page = await index.find("order", 1, wanted=ConversationFilter(cost=0.1))
    assert [hit.session for hit in page.results] == ["s4"]
    page = await index.find("order", 1, int(page.next or 0), ConversationFilter(cost=0.1))
    assert ([hit.session for hit in page.results], page.next) == (["s1"], None)
    assert (await index.find("packed", wanted=ConversationFilter(channel="web"))).results[0].session == "s2"
    web, before, found = ConversationFilter(channel="web"), 2**62, list[list[str]]()
    for _ in range(3):
        page = await store.read(lambda c, at=before: search_filtered(c, "order", web, 5, at, compared=2))
        found.append([hit.session for hit in page.results])
        before = int(page.next or 0)
    assert found == [[], ["s2"], []]


async def test_pages_of_filtered_matches_do_not_depend_on_how_many_rows_are_searched_at_once(
    store: Store,
) -> None:
    for name, channel in (("a", "line"), ("b", "web")):
        await store.write(
            SessionRow(id=name, channel=channel, owner="ada", address=Address(channel), seq=1).put()
        )
    said = [
        Message(session_id="ab"[n % 3 == 0], created_at=BEGUN + n, role="user", parts=(TextPart(f"tea {n}"),))
        for n in range(200)
    ]
    await store.write(*(op for n, message in enumerate(said, 2) for op in put_message(message, n)))
    await SearchIndex(store).catch_up()
    web = ConversationFilter(channel="web")
    expected = [one.id for one in reversed(said) if one.session_id == "b"]
    for query, wanted in (("tea", expected), ('"tea 42"', expected[-15:-14]), ("te 199 4", [])):
        for newest in (10, 60, 1_000):
            found, before = list[str](), 2**62
            while before:
                page = await store.read(
                    lambda c, q=query, at=before, rows=newest: search_filtered(c, q, web, 30, at, 80, rows)
                )
                found += [hit.message_id or "" for hit in page.results]
                before = int(page.next or 0)
            assert (query, newest, found) == (query, newest, wanted)
