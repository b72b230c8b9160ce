"""The figures of the search: queries of all kinds among a million messages in 20,000 conversations.

The floor reads the same messages by their ids.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from statistics import quantiles

from database_figures import SERVER, database
from figures import Bench, Row, row
from search_corpus import BEGUN, BETWEEN, LANGUAGES, fill
from sqlalchemy import Connection

from gateway.conversations import ConversationFilter
from gateway.conversations.search import search_filtered, search_messages
from gateway.session.log import read_by_id
from gateway.store import migrate
from gateway.store.engine import open_engine

_MESSAGES, _QUICK = 1_000_000, 50_000
_MONTH = 30 * 24 * 3_600_000
_WORDS = [language.words for language in LANGUAGES.values()]
_SPACED = _WORDS[:3]
_FREQUENT, _RARE = (0, 8, 60), (300, 2_000, 15_000)
_KINDS: dict[str, list[str]] = {
    "a word": [words[n] for words in _WORDS for n in _FREQUENT + _RARE],
    "two words": [
        f'{words[a]} "{words[b]}"' for words in _SPACED for a in _FREQUENT for b in (3, 50, *_RARE)
    ],
    "a phrase": [f'"{words[a]} {words[b]}"' for words in _SPACED for a in _FREQUENT for b in (3, 50, 300)],
    "a beginning": [words[n][:k] for words in _SPACED for n in (0, 1_000, 3_000) for k in (1, 2, 3)],
}
_FILTERED = [words[n] for words in _SPACED for n in _FREQUENT + _RARE[:2]]


def search(bench: Bench) -> Iterator[Row]:
    """Words, phrases, beginnings and filters on both databases: the 95th percentile of a page."""
    count = _QUICK if bench.quick else _MESSAGES
    for where in ("SQLite", "PostgreSQL"):
        label = f"search of {count:,} messages, {where}"
        if where == "PostgreSQL" and not SERVER:
            yield Row(label, "ms", None, note="not measured: no PostgreSQL")
        elif where == "PostgreSQL":
            with database() as url:
                yield from _measured(label, url, count, bench)
        else:
            with tempfile.TemporaryDirectory() as folder:
                yield from _measured(label, f"sqlite:///{folder}/t.db", count, bench)


def _measured(label: str, url: str, count: int, bench: Bench) -> Iterator[Row]:
    engine = open_engine(url, "relaxed")
    filters = {
        "channel": ConversationFilter(channel="slack"),
        "person": ConversationFilter(person="user7"),
        "since": ConversationFilter(since=BEGUN + count * BETWEEN - _MONTH),
        "error": ConversationFilter(error="Auth"),
    }
    asked: dict[str, list[tuple[str, ConversationFilter | None]]] = {
        **{kind: [(query, None) for query in queries] for kind, queries in _KINDS.items()},
        **{
            f"with the filter {name}": [(query, wanted) for query in _FILTERED]
            for name, wanted in filters.items()
        },
    }
    every: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    try:
        with engine.begin() as connection:
            migrate.create_schema(connection)
            fill(connection, count)
        with engine.connect() as connection:
            for number in range(bench.rounds + 1):
                took = {
                    kind: [_timed(connection, *one) for one in queries] for kind, queries in asked.items()
                }
                took["all of these"] = [pair for pairs in took.values() for pair in pairs]
                for kind, pairs in took.items() if number else ():  # the first reads the files into memory
                    for name, seconds in zip(("ours", "relay"), zip(*pairs, strict=True), strict=True):
                        every[kind][name].append(quantiles(seconds, n=20)[-1])
    finally:
        engine.dispose()
    for kind, results in every.items():
        yield row(f"{label}, {kind}: p95", "ms", results, 50, absolute=True)


def _timed(connection: Connection, query: str, wanted: ConversationFilter | None) -> tuple[float, float]:
    """Return the milliseconds of a page, and of reading its messages by their ids."""
    begun = time.perf_counter()
    if wanted is None:
        page = search_messages(connection, query)
    else:
        page = search_filtered(connection, query, wanted)
    found = time.perf_counter()
    read_by_id(connection, [hit.message_id for hit in page.results if hit.message_id])
    return (found - begun) * 1e3, (time.perf_counter() - found) * 1e3


SEARCH_FIGURES: dict[str, Callable[[Bench], Iterator[Row]]] = {"search": search}
"""By the names that ``--only`` takes."""
