"""The platform that comes with the gateway's tests, in a storm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import aiohttp
from chat_platform import Json, Platform, Rooms, ShownMessage, Spot


class LineRooms(Platform):
    """Rooms in which messages can be deleted, and nothing else."""

    name = kind = "line"
    asks = tells_changes = takes_files = edits = False
    spots: ClassVar[Sequence[Spot]] = ("direct",) * 6

    @property
    def settings(self) -> Json:
        return {"url": self.url}

    async def open(self, http: aiohttp.ClientSession, person: str, spot: Spot) -> str:
        return f"room-{person}"

    async def say(
        self, http: aiohttp.ClientSession, room: str, person: str, text: str, file: str | None = None
    ) -> str:
        return str((await self._post(http, "say", chat=room, user=person, text=text))["id"])

    async def delete(self, http: aiohttp.ClientSession, room: str, message: str) -> None:
        await self._post(http, "delete", chat=room, id=int(message))

    async def deletions(self, http: aiohttp.ClientSession) -> Mapping[str, float]:
        return await self._get(http, "deletions")

    async def rooms(self, http: aiohttp.ClientSession) -> Rooms:
        return {
            room: [
                ShownMessage(id=str(said["id"]), text=said["text"], reply_to=str(said["reply_to"]))
                for said in messages
                if said["nonce"] is not None
            ]
            for room, messages in (await self._get(http, "rooms")).items()
        }
