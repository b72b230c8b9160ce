"""Caches of encoded messages: a request of a long history is built by joining bytes.

Messages are immutable, so each is encoded once for a vendor.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from gateway.contract.messages import Message

Encode = Callable[[Message], bytes]
Value = TypeVar("Value")

ENTRY_COST = 800
"""Estimated bytes of an entry besides its fragment: it also keeps the message."""
_PRUNE_AFTER = 50
"""New messages of a conversation before entries of unused messages are dropped."""


class FragmentCache:
    """The encoded messages of recently sent conversations.

    Keeps at most ``size`` bytes in all and evicts the least recently sent conversation first. Of each
    conversation it keeps little more than the messages of the last request.
    """

    __slots__ = ("_bytes", "_conversations", "_encode", "_size")

    def __init__(self, encode: Encode, *, size: int = 32 * 1024 * 1024) -> None:
        self._encode = encode
        self._size = size
        self._bytes = 0
        self._conversations: OrderedDict[str, _Conversation] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._conversations.values()))

    def join(self, messages: Sequence[Message]) -> bytes:
        """Return the fragments of all messages joined by commas, without empty ones."""
        if not messages:
            return b""
        session = messages[-1].session_id
        conversation = self._conversations.get(session)
        if conversation is None:
            conversation = self._conversations[session] = _Conversation(self._encode)
        before = conversation.bytes
        joined = conversation.join(messages)
        self._conversations.move_to_end(session)
        self._bytes += conversation.bytes - before
        while self._bytes > self._size:
            self._bytes -= self._conversations.popitem(last=False)[1].bytes
        return joined


class _Conversation:
    """The fragments of one conversation by message id; a new message object replaces the old one's."""

    __slots__ = ("_encode", "_known", "_made", "bytes")

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._known: dict[str, tuple[Message, bytes]] = {}
        self._made = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._known)

    def join(self, messages: Sequence[Message]) -> bytes:
        known, make = self._known.get, self._make
        found = [
            entry[1] if (entry := known(message.id)) is not None and entry[0] is message else make(message)
            for message in messages
        ]
        # Pruning only after many new messages makes its cost per message negligible.
        if self._made > max(_PRUNE_AFTER, len(messages) // 4):
            self._prune(messages)
        return b",".join(filter(None, found))

    def _make(self, message: Message) -> bytes:
        replaced = self._known.get(message.id)
        if replaced is not None:
            self.bytes -= _cost(replaced)
        entry = self._known[message.id] = (message, self._encode(message))
        self.bytes += _cost(entry)
        self._made += 1
        return entry[1]

    def _prune(self, messages: Sequence[Message]) -> None:
        self._known = {message.id: self._known[message.id] for message in messages}
        self.bytes = sum(map(_cost, self._known.values()))
        self._made = 0


def _cost(entry: tuple[Message, bytes]) -> int:
    return len(entry[1]) + ENTRY_COST


class RecentEncodings(Generic[Value]):
    """The encodings of the most recent values of a kind that rarely changes, such as tool lists."""

    __slots__ = ("_encode", "_kept", "_limit")

    def __init__(self, encode: Callable[[Value], bytes], limit: int = 16) -> None:
        self._encode = encode
        self._limit = limit
        self._kept: list[tuple[Value, bytes]] = []

    def get(self, value: Value) -> bytes:
        """Return the encoding of ``value``, from the cache if it is recent."""
        for known, encoded in self._kept:
            if known is value or known == value:
                return encoded
        encoded = self._encode(value)
        self._kept = [(value, encoded), *self._kept[: self._limit - 1]]
        return encoded
