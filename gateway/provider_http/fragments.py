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

ENTRY_COST = 600
"""Estimated bytes of an entry besides its fragment: it also keeps the message."""
_HISTORIES = 4
"""Histories of a session: its own, and those of nested runs."""


class FragmentCache:
    """The encoded messages of recently sent histories, a few for each session.

    Keeps at most ``size`` bytes in all and evicts the least recently sent session first. Of each history it
    keeps the messages of the last request.
    """

    __slots__ = ("_bytes", "_encode", "_sessions", "_size")

    def __init__(self, encode: Encode, *, size: int = 32 * 1024 * 1024) -> None:
        self._encode = encode
        self._size = size
        self._bytes = 0
        self._sessions: OrderedDict[str, list[_History]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(history.messages) for histories in self._sessions.values() for history in histories)

    def join(self, messages: Sequence[Message]) -> bytes:
        """Return the fragments of all messages joined by commas, without empty ones."""
        if not messages:
            return b""
        wanted, session = tuple(messages), messages[-1].session_id
        histories = self._sessions.setdefault(session, [])
        self._sessions.move_to_end(session)
        self._bytes -= sum(history.bytes for history in histories)
        history = next((one for one in histories if one.advance(wanted, self._encode)), None)
        if history is None:
            history = _History(wanted, list(map(self._encode, wanted)))
        else:
            histories.remove(history)
        histories.insert(0, history)
        del histories[_HISTORIES:]
        self._bytes += sum(history.bytes for history in histories)
        while self._bytes > self._size:
            _, evicted = self._sessions.popitem(last=False)
            self._bytes -= sum(history.bytes for history in evicted)
        return b",".join(filter(None, history.fragments))


class _History:
    """The messages of the last request and their fragments."""

    __slots__ = ("bytes", "fragments", "messages")

    def __init__(self, messages: tuple[Message, ...], fragments: list[bytes]) -> None:
        self.messages = messages
        self.fragments: list[bytes] = fragments
        self.bytes = _size(fragments)

    def advance(self, messages: tuple[Message, ...], encode: Encode) -> bool:
        """Keep the next request in place of the last one; return False if they have no message in common."""
        kept = self.messages
        first = kept.index(messages[0]) if messages[0] in kept else len(kept)
        same = kept[first:]
        # Usually a few of the oldest messages left the window and new ones follow. Comparing tuples is one
        # call, because equal messages are the same objects; a loop over a long history is not.
        if same and messages[: len(same)] == same:
            new = list(map(encode, messages[len(same) :]))
            self.bytes += _size(new) - _size(self.fragments[:first])
            self.messages = messages
            self.fragments = self.fragments[first:] + new
        else:
            known = {one.id: (one, fragment) for one, fragment in zip(kept, self.fragments, strict=True)}
            found = [known.get(message.id) for message in messages]
            if not any(found):
                return False
            self.messages = messages
            self.fragments = [
                entry[1] if entry is not None and entry[0] == message else encode(message)
                for message, entry in zip(messages, found, strict=True)
            ]
            self.bytes = _size(self.fragments)
        return True


def _size(fragments: list[bytes]) -> int:
    return sum(map(len, fragments)) + ENTRY_COST * len(fragments)


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
