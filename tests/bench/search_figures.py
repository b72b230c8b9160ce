"""The figure of the search: the newest 50 messages with two words, among a million.

The floor reads the newest 50 messages without a search. Words are as frequent as in a language, and
PostgreSQL has no statistics of them, as after many new messages.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import accumulate, islice
from statistics import quantiles
from typing import Any

from database_figures import SERVER, database
from figures import Bench, Row, row
from sqlalchemy import Connection, insert, text

from gateway.conversations import search_messages
from gateway.session.log import read_by_id
from gateway.store import migrate
from gateway.store import schema as t
from gateway.store.engine import open_engine

_MESSAGES, _QUICK = 1_000_000, 50_000
_VOCABULARY, _SESSIONS, _CHUNK = 30_000, 1_000, 10_000
_BEGUN = 1_700_000_000_000


def _vocabulary() -> list[str]:
    """Return words of random letters, most frequent first; frequent words are short."""
    chance, words = random.Random(3), dict[str, None]()
    while len(words) < _VOCABULARY:
        length = chance.randint(2, 4) if len(words) < 200 else chance.randint(4, 10)
        words["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=length))] = None
    return list(words)


_WORDS = _vocabulary()
_QUERIES = [
    f"{_WORDS[a]} {_WORDS[b]}"
    for a in (0, 2, 8, 40, 200, 900, 8_000)
    for b in (1, 3, 9, 50, 300, 1_000, 9_000)
]
"""Frequent, less frequent and rare words; the last word of a query is the beginning of others, too."""


def search(bench: Bench) -> Iterator[Row]:
    """Two words on both databases: the 95th percentile of queries with words of all frequencies."""
    count = _QUICK if bench.quick else _MESSAGES
    for where in ("SQLite", "PostgreSQL"):
        label = f"search of {count:,} messages, {where}: p95 (floor: the newest without a search)"
        if where == "PostgreSQL" and not SERVER:
            yield Row(label, "ms", None, note="not measured: no PostgreSQL")
        elif where == "PostgreSQL":
            with database() as url:
                yield _measured(label, url, count, bench)
        else:
            with tempfile.TemporaryDirectory() as folder:
                yield _measured(label, f"sqlite:///{folder}/t.db", count, bench)


def _measured(label: str, url: str, count: int, bench: Bench) -> Row:
    engine = open_engine(url, "relaxed")
    results: dict[str, list[float]] = defaultdict(list)
    try:
        with engine.begin() as connection:
            migrate.create_schema(connection)
            _fill(connection, count)
        with engine.connect() as connection:
            for number in range(bench.rounds + 1):
                ours = [_timed(lambda query=query: search_messages(connection, query)) for query in _QUERIES]
                floor = [_timed(lambda: _newest(connection)) for _ in _QUERIES]
                if number:  # the first round reads the files into memory
                    results["ours"].append(quantiles(ours, n=20)[-1])
                    results["relay"].append(quantiles(floor, n=20)[-1])
    finally:
        engine.dispose()
    return row(label, "ms", results, 50, absolute=True)


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1e3


def _newest(connection: Connection) -> object:
    rows = connection.execute(text("SELECT message_id FROM search ORDER BY n DESC LIMIT 51"))
    return read_by_id(connection, list(rows.scalars())[:50])


def _fill(connection: Connection, count: int) -> None:
    """Write sessions and messages as the gateway stores them."""
    postgres = connection.dialect.name == "postgresql"
    if postgres:
        connection.execute(text("ALTER TABLE search SET (autovacuum_enabled = false)"))
    zeros = dict.fromkeys(("seq", "messages", "input_tokens", "output_tokens", "context_from"), 0)
    times = {"created_at": _BEGUN, "updated_at": _BEGUN}
    named = {"channel": "c", "owner": "o", "address": '{"channel":"c"}', "title": ""}
    connection.execute(
        insert(t.sessions), [{"id": f"s{n}", **named, **zeros, **times} for n in range(_SESSIONS)]
    )
    put = "INSERT INTO search (n, message_id, words) VALUES (:n, :id, {})"
    words = put.format("to_tsvector('simple', :words)" if postgres else ":words")
    rows = _rows(count)
    while chunk := list(islice(rows, _CHUNK)):
        messages, parts, indexed = zip(*chunk, strict=True)
        connection.execute(insert(t.messages), list(messages))
        connection.execute(insert(t.parts), list(parts))
        connection.execute(text(words), list(indexed))


def _rows(count: int) -> Iterator[tuple[dict[str, Any], ...]]:
    """Yield the rows of each message: of itself, of its text, and of the index."""
    chance = random.Random(7)
    weights = list(accumulate(1 / (n + 3) for n in range(_VOCABULARY)))
    for number in range(count):
        said = " ".join(chance.choices(_WORDS, cum_weights=weights, k=chance.randint(5, 45)))
        row_id, at = f"m{number:09}", _BEGUN + number * 1_000
        place = {"id": row_id, "session_id": f"s{number % _SESSIONS}", "seq": number + 1}
        yield (
            {**place, "role": "user", "metadata": "{}", "created_at": at, "indexed": 1},
            {
                "id": f"{row_id}.0",
                "message_id": row_id,
                "type": "text",
                "content": json.dumps({"type": "text", "content": said}),
                "index": 0,
                "created_at": at,
            },
            {"n": at << 21, "id": row_id, "words": said},
        )


SEARCH_FIGURES: dict[str, Callable[[Bench], Iterator[Row]]] = {"search": search}
"""By the names that ``--only`` takes."""
