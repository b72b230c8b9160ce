"""Chat history, read again after a gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
import structlog

from channels.discord.api import Api, Broken, Later, Refused
from channels.discord.placing import MESSAGES
from gateway.channel import Backoff

log = structlog.get_logger("trunkline.discord")

_PAGE = 100
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
"""Seconds between attempts to read a history. The longest pause is short because the channel is not
ready while a history is unread; the rate limiter keeps to the platform's limits anyway."""


class History:
    """History reader on top of the API. ``problem`` names the history that could not be read yet; it is empty
    otherwise.

    A history is retried until Discord returns it or refuses it permanently, first after ``pause`` seconds,
    then with increasing pauses.
    """

    def __init__(self, api: Api, pause: float = _SHORTEST_PAUSE) -> None:
        self.problem = ""
        self._api = api
        self._backoff = Backoff(pause, _LONGEST_PAUSE)

    async def after(self, room: str, floor: int) -> AsyncIterator[list[Any]]:
        """Yield the messages after an id in batches, oldest first; none if the bot has no access to the
        chat."""
        while True:
            told = await self._portion(room, floor)
            if told:
                yield told
            newest = max((_id_of(message) for message in told), default=0)
            if len(told) < _PAGE or newest <= floor:
                return
            floor = newest

    async def _portion(self, room: str, floor: int) -> list[Any]:
        failures = 0
        while True:
            pause = self._backoff.pause(failures + 1)
            try:
                told = await self._api.call(
                    "GET", MESSAGES, query={"after": str(floor), "limit": _PAGE}, channel_id=room
                )
                if not isinstance(told, list):  # as an empty page it would lose the messages in it
                    raise Broken("an answer that is no list")
            except Refused as refused:
                if refused.status != 401:
                    log.info("a room cannot be read", room=room, reason=str(refused))
                    self.problem = ""
                    return []
                reason = str(refused)
            except Later as later:
                reason, pause = str(later), later.seconds
            except (Broken, aiohttp.ClientError, OSError) as error:
                reason = str(error) or type(error).__name__
            else:
                self.problem = ""
                return sorted(cast("list[Any]", told), key=_id_of)
            failures += 1
            if failures > 1:
                if not self.problem:
                    log.warning("what was missed cannot be read yet", room=room, reason=reason)
                self.problem = f"what was missed cannot be read yet in {room}: {reason}"
            await asyncio.sleep(pause)


def _id_of(message: Any) -> int:
    try:
        return int(message["id"])
    except (KeyError, TypeError, ValueError):
        return 0
