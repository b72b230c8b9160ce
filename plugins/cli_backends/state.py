"""Which session of a program belongs to which conversation, kept in a file across restarts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from gateway import now_ms

log = structlog.get_logger("trunkline.cli_backends")

MAX_SESSIONS = 500
"""Sessions to keep; beyond it the older half is forgotten."""


class Kept(Struct, frozen=True):
    """A program's session, when it was used last (milliseconds since the epoch), and for which answer."""

    id: str
    used: int
    answer: str = ""


class SessionFile:
    """All sessions, by ``backend:conversation``. Without a path they live as long as the process."""

    def __init__(self, path: Path | None = None, clock: Callable[[], int] = now_ms) -> None:
        self._path = path
        self._clock = clock
        self._writing = asyncio.Lock()
        self._kept: dict[str, Kept] = {} if path is None else _read(path, clock())

    def get(self, backend: str, conversation: str, after: str | None = None) -> str | None:
        """The session of a conversation; with ``after`` only if that answer is the last it knows of."""
        kept = self._kept.get(f"{backend}:{conversation}")
        if kept is None or (after is not None and kept.answer != after):
            return None
        return kept.id

    def interrupted(self, backend: str, conversation: str, answer: str) -> str | None:
        """The session in which this very answer was begun before, and not finished."""
        kept = self._kept.get(f"{backend}:{conversation}")
        return kept.id if kept is not None and answer and kept.answer == answer else None

    async def put(self, backend: str, conversation: str, session: str, answer: str = "") -> None:
        """Remember a session, or that it was used."""
        key = f"{backend}:{conversation}"
        self._kept.pop(key, None)
        self._kept[key] = Kept(session, self._clock(), answer)
        if len(self._kept) > MAX_SESSIONS:
            for old in sorted(self._kept, key=lambda k: self._kept[k].used)[: MAX_SESSIONS // 2]:
                del self._kept[old]
        await self._write()

    async def drop(self, backend: str, conversation: str) -> None:
        """Forget a session."""
        if self._kept.pop(f"{backend}:{conversation}", None) is not None:
            await self._write()

    async def prune(self, backend: str, max_age_ms: int) -> int:
        """Forget a backend's sessions that were not used for so long. Returns how many."""
        before = self._clock() - max_age_ms
        old = [
            key for key, kept in self._kept.items() if key.startswith(f"{backend}:") and kept.used < before
        ]
        for key in old:
            del self._kept[key]
        if old:
            await self._write()
        return len(old)

    async def _write(self) -> None:
        if self._path is None:
            return
        async with self._writing:
            document = msgspec.json.encode({"v": 1, "sessions": self._kept})
            try:
                await asyncio.to_thread(_replace, self._path, document)
            except OSError as error:
                log.warning("sessions cannot be kept", file=str(self._path), reason=str(error))


def _replace(path: Path, document: bytes) -> None:
    fresh = path.with_suffix(".new")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh.touch(mode=0o600)
    fresh.write_bytes(document)
    fresh.replace(path)


def _read(path: Path, now: int) -> dict[str, Kept]:
    """What a file holds: sessions with their times, or just their ids as others write them."""

    class Document(Struct):
        sessions: dict[str, Any] = {}

    found: dict[str, Kept] = {}
    with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        for key, value in msgspec.json.decode(path.read_bytes(), type=Document).sessions.items():
            with contextlib.suppress(msgspec.ValidationError):
                found[key] = Kept(value, now) if isinstance(value, str) else msgspec.convert(value, Kept)
    return found


MAX_FACTS = 100
"""Things remembered in one conversation; the oldest go first."""
MAX_FACT_CHARS = 500
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
        facts = [*self._facts.get(conversation, ()), " ".join(fact.split())[:MAX_FACT_CHARS]]
        self._facts[conversation] = facts[-MAX_FACTS:]
        await self._write()

    async def clear(self, conversation: str) -> int:
        """Forget a conversation's facts. Returns how many there were."""
        gone = self._facts.pop(conversation, [])
        await self._write()
        return len(gone)

    async def _write(self) -> None:
        async with self._writing:
            await asyncio.to_thread(_replace, self._path, msgspec.json.encode(self._facts))
