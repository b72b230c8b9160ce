"""State that survives restarts, in JSON files: the sessions of programs, and remembered facts."""

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
from gateway.api import replace_file

log = structlog.get_logger("trunkline.cli_backends")

MAX_SESSIONS = 500
"""The number of stored sessions; beyond it the less recently used half is removed."""


class StoredSession(Struct, frozen=True):
    """A program's session, its last use (milliseconds since the epoch), and the answer of that use.

    ``cost`` is the cost of the session in US dollars, as the program reported it last.
    """

    id: str
    used: int
    answer: str = ""
    cost: float = 0.0


class SessionFile:
    """The sessions of all programs, by ``backend:conversation``. Without a path they are not saved."""

    def __init__(self, path: Path | None = None, clock: Callable[[], int] = now_ms) -> None:
        self._path = path
        self._clock = clock
        self._lock = asyncio.Lock()
        self._sessions: dict[str, StoredSession] = {} if path is None else _read_sessions(path, clock())

    def get(self, backend: str, conversation: str, after: str | None = None) -> str | None:
        """Return the session of a conversation; with ``after`` only if that was the session's last answer."""
        stored = self._sessions.get(f"{backend}:{conversation}")
        if stored is None or (after is not None and stored.answer != after):
            return None
        return stored.id

    def interrupted(self, backend: str, conversation: str, answer: str) -> str | None:
        """Return the session in which this answer was begun and not finished, if any."""
        stored = self._sessions.get(f"{backend}:{conversation}")
        return stored.id if stored is not None and answer and stored.answer == answer else None

    def cost(self, backend: str, conversation: str) -> float:
        """Return the cost of the session of a conversation, as the program reported it last."""
        stored = self._sessions.get(f"{backend}:{conversation}")
        return 0.0 if stored is None else stored.cost

    async def record_cost(self, backend: str, conversation: str, cost: float) -> None:
        """Store the cost of the session of a conversation."""
        key = f"{backend}:{conversation}"
        if key in self._sessions:
            self._sessions[key] = msgspec.structs.replace(self._sessions[key], cost=cost)
            await self._write()

    async def put(self, backend: str, conversation: str, session: str, answer: str = "") -> None:
        """Store a session and the time of its use."""
        key = f"{backend}:{conversation}"
        before = self._sessions.pop(key, None)
        cost = before.cost if before is not None and before.id == session else 0.0
        self._sessions[key] = StoredSession(session, self._clock(), answer, cost)
        if len(self._sessions) > MAX_SESSIONS:
            for old in sorted(self._sessions, key=lambda k: self._sessions[k].used)[: MAX_SESSIONS // 2]:
                del self._sessions[old]
        await self._write()

    async def drop(self, backend: str, conversation: str) -> None:
        """Forget a session."""
        if self._sessions.pop(f"{backend}:{conversation}", None) is not None:
            await self._write()

    async def prune(self, backend: str, max_age_ms: int) -> int:
        """Forget a backend's sessions that were not used for ``max_age_ms``. Return their number."""
        before = self._clock() - max_age_ms
        old = [
            key
            for key, stored in self._sessions.items()
            if key.startswith(f"{backend}:") and stored.used < before
        ]
        for key in old:
            del self._sessions[key]
        if old:
            await self._write()
        return len(old)

    async def _write(self) -> None:
        if self._path is None:
            return
        async with self._lock:
            document = msgspec.json.encode({"v": 1, "sessions": self._sessions})
            try:
                await asyncio.to_thread(replace_file, self._path, document)
            except OSError as error:
                log.warning("sessions not saved", file=str(self._path), reason=str(error))


def _read_sessions(path: Path, now: int) -> dict[str, StoredSession]:
    """Read a file. Values may be plain session ids, as other programs write them."""

    class Document(Struct):
        sessions: dict[str, Any] = {}

    found: dict[str, StoredSession] = {}
    with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        for key, value in msgspec.json.decode(path.read_bytes(), type=Document).sessions.items():
            with contextlib.suppress(msgspec.ValidationError):
                found[key] = (
                    StoredSession(value, now)
                    if isinstance(value, str)
                    else msgspec.convert(value, StoredSession)
                )
    return found


MAX_FACTS = 100
"""The number of facts of a conversation; beyond it the oldest ones are removed."""
MAX_FACT_CHARS = 500
"""The size limit of a fact, in characters."""


class Memory:
    """Facts that users want programs to remember, by conversation."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = asyncio.Lock()
        self._facts: dict[str, list[str]] = {}
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            self._facts = msgspec.json.decode(path.read_bytes(), type=dict[str, list[str]])

    def facts(self, conversation: str) -> tuple[str, ...]:
        """Return the facts of a conversation, oldest first."""
        return tuple(self._facts.get(conversation, ()))

    async def add(self, conversation: str, fact: str) -> None:
        """Store a fact. Raises OSError if the file cannot be written."""
        facts = [*self._facts.get(conversation, ()), " ".join(fact.split())[:MAX_FACT_CHARS]]
        self._facts[conversation] = facts[-MAX_FACTS:]
        await self._write()

    async def clear(self, conversation: str) -> int:
        """Forget all facts of a conversation. Return their number."""
        gone = self._facts.pop(conversation, [])
        await self._write()
        return len(gone)

    async def _write(self) -> None:
        async with self._lock:
            await asyncio.to_thread(replace_file, self._path, msgspec.json.encode(self._facts))
