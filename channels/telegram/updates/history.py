"""Memory of the messages that a bot received: bots cannot read the history of a chat.

A room is a chat, or a topic of one. Each keeps its newest messages, encoded, so that an idle room needs few
bytes. A restart empties the memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
from msgspec import Struct

from channels.telegram.updates.quotes import file_names
from channels.telegram.updates.received import ReceivedMessage
from gateway.channel import Earlier, InboundMessage

_MAX_ROOMS = 2_000
_MAX_MESSAGES, _MAX_BYTES = 50, 8_192
_MAX_TEXT = 2_000
_OVERHEAD = 130
"""Memory overhead of a message besides its encoded content, in bytes."""

_Room = tuple[str, str | None]


class _Kept(Struct, frozen=True, array_like=True):
    earlier: Earlier
    reply_to: int | None = None
    calls: bool = False


_decoder = msgspec.msgpack.Decoder(_Kept)
_encoder = msgspec.msgpack.Encoder()


def _encode(kept: _Kept) -> bytes:
    # A copy: the bytes of the encoder take up to half as much again.
    return bytes(memoryview(_encoder.encode(kept)))


class History:
    """The newest messages of each room, and the topics that the bot was called into.

    With ``topics``, a topic is a thread.
    """

    def __init__(self, *, topics: bool) -> None:
        self._topics = topics
        self._rooms: dict[_Room, dict[int, bytes]] = {}
        self._called: dict[_Room, int] = {}
        """Id of the first message that called the bot, for each topic."""

    def is_called(self, received: ReceivedMessage) -> bool:
        """Return whether a message was written in a thread that the bot was called into.

        That is a topic, or a chain of replies with a message of the bot or for it.
        """
        message = received.inbound
        if received.to_another:
            return False
        room = _room_of(message)
        if self._topics and self._called.get(room, message.order) < message.order:
            return True
        return any(kept.calls or kept.earlier.own for kept in self._chain(room, message).values())

    def keep(self, received: ReceivedMessage) -> None:
        """Keep a message and the one that it replies to. An edit replaces its original.

        The messages of a private chat are in its session: only chains of replies are kept there.
        """
        message, replied = received.inbound, received.replied
        if not message.address.group and replied is None:
            return
        room = self._rooms.pop(_room_of(message), {})
        if replied is not None and (number := _number(message)) is not None and number not in room:
            _put(room, number, _Kept(_cut(replied)))
        _put(room, message.order, _Kept(_earlier(received), _number(message)))
        # A copy has no room for the messages that were dropped.
        self._rooms[_room_of(message)] = dict(room)
        _drop_oldest(self._rooms)

    def called(self, message: InboundMessage) -> None:
        """Record that a message is answered: if it addresses the bot, it calls the bot into its thread."""
        if not calls(message):
            return
        key = _room_of(message)
        if message.address.thread is not None:
            self._called[key] = min(message.order, self._called.pop(key, message.order))
            _drop_oldest(self._called)
        room = self._rooms.get(key, {})
        if message.order in room:
            kept = _decoder.decode(room[message.order])
            room[message.order] = _encode(msgspec.structs.replace(kept, calls=True))

    def recall(self, message: InboundMessage, limit: int) -> Sequence[Earlier]:
        """Return the messages before a message: those of its topic, and of its chain of replies.

        The message that it replies to is left out if a quote of the message has its text.
        """
        room = _room_of(message)
        found = self._chain(room, message)
        if message.address.thread is not None:
            kept = self._rooms.get(room, {})
            found |= {number: _decoder.decode(kept[number]) for number in kept if number < message.order}
        if any(quote.kind in ("reply", "quote") and quote.text for quote in message.quotes):
            found.pop(_number(message) or 0, None)
        return [found[number].earlier for number in sorted(found)[-limit:]] if limit > 0 else []

    def _chain(self, key: _Room, message: InboundMessage) -> dict[int, _Kept]:
        """Return the known messages of the chain of replies that a message ends, by their ids."""
        room, found, number = self._rooms.get(key, {}), dict[int, _Kept](), _number(message)
        while number is not None and number in room and number not in found:
            found[number] = _decoder.decode(room[number])
            number = found[number].reply_to
        found.pop(message.order, None)
        return found


def calls(message: InboundMessage) -> bool:
    """Return whether a message calls the bot into a thread, if it is answered. A command does not."""
    return message.address.group and message.addressed in ("mention", "reply", "thread")


def _room_of(message: InboundMessage) -> _Room:
    return message.address.chat, message.address.thread


def _number(message: InboundMessage) -> int | None:
    return None if message.in_reply_to is None else int(message.in_reply_to)


def _earlier(received: ReceivedMessage) -> Earlier:
    message = received.inbound
    forwarded = [quote.text for quote in message.quotes if quote.kind == "forward"]
    files = (file for file in received.files if file.quote is None or forwarded)
    return _cut(
        Earlier(
            key=message.original,
            sender=message.sender,
            text="\n".join(filter(None, (message.text, *forwarded))),
            at=message.sent_at,
            files=file_names(files),
        )
    )


def _cut(earlier: Earlier) -> Earlier:
    text = earlier.text if len(earlier.text) <= _MAX_TEXT else f"{earlier.text[:_MAX_TEXT]}…"
    return msgspec.structs.replace(earlier, text=text)


def _put(room: dict[int, bytes], number: int, kept: _Kept) -> None:
    """Add a message to a room, and drop the oldest ones that have no place."""
    room[number] = _encode(kept)
    while len(room) > 1 and (len(room) > _MAX_MESSAGES or _size(room.values()) > _MAX_BYTES):
        del room[min(room)]


def _size(messages: Collection[bytes]) -> int:
    return sum(map(len, messages)) + _OVERHEAD * len(messages)


def _drop_oldest(rooms: dict[_Room, int] | dict[_Room, dict[int, bytes]]) -> None:
    while len(rooms) > _MAX_ROOMS:
        del rooms[next(iter(rooms))]
