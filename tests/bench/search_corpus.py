"""A database of conversations to search in: words as frequent as in a language, four languages.

Rows are written as the gateway writes them, in its tables and through its triggers, but many at once.
PostgreSQL gets no statistics of them, as after many new messages.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, insert, text

from gateway.conversations.search import words_of
from gateway.store import schema as t

BEGUN, BETWEEN = 1_700_000_000_000, 30_000
"""Milliseconds of the first message, and between two messages."""
CHANNELS = ("telegram", "slack", "websocket")
_LONGEST_CHUNK = 20_000
_VOCABULARY, _PERSONS, _OPEN = 30_000, 1_000, 200
"""Words of a language, users, and conversations that go on at the same time."""
_ALPHABETS = {
    "en": ("abcdefghijklmnopqrstuvwxyz", " "),
    "de": ("abcdefghijklmnoprstuvwzäöü", " "),
    "ru": ("абвгдежзиклмнопрстуфхцчшыьюя", " "),
    "zh": ("".join(map(chr, range(0x4E00, 0x4E00 + 2_000))), ""),
}
_SHARES = (60, 20, 15, 5)
_FAILED, _ANSWERED = 100, 2
"""One of so many messages has an error, and one of so many is an answer."""


class Language(NamedTuple):
    """A language: its words, most frequent first, and what is between them."""

    words: list[str]
    space: str


def _language(letters: str, space: str) -> Language:
    chance, words = random.Random(3), dict[str, None]()
    while len(words) < _VOCABULARY:
        length = chance.randint(2, 4) if len(words) < 200 else chance.randint(4, 10)
        if not space:
            length = chance.randint(1, 3)
        words["".join(chance.choices(letters, k=length))] = None
    return Language(list(words), space)


LANGUAGES = {name: _language(*given) for name, given in _ALPHABETS.items()}
_WEIGHTS = list(accumulate(1 / (n + 3) for n in range(_VOCABULARY)))


class _Message(NamedTuple):
    id: str
    session: int
    role: str
    at: int
    said: str
    failed: bool


def fill(connection: Connection, messages: int) -> None:
    """Write so many messages, and a conversation for each 50 of them."""
    postgres = connection.dialect.name == "postgresql"
    sessions = max(1, messages // 50)
    put = _copy if postgres else _insert
    if postgres:
        connection.execute(text("ALTER TABLE search SET (autovacuum_enabled = false)"))
        connection.execute(
            text("CREATE TEMP TABLE given (n BIGINT, session_id TEXT, message_id TEXT, words TEXT)")
        )
    put(connection, t.sessions, [_session(number, messages) for number in range(sessions)])
    rows = _messages(messages, sessions)
    while chunk := list(islice(rows, _LONGEST_CHUNK)):
        put(connection, t.messages, [_row(one) for one in chunk])
        put(connection, t.parts, [part for one in chunk for part in _parts(one)])
        put(connection, t.spend, [_call(one) for one in chunk if one.role == "assistant"])
        words = [_words(one.at, None, one.id, one.said) for one in chunk]
        _index(connection, words)
    titles = [_words(_begun(n, messages), f"s{n}", None, _title(n)) for n in range(sessions)]
    _index(connection, titles)


def _index(connection: Connection, words: list[dict[str, Any]]) -> None:
    if connection.dialect.name != "postgresql":
        _insert(connection, t.search, words)
        return
    given = ("n", "session_id", "message_id", "words")
    _copy_rows(connection, "given", given, [tuple(one[name] for name in given) for one in words])
    connection.execute(
        text(
            "INSERT INTO search (n, session_id, message_id, words) "
            "SELECT n, session_id, message_id, to_tsvector('simple', words) FROM given"
        )
    )
    connection.execute(text("TRUNCATE given"))


def _words(at: int, session: str | None, message: str | None, said: str) -> dict[str, Any]:
    number = int(message[1:]) if message else int((session or "")[1:])
    n = (at << 21) | (number & 0xFFFF) | (0 if message else 0x10000)
    return {"n": n, "session_id": session, "message_id": message, "words": " ".join(words_of(said))}


def _begun(number: int, messages: int) -> int:
    return BEGUN + number * 50 * BETWEEN


def _session_language(number: int) -> Language:
    name = random.Random(number).choices(list(LANGUAGES), weights=_SHARES)[0]
    return LANGUAGES[name]


def _sentence(chance: random.Random, language: Language, most: int) -> str:
    least = min(5, most)
    return language.space.join(
        chance.choices(language.words, cum_weights=_WEIGHTS, k=chance.randint(least, most))
    )


def _title(number: int) -> str:
    return _sentence(random.Random(-number - 1), _session_language(number), 5)


def _session(number: int, messages: int) -> dict[str, Any]:
    ended = min(number + 2 * _OPEN, messages // 50) * 50 * BETWEEN
    title = _title(number)
    zeros = dict.fromkeys(("seq", "messages", "input_tokens", "output_tokens", "context_from"), 0)
    return {
        "id": f"s{number}",
        "channel": CHANNELS[number % 3],
        "owner": f"user{number % _PERSONS}",
        "address": json.dumps({"channel": CHANNELS[number % 3]}),
        "title": title,
        "indexed_title": title,
        **zeros,
        "created_at": _begun(number, messages),
        "updated_at": BEGUN + ended,
    }


def _messages(count: int, sessions: int) -> Iterator[_Message]:
    chance = random.Random(7)
    languages = [_session_language(number) for number in range(sessions)]
    for number in range(count):
        session = min(number // 50 + chance.randrange(_OPEN), sessions - 1)
        answer = number % _ANSWERED == 1
        said = _sentence(chance, languages[session], 60 if answer else 25)
        at = BEGUN + number * BETWEEN
        role = "assistant" if answer else "user"
        yield _Message(f"m{number:09}", session, role, at, said, answer and chance.randrange(_FAILED) < 2)


def _row(one: _Message) -> dict[str, Any]:
    number = int(one.id[1:])
    return {
        "id": one.id,
        "session_id": f"s{one.session}",
        "seq": number + 1,
        "role": one.role,
        "metadata": "{}",
        "cost": 0.001 if one.role == "assistant" else None,
        "created_at": one.at,
        "indexed": 1,
    }


def _parts(one: _Message) -> Iterator[dict[str, Any]]:
    place = {"message_id": one.id, "created_at": one.at}
    said = json.dumps({"type": "text", "content": one.said}, ensure_ascii=False)
    yield {"id": f"{one.id}.0", "type": "text", "content": said, "index": 0, **place}
    if one.failed:
        name = "RateLimitError" if int(one.id[1:]) % 3 else "AuthFailedError"
        error = json.dumps({"type": "error", "error_name": name, "message": "failed"}, separators=(",", ":"))
        yield {"id": f"{one.id}.1", "type": "error", "content": error, "index": 1, **place}


def _call(one: _Message) -> dict[str, Any]:
    channel = CHANNELS[one.session % 3]
    tokens = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens")
    return {
        "id": f"c{one.id}",
        "at": one.at,
        "state": "counted",
        "session": f"s{one.session}",
        "channel": channel,
        "person": f"{channel}:user{one.session % _PERSONS}",
        "agent": "main",
        "provider": "openai",
        "model": "gpt-5" if one.session % 10 else "gpt-5-mini",
        **dict.fromkeys(tokens, 10),
        "nano_usd": 1_000_000,
    }


def _insert(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    connection.execute(insert(table), list(rows))


def _copy(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    columns = list(rows[0]) if rows else []
    _copy_rows(connection, table.name, columns, [tuple(one.values()) for one in rows])


def _copy_rows(
    connection: Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> None:
    if not rows:
        return
    names = ", ".join(f'"{name}"' for name in columns)
    cursor: Any = connection.connection.cursor()
    with cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
        for one in rows:
            copy.write_row(one)
