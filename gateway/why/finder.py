"""The finder of messages: from what a person pastes to the rows of the inbox.

Accepted are the id of a message or of its answer (which log lines and traces name), the platform's id of
either, and a link that ends with one of these. A platform's ids are unique only within a chat, so several
messages may be found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, or_, select

from gateway.contract.channel import Address, MessageLink
from gateway.contract.messages import now_ms
from gateway.store import schema as t

MOST_FOUND = 20
"""Messages that a search returns, the newest ones."""
_LONGEST = 500
"""Characters of a text that is searched."""
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_MOST_EARLIER = 50
"""Messages of a conversation before an answer that may be the one that it answers."""
_MOST_NEWEST = 5_000
"""The newest messages of all conversations among which a sender's last one is searched."""


class _Text(Struct):
    """The part of a stored message that distinguishes commands from other messages."""

    text: str = ""


_text = msgspec.json.Decoder(_Text).decode
_address = msgspec.json.Decoder(Address).decode


class Place(Struct, frozen=True):
    """A chat, as its channel's messages name it. An empty field is not known."""

    channel: str = ""
    account: str = ""
    chat: str = ""


class NotAccepted(Struct, frozen=True):
    """A message that was not accepted. ``reason`` is that of its row."""

    channel: str
    reason: str
    at: int


class Found(Struct, frozen=True):
    """The ids of the messages that were found, the newest first, or the message that was not accepted."""

    ids: tuple[str, ...] = ()
    not_accepted: NotAccepted | None = None


def find_messages(connection: Connection, given: str, links: Sequence[tuple[str, MessageLink]] = ()) -> Found:
    """Find the messages that a text names. ``links`` are what channels read in it, with the channels' ids."""
    given = given.strip()[:_LONGEST]
    if not given:
        return Found()
    for channel, link in links:
        place = Place(channel, link.account, link.chat)
        found = find_by_platform_id(connection, place, link.message, link.key)
        if found.ids or found.not_accepted:
            return found
    ids = [match[0].lower() for match in _UUID.finditer(given)]
    for message_id in reversed(ids):
        if (known := _find_by_id(connection, message_id)) is not None:
            return Found((known,))
    if links or ids:
        return Found()
    return find_by_platform_id(connection, Place(), given, given)


def find_by_platform_id(connection: Connection, place: Place, message: str, key: str = "") -> Found:
    """Find a message, or the message that an answer answers, by the platform's id. ``key`` is the key that
    its channel accepts it by, if it is known.
    """
    i = t.inbox.c
    wanted = {message, key or message}
    same = i.dedup_key.in_(wanted)
    if message == key or not key:
        # Most channels put the chat before the platform's id.
        same = or_(same, i.dedup_key.endswith(f":{message}", autoescape=True))
    # By the end of the key, which is indexed.
    by_key = select(i.id).where(t.tail_of(i.dedup_key).in_(_tails(wanted)), same, *_in_place(place))
    by_other = select(i.id).where(i.alt_key.in_(wanted), i.alt_key.is_not(None), *_in_place(place))
    found: set[str] = set()
    for query in (by_key, by_other):
        found.update(connection.execute(query.order_by(i.id.desc()).limit(MOST_FOUND)).scalars())
    ids = sorted(found, reverse=True)
    ids += _find_answered(connection, place, message)
    if ids:
        return Found(tuple(dict.fromkeys(ids))[:MOST_FOUND])
    return Found(not_accepted=_find_not_accepted(connection, place, message, key))


def find_last(connection: Connection, session: str, sender: str, command: str) -> Found:
    """Find the newest message of a sender in a conversation that is not a ``command``."""
    i, m = t.inbox.c, t.messages.c
    # The inbox has no index of sessions: its newest rows, those that wait, and the log of the conversation.
    newest = select(i.id).order_by(i.id.desc()).limit(_MOST_NEWEST)
    waiting = select(i.id).where(i.session == session, i.state == "new")
    logged = select(m.id).where(m.session_id == session, m.role == "user")
    logged = logged.order_by(m.seq.desc()).limit(_MOST_EARLIER)
    own = select(i.id, i.payload).where(i.session == session, i.sender == sender)
    found: dict[str, str] = {}
    for ids in (newest, waiting, logged):
        query = own.where(i.id.in_(ids.subquery().select())).order_by(i.id.desc()).limit(_MOST_EARLIER)
        found |= {row.id: _text(row.payload).text for row in connection.execute(query)}
    said = (message for message in sorted(found, reverse=True) if not _is_command(found[message], command))
    last = next(said, None)
    return Found() if last is None else Found((last,))


def _is_command(text: str, command: str) -> bool:
    """Return whether a text calls a command, as ``/why`` or, in a room, ``/why@bot``."""
    return text.split(maxsplit=1)[:1] != [] and text.split(maxsplit=1)[0].partition("@")[0].lower() == command


def _in_place(place: Place) -> Iterable[ColumnElement[bool]]:
    if place.channel:
        yield t.inbox.c.channel == place.channel
    if place.account:
        yield t.inbox.c.account == place.account


def _find_by_id(connection: Connection, given: str) -> str | None:
    """Return the id of the message with this id, or of the message that the answer with this id answers."""
    i, o, m = t.inbox.c, t.outbox.c, t.messages.c
    own = connection.execute(select(i.id).where(i.id == given)).scalar()
    if own is not None:
        return own
    placed = connection.execute(select(o.inbox_id).where(o.id == f"{given}.0")).scalar()
    if placed is not None:
        return placed
    answer = connection.execute(select(m.session_id, m.seq).where(m.id == given)).first()
    if answer is not None:
        earlier = select(m.id).where(m.session_id == answer.session_id, m.seq < answer.seq, m.role == "user")
        earlier = earlier.order_by(m.seq.desc()).limit(_MOST_EARLIER)
        asked = select(i.id).where(i.id.in_(earlier), i.answer_id == given)
        return connection.execute(asked).scalar()
    # The answer of a message that waits is not stored yet.
    return connection.execute(select(i.id).where(i.state == "new", i.answer_id == given)).scalar()


def _find_answered(connection: Connection, place: Place, message: str) -> list[str]:
    """Return the messages whose answer has a page with this id on its platform."""
    o = t.outbox.c
    same = or_(o.platform_id == message, o.platform_id.endswith(f":{message}", autoescape=True))
    by_tail = t.tail_of(o.platform_id).in_(_tails([message]))
    query = select(o.inbox_id, o.address, o.sent_at).where(by_tail, same)
    if place.channel:
        query = query.where(o.channel == place.channel)
    rows = connection.execute(query.order_by(o.sent_at.desc()).limit(MOST_FOUND)).all()
    return [row.inbox_id for row in rows if is_in(place, _address(row.address))]


def _tails(keys: Iterable[str]) -> set[str]:
    """Return what follows the last colon of each key."""
    return {key.rpartition(":")[2] for key in keys}


def is_in(place: Place, address: Address) -> bool:
    """Return whether an address is in a place; fields of the place that are not known do not count."""
    return place.account in ("", address.account) and place.chat in ("", address.chat)


def _find_not_accepted(connection: Connection, place: Place, message: str, key: str) -> NotAccepted | None:
    r, q, wanted = t.refused.c, t.quarantine.c, {message, key or message}
    heard = select(t.refused).where(r.platform_id.in_(wanted)).order_by(r.id.desc()).limit(MOST_FOUND)
    for row in connection.execute(heard):
        if place.channel in ("", row.channel) and is_in(place, Address(row.channel, row.account, row.chat)):
            return NotAccepted(row.channel, row.reason, row.at)
    unreadable = select(q.channel, q.at).where(q.key.in_(wanted))
    row = connection.execute(unreadable.limit(1)).first()
    if row is not None and place.channel in ("", row.channel):
        return NotAccepted(row.channel, "unreadable", row.at)
    return None


def first_id_since(at: int) -> str:
    """Return the smallest id that a message accepted at a time (ms) or later can have."""
    # Ids are UUIDs of version 7, which begin with the time.
    digits = f"{max(0, min(at, now_ms())):012x}"
    return f"{digits[:8]}-{digits[8:]}"
