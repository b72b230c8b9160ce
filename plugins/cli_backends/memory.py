"""What people want a program to remember, by conversation, kept in a file."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import msgspec

MOST = 100
"""Things remembered in one conversation; the oldest go first."""
LONGEST = 500
"""Characters of one of them."""


class Memory:
    """Facts by conversation."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = asyncio.Lock()
        self._facts: dict[str, list[str]] = {}
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            self._facts = msgspec.json.decode(path.read_bytes(), type=dict[str, list[str]])

    def of(self, conversation: str) -> tuple[str, ...]:
        """The facts of a conversation, oldest first."""
        return tuple(self._facts.get(conversation, ()))

    async def add(self, conversation: str, fact: str) -> None:
        """Remember something. Raises OSError if it cannot be written down."""
        facts = [*self._facts.get(conversation, ()), " ".join(fact.split())[:LONGEST]]
        self._facts[conversation] = facts[-MOST:]
        await self._write()

    async def clear(self, conversation: str) -> int:
        """Forget a conversation's facts. Returns how many there were."""
        gone = self._facts.pop(conversation, [])
        await self._write()
        return len(gone)

    async def _write(self) -> None:
        async with self._writing:
            await asyncio.to_thread(_replace, self._path, msgspec.json.encode(self._facts))


def _replace(path: Path, document: bytes) -> None:
    fresh = path.with_suffix(".new")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh.touch(mode=0o600)
    fresh.write_bytes(document)
    fresh.replace(path)
