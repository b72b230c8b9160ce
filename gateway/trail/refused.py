"""The messages that were not accepted, by their ids: no other row proves that they ever arrived.

A busy room may bring thousands. They are written in the background, at most 20 a second, and the newest
10,000 of an account are kept. A row ``gap`` stands for those that came faster, so that a reader can say that
the list has holes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Literal, NamedTuple

from sqlalchemy import Connection, func, select

from gateway.contract.channel import InboundMessage, Rejected
from gateway.contract.messages import new_id, now_ms
from gateway.store import Store
from gateway.store import schema as t
from gateway.store.writer import Inserted
from gateway.store.writes import OwnStatement, Row, Write

Reason = Literal["no_mention", "sender", "room", "unreadable", "limit", "gap"]

PUT_REFUSED = Write("insert", 39, t.refused, "id channel account chat platform_id at reason")
FORGET_REFUSED = Write("delete", 40, t.refused, "id")
_PRUNE_REFUSED = OwnStatement(
    41,
    t.refused,
    "DELETE FROM refused WHERE channel = CAST(?1 AS TEXT) AND account = CAST(?2 AS TEXT) AND id <= "
    "(SELECT id FROM refused WHERE channel = CAST(?1 AS TEXT) AND account = CAST(?2 AS TEXT) "
    "ORDER BY id DESC LIMIT 1 OFFSET CAST(?3 AS BIGINT))",
)

MOST_ROWS = 10_000
"""Rows of one account."""
MOST_A_SECOND = 20
_PRUNE_EVERY = 100
"""Rows of an account that are written between two removals of its oldest ones."""


class Refusal(NamedTuple):
    """A message that was not accepted; ``at`` is when it arrived (ms)."""

    channel: str
    account: str
    chat: str
    platform_id: str
    at: int
    reason: Reason


class RefusalLog:
    """Writer of the messages that were not accepted. It never waits and never fails its caller."""

    def __init__(self, store: Store, most_rows: int = MOST_ROWS) -> None:
        self._store = store
        self._most_rows = most_rows
        self._waiting: list[Refusal] = []
        self._missed: Refusal | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._written = Counter[tuple[str, str]]()

    def note(self, channel: str, message: InboundMessage, reason: Reason) -> None:
        """Note a message that is not accepted."""
        address = message.address
        platform_id = address.reply_to or message.dedup_key
        self._note(Refusal(channel, address.account, address.chat, platform_id, now_ms(), reason))

    def note_unreadable(self, channel: str, events: Iterable[Rejected]) -> None:
        """Note events that could not be parsed."""
        for event in events:
            self._note(Refusal(channel, event.account, "", event.key, now_ms(), "unreadable"))

    def _note(self, refusal: Refusal) -> None:
        if len(self._waiting) >= MOST_A_SECOND:
            self._missed = refusal._replace(chat="", platform_id="", reason="gap")
            return
        self._waiting.append(refusal)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(1.0, self.flush)

    def flush(self) -> None:
        """Submit what waits; called a second after the first of them."""
        if self._timer is not None:
            self._timer.cancel()
        waiting, missed = self._waiting, self._missed
        self._waiting, self._missed, self._timer = [], None, None
        waiting += [] if missed is None else [missed]
        rows: list[Row] = [(new_id(), *one) for one in waiting]
        self._store.submit([(PUT_REFUSED, row) for row in rows]).add_done_callback(_ignore)
        self._written.update((one.channel, one.account) for one in waiting)
        for account in [name for name, count in self._written.items() if count >= _PRUNE_EVERY]:
            del self._written[account]
            self._store.submit([(_PRUNE_REFUSED, (*account, self._most_rows))]).add_done_callback(_ignore)


def has_gaps(connection: Connection, channel: str = "", most_rows: int = MOST_ROWS) -> bool:
    """Return whether refused messages of a channel, or of any, are missing: too fast, or too many."""
    r = t.refused.c
    own = [r.channel == channel] if channel else []
    if connection.execute(select(r.id).where(*own, r.reason == "gap").limit(1)).first() is not None:
        return True
    counts = select(func.count(r.id)).where(*own).group_by(r.channel, r.account)
    return any(count >= most_rows for count in connection.execute(counts).scalars())


def _ignore(written: asyncio.Future[Inserted]) -> None:
    """Retrieve the result of a write: the writer has logged its failure."""
    if not written.cancelled():
        written.exception()
