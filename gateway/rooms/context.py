"""Room context: the messages of a room that were not for the bot, and the history of threads.

Messages that the bot does not answer are kept in memory, a few for each room. The next message that it
answers brings along those that its session has not seen, and, as the first one of a session, the history of
its thread or reply chain. Both are stored once, in the session's log.
"""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from gateway.access import Access
from gateway.contract.channel import Earlier, InboundMessage, RecallsHistory
from gateway.contract.errors import CATCHABLE, is_cancellation_requested
from gateway.contract.messages import FilePart, Message, Origin, Part, TextPart, sound
from gateway.extensions.registry import ChannelRegistry
from gateway.session import Session
from gateway.store.inbox import Entry, Inbox

log = structlog.get_logger("trunkline.rooms")

MOST_MESSAGES, MOST_TOKENS = 50, 8_000
"""Limits of the context that one message brings along."""
_BYTES_PER_TOKEN = 3
"""A low estimate, so that the limit holds for most languages."""
_MOST_ROOMS = 2_000
_ROOM_BYTES = 6_100
"""Bytes of the encoded messages of a room; with all that belongs to it a room takes at most 8 KiB."""
_MOST_TEXT = 2_000
_MOST_FILES = 20
_MOST_SESSIONS = 16
"""Sessions of one room whose position is known, such as those of its most recent threads."""
_HISTORY_SECONDS = 5.0

_Place = tuple[str, str, str, "str | None"]
"""Channel, account, chat and thread."""


class _Kept(Struct, frozen=True, array_like=True):
    """A message in memory, number ``n`` of its room."""

    n: int
    earlier: Earlier


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Kept).decode


class _RoomLog:
    """The newest messages of a room, encoded, because an object for each would take several times as much."""

    __slots__ = ("count", "messages", "seen")

    def __init__(self) -> None:
        self.count = 0
        self.messages: list[bytes] = []
        self.seen: dict[str, int] = {}
        """Number of the last message that a session has got, by session."""

    def add(self, earlier: Earlier, most: int) -> None:
        self.count += 1
        self.messages.append(_encode(_Kept(self.count, earlier)))
        del self.messages[:-most]
        while len(self.messages) > 1 and sum(map(sys.getsizeof, self.messages)) > _ROOM_BYTES:
            del self.messages[0]

    def replace(self, key: str, text: str) -> None:
        """Replace the text of a message that was edited."""
        for index, encoded in enumerate(self.messages):
            kept = _decode(encoded)
            if kept.earlier.key == key:
                self.messages[index] = _encode(replace(kept, earlier=replace(kept.earlier, text=text)))

    def remove(self, keys: Collection[str]) -> None:
        self.messages = [one for one in self.messages if _decode(one).earlier.key not in keys]

    def after(self, session: str) -> list[Earlier]:
        """Return the messages that a session has not got yet, each once."""
        seen = self.seen.get(session, 0)
        found = [kept.earlier for kept in map(_decode, self.messages) if kept.n > seen]
        return list({one.key: one for one in found}.values())

    def mark_seen(self, session: str) -> None:
        self.seen.pop(session, None)
        self.seen[session] = self.count
        if len(self.seen) > _MOST_SESSIONS:
            del self.seen[next(iter(self.seen))]


class RoomContext:
    """The context of all rooms that this process has received."""

    def __init__(self, access: Access, channels: ChannelRegistry, inbox: Inbox) -> None:
        self._access = access
        self._channels = channels
        self._inbox = inbox
        self._rooms: OrderedDict[_Place, _RoomLog] = OrderedDict()
        self._deleted_meanwhile: list[set[tuple[str, str, str]]] = []
        """Channel, account and key of the messages that were deleted during each reading of a history."""

    def remember(self, channel: str, message: InboundMessage) -> None:
        """Keep a message that is not answered, or its new text if it was edited."""
        place = _place(channel, message)
        room = self._rooms.get(place)
        if message.revises is not None:
            if room is not None:
                room.replace(message.original, _cut(message.text))
            return
        most = self._access.policy.rooms.of(channel, message).context_messages
        earlier = _as_earlier(message)
        if not most or not (earlier.text or earlier.files):
            return
        if room is None:
            room = self._rooms[place] = _RoomLog()
        self._rooms.move_to_end(place)
        room.add(earlier, most)
        if len(self._rooms) > _MOST_ROOMS:
            self._rooms.popitem(last=False)

    def attach(self, channel: str, message: InboundMessage) -> InboundMessage:
        """Return a message with the messages of its room that its session has not got yet."""
        room = self._rooms.get(_place(channel, message)) if self._rooms else None
        if room is None or message.text.startswith("/"):
            return message
        earlier = [one for one in room.after(message.session) if one.key != message.original]
        if not earlier:
            return message
        found = _limited(self._as_messages(channel, message, earlier))
        return replace(message, before=(*message.before, *found))

    def note_accepted(self, channel: str, message: InboundMessage) -> None:
        """Note that a message was accepted with its context, so that its session gets none of it again."""
        room = self._rooms.get(_place(channel, message)) if self._rooms else None
        if room is not None and not message.text.startswith("/"):
            room.mark_seen(message.session)

    def forget(self, channel: str, account: str, keys: Collection[str]) -> None:
        """Forget deleted messages."""
        for place, room in self._rooms.items():
            if place[:2] == (channel, account):
                room.remove(keys)
        for deleted in self._deleted_meanwhile:
            deleted.update((channel, account, key) for key in keys)

    async def drop_deleted(self, entry: Entry) -> None:
        """Remove from the context of an entry what was deleted while it was on disk."""
        keys = [one.origin.key for one in entry.inbound.before if one.origin is not None]
        if entry.reread and keys:
            gone = await self._inbox.find_withdrawn(entry.channel, entry.inbound.address.account, keys)
            entry.inbound = without_context(entry.inbound, gone)

    async def complete(self, session: Session, entry: Entry) -> None:
        """Give the first message of a session the history of its thread or reply chain."""
        inbound = entry.inbound
        if entry.has_history or not session.is_empty or inbound.in_reply_to is inbound.written_in is None:
            return
        earlier = await self._read_history(entry)
        entry.has_history = True
        if earlier:
            inbound = entry.inbound
            known = {one.key for one in earlier} | {inbound.original}
            found = self._as_messages(entry.channel, inbound, earlier)
            kept = [one for one in inbound.before if one.origin is None or one.origin.key not in known]
            entry.inbound = replace(inbound, before=_limited([*found, *kept]))

    async def _read_history(self, entry: Entry) -> Sequence[Earlier]:
        """Return the history of a thread or reply chain, without what was deleted by the time it is there."""
        account = entry.inbound.address.account
        deleted: set[tuple[str, str, str]] = set()
        self._deleted_meanwhile.append(deleted)
        try:
            earlier = await self._ask_for_history(entry)
            if not earlier:
                return ()
            # A platform may still return what it has already reported as deleted.
            gone = await self._inbox.find_withdrawn(entry.channel, account, [one.key for one in earlier])
        finally:
            self._deleted_meanwhile = [one for one in self._deleted_meanwhile if one is not deleted]
        return [
            one for one in earlier if one.key not in gone and (entry.channel, account, one.key) not in deleted
        ]

    async def _ask_for_history(self, entry: Entry) -> Sequence[Earlier]:
        channel = self._channels.get(entry.channel)
        if not isinstance(channel, RecallsHistory):
            return ()
        try:
            async with asyncio.timeout(_HISTORY_SECONDS):
                earlier = await channel.history(entry.inbound, MOST_MESSAGES)
        except CATCHABLE as error:
            if is_cancellation_requested(error):
                raise
            log.warning(
                "the history of a conversation could not be read; answering without it",
                session=entry.session,
                reason=f"{type(error).__name__}: {error}"[:500],
            )
            return ()
        return [one for one in earlier if one.key != entry.inbound.original][-MOST_MESSAGES:]

    def _as_messages(
        self, channel: str, message: InboundMessage, earlier: Sequence[Earlier]
    ) -> list[Message]:
        """Return earlier messages for the log of the session of ``message``."""
        address, policy = message.address, self._access.policy
        authors = {(one.sender.id, one.bot) for one in earlier if not one.own}
        admitted = {who for who in authors if policy.admits(channel, message, who[0], bot=who[1])}
        found: list[Message] = []
        for one in earlier:
            origin = Origin(
                channel=channel,
                account=address.account,
                room=address.chat,
                title=address.title,
                user=one.sender.id,
                name=one.sender.name,
                username=one.sender.username,
                at=one.at,
                group=address.group,
                context=True,
                key=one.key,
                own=one.own,
                trusted=one.own or (one.sender.id, one.bot) in admitted,
            )
            parts: list[Part] = [TextPart(_cut(sound(one.text)))] if one.text else []
            parts += [FilePart(name) for name in one.files[:_MOST_FILES]]
            found.append(
                Message(
                    session_id=message.session,
                    role="user",
                    parts=tuple(parts),
                    created_at=one.at,
                    custom_type="context",
                    origin=origin,
                )
            )
        return found


def without_context(message: InboundMessage, keys: Iterable[str]) -> InboundMessage:
    """Return a message without the context messages that have one of these keys."""
    gone = frozenset(keys)
    left = tuple(one for one in message.before if one.origin is None or one.origin.key not in gone)
    return message if len(left) == len(message.before) else replace(message, before=left)


def _limited(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the newest of the messages that are within the limits; others than context always stay."""
    kept: list[Message] = []
    left = MOST_TOKENS * _BYTES_PER_TOKEN
    count = 0
    for message in reversed(messages):
        if message.origin is not None:
            left -= len(message.text.encode()) + 60 * len(message.parts)
            count += 1
            if left < 0 or count > MOST_MESSAGES:
                break
        kept.append(message)
    return tuple(reversed(kept))


def _as_earlier(message: InboundMessage) -> Earlier:
    names = tuple(part.path for part in message.parts if isinstance(part, FilePart))
    quoted = "\n".join(quote.text for quote in message.quotes if quote.kind not in ("reply", "room"))
    return Earlier(
        key=message.original,
        sender=message.sender,
        text=_cut(message.text or quoted),
        at=message.sent_at,
        files=names[:_MOST_FILES],
    )


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"


def _place(channel: str, message: InboundMessage) -> _Place:
    address = message.address
    return channel, address.account, address.chat, message.written_in
