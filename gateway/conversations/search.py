"""Search: the words of messages and titles, by a full-text index, and lists of conversations by filters.

The index is written after the commit: a background task reads committed messages that are not marked as
indexed, newest first, and commits their words together with the mark. So a crash loses nothing, and a
database of an earlier version is indexed in the same way. A deletion removes the words in its transaction.

Both databases get words that are split and folded here, so that they find the same. Characters of languages
that are written without spaces are separate words, and a run of them is searched as a phrase.
"""

from __future__ import annotations

import asyncio
import json
import re
import unicodedata
from collections.abc import Collection, Sequence
from typing import Any, Literal, NamedTuple
from zlib import crc32

import structlog
from msgspec import Struct, structs
from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    TextClause,
    and_,
    func,
    literal,
    or_,
    select,
    text,
    tuple_,
)

from gateway.contract.errors import StoreError
from gateway.contract.messages import Message
from gateway.session.log import (
    SessionFilter,
    SessionRow,
    read_by_id,
    read_messages,
    read_sessions,
    read_sessions_by_id,
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
_NEWEST = 20_000
"""Rows that PostgreSQL searches without its index first."""
_FURTHER = 4
"""The factor by which more rows are searched if they probably have enough matches of a phrase."""
_COMPARED = 250
"""Matches that one page compares with a filter at most."""
_DENSE = 50
"""Matches among the newest rows that are enough to compare: the index would return many times as many."""
_RANKED = 1_000
"""Matches, the newest ones, that are compared with each other in the order of the best match."""
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
    "WHERE words @@ (SELECT to_tsquery('simple', :query)) AND n + 0 < :before "
    "ORDER BY n + 0 DESC LIMIT :limit",
}
"""The sums keep PostgreSQL from the index of numbers: it would read all rows in order, because it takes the
beginning of a word for frequent, or all numbers before the last one (60 ms of a million). The query is a
subquery, because PostgreSQL would parse it for each row in a plan that it keeps."""
_FIND_NEWEST = (
    "SELECT n, session_id, message_id FROM "
    "(SELECT * FROM search WHERE n < :before ORDER BY n DESC LIMIT :newest) newest "
    "WHERE words @@ (SELECT to_tsquery('simple', :query)) ORDER BY n DESC LIMIT :limit"
)
_END_OF_NEWEST = "SELECT n FROM search WHERE n < :before ORDER BY n DESC LIMIT 1 OFFSET :newest - 1"
_SESSIONS_OF = {
    "sqlite": "SELECT id, session_id FROM messages WHERE id IN (SELECT value FROM json_each(:ids))",
    "postgresql": "SELECT id, session_id FROM messages WHERE id = ANY(CAST(:ids AS TEXT[]))",
}
_AMONG = {
    # By their row numbers, or SQLite prefers an index of another condition.
    "sqlite": "sessions.rowid IN "
    "(SELECT rowid FROM sessions WHERE id IN (SELECT value FROM json_each(:ids)))",
    "postgresql": "sessions.id = ANY(CAST(:ids AS TEXT[]))",
}
"""One parameter for all ids: a list of parameters costs more than its query, and PostgreSQL looks up such an
array in the index even if it has no statistics of the table."""
_SCORE = {
    "sqlite": "SELECT rowid AS n, bm25(search_words) AS score FROM search_words "
    "WHERE search_words MATCH :query AND rowid >= :first AND rowid < :before",
    "postgresql": "SELECT n, -ts_rank(words, (SELECT to_tsquery('simple', :query)), 1) AS score FROM search "
    "WHERE n = ANY(CAST(:numbers AS BIGINT[]))",
}
"""A lower score is a better match: more occurrences of the words in a shorter text."""
_TITLED = {
    "sqlite": "sessions.id IN (SELECT s.session_id FROM search_words w JOIN search s ON s.n = w.rowid "
    "WHERE w.search_words MATCH :query AND s.session_id IS NOT NULL)",
    "postgresql": "sessions.id IN (SELECT session_id FROM search "
    "WHERE words @@ (SELECT to_tsquery('simple', :query)) AND session_id IS NOT NULL)",
}
_LAST = 2**63 - 1

WINDOW = 5_000
"""Conversations that one page reads at most."""
ANY_ERROR = "any"
Sort = Literal["newest", "cost", "errors"]
SearchSort = Literal["newest", "match"]

_S, _M, _P, _SPEND = t.sessions.c, t.messages.c, t.parts.c, t.spend.c
# As text, because databases use a partial index only for the condition that it has itself.
_COSTS, _IS_ERROR = text("messages.cost <> 0"), text("parts.type = 'error'")


class ConversationFilter(Struct, frozen=True, kw_only=True):
    """Conditions that conversations meet; None is any.

    ``person`` is the id of a user, or channel and id; ``model`` a part of the name of a model that answered;
    ``cost`` the US dollars that they cost more than; ``error`` the beginning of the name of an error in their
    answers, or any; ``since`` the milliseconds after which they were active.
    """

    channel: str | None = None
    person: str | None = None
    agent: str | None = None
    model: str | None = None
    cost: float | None = None
    error: str | None = None
    since: int | None = None

    @property
    def conditions(self) -> list[ColumnElement[bool]]:
        """The conditions of a query of sessions."""
        found = self.of_rows
        if self.person is not None:
            found.append(or_(_S.owner == self.person, _called(_is_person(self.person))))
        if self.agent is not None:
            found.append(
                or_(_S.agent == self.agent, and_(_S.agent.is_(None), _called(_SPEND.agent == self.agent)))
            )
        if self.model is not None:
            name = _SPEND.provider.concat("/").concat(_SPEND.model)
            part = self.model.lower()
            called = _called(func.lower(name).contains(part, autoescape=True))
            found.append(or_(func.lower(_S.model).contains(part, autoescape=True), called))
        if self.cost is not None:
            costs = select(func.coalesce(func.sum(_M.cost), 0.0)).where(_M.session_id == _S.id, _COSTS)
            found.append(costs.correlate(t.sessions).scalar_subquery() > self.cost)
        if self.error is not None:
            failed = select(_M.session_id).join_from(t.parts, t.messages, _M.id == _P.message_id)
            found.append(_S.id.in_(failed.where(_IS_ERROR, *_named(self.error)).correlate(None)))
        return found

    @property
    def of_rows(self) -> list[ColumnElement[bool]]:
        """The conditions that a session's own row decides."""
        found: list[ColumnElement[bool]] = [_S.root.is_(None)]
        if self.channel is not None:
            found.append(_S.channel == self.channel)
        if self.since is not None:
            found.append(_S.updated_at >= self.since)
        return found


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
    """Hits, newest or best match first. ``next`` is the ``cursor`` of the next page, null on the last one.

    With filters a page may have fewer hits than asked for, or none, before the last one. ``behind`` is true
    if messages were committed that the index does not have yet: the same search may find more a second later.
    """

    results: list[SearchHit]
    next: str | None
    behind: bool = False


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

    ``newest`` is the number of rows that PostgreSQL first searches without its index.
    """
    terms = terms_of(query)
    if not terms:
        return SearchPage([], None)
    found, _ = _matches(connection, terms, before, limit + 1, newest)
    shown = found[:limit]
    more = str(shown[-1]["n"]) if len(found) > limit else None
    return SearchPage(_hits(connection, shown, terms), more)


def search_filtered(
    connection: Connection,
    query: str,
    wanted: ConversationFilter,
    limit: int = 50,
    before: int = _LAST,
    compared: int = _COMPARED,
    newest: int = _NEWEST,
) -> SearchPage:
    """Find as ``search_messages`` does, in conversations that pass a filter.

    ``compared`` is the number of matches, the newest ones, that the filter is applied to; on PostgreSQL
    those among the ``newest`` rows if these have more than a few. ``next`` continues after them.
    """
    terms = terms_of(query)
    if not terms:
        return SearchPage([], None)
    found, last = _matches(connection, terms, before, compared, newest, _DENSE)
    sessions = _sessions_of(connection, found)
    passing = _passing(connection, {*sessions.values()}, wanted)
    hits = [row for row in found if sessions.get(row["n"]) in passing]
    more = last if len(hits) <= limit else hits[limit - 1]["n"]
    return SearchPage(_hits(connection, hits[:limit], terms), None if more is None else str(more))


def _matches(
    connection: Connection, terms: Sequence[Term], before: int, limit: int, newest: int, enough: int = _LAST
) -> tuple[Sequence[RowMapping], int | None]:
    """Read the newest matches, and the number to continue before; None if there are no others.

    On PostgreSQL there may be fewer than ``limit`` although there are others, but not fewer than ``enough``.
    """
    dialect = connection.dialect.name
    values = {"query": _build(dialect, terms), "before": min(before, _LAST), "limit": limit}
    if dialect == "postgresql":
        # An index by words has no order: of common words it returns every match, to be sorted. Such words are
        # among the newest rows. The planner knows that only if its statistics are up to date.
        within = {**values, "newest": newest}
        found = connection.execute(text(_FIND_NEWEST), within).mappings().all()
        if len(found) < limit <= _FURTHER * len(found) and any(len(one.words) > 1 for one in terms):
            # For a phrase the index returns all messages with its words, to be compared one by one.
            within["newest"] *= _FURTHER
            found = connection.execute(text(_FIND_NEWEST), within).mappings().all()
        if len(found) == limit:
            return found, found[-1]["n"]
        if len(found) >= enough:
            return found, connection.execute(text(_END_OF_NEWEST), within).scalar()
    found = connection.execute(text(_FIND[dialect]), values).mappings().all()
    return found, found[-1]["n"] if found and len(found) == limit else None


def _sessions_of(connection: Connection, found: Sequence[RowMapping]) -> dict[int, str]:
    """Return the sessions of matches, by the number of each."""
    messages = [row["message_id"] for row in found if row["message_id"]]
    query = text(_SESSIONS_OF[connection.dialect.name]).bindparams(ids=_array(connection, messages))
    of_messages = {row.id: row.session_id for row in connection.execute(query)}
    return {row["n"]: row["session_id"] or of_messages.get(row["message_id"], "") for row in found}


def _passing(connection: Connection, sessions: Collection[str], wanted: ConversationFilter) -> set[str]:
    """Return those of some sessions that pass a filter. Each is looked at once, for all its matches."""
    among = text(_AMONG[connection.dialect.name]).bindparams(ids=_array(connection, sessions))
    return {*connection.execute(select(_S.id).where(among, *wanted.conditions)).scalars()}


def _array(connection: Connection, ids: Collection[str]) -> str | list[str]:
    return json.dumps([*ids]) if connection.dialect.name == "sqlite" else [*ids]


def search_ranked(
    connection: Connection,
    query: str,
    limit: int = 50,
    cursor: tuple[int, int] = (_LAST, 0),
    wanted: ConversationFilter | None = None,
    ranked: int = _RANKED,
) -> SearchPage:
    """Find the best matches among the newest ``ranked`` ones, in conversations that pass a filter.

    PostgreSQL ranks fewer of a frequent word, those among its newest rows.

    ``cursor`` is the number before which matches are ranked, so that later messages do not move them, and how
    many of them were read.
    """
    terms = terms_of(query)
    if not terms:
        return SearchPage([], None)
    before, start = min(cursor[0], _LAST), cursor[1]
    found, _ = _matches(connection, terms, before, ranked, _NEWEST, _DENSE)
    if not found:
        return SearchPage([], None)
    before, first = min(before, found[0]["n"] + 1), found[-1]["n"]
    if wanted is not None:
        sessions = _sessions_of(connection, found)
        passing = _passing(connection, {*sessions.values()}, wanted)
        found = [row for row in found if sessions.get(row["n"]) in passing]
    values: dict[str, Any] = {"query": _build(connection.dialect.name, terms)}
    if connection.dialect.name == "sqlite":
        values |= {"first": first, "before": before}
    else:
        values |= {"numbers": [row["n"] for row in found]}
    scores = {row.n: row.score for row in connection.execute(text(_SCORE[connection.dialect.name]), values)}
    best = sorted(found, key=lambda row: (scores.get(row["n"], 0.0), -row["n"]))[start : start + limit + 1]
    more = f"{before}-{start + limit}" if len(best) > limit else None
    return SearchPage(_hits(connection, best[:limit], terms), more)


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
            fields = (None, None, session.created_at, *_snippet(session.title, terms))
        else:
            fields = (message.id, message.role, message.created_at, *_snippet(message.text, terms))
        hits.append(SearchHit(session.id, session.title, *fields))
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

    async def find(
        self, query: str, limit: int = 50, before: int = _LAST, wanted: ConversationFilter | None = None
    ) -> SearchPage:
        """Find the newest messages and titles; see ``search_messages`` and ``search_filtered``."""

        def read(connection: Connection) -> SearchPage:
            # Asked first: what is indexed between the two reads is then found, or said to be missing.
            behind = before == _LAST and _is_behind(connection)
            if wanted is None:
                page = search_messages(connection, query, limit, before)
            else:
                page = search_filtered(connection, query, wanted, limit, before)
            return structs.replace(page, behind=behind)

        return await self._store.read(read)

    async def find_best(
        self, query: str, limit: int, cursor: tuple[int, int] | None, wanted: ConversationFilter | None
    ) -> SearchPage:
        """Find the best matches; see ``search_ranked``."""

        def read(connection: Connection) -> SearchPage:
            behind = cursor is None and _is_behind(connection)
            page = search_ranked(connection, query, limit, cursor or (_LAST, 0), wanted)
            return structs.replace(page, behind=behind)

        return await self._store.read(read)

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


def _is_behind(connection: Connection) -> bool:
    queries = (
        select(t.messages.c.id).where(text("indexed < 1")),
        select(t.sessions.c.id).where(text("indexed_title <> title")),
    )
    return any(connection.execute(query.limit(1)).first() is not None for query in queries)


def _count_unindexed(connection: Connection) -> int:
    query = select(func.count()).select_from(t.messages).where(text("indexed < 1"))
    return connection.execute(query).scalar_one()


class ConversationPage(Struct, frozen=True):
    """Conversations that pass a filter. ``next`` is the cursor of the next page, None on the last one."""

    sessions: list[SessionRow]
    next: str | None


class ConversationFinder:
    """Finds the conversations of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(
        self, wanted: ConversationFilter, sort: Sort, limit: int, cursor: tuple[float, str] | None = None
    ) -> ConversationPage:
        """Return a page; ``cursor`` is the value that the order is by and the id to continue after."""
        return await self._store.read(lambda c: find_conversations(c, wanted, sort, limit, cursor))


def find_conversations(
    connection: Connection,
    wanted: ConversationFilter,
    sort: Sort = "newest",
    limit: int = 100,
    cursor: tuple[float, str] | None = None,
    window: int = WINDOW,
) -> ConversationPage:
    """Find conversations. Those without a cost, or without an error, are left out when ordered by that.

    In the order of activity ``window`` conversations are read, whether they pass or not.
    """
    if sort == "newest":
        found, next_one = _newest(connection, wanted, limit, cursor, window)
    else:
        query = _by_cost() if sort == "cost" else _by_errors()
        found, next_one = _highest(connection, query, wanted, limit, cursor)
    rows = {row.id: row for row in read_sessions_by_id(connection, [one[1] for one in found])}
    shown = [rows[session] for _, session in found if session in rows]
    return ConversationPage(shown, None if next_one is None else f"{next_one[0]}:{next_one[1]}")


Found = list[tuple[float, str]]


def _newest(
    connection: Connection,
    wanted: ConversationFilter,
    limit: int,
    cursor: tuple[float, str] | None,
    most: int,
) -> tuple[Found, tuple[float, str] | None]:
    window = select(_S.updated_at, _S.id).where(*wanted.of_rows)
    if cursor is not None:
        window = window.where(
            tuple_(_S.updated_at, _S.id) < tuple_(literal(int(cursor[0])), literal(cursor[1]))
        )
    window = window.order_by(_S.updated_at.desc(), _S.id.desc()).limit(most)
    read = window.subquery()
    query = select(_S.updated_at, _S.id).join_from(read, t.sessions, _S.id == read.c.id)
    query = query.where(*wanted.conditions).order_by(read.c.updated_at.desc(), read.c.id.desc())
    found: Found = [(at, session) for at, session in connection.execute(query.limit(limit + 1))]
    if len(found) > limit:
        return found[:limit], found[limit - 1]
    ends = connection.execute(
        select(read.c.updated_at, read.c.id)
        .order_by(read.c.updated_at, read.c.id)
        .add_columns(func.count().over())
        .limit(1)
    ).first()
    more = ends is not None and ends[2] == most
    return found, (ends[0], ends[1]) if more and ends is not None else None


def _highest(
    connection: Connection,
    figures: Select[Any, Any],
    wanted: ConversationFilter,
    limit: int,
    cursor: tuple[float, str] | None,
) -> tuple[Found, tuple[float, str] | None]:
    read = figures.subquery()
    query = select(read.c.figure, read.c.id).join_from(read, t.sessions, _S.id == read.c.id)
    query = query.where(*wanted.conditions)
    if cursor is not None:
        query = query.where(tuple_(read.c.figure, read.c.id) < tuple_(literal(cursor[0]), literal(cursor[1])))
    query = query.order_by(read.c.figure.desc(), read.c.id.desc()).limit(limit + 1)
    found: Found = [(figure, session) for figure, session in connection.execute(query)]
    return found[:limit], found[limit - 1] if len(found) > limit else None


def _by_cost() -> Select[Any, Any]:
    cost = func.sum(_M.cost).label("figure")
    return select(_M.session_id.label("id"), cost).where(_COSTS).group_by(_M.session_id)


def _by_errors() -> Select[Any, Any]:
    failed = select(_M.session_id.label("id"), func.count().label("figure"))
    failed = failed.join_from(t.parts, t.messages, _M.id == _P.message_id)
    return failed.where(_IS_ERROR, _M.undone.is_(None)).group_by(_M.session_id)


def _called(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition that a model was called for a session in some way."""
    return select(_SPEND.id).where(_SPEND.session == _S.id, condition).correlate(t.sessions).exists()


def _is_person(person: str) -> ColumnElement[bool]:
    return or_(_SPEND.person == person, _SPEND.person.endswith(f":{person}", autoescape=True))


def _named(error: str) -> list[ColumnElement[bool]]:
    shown: list[ColumnElement[bool]] = [_M.undone.is_(None)]
    if error.lower() != ANY_ERROR:
        shown.append(_P.content.contains(f'"error_name":"{error}', autoescape=True))
    return shown
