"""The gateway's side of the hooks: it checks each report, and hands over the fact in it.

In: streams of a keeper whose first line is ``hook SECRET``, and a report in JSON after it. Out: facts. The
answer is a line that begins with a status of HTTP: 200, 400 for an invalid report, 401 without the secret of
the session, 413 and 429 over a limit. All processes of a sandbox could send reports; they select what the
gateway shows, and are compared with the screen before a user is asked (``machine``).
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec
import structlog

from plugins.coding_agents.adapters.contract import Adapter, Fact
from plugins.coding_agents.side_channel.report import MOST

log = structlog.get_logger("trunkline.coding_agents")

MOST_AT_ONCE = 120
"""Reports that a session may send without a pause."""
PER_SECOND = 20.0
"""Reports that it may send in each second after that."""
READ_SECONDS = 5.0

_LONGEST = 4_000
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_DECODER = msgspec.json.Decoder(dict[str, Any])


def cleaned(fact: Fact) -> Fact:
    """Return a fact with short texts, in which no control character can hide what a user is asked about."""
    texts = {
        name: _CONTROL.sub(" ", value)[:_LONGEST]
        for name, value in msgspec.structs.asdict(fact).items()
        if isinstance(value, str)
    }
    return msgspec.structs.replace(fact, **texts)


class Stream(Protocol):
    """A connection from inside the sandbox."""

    async def read(self, most: int = 65536) -> bytes:
        """Return the next bytes; b"" at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes."""
        ...


class Intake:
    """The reports of one session. ``secret`` is its own, and ``note`` takes the facts."""

    def __init__(self, adapter: Adapter, secret: str, note: Callable[[Fact], Awaitable[None]]) -> None:
        self._adapter = adapter
        self._secret = secret
        self._note = note
        self._left = float(MOST_AT_ONCE)
        self._at = time.monotonic()

    async def serve(self, words: Sequence[str], stream: Stream) -> None:
        """Serve one stream; ``words`` are those of its first line."""
        answer = await self._answer(words, stream)
        if not answer.startswith("200"):
            log.debug("a report of a hook was refused", agent=self._adapter.name, answer=answer)
        await stream.write(f"{answer}\n".encode())

    async def _answer(self, words: Sequence[str], stream: Stream) -> str:
        given = words[1] if len(words) == 2 else ""
        if not hmac.compare_digest(given.encode(), self._secret.encode()):
            return "401 not the secret of this session"
        if not self._may_report():
            return f"429 more than {PER_SECOND:.0f} reports in a second"
        body = bytearray()
        try:
            async with asyncio.timeout(READ_SECONDS):
                while len(body) <= MOST and (piece := await stream.read()):
                    body += piece
        except TimeoutError:
            return f"400 the report did not end within {READ_SECONDS:.0f} s"
        if len(body) > MOST:
            return f"413 a report has at most {MOST} bytes"
        try:
            fact = self._adapter.hook(_DECODER.decode(bytes(body)))
        except (msgspec.DecodeError, OverflowError, RecursionError):
            return "400 not a report in JSON"
        if fact is not None:
            await self._note(cleaned(fact))
        return "200 noted"

    def _may_report(self) -> bool:
        now = time.monotonic()
        self._left = min(float(MOST_AT_ONCE), self._left + (now - self._at) * PER_SECOND)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
