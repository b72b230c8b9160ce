"""What stands in rooms: read again after a gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
import structlog

from channels.discord.api import Api, Broken, Refused
from channels.discord.placing import MESSAGES

log = structlog.get_logger("trunkline.discord")

_PAGE = 100
_MOST_PAGES = 50
_AGAIN = 5.0


class History:
    """Reads rooms by way of the API."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def after(self, room: str, floor: int) -> AsyncIterator[list[Any]]:
        """The messages behind an id, oldest first, in portions. A room that is closed has none."""
        for _ in range(_MOST_PAGES):
            told = await self._portion(room, floor)
            if told:
                yield told
            if len(told) < _PAGE:
                return
            floor = max(_id_of(message) for message in told)
        log.warning("a room has more that was missed than is read", room=room)

    async def _portion(self, room: str, floor: int) -> list[Any]:
        while True:
            try:
                told = await self._api.insist(
                    "GET", MESSAGES, query={"after": str(floor), "limit": _PAGE}, channel_id=room
                )
            except Refused as refused:
                log.info("a room cannot be read", room=room, reason=str(refused))
                return []
            except (Broken, aiohttp.ClientError, OSError) as error:
                log.warning("what was missed cannot be read yet", reason=str(error) or type(error).__name__)
                await asyncio.sleep(_AGAIN)
            else:
                return sorted(cast("list[Any]", told), key=_id_of) if isinstance(told, list) else []


def _id_of(message: Any) -> int:
    try:
        return int(message["id"])
    except (KeyError, TypeError, ValueError):
        return 0
