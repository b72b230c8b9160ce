"""What each message looks like on a vendor's wire, kept as bytes so that long histories cost no more.

A message never changes, so its encoding is made once. A request is then the joining of known bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from gateway.messages import Message

Encode = Callable[[Message], bytes]
Value = TypeVar("Value")

ENTRY_COST = 200
"""Bytes an entry is reckoned to take besides its fragment."""


class FragmentCache:
    """A bounded store of encoded messages, by message id; another object under the same id replaces it.

    Two generations make it forget what was not used lately without any bookkeeping on a hit: when the
    young one is half the bound, the old one is dropped and the young takes its place.
    """

    __slots__ = ("_encode", "_half_bytes", "_half_entries", "_old", "_young", "_young_bytes")

    def __init__(self, encode: Encode, *, entries: int = 50_000, size: int = 64 * 1024 * 1024) -> None:
        self._encode = encode
        self._half_entries = entries // 2
        self._half_bytes = size // 2
        self._young: dict[str, tuple[Message, bytes]] = {}
        self._old: dict[str, tuple[Message, bytes]] = {}
        self._young_bytes = 0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def join(self, messages: Sequence[Message]) -> bytes:
        """The fragments of all messages with commas between them; empty ones are left out."""
        known, other = self._young.get, self._other
        found = [
            entry[1] if (entry := known(message.id)) is not None and entry[0] is message else other(message)
            for message in messages
        ]
        return b",".join(filter(None, found))

    def _other(self, message: Message) -> bytes:
        entry = self._old.pop(message.id, None)
        if entry is None or entry[0] is not message:
            entry = (message, self._encode(message))
        self._keep(entry)
        return entry[1]

    def _keep(self, entry: tuple[Message, bytes]) -> None:
        message, fragment = entry
        replaced = self._young.get(message.id)
        if replaced is not None:
            self._young_bytes -= len(replaced[1]) + ENTRY_COST
        self._young[message.id] = entry
        self._young_bytes += len(fragment) + ENTRY_COST
        if len(self._young) >= self._half_entries or self._young_bytes >= self._half_bytes:
            self._old, self._young, self._young_bytes = self._young, {}, 0


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
