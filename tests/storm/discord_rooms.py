"""Discord in a storm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import aiohttp
from chat_platform import Json, Platform, Question, Rooms, Spot, Stands


class DiscordRooms(Platform):
    """Direct messages, a server's channels, and threads of one of them; there it answers to its name."""

    name = kind = "discord"
    zeal: ClassVar[Mapping[Spot, float]] = {"direct": 0.5, "group": 0.4, "thread": 0.4}

    @property
    def settings(self) -> Json:
        address = self.url.removeprefix("http")
        return {
            "token": "fake-token",
            "api_base_url": f"{self.url}/api/v10",
            "gateway_url": f"ws{address}/gw/",
            "groups": "mention",
        }

    async def open(self, http: aiohttp.ClientSession, person: str, spot: Spot) -> str:
        if spot == "direct":
            return await self._does(http, "dm", user=person)
        if spot == "group":
            return await self._does(http, "add_channel", name=f"room-{person}")
        self._shared = self._shared or await self._does(http, "add_channel", name="threads")
        return await self._does(http, "start_thread", chat=int(self._shared), name=person, user=person)

    async def say(self, http: aiohttp.ClientSession, room: str, person: str, text: str) -> str:
        return await self._does(http, "say", chat=int(room), user=person, text=text)

    async def edit(
        self, http: aiohttp.ClientSession, room: str, person: str, message: str, text: str
    ) -> None:
        await self._does(http, "edit", chat=int(room), key=message, text=text)

    async def delete(self, http: aiohttp.ClientSession, room: str, message: str) -> None:
        await self._does(http, "delete", chat=int(room), key=message)

    async def questions(self, http: aiohttp.ClientSession) -> list[Question]:
        return [
            Question(room["id"], said["id"], said["components"][0]["components"][0]["custom_id"])
            for room in (await self._get(http, "_fake/state?most=40"))["rooms"]
            for said in room["messages"]
            if said.get("components")
        ]

    async def press(self, http: aiohttp.ClientSession, question: Question, person: str) -> None:
        asked = {"chat": int(question.room), "key": question.id, "custom_id": question.button}
        await self._does(http, "press", **asked, user=person)

    async def rooms(self, http: aiohttp.ClientSession) -> Rooms:
        state = await self._get(http, "_fake/state?most=100000")
        return {
            room["id"]: [
                Stands(
                    id=said["id"],
                    text=said["content"],
                    reply_to=_answered(said.get("message_reference")),
                )
                for said in room["messages"]
                if said["author"]["id"] == state["bot"]["id"]
            ]
            for room in state["rooms"]
        }

    async def called(self, http: aiohttp.ClientSession) -> str:
        return f"<@{(await self._get(http, '_fake/state'))['bot']['id']}>"

    async def _does(self, http: aiohttp.ClientSession, what: str, **given: object) -> str:
        return str((await self._post(http, f"_fake/{what}", **given))["result"])


def _answered(reference: Json | None) -> str | None:
    return None if reference is None else reference.get("message_id")
