"""The outbox: what is to stand on a platform, and what is known about it.

A row is one message of a platform (a page of an answer). It is committed with its intent and nonce before the
one call that is not idempotent; the platform's own id follows. The first row of an answer also holds the
finished answer, committed before any of it is shown as final.

Channels whose clients follow the session's own log place nothing and need no row here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, select

from gateway.channel import Address, Channel
from gateway.inbox import Entry, Outcome
from gateway.messages import Message, now_ms
from gateway.registry import ChannelRegistry
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.writes import Write

INTEND = Write(
    "upsert", 37, t.outbox, "id inbox_id part nonce state channel address platform_id hiwater body sent_at"
)
PLACE = Write("update", 38, t.outbox, "id state platform_id sent_at")
FORGET_OUTBOX = Write("delete", 51, t.outbox, "id")
FORGET_PAGES = Write("delete", 52, t.outbox, "inbox_id", key="inbox_id")

_LATE_MS = 86_400_000
"""How late a message may come to the gateway: platforms keep what they could not deliver for a day."""
_encode = msgspec.json.Encoder().encode
_address = msgspec.json.Decoder(Address).decode


class Intended(NamedTuple):
    """An answer that is durable and has to be placed, and what its message is settled as then."""

    answer: Message
    outcome: Outcome


class Page(Struct, kw_only=True):
    """What is known about one message of an answer on its platform.

    It is ``uncertain`` when a call may have placed it and nobody heard. ``shown`` is what it shows as far as
    we know, and ``final`` whether that was shown as final.
    """

    number: int
    nonce: str
    platform_id: str | None = None
    watermark: str | None = None
    uncertain: bool = False
    shown: Any = None
    final: bool = False


class Outbox:
    """Reads and writes of the outbox."""

    def __init__(self, store: Store, channels: ChannelRegistry) -> None:
        self._store = store
        self._channels = channels

    def channel(self, entry: Entry) -> Channel | None:
        """The channel that has to be sent the answer of this entry; None where nothing has to be sent."""
        channel = self._channels.get(entry.channel)
        # Asked for every turn; ``isinstance`` with the protocol would look at all its attributes each time.
        return None if getattr(channel, "follows_session", False) else channel

    def intend(self, entry: Entry, page: Page, answer: Message | None = None) -> Op:
        """The write that records that a page is about to be placed; the first one may hold the answer."""
        return INTEND, (
            _id(entry, page.number),
            entry.id,
            page.number,
            page.nonce,
            "intent" if page.platform_id is None else "placed",
            entry.channel,
            _encode(entry.inbound.address).decode(),
            page.platform_id,
            page.watermark,
            None if answer is None else _encode(answer).decode(),
            now_ms(),
        )

    def record(self, entry: Entry, page: Page, state: str) -> Op:
        """The write that records what became of a page: placed, final or dead."""
        return PLACE, (_id(entry, page.number), state, page.platform_id, now_ms())

    def forget(self, entry: Entry) -> Op:
        """The write that forgets the pages of an answer that is not wanted."""
        return FORGET_PAGES, (entry.id,)

    async def write(self, *ops: Op) -> None:
        """Commit some writes."""
        await self._store.write(*ops)

    async def pages(self, entry: Entry) -> list[Page]:
        """What earlier attempts placed, or may have placed."""
        query = select(t.outbox).where(t.outbox.c.inbox_id == entry.id).order_by(t.outbox.c.part)

        def read(connection: Connection) -> list[Page]:
            return [
                Page(
                    number=row.part,
                    nonce=row.nonce,
                    platform_id=row.platform_id,
                    watermark=row.hiwater,
                    uncertain=row.platform_id is None,
                )
                for row in connection.execute(query)
            ]

        return await self._store.read(read)

    async def others(self, entry: Entry, page: Page) -> tuple[tuple[str, str], ...]:
        """The rooms and ids of what an entry's account placed since a day before that came, but for one page.

        A message comes to the gateway later than it was written, so that what stands below it in the room may
        have been placed before it came.
        """
        c, account = t.outbox.c, entry.inbound.address.account
        query = select(c.address, c.platform_id).where(
            c.channel == entry.channel,
            c.platform_id.is_not(None),
            c.sent_at >= entry.received_at - _LATE_MS,
            c.nonce != page.nonce,
        )

        def read(connection: Connection) -> tuple[tuple[str, str], ...]:
            found = ((_address(address), id_) for address, id_ in connection.execute(query))
            return tuple((where.chat, id_) for where, id_ in found if where.account == account)

        return await self._store.read(read)

    async def intended(self, entry: Entry) -> Intended:
        """The answer that an earlier process recorded for an entry."""
        body = select(t.outbox.c.body).where(t.outbox.c.inbox_id == entry.id, t.outbox.c.part == 0)
        buried = select(t.dead_letter.c.at).where(t.dead_letter.c.inbox_id == entry.id)

        def read(connection: Connection) -> Intended:
            answer = msgspec.json.decode(connection.execute(body).scalar_one(), type=Message)
            return Intended(answer, "done" if connection.execute(buried).first() is None else "dead")

        return await self._store.read(read)

    def give_up(self, entry: Entry, pages: Sequence[Page], reason: str) -> list[Op]:
        """The writes that record that the answer will never stand in its room."""
        return [*(self.record(entry, page, "dead") for page in pages), *entry.dead(reason, None)]


def _id(entry: Entry, number: int) -> str:
    return f"{entry.answer_id}.{number}"


def nonce_of(inbox_id: str, part: int) -> str:
    """The idempotency key of a part of an answer: 24 characters, the same in every attempt."""
    return hashlib.blake2b(f"{inbox_id}:{part}".encode(), digest_size=12).hexdigest()
