"""Search: the words of all messages and titles, found by a full-text index.

The index is written behind the commit: a background task reads committed messages that are not marked as
indexed, newest first, and commits their words together with the mark. So a crash loses nothing, and a
database of an earlier version is indexed in the same way. A deletion removes the words in its transaction.

Both databases get words that are split and folded here, so that they find the same. Characters of languages
that are written without spaces are words of their own, and a run of them is searched as a phrase.
"""

from __future__ import annotations

import asyncio
import re
import unicodedata
from collections.abc import Collection, Sequence
from typing import NamedTuple
from zlib import crc32

import structlog
from msgspec import Struct, structs
from sqlalchemy import Connection, RowMapping, TextClause, func, select, text

from gateway.contract.errors import StoreError
from gateway.contract.messages import Message
from gateway.session.log import (
    SessionFilter,
    SessionRow,
    read_by_id,
    read_messages,
    read_sessions,
    read_unindexed,
)
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.writes import BulkStatement, Write

log = structlog.get_logger("trunkline.search")

_SPACELESS = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Thai, Lao, Japanese and Chinese characters."""
_WORD = re.compile(rf"[{_SPACELESS}]|(?:(?![{_SPACELESS}])[^\W_])+")
_SPACE = re.compile(r"\s+")
_ACCENTS = re.compile("[\u0300-\u036f]")
_TERM = re.compile(r'"([^"]*)(?:"|$)|([^\s"]+)')

_LONGEST_WORD = 100
_LONGEST_TEXT = 100_000
"""Characters of a message that are indexed; PostgreSQL limits the size of a row's words."""
_MOST_TERMS = 32
_BATCH = 200
_SECONDS = 0.5
"""Pause of the indexer. It asks the database only if something was committed in the meantime."""
_REPORTED = 20_000
_NEWEST = 10_000
"""Rows that PostgreSQL searches without its index first."""
_AROUND = 50
"""Messages before and after a found one that a reader gets with it."""
_SNIPPET, _LEAD = 200, 60
"""Characters of a snippet, and those before the first match."""

_PUT_WORDS = (
    "INSERT INTO search (n, session_id, message_id, words) "
    "SELECT n, {id}, {words} FROM given WHERE EXISTS (SELECT 1 FROM {table} WHERE {row}) "
    "ON CONFLICT DO NOTHING"
)
# Checked in the transaction: a message that was deleted or replaced since it was read leaves no words.
_MESSAGE = "messages.id = given.id AND messages.seq = given.seq AND messages.indexed = given.indexed"
_SESSION = "sessions.id = given.id AND sessions.title = given.title"
_WORDS = {"sqlite": "words", "postgresql": "to_tsvector('simple', words)"}
_MARK_MESSAGE = BulkStatement(
    82,
    t.messages,
    {"id": "TEXT", "seq": "BIGINT", "indexed": "INTEGER"},
    f"UPDATE messages SET indexed = 1 FROM given WHERE {_MESSAGE}",  # noqa: S608 - no values
)
_MARK_TITLE = Write("update", 82, t.sessions, "id indexed_title")
_DROP_TITLE = Write("delete", 80, t.search, "session_id", key="session_id")

_FIND = {
    "sqlite": "SELECT s.n, s.session_id, s.message_id FROM search_words w JOIN search s ON s.n = w.rowid "
    "WHERE w.search_words MATCH :query AND w.rowid < :before ORDER BY w.rowid DESC LIMIT :limit",
    "postgresql": "SELECT n, session_id, message_id FROM search "
    "WHERE words @@ to_tsquery('simple', :query) AND n < :before ORDER BY n + 0 DESC LIMIT :limit",
}
"""The sum keeps PostgreSQL from reading all rows in order: it takes the beginning of a word for frequent."""
_FIND_NEWEST = (
    "SELECT n, session_id, message_id FROM "
    "(SELECT * FROM search WHERE n < :before ORDER BY n DESC LIMIT :newest) newest "
    "WHERE words @@ to_tsquery('simple', :query) ORDER BY n DESC LIMIT :limit"
)
_TITLED = {
    "sqlite": "sessions.id IN (SELECT s.session_id FROM search_words w JOIN search s ON s.n = w.rowid "
    "WHERE w.search_words MATCH :query AND s.session_id IS NOT NULL)",
    "postgresql": "sessions.id IN (SELECT session_id FROM search "
    "WHERE words @@ to_tsquery('simple', :query) AND session_id IS NOT NULL)",
}
_LAST = 2**63 - 1


class Term(NamedTuple):
    """Words that follow each other; ``prefix``: the last one may be the beginning of a word."""

    words: tuple[str, ...]
    prefix: bool


class SearchHit(Struct, frozen=True):
    """A message, or a title (without a message and a role), that contains the searched words.

    ``matches`` are the ranges of found words in the snippet, as first and one past the last code point.
    ``created_at`` is in milliseconds, for a title the time of its session.
    """

    session: str
    title: str
    message_id: str | None
    role: str | None
    created_at: int
    snippet: str
    matches: list[tuple[int, int]]


class SearchPage(Struct, frozen=True):
    """Hits, newest first. ``next`` is the ``cursor`` of the next page, null on the last one."""

    results: list[SearchHit]
    next: str | None


def words_of(given: str) -> list[str]:
    """Return the words of a text without case and accents."""
    whole = given.casefold()
    if not whole.isascii():
        whole = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFKD", whole)))
    return [word[:_LONGEST_WORD] for word in _WORD.findall(whole)]


def terms_of(query: str) -> list[Term]:
    """Return the terms of a query: words and quoted phrases. Only an unquoted last word is a prefix."""
    found = [(tuple(words_of(m[1] or m[2] or "")), m[2] is not None) for m in _TERM.finditer(query)]
    terms = [Term(words, False) for words, _ in found if words][:_MOST_TERMS]
    if terms and found[-1][1] and found[-1][0] == terms[-1].words:
        terms[-1] = Term(terms[-1].words, True)
    return terms


def search_messages(
    connection: Connection, query: str, limit: int = 50, before: int = _LAST, newest: int = _NEWEST
) -> SearchPage:
    """Find the newest messages and titles that contain all words of a query; any text is a query.

    PostgreSQL searches so many of the ``newest`` rows without its index first.
    """
    terms = terms_of(query)
    if not terms:
        return SearchPage([], None)
    dialect = connection.dialect.name
    values = {"query": _build(dialect, terms), "before": min(before, _LAST), "limit": limit + 1}
    found: Sequence[RowMapping] = []
    if dialect == "postgresql":
        # An index by words has no order: of common words it returns every match, to be sorted. Such words are
        # among the newest rows. The planner knows that only if its statistics are up to date.
        found = connection.execute(text(_FIND_NEWEST), {**values, "newest": newest}).mappings().all()
    if len(found) <= limit:
        found = connection.execute(text(_FIND[dialect]), values).mappings().all()
    shown = found[:limit]
    more = str(shown[-1]["n"]) if len(found) > limit else None
    return SearchPage(_hits(connection, shown, terms), more)


def _read_around(connection: Connection, session_id: str, message_id: str) -> list[tuple[int, Message]]:
    m = t.messages.c
    shown = (m.session_id == session_id, m.undone.is_(None))
    seq = connection.execute(select(m.seq).where(*shown, m.id == message_id)).scalar()
    if seq is None:
        return []
    later = select(m.seq).where(*shown, m.seq > seq).order_by(m.seq).limit(_AROUND)
    upto = max(connection.execute(later).scalars(), default=seq)
    return read_messages(connection, session_id, upto=upto, last=2 * _AROUND + 1)


def titled(dialect: str, query: str) -> TextClause | None:
    """Return the condition that the title of a session has all words of a query; None without words."""
    terms = terms_of(query)
    return text(_TITLED[dialect]).bindparams(query=_build(dialect, terms)) if terms else None


def _build(dialect: str, terms: Sequence[Term]) -> str:
    return _sqlite_query(terms) if dialect == "sqlite" else _postgres_query(terms)


def _sqlite_query(terms: Sequence[Term]) -> str:
    return " AND ".join(f'"{" ".join(one.words)}"{" *" if one.prefix else ""}' for one in terms)


def _postgres_query(terms: Sequence[Term]) -> str:
    # Words have neither quotes nor backslashes.
    phrases = ("'" + "' <-> '".join(one.words) + "'" + (":*" if one.prefix else "") for one in terms)
    return " & ".join(f"({phrase})" for phrase in phrases)


def _hits(connection: Connection, found: Sequence[RowMapping], terms: Sequence[Term]) -> list[SearchHit]:
    messages = read_by_id(connection, [row["message_id"] for row in found if row["message_id"]])
    ids = {row["session_id"] for row in found} | {one.session_id for one in messages.values()}
    s = t.sessions.c
    query = select(s.id, s.title, s.created_at).where(s.id.in_(ids - {None}))
    sessions = {row.id: row for row in connection.execute(query)}
    hits: list[SearchHit] = []
    for row in found:
        message = messages.get(row["message_id"])
        session = sessions.get(row["session_id"] if message is None else message.session_id)
        if session is None:
            continue  # deleted since the index was read
        if message is None:
            told = (None, None, session.created_at, *_snippet(session.title, terms))
        else:
            told = (message.id, message.role, message.created_at, *_snippet(message.text, terms))
        hits.append(SearchHit(session.id, session.title, *told))
    return hits


def _snippet(content: str, terms: Sequence[Term]) -> tuple[str, list[tuple[int, int]]]:
    """Return the part of a text around its first match, on one line, and the ranges of the matches."""
    content = unicodedata.normalize("NFC", content[: 2 * _LONGEST_TEXT])
    exact = {word for one in terms for word in one.words}
    prefixes = tuple(one.words[-1] for one in terms if one.prefix)
    ranges = [m.span() for m in _WORD.finditer(content) if _is_match(m[0], exact, prefixes)]
    first = ranges[0][0] if ranges else 0
    start = max(0, first - _LEAD)
    if start and (space := _SPACE.search(content, start, first)):
        start = space.end()  # not in the middle of a word
    shown = "".join(" " if c.isspace() else c for c in content[start : start + _SNIPPET])
    end = start + len(shown)
    return shown, [(a - start, min(b, end) - start) for a, b in ranges if a < end]


def _is_match(given: str, exact: Collection[str], prefixes: tuple[str, ...]) -> bool:
    folded = words_of(given)
    return any(word in exact or word.startswith(prefixes) for word in folded)


class SearchIndex:
    """The index of one store: finds, and adds what was committed, in the background."""

    def __init__(self, store: Store) -> None:
        self._store = store
        words = _WORDS[store.engine.dialect.name]
        columns = {"n": "BIGINT", "id": "TEXT", "words": "TEXT"}
        self._put_message = BulkStatement(
            81,
            t.search,
            {**columns, "seq": "BIGINT", "indexed": "INTEGER"},
            _PUT_WORDS.format(id="NULL, id", words=words, table="messages", row=_MESSAGE),
        )
        self._put_title = BulkStatement(
            81,
            t.search,
            {**columns, "title": "TEXT"},
            _PUT_WORDS.format(id="id, NULL", words=words, table="sessions", row=_SESSION),
        )

    async def find(self, query: str, limit: int = 50, before: int = _LAST) -> SearchPage:
        """Find the newest messages and titles; see ``search_messages``."""
        return await self._store.read(lambda c: search_messages(c, query, limit, before))

    async def read_around(self, session_id: str, message_id: str) -> Sequence[tuple[int, Message]]:
        """Read a message and up to 50 before and after it; nothing if the log does not show it."""
        return await self._store.read(lambda c: _read_around(c, session_id, message_id))

    async def find_sessions(
        self, query: str, limit: int, before: int | None, before_id: str, wanted: SessionFilter
    ) -> Sequence[SessionRow]:
        """Find sessions by the words of their titles, newest activity first; see ``read_sessions``."""
        where = titled(self._store.engine.dialect.name, query)
        if where is None:
            return ()
        found = structs.replace(wanted, where=where)
        return await self._store.read(lambda c: read_sessions(c, limit, before, before_id, found))

    async def run(self) -> None:
        """Index what is committed, until cancelled."""
        seen = -1
        while True:
            commits = self._store.writer.commits
            if commits != seen:
                seen = commits
                try:
                    await self.catch_up()
                except StoreError as error:
                    # Nothing is lost: what is not marked is tried again after the next commit.
                    log.warning("messages could not be indexed", reason=str(error))
            await asyncio.sleep(_SECONDS)

    async def catch_up(self) -> int:
        """Index everything that is committed and not indexed. Return the number of messages.

        What is committed in the meantime is left to the next call: a transaction for a few messages costs
        about as much as one for all of them.
        """
        done, reported, full = 0, 0, True
        while full:
            titles = await self._store.read(_unindexed_titles)
            found = await self._store.read(lambda c: read_unindexed(c, _BATCH))
            if found or titles:
                await self._add(found, titles)
            done += len(found)
            full = _BATCH in (len(found), len(titles))
            if done - reported >= _REPORTED:
                reported = done
                left = await self._store.read(_count_unindexed)
                log.info("indexing messages for the search", indexed=done, left=left)
        if reported:
            log.info("indexed all messages for the search", indexed=done)
        return done

    async def _add(self, found: Sequence[tuple[int, int, Message]], titles: Sequence[RowMapping]) -> None:
        taken = await self._store.read(lambda c: _taken(c, found, titles))
        ops: list[Op] = []
        for row in titles:
            words = " ".join(words_of(row["title"]))
            n = _number(row["created_at"], row["id"], taken)
            ops.append((_DROP_TITLE, (row["id"],)))
            ops.append((self._put_title, (n, row["id"], words, row["title"])))
            ops.append((_MARK_TITLE, (row["id"], row["title"])))
        for seq, indexed, message in found:
            said = message.text[:_LONGEST_TEXT] if _is_searched(message) else ""
            if words := " ".join(words_of(said)):
                n = _number(message.created_at, message.id, taken)
                ops.append((self._put_message, (n, message.id, words, seq, indexed)))
            ops.append((_MARK_MESSAGE, (message.id, seq, indexed)))
        await self._store.write(*ops)


def _is_searched(message: Message) -> bool:
    hidden = message.display is not None and message.display.hidden
    return message.role in ("user", "assistant") and not hidden


def _number(created_at: int, row_id: str, taken: set[int]) -> int:
    """Return the number of a row in the index: its time, then bits that differ, so that none is taken."""
    n = _first_number(created_at, row_id)
    while n in taken:
        n += 1
    taken.add(n)
    return n


def _first_number(created_at: int, row_id: str) -> int:
    return (created_at << 21) | (crc32(row_id.encode()) & 0xFFFFF)


def _taken(
    connection: Connection, found: Sequence[tuple[int, int, Message]], titles: Sequence[RowMapping]
) -> set[int]:
    """Return the numbers in the index at and after those that the rows would get."""
    wanted = [_first_number(message.created_at, message.id) for _, _, message in found]
    wanted += [_first_number(row["created_at"], row["id"]) for row in titles]
    # As text: so many parameters cost more than the query.
    numbers = ", ".join(str(n + i) for n in wanted for i in range(4))
    return set(connection.execute(text(f"SELECT n FROM search WHERE n IN ({numbers})")).scalars())  # noqa: S608


def _unindexed_titles(connection: Connection) -> Sequence[RowMapping]:
    s = t.sessions.c
    query = select(s.id, s.title, s.created_at).where(text("indexed_title <> title")).limit(_BATCH)
    return connection.execute(query).mappings().all()


def _count_unindexed(connection: Connection) -> int:
    query = select(func.count()).select_from(t.messages).where(text("indexed < 1"))
    return connection.execute(query).scalar_one()
