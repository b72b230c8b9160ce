"""Search: what was said is found, in every language and by any query, and what was deleted is not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from sqlalchemy import Engine, event, text

from gateway.contract.channel import Address
from gateway.contract.messages import Display, Message, Origin, TextPart, ToolCallPart, new_id
from gateway.conversations import ConversationFilter, SearchIndex, search_messages, search_ranked
from gateway.session import Sessions
from gateway.session.log import (
    DROP_CONTEXT,
    DROP_SESSION,
    RENAME,
    SessionFilter,
    SessionRow,
    put_message,
    replace_message,
)
from gateway.store import Op, Store, migrate
from gateway.store.engine import open_engine
from gateway.testing.chat import chatting
from gateway.testing.served import serving

LONG_AGO = 1_700_000_000_000


def said(content: str, number: int = 1, **fields: Any) -> Message:
    """A message of the session ``s``, later with a higher number."""
    fields = {"role": "user", "parts": (TextPart(content),), **fields}
    return Message(session_id="s", created_at=LONG_AGO + number, **fields)


def session_ops(name: str = "s", title: str = "") -> list[Op]:
    address = Address("test", chat=name)
    return [SessionRow(id=name, channel="test", owner="ada", address=address, title=title, seq=1).put()]


async def stored(store: Store, *messages: Message, title: str = "") -> SearchIndex:
    """The index of a session with these messages."""
    ops = [op for number, message in enumerate(messages, 1) for op in put_message(message, number)]
    await store.write(*session_ops(title=title), *ops)
    index = SearchIndex(store)
    await index.catch_up()
    return index


async def found(index: SearchIndex, query: str) -> list[str]:
    """The snippets of a search."""
    return [hit.snippet for hit in (await index.find(query)).results]


SAID = (
    "The deploy fails on Friday: NEAR the end, AND again",
    "Развёртывание сломалось в пятницу",
    "Das Café in der Straße öffnet um 9",
    "東京都に行きたいです",
    "서울에서 만나요",
    "don't use foo_bar(x) or a.b.c-d",
    "party 🎉🎉 tonight",
)


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ("deploy friday", 0),
        ("FRIDAY dep", 0),
        ('"fails on friday"', 0),
        ("AND NEAR", 0),
        ("развертывание ПЯТ", 1),
        ("cafe strasse", 2),
        ("CAFÉ öff", 2),
        ("東京", 3),
        ("行きたい", 3),
        ("서울", 4),
        ("don't", 5),
        ("foo_bar(x)", 5),
        ("a.b.c-d", 5),
        ("🎉 party 🎉", 6),
        ('"party', 6),
        ("par*", 6),
    ],
)
async def test_e4_a_message_is_found_by_its_words_in_every_language(
    store: Store, query: str, number: int
) -> None:
    index = await stored(store, *(said(content, n) for n, content in enumerate(SAID)))
    assert await found(index, query) == [SAID[number]]


@pytest.mark.parametrize(
    "query",
    ["deploy saturday", '"friday fails"', '"dep"', "京東", "dep friday x", "", " ", "🎉", '"', "*", '""'],
)
async def test_e4_a_query_finds_nothing_that_lacks_a_word(store: Store, query: str) -> None:
    index = await stored(store, *map(said, SAID))
    assert await found(index, query) == []


HOSTILE = (
    *(
        "AND",
        "OR",
        "NOT",
        "NEAR",
        "NEAR(",
        "NEAR(a b, 5)",
        "a AND",
        "NOT a",
        "words:a",
        "^a",
        "a*b",
        "*a",
        "-a",
    ),
    *(
        "(",
        ")",
        "((a",
        '"',
        '"""',
        "'",
        "''",
        "\\",
        "a\\'b",
        "a:*",
        "!a",
        "a & | b",
        "<->",
        "a <-> ",
        "%",
        ";--",
    ),
    *("\0", "a\0b", "\ud800", "a\ud800b", "\ufdfa" * 100, "\u202e", "é" * 5000, "a " * 20_000, "x" * 5000),
    *(
        '"a" ' * 3000,
        "1e5",
        "-1.5e-10",
        "0x1F",
        "a@b.c",
        "https://a.b/c?d=e#f",
        "/etc/passwd",
        "<a href='x'>",
    ),
)


async def test_e4_no_query_raises(store: Store) -> None:
    index = await stored(store, *(said(query, n) for n, query in enumerate({*HOSTILE})), title="a \0 'b' \"c")
    for query in {*HOSTILE}:
        await index.find(query)
    assert "https://a.b/c?d=e#f" in await found(index, "https://a.b/c?d=e#f")
    assert "1e5" in await found(index, "1e5")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=st.text(max_size=60))
async def test_e4_any_text_is_a_query(store: Store, query: str) -> None:
    await SearchIndex(store).find(query)


async def test_e4_results_are_newest_first_in_pages(store: Store) -> None:
    index = await stored(store, *(said(f"apple {n}", n) for n in (3, 1, 2, 5, 4)))
    first = await index.find("apple", 2)
    assert [hit.snippet for hit in first.results] == ["apple 5", "apple 4"]
    assert first.next is not None
    second = await index.find("apple", 3, int(first.next))
    assert [hit.snippet for hit in second.results] == ["apple 3", "apple 2", "apple 1"]
    assert second.next is None


async def test_results_are_ordered_by_match_in_pages(store: Store) -> None:
    rare = "apple and many other words that are about something else entirely, of which none is found"
    texts = [rare, "apple apple apple", "apple pie", rare + " apple", "no fruit"]
    index = await stored(store, *(said(one, number) for number, one in enumerate(texts)), title="apple")
    first = await index.find_best("apple", 2, None, None)
    assert {hit.snippet for hit in first.results} == {"apple apple apple", "apple"}
    assert first.next is not None
    # A message that comes later does not move what follows.
    await store.write(*put_message(said("apple apple", 9), 9))
    await index.catch_up()
    before, start = map(int, first.next.split("-"))
    second = await index.find_best("apple", 10, (before, start), None)
    assert second.results[0].snippet == "apple pie"
    assert len(second.results) == 3
    assert second.next is None
    assert (await index.find_best("apple", 10, None, ConversationFilter(channel="other"))).results == []
    few = await store.read(lambda c: search_ranked(c, "apple", 10, ranked=2))
    assert {hit.snippet for hit in few.results} <= {"apple apple", texts[3][:200], "apple"}
    assert len(few.results) == 2
    assert (await index.find_best("", 10, None, None)).results == []


async def test_messages_of_the_same_time_are_all_found(store: Store) -> None:
    await stored(store, *(said("same") for _ in range(600)))
    page = await SearchIndex(store).find("same", 1000)
    assert len({hit.message_id for hit in page.results}) == 600


async def test_e4_a_snippet_shows_the_first_match_and_where_it_is(store: Store) -> None:
    index = await stored(
        store, said("x " * 500 + "the\nneedle in Needles " + "y " * 500), title="Needle work"
    )
    by_role = {hit.role: hit for hit in (await index.find("need")).results}
    hit, title = by_role["user"], by_role[None]
    assert [hit.snippet[a:b] for a, b in hit.matches] == ["needle", "Needles"]
    assert "the needle in" in hit.snippet
    assert len(hit.snippet) <= 200
    assert (title.message_id, title.snippet, title.matches) == (None, "Needle work", [(0, 6)])


async def test_e4_only_what_was_said_is_found(store: Store) -> None:
    thought = TextPart("hmm banana", kind="reasoning")
    call = ToolCallPart(tool_call_id="c", tool_name="banana", arguments={"banana": "banana"})
    index = await stored(
        store,
        said("", 1, role="assistant", parts=(thought, call, TextPart("An apple"))),
        said("hidden banana", 2, display=Display(hidden=True)),
        said("system banana", 3, role="system"),
    )
    assert await found(index, "banana") == []
    assert await found(index, "apple") == ["An apple"]


async def test_e4_a_renamed_session_is_found_by_its_new_title_alone(store: Store) -> None:
    index = await stored(store, title="Holiday plans")
    assert await found(index, "holiday") == ["Holiday plans"]
    await store.write((RENAME, ("s", "Путешествие", "user")))
    await index.catch_up()
    assert await found(index, "holiday") == []
    assert await found(index, "путеш") == ["Путешествие"]


async def test_e4_a_deleted_session_is_not_found(store: Store) -> None:
    index = await stored(store, said("secret plan"), title="secret title")
    assert len(await found(index, "secret")) == 2
    await Sessions(store).delete("s")
    assert await found(index, "secret") == []
    await index.catch_up()
    assert await found(index, "secret") == []
    assert await store.read(lambda c: c.execute(text("SELECT count(*) FROM search")).scalar_one()) == 0


async def test_e4_a_deleted_context_message_is_not_found(store: Store) -> None:
    origin = Origin(name="Bob", user="bob", context=True, key="1")
    index = await stored(store, said("overheard secret", origin=origin))
    assert await found(index, "secret") == ["overheard secret"]
    await store.write((DROP_CONTEXT, (origin.source,)))
    assert await found(index, "secret") == []


async def test_e4_a_replaced_text_is_found_in_its_new_form_alone(store: Store) -> None:
    message = said("first secret")
    index = await stored(store, message)
    for content in ("second secret", "third word", "fourth word"):
        replaced = structs.replace(message, parts=(TextPart(content),))
        # The indexer may have read the old text when the new one is committed.
        await asyncio.gather(index.catch_up(), store.write(*replace_message(replaced, 1_000)))
        await index.catch_up()
        assert await found(index, content) == [content]
    assert await found(index, "secret") == []


async def test_e4_a_message_deleted_before_it_is_indexed_leaves_no_words(store: Store) -> None:
    origin = Origin(name="Bob", user="bob", context=True, key="1")
    index = await stored(store)
    await store.write(*put_message(said("overheard secret", origin=origin), 2))
    # Both are under way at once, in an order that the database decides.
    await asyncio.gather(index.catch_up(), store.write((DROP_CONTEXT, (origin.source,))))
    await index.catch_up()
    assert await found(index, "secret") == []


async def test_e4_a_crash_between_the_commit_and_the_index_loses_nothing(
    database_url: str, fatal: list[BaseException]
) -> None:
    store = Store.open(database_url, "full", fatal.append)
    await stored(store, said("indexed before", 1))
    # Committed, with a lower number than one that the index has; the process ends before the next round.
    await store.write(*put_message(said("committed only", 2), 0))
    await store.close()
    store = Store.open(database_url, "full", fatal.append)
    index = SearchIndex(store)
    assert await found(index, "committed") == []
    assert await index.catch_up() == 1
    assert await index.catch_up() == 0
    assert await found(index, "committed") == ["committed only"]
    assert await found(index, "indexed") == ["indexed before"]
    await store.close()


async def test_e4_a_database_of_an_earlier_version_is_indexed(
    empty_database_url: str, fatal: list[BaseException]
) -> None:
    engine = open_engine(empty_database_url)
    with engine.begin() as connection:
        migrate.run_migrations(connection, "0014")
        connection.execute(
            text(
                "INSERT INTO sessions (id, channel, owner, address, title, seq, messages, input_tokens, "
                "output_tokens, context_from, created_at, updated_at) "
                "VALUES ('s', 'c', 'o', '{\"channel\": \"c\"}', 'Old talk', 300, 300, 0, 0, 0, 1, 1)"
            )
        )
        for number in range(300):
            row = {"id": new_id(), "seq": number, "part": new_id(), "at": LONG_AGO + number}
            row["content"] = f'{{"type":"text","content":"ancient {number}"}}'
            connection.execute(
                text(
                    "INSERT INTO messages (id, session_id, seq, role, metadata, created_at) "
                    "VALUES (:id, 's', :seq, 'user', '{}', :at)"
                ),
                row,
            )
            connection.execute(
                text(
                    'INSERT INTO parts (id, message_id, type, content, "index", created_at) '
                    "VALUES (:part, :id, 'text', :content, 0, :at)"
                ),
                row,
            )
    engine.dispose()
    store = Store.open(empty_database_url, "full", fatal.append)
    index = SearchIndex(store)
    assert await index.catch_up() == 300
    assert await found(index, "old") == ["Old talk"]
    assert (await found(index, "ancient"))[:2] == ["ancient 299", "ancient 298"]
    assert await found(index, '"ancient 7"') == ["ancient 7"]
    await store.close()


async def test_e4_a_fork_is_found_and_survives_its_parent(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("The zebra crosses")
        fork = await chat.host.fork("s", "ada")
        index = chat.gateway.parts.conversations.search
        await index.catch_up()
        hits = (await index.find('"the zebra crosses"')).results
        assert {hit.session for hit in hits} == {"s", fork.id}
        await chat.gateway.parts.sessions.delete("s")
        assert {hit.session for hit in (await index.find("zebra")).results} == {fork.id}


async def test_e4_the_running_gateway_indexes_answers_and_serves_searches(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.ask("POST", "/api/sessions/s/messages", json={"text": "Where do pelicans nest?"})
        async with asyncio.timeout(60):
            while len((await served.ask("GET", "/api/search?q=pelican"))[1]["results"]) < 3:
                await asyncio.sleep(0.05)
        status, page = await served.ask("GET", "/api/search?q=pelicans%20nest&limit=1")
        assert (status, len(page["results"])) == (200, 1)
        hit = page["results"][0]
        assert hit["session"] == "s"
        assert page["next"]
        _, rest = await served.ask("GET", f"/api/search?q=pelicans%20nest&cursor={page['next']}")
        assert hit not in rest["results"]
        assert len(rest["results"]) == 2
        assert (await served.ask("GET", "/api/search?q=a&limit=1000"))[0] == 400
        assert (await served.ask("GET", "/api/search?q=a&cursor=x"))[0] == 400
        assert (await served.ask("GET", "/api/search"))[0] == 400


async def test_results_do_not_depend_on_how_many_rows_are_searched_without_the_index(store: Store) -> None:
    index = await stored(store, *(said(f"apple {'pear' if n % 3 else 'plum'} {n}", n) for n in range(40)))
    for query in ("apple", "apple plum", "app pl", '"pear 7"', "melon"):
        page = await index.find(query, 10)
        assert await store.read(lambda c, q=query: search_messages(c, q, 10, newest=3)) == page
    first = await index.find("apple plum", 10)
    page = await index.find("apple plum", 10, int(first.next or ""))
    assert [hit.snippet for hit in page.results] == [f"apple plum {n}" for n in (9, 6, 3, 0)]


async def test_common_words_are_found_among_the_newest_rows_for_any_statistics(
    migrated_postgres_url: str, fatal: list[BaseException]
) -> None:
    store = Store.open(migrated_postgres_url, "full", fatal.append)
    index = await stored(store, *(said(f"apple {n}", n) for n in range(60)))
    seen: list[str] = []

    def listened(_connection: object, _cursor: object, given: str, *_: object) -> None:
        seen.append(given)

    event.listen(Engine, "before_cursor_execute", listened)
    try:
        assert len((await index.find("apple")).results) == 50
        assert ["newest" in one for one in seen if "to_tsquery" in one] == [True]
    finally:
        event.remove(Engine, "before_cursor_execute", listened)
    await store.close()


async def test_an_upgrade_indexes_beginnings_of_words(tmp_path: Path, fatal: list[BaseException]) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    engine = open_engine(url)
    with engine.begin() as connection:
        migrate.run_migrations(connection, "0021")
        connection.execute(text("INSERT INTO search (n, words) VALUES (1, 'apple pie')"))
    engine.dispose()
    store = Store.open(url, "full", fatal.append)
    await store.write(*session_ops(title="Apricot"))
    index = SearchIndex(store)
    await index.catch_up()
    match = text("SELECT count(*) FROM search_words WHERE search_words MATCH '\"ap\" *'")
    assert await store.read(lambda c: c.execute(match).scalar()) == 2
    made = text("SELECT sql FROM sqlite_master WHERE name = 'search_words'")
    assert "prefix='1 2 3'" in str(await store.read(lambda c: c.execute(made).scalar()))
    await store.write((DROP_SESSION, ("s",)))
    assert await store.read(lambda c: c.execute(match).scalar()) == 1
    await store.close()


async def test_sessions_are_found_by_titles_alone(store: Store) -> None:
    await store.write(*session_ops("a", "Lentil dal"), *session_ops("b", "Rice"))
    index = SearchIndex(store)
    await index.catch_up()
    wanted = SessionFilter(channel="test", unnamed="without", pinned=False)
    assert [row.id for row in await index.find_sessions("len", 10, None, "", wanted)] == ["a"]
    assert list(await index.find_sessions("...", 10, None, "", wanted)) == []
