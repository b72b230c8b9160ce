"""Whether the connection to Telegram really works: it answered not long ago, and did not refuse."""

from __future__ import annotations

import asyncio

import structlog

from channels.telegram.api import CallError, RefusedError
from gateway import Health

log = structlog.get_logger("trunkline.telegram")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_WRONG_TOKEN = "Telegram does not accept the token"  # noqa: S105 - says what is wrong with it
_WRONG_TOKEN_PAUSE = 30.0
_CONFLICT_PAUSE = 3.0


class Pulse:
    """Beats when the platform answers; without a beat for ``seconds`` the connection is not healthy."""

    def __init__(self, channel: str, seconds: float) -> None:
        self._channel = channel
        self._seconds = seconds
        self._last: float | None = None
        self._failures = 0
        self._detail = "starting"

    def beat(self) -> None:
        """The platform answered as it should."""
        if self._failures:
            log.info("Telegram answers again", channel=self._channel)
        self._last = asyncio.get_running_loop().time()
        self._failures = 0
        self._detail = ""

    def answered(self) -> None:
        """The platform answered; whether it works is yet to be seen."""
        self._failures = 0

    def complain(self, detail: str) -> None:
        """The platform answered, but says that something is wrong."""
        self._detail = detail

    async def failed(self, error: CallError) -> None:
        """A call failed: wait before the next one, each time longer."""
        said, pause = _meaning(error)
        self._failures += 1
        if said != self._detail:
            log.warning("Telegram cannot be reached", channel=self._channel, reason=said)
        self._detail = said
        if pause is None:
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._failures - 1, 10))
        await asyncio.sleep(pause)

    def health(self) -> Health:
        """The state of the connection."""
        if self._detail or self._last is None:
            return Health(ok=False, detail=self._detail)
        silent = asyncio.get_running_loop().time() - self._last
        if silent > self._seconds:
            return Health(ok=False, detail=f"no answer for {silent:.0f} seconds")
        return Health(ok=True)


def _meaning(error: CallError) -> tuple[str, float | None]:
    """An error in words, and how long to wait, if it says so."""
    if not isinstance(error, RefusedError):
        return str(error), None
    if error.code in (401, 404):
        return _WRONG_TOKEN, _WRONG_TOKEN_PAUSE
    if error.retry_after is not None:
        return "Telegram asked to wait", error.retry_after
    return error.reason, _CONFLICT_PAUSE if error.code == 409 else None
