"""The outbox: the messages of answers on platforms, and their delivery state.

A row is one message of a platform (a page of an answer). It is committed with its intent and nonce before the
one call that is not idempotent; the platform's own id follows. The first row of an answer also holds the
finished answer, committed before any of it is shown as final.

Channels with clients that follow the session's log place nothing and need no row here.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, select

from gateway.contract.channel import Address, Channel, InboundMessage
from gateway.contract.messages import Message, now_ms, to_json
from gateway.extensions.registry import ChannelRegistry
from gateway.store import schema as t
from gateway.store.database import Store
from gateway.store.inbox import Entry, Outcome
from gateway.store.writes import Op, OwnStatement, Write

INTEND = Write(
    "upsert", 37, t.outbox, "id inbox_id part nonce state channel address platform_id hiwater body sent_at"
)
PLACE = Write("update", 38, t.outbox, "id state platform_id sent_at")
REMOVE_PAGES = Write("update", 40, t.outbox, "inbox_id state platform_id sent_at", key="inbox_id")
_UNDO_PAGES = OwnStatement(
    39,
    t.outbox,
    "UPDATE outbox SET id = id || CAST(?1 AS TEXT), inbox_id = CAST(?2 AS TEXT), state = 'undone' "
    "WHERE inbox_id = CAST(?3 AS TEXT)",
)
PUT_ANNOUNCEMENT = Write("upsert", 36, t.announcement, "id session_id inbox_id chat message at")
FORGET_OUTBOX = Write("delete", 51, t.outbox, "id")
FORGET_PAGES = Write("delete", 52, t.outbox, "inbox_id", key="inbox_id")

_MAX_DELAY_MS = 86_400_000
"""Milliseconds that a message may reach the gateway late: platforms retry an undelivered one for a day."""
_encode = msgspec.json.Encoder().encode
_address = msgspec.json.Decoder(Address).decode
_decode_message = msgspec.json.Decoder(Message).decode
_decode_inbound = msgspec.json.Decoder(InboundMessage).decode
_MOST_RECEIVED = 20
"""Received messages of a session that are searched for one in the same chat."""


class PendingAnswer(NamedTuple):
    """A durable answer that has to be placed, and the state its message is settled with."""

    answer: Message
    outcome: Outcome


class AnnouncedContent(NamedTuple):
    """The newest content of an announced message, and whether the session's log has the message.

    ``newest`` is the platform's id of the newest message that the chat is known to have received.
    """

    message: Message
    in_log: bool
    newest: str | None


class Announcement(Struct, frozen=True, kw_only=True):
    """A message that a plugin announced in a chat. ``id`` is plugin and key, ``message`` the newest content.

    ``state`` is that of its row in the inbox; None if retention removed the row.
    """

    id: str
    session: str
    inbox_id: str
    chat: str
    message: Message
    state: str | None = "new"

    def put(self) -> Op:
        """Return the write that stores it, or its newest content."""
        content = to_json(self.message).decode()
        return PUT_ANNOUNCEMENT, (self.id, self.session, self.inbox_id, self.chat, content, now_ms())


def find_announcement(connection: Connection, announcement_id: str) -> Announcement | None:
    """Read an announcement by plugin and key."""
    a = t.announcement.c
    query = (
        select(t.announcement, t.inbox.c.state)
        .join(t.inbox, t.inbox.c.id == a.inbox_id, isouter=True)
        .where(a.id == announcement_id)
    )
    row = connection.execute(query).first()
    if row is None:
        return None
    message = _decode_message(row.message)
    return Announcement(
        id=row.id,
        session=row.session_id,
        inbox_id=row.inbox_id,
        chat=row.chat,
        message=message,
        state=row.state,
    )


class PlacedAnswer(NamedTuple):
    """An answer that was placed: its id, the entry of its pages, and its channel and chat."""

    answer_id: str
    inbox_id: str
    channel: str
    address: Address


def find_placed(
    connection: Connection, answers: Sequence[str], undone: int | None = None
) -> list[PlacedAnswer]:
    """Read where some answers are placed; with ``undone`` those that were before the /undo of that number."""
    o, end = t.outbox.c, ".0" if undone is None else f".0.{undone}"
    query = select(o.id, o.inbox_id, o.channel, o.address).where(o.id.in_([f"{one}{end}" for one in answers]))
    return [
        PlacedAnswer(row.id.removesuffix(end), row.inbox_id, row.channel, _address(row.address))
        for row in connection.execute(query.order_by(o.id))
    ]


def find_newest(connection: Connection, session: str, channel: str, chat: Address) -> str | None:
    """Read the platform's id of the newest message that a chat is known to have received in a session."""
    m, i = t.messages.c, t.inbox.c
    received = (
        select(i.payload)
        .join(t.messages, m.id == i.id)
        .where(m.session_id == session, m.role == "user", i.channel == channel)
        .order_by(m.seq.desc())
        .limit(_MOST_RECEIVED)
    )
    found = (_decode_inbound(row).address for row in connection.execute(received).scalars())
    return next((one.reply_to for one in found if (one.account, one.chat) == (chat.account, chat.chat)), None)


def undo_pages(pages_of: str, entry: Entry, undone: int) -> Op:
    """Return the write that gives the pages of an entry to another one, which deletes them."""
    return _UNDO_PAGES, (f".{undone}", entry.id, pages_of)


class Page(Struct, kw_only=True):
    """State of one message of an answer on its platform.

    It is ``uncertain`` when a call may have placed it and its result was lost. ``shown`` is the content it
    probably shows, and ``final`` is set once that content is the final one. It is ``settled`` if all of its
    answer was placed before. An ``unfit`` page is deleted before it is placed again, an ``undone`` one for
    good.
    """

    number: int
    nonce: str
    platform_id: str | None = None
    watermark: str | None = None
    uncertain: bool = False
    unfit: bool = False
    undone: bool = False
    shown: Any = None
    final: bool = False
    settled: bool = False


class Outbox:
    """Reads and writes of the outbox."""

    def __init__(self, store: Store, channels: ChannelRegistry) -> None:
        self._store = store
        self.confirm_owner, self.wait_for_earlier_owner = store.confirm_owner, store.wait_for_earlier_owner
        self._channels = channels
        self.paging_lock = asyncio.Lock()
        """Lock held while a thread cuts a long answer into pages; two at once would slow the event loop
        twice."""

    def target_channel(self, entry: Entry) -> Channel | None:
        """Return the channel that has to send the entry's answer; None if none has to."""
        channel = self._channels.get(entry.channel)
        # This runs for every turn; ``isinstance`` with the protocol would check all its attributes each time.
        return None if getattr(channel, "follows_session", False) else channel

    def intend(self, entry: Entry, page: Page, answer: Message | None = None) -> Op:
        """Return the write that records the intent to place a page; that of the first may hold the answer."""
        return INTEND, (
            _id(entry, page.number),
            entry.id,
            page.number,
            page.nonce,
            # An intent without a platform id is what a crash leaves behind between commit and call.
            "unfit" if page.unfit else "intent" if page.platform_id is None else "placed",
            entry.channel,
            _encode(entry.inbound.address).decode(),
            page.platform_id,
            page.watermark,
            None if answer is None else _encode(answer).decode(),
            now_ms(),
        )

    def record(self, entry: Entry, page: Page, state: str) -> Op:
        """Return the write that records the state of a page: intent, placed, unfit, final or dead."""
        return PLACE, (_id(entry, page.number), state, page.platform_id, now_ms())

    def drop(self, entry: Entry, page: Page) -> Op:
        """Return the write that forgets a page."""
        return FORGET_OUTBOX, (_id(entry, page.number),)

    def remove(self, entry: Entry) -> Op:
        """Return the write that records that the pages of an entry are deleted."""
        return REMOVE_PAGES, (entry.id, "removed", None, now_ms())

    def forget(self, entry: Entry) -> Op:
        """Return the write that forgets the pages of an unwanted answer."""
        return FORGET_PAGES, (entry.id,)

    async def write(self, *ops: Op) -> None:
        """Commit some writes."""
        await self._store.write(*ops)

    async def read_pages(self, entry: Entry) -> list[Page]:
        """Read the pages that earlier attempts placed, or may have placed."""
        query = select(t.outbox).where(t.outbox.c.inbox_id == entry.id).order_by(t.outbox.c.part)

        def read(connection: Connection) -> list[Page]:
            return [
                Page(
                    number=row.part,
                    nonce=row.nonce,
                    platform_id=row.platform_id,
                    watermark=row.hiwater,
                    # The call was about to be made; whether it was made is unknown.
                    uncertain=row.platform_id is None,
                    unfit=row.state == "unfit",
                    undone=row.state == "undone",
                    settled=row.state == "final",
                )
                for row in connection.execute(query)
            ]

        return await self._store.read(read)

    async def read_other_placements(self, entry: Entry, page: Page) -> tuple[tuple[str, str], ...]:
        """Read the chats and ids of messages placed by the entry's account since a day before its arrival,
        except one.

        A message arrives later than it was written, so messages below it in the chat may have been placed
        before it arrived.
        """
        c, account = t.outbox.c, entry.inbound.address.account
        query = select(c.address, c.platform_id).where(
            c.channel == entry.channel,
            c.platform_id.is_not(None),
            # The clock may have been set back since the entry was received.
            c.sent_at >= min(entry.received_at, now_ms()) - _MAX_DELAY_MS,
            # The page itself may be among them, if an earlier attempt placed it.
            c.nonce != page.nonce,
        )

        def read(connection: Connection) -> tuple[tuple[str, str], ...]:
            found = ((_address(address), id_) for address, id_ in connection.execute(query))
            return tuple((where.chat, id_) for where, id_ in found if where.account == account)

        return await self._store.read(read)

    async def read_pending_answer(self, entry: Entry) -> PendingAnswer:
        """Read the answer that an earlier process recorded for an entry."""
        body = select(t.outbox.c.body).where(t.outbox.c.inbox_id == entry.id, t.outbox.c.part == 0)
        # A dead letter is settled as dead once its notice is placed, also if that happens after a restart.
        dead_letter = select(t.dead_letter.c.at).where(t.dead_letter.c.inbox_id == entry.id)

        def read(connection: Connection) -> PendingAnswer:
            answer = msgspec.json.decode(connection.execute(body).scalar_one(), type=Message)
            return PendingAnswer(
                answer, "done" if connection.execute(dead_letter).first() is None else "dead"
            )

        return await self._store.read(read)

    async def read_announced(self, entry: Entry) -> AnnouncedContent:
        """Read the content that an entry has to announce."""
        a, m = t.announcement.c, t.messages.c
        in_log = select(m.id).where(m.id == entry.answer_id).exists()
        query = select(a.message, in_log).where(a.inbox_id == entry.id)

        def read(connection: Connection) -> AnnouncedContent:
            content, known = connection.execute(query).one()
            newest = find_newest(connection, entry.session, entry.channel, entry.inbound.address)
            return AnnouncedContent(_decode_message(content), bool(known), newest)

        return await self._store.read(read)

    def give_up(self, entry: Entry, pages: Sequence[Page], reason: str) -> list[Op]:
        """Return the writes that record that the answer will not be placed."""
        return [*(self.record(entry, page, "dead") for page in pages), *entry.give_up(reason, None)]


def _id(entry: Entry, number: int) -> str:
    return f"{entry.answer_id}.{number}"


def make_nonce(inbox_id: str, part: int) -> str:
    """Return the idempotency key of a part of an answer: 24 characters, the same in every attempt."""
    return hashlib.blake2b(f"{inbox_id}:{part}".encode(), digest_size=12).hexdigest()
