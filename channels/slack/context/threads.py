"""Earlier messages of a thread, read with a bounded number of calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from msgspec import Struct

from channels.slack.api import Api, Json
from channels.slack.context.content import (
    full_text,
    json_objects,
    named_in,
    own_text,
    plain_text,
    shortened,
    uploads,
)
from channels.slack.context.directory import Directory
from channels.slack.parse import Rules, order_of, sender_id
from gateway.channel import (
    Earlier,
    InboundMessage,
    PlacementDeferred,
    PlacementRefused,
    PlacementUncertain,
    Sender,
)

_MOST_CALLS = 5
_FIRST_PAGE, _PAGE = 200, 1000
"""Rows of the first call, which suffices for most threads, and of further ones: Slack's maximum."""
_AIM = 300
"""Rows that a call of the search aims at: more than are wanted, and much less than a page has."""
_SECONDS = 3.5
"""Seconds for all calls of one thread, because the answer waits for them."""
_NAME_SECONDS = 0.8
_SUBTYPES = (None, "bot_message", "file_share", "me_message", "thread_broadcast")


class HistoryUnavailableError(Exception):
    """Error for a thread that could not be read. The text is the reason."""


class _Page(Struct, frozen=True):
    """Replies after a position, oldest first; ``complete``: they are all up to the message."""

    root: Json | None
    replies: list[Json]
    complete: bool


class _Search:
    """Search for the position of the last messages of a thread, in microseconds."""

    def __init__(self, begin: int, end: int, limit: int, first: _Page) -> None:
        self.done = first.complete
        self.rows = first.replies
        self._limit = limit
        self._early = _last(first.replies) or begin
        """A position that is known to have more messages after it than were read."""
        self._late = end
        """A position that is known to have too few messages after it."""
        count = first.root.get("reply_count") if first.root is not None else None
        left = (count if isinstance(count, int) else 0) - len(first.replies) - _AIM
        guess = self._early + int(max(0, left) * _gap(first.replies))
        self._next = guess if guess < end else (self._early + end) // 2

    def position(self) -> int:
        """Return the position for the next call."""
        return self._next

    def add(self, position: int, page: _Page) -> None:
        """Note the rows after a position."""
        self.rows = page.replies or self.rows
        if page.complete:
            self.done = len(page.replies) >= self._limit or position <= self._early
            self._late = position
            self._next = (self._early + position) // 2
        elif page.replies:
            gap = _gap(page.replies)
            self._early = max(self._early, _last(page.replies))
            fits = (self._late - self._early) / gap < _PAGE
            self._next = self._early if fits else max(self._early, int(self._late - _AIM * gap))


def _last(rows: list[Json]) -> int:
    return order_of(str(rows[-1]["ts"])) if rows else 0


def _gap(rows: list[Json]) -> float:
    """Return the average time between two messages, in microseconds."""
    return max(1.0, (_last(rows) - _last(rows[:1])) / max(1, len(rows)))


class ThreadReader:
    """Reader of the messages before a message in its thread."""

    def __init__(self, api: Api, directory: Directory) -> None:
        self._api = api
        self._directory = directory

    async def before(self, message: InboundMessage, limit: int, rules: Rules) -> Sequence[Earlier]:
        """Return the first message of the thread and the newest before ``message``, oldest first.

        Returns none for a message that is not in a thread. Raises HistoryUnavailableError.
        """
        chat, thread = message.address.chat, message.written_in
        if thread is None or limit < 1:
            return ()
        until = _stamp_of(message)
        try:
            async with asyncio.timeout(_SECONDS):
                rows = await self._rows(chat, thread, until, limit)
        except TimeoutError:
            raise HistoryUnavailableError(f"the thread was not read within {_SECONDS:g} s") from None
        except (PlacementDeferred, PlacementRefused, PlacementUncertain) as error:
            raise HistoryUnavailableError(f"the thread cannot be read: {error}") from error
        written = [row for row in rows if _is_written(row) and str(row["ts"]) < until]
        kept = written if len(written) <= limit else [written[0], *written[len(written) - limit + 1 :]]
        texts = [own_text(row) if _is_own(row, rules) else full_text(row) for row in kept]
        ids = [*map(_author_of, kept), *(one for text in texts for one in named_in(text))]
        await self._directory.load(ids, _NAME_SECONDS)
        found = (self._earlier(chat, row, text, rules) for row, text in zip(kept, texts, strict=True))
        return [one for one in found if one.text or one.files]

    async def _rows(self, chat: str, thread: str, until: str, limit: int) -> list[Json]:
        """Return rows of a thread: its first message, and at least ``limit`` before ``until`` if possible.

        Slack lists a thread from its beginning only. The end of a long one is found by listing from later
        positions, until one has all messages up to the end in one page. If none is found, the rows end before
        ``until``.
        """
        first = await self._page(chat, thread, None, until, _FIRST_PAGE)
        search = _Search(order_of(thread), order_of(until), limit, first)
        for _ in range(_MOST_CALLS - 1):
            if search.done:
                break
            position = search.position()
            try:
                page = await self._page(chat, thread, _stamp(position), until, _PAGE)
            except (PlacementDeferred, PlacementUncertain):
                break  # what was read so far is better than nothing
            search.add(position, page)
        return search.rows if first.root is None else [first.root, *search.rows]

    async def _page(self, chat: str, thread: str, oldest: str | None, until: str, limit: int) -> _Page:
        answer = await self._api.call(
            "conversations.replies", channel=chat, ts=thread, oldest=oldest, latest=until, limit=limit
        )
        rows: object = answer.get("messages")
        if not isinstance(rows, list):
            raise PlacementUncertain("conversations.replies: the answer has no messages")
        found = [row for row in json_objects(cast(object, rows)) if order_of(str(row.get("ts")))]
        root = next((row for row in found if row["ts"] == thread), None)
        replies = sorted((row for row in found if row is not root), key=lambda row: str(row["ts"]))
        return _Page(root, replies, not answer.get("has_more"))

    def _earlier(self, chat: str, row: Json, text: str, rules: Rules) -> Earlier:
        author = _author_of(row)
        known = self._directory.person(author)
        profile: object = row.get("bot_profile")
        names = (row.get("username"), _named(profile), known.name)
        name = next((one for one in names if isinstance(one, str) and one), "")
        shown = name if row.get("bot_id") else known.name
        ts, own = str(row["ts"]), _is_own(row, rules)
        words = plain_text(text, "" if own else rules.bot_user, self._directory)
        return Earlier(
            key=f"{chat}:{ts}",
            sender=Sender(sender_id(rules, author), shown, known.username),
            text=shortened(words),
            at=order_of(ts) // 1000,
            files=tuple(file.name for file in uploads(row)),
            own=own,
            bot=bool(row.get("bot_id")) and not own,
        )


def _stamp_of(message: InboundMessage) -> str:
    """Return the timestamp of a message; that of its original for an edited one."""
    stamp = message.original.removeprefix(f"{message.address.chat}:")
    return stamp if order_of(stamp) else _stamp(message.order)


def _stamp(order: int) -> str:
    return f"{order // 1_000_000}.{order % 1_000_000:06}"


def _is_written(row: Json) -> bool:
    return row.get("subtype") in _SUBTYPES and not row.get("hidden")


def _is_own(row: Json, rules: Rules) -> bool:
    return row.get("user") == rules.bot_user or (bool(rules.bot) and row.get("bot_id") == rules.bot)


def _author_of(row: Json) -> str:
    return str(row.get("user") or row.get("bot_id") or "")


def _named(profile: object) -> object:
    return next((row.get("name") for row in json_objects([profile])), None)
