"""What each message looks like on a vendor's wire, kept as bytes so that long histories cost no more.

A message never changes, so its encoding is made once. A request is then the joining of known bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from gateway.messages import Message

Encode = Callable[[Message], bytes]
Value = TypeVar("Value")

ENTRY_COST = 800
"""Bytes an entry is reckoned to take besides its fragment: its message is kept, too."""
_FEW = 50
"""New messages for whose sake nobody looks for old ones."""


class FragmentCache:
    """The encoded messages of the conversations that were sent last.

    Of each it keeps little more than what was last sent of it, and of all together at most ``size`` bytes:
    the conversation that was not sent for longest goes first.
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
        """The fragments of all messages with commas between them; empty ones are left out."""
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
    """What was last sent of a conversation, by message id; another object under the same id replaces it."""

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
        if self._made > max(_FEW, len(messages) // 4):
            self._forget_others(messages)
        return b",".join(filter(None, found))

    def _make(self, message: Message) -> bytes:
        replaced = self._known.get(message.id)
        if replaced is not None:
            self.bytes -= _cost(replaced)
        entry = self._known[message.id] = (message, self._encode(message))
        self.bytes += _cost(entry)
        self._made += 1
        return entry[1]

    def _forget_others(self, messages: Sequence[Message]) -> None:
        """Keep only these. It is done so seldom that it costs each message next to nothing."""
        self._known = {message.id: self._known[message.id] for message in messages}
        self.bytes = sum(map(_cost, self._known.values()))
        self._made = 0


def _cost(entry: tuple[Message, bytes]) -> int:
    return len(entry[1]) + ENTRY_COST


class RecentEncodings(Generic[Value]):
    """The encodings of the last few values that hardly ever change: system prompts, lists of tools."""

    __slots__ = ("_encode", "_kept", "_limit")

    def __init__(self, encode: Callable[[Value], bytes], limit: int = 16) -> None:
        self._encode = encode
        self._limit = limit
        self._kept: list[tuple[Value, bytes]] = []

    def get(self, value: Value) -> bytes:
        """The encoding of ``value``, from memory if it was among the last."""
        for known, encoded in self._kept:
            if known is value or known == value:
                return encoded
        encoded = self._encode(value)
        self._kept = [(value, encoded), *self._kept[: self._limit - 1]]
        return encoded
