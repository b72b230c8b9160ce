"""Discord in a storm: two bots, each with its own server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import aiohttp
from chat_platform import HISTORY_OUTAGE, Json, Platform, Question, Rooms, ShownMessage, Spot
from files import encoded, piece_of
from inquiries import inquiry_in
from model import word_in


class DiscordRooms(Platform):
    """Direct messages, a server's channels, and threads of one of them; there it answers to its name."""

    name, kind = "discord.one", "discord"
    token: ClassVar[str] = "fake-token"
    activity: ClassVar[Mapping[Spot, float]] = {"direct": 0.5, "group": 0.4, "thread": 0.4}

    @classmethod
    def flags(cls, gateway: str) -> Sequence[str]:
        return ("--outage", HISTORY_OUTAGE, "--token", cls.token)

    @property
    def settings(self) -> Json:
        address = self.url.removeprefix("http")
        return {
            "token": self.token,
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

    async def say(
        self, http: aiohttp.ClientSession, room: str, person: str, text: str, file: str | None = None
    ) -> str:
        attach = None if file is None else {file: encoded(file)}
        return await self._does(http, "say", chat=int(room), user=person, text=text, attach=attach)

    async def edit(
        self, http: aiohttp.ClientSession, room: str, person: str, message: str, text: str
    ) -> None:
        await self._does(http, "edit", chat=int(room), key=message, text=text)

    async def delete(self, http: aiohttp.ClientSession, room: str, message: str) -> None:
        await self._does(http, "delete", chat=int(room), key=message)

    async def questions(self, http: aiohttp.ClientSession) -> list[Question]:
        return [
            Question(
                room["id"],
                said["id"],
                button := said["components"][0]["components"][0]["custom_id"],
                button.split(":")[1],
                word_in(said["content"]),
                inquiry_in(said["content"]),
            )
            for room in (await self._get(http, "_fake/state?most=40"))["rooms"]
            for said in room["messages"]
            if said.get("components")
        ]

    async def press(self, http: aiohttp.ClientSession, question: Question, person: str) -> str:
        asked = {"chat": int(question.room), "key": question.id, "custom_id": question.button}
        return await self._does(http, "press", **asked, user=person)

    async def is_acknowledged(self, http: aiohttp.ClientSession, question: Question, press: str) -> bool:
        return await self._does(http, "response", key=press) != "waiting"

    async def rooms(self, http: aiohttp.ClientSession) -> Rooms:
        state = await self._get(http, "_fake/state?most=100000")
        return {
            room["id"]: [
                ShownMessage(
                    id=said["id"],
                    text=said["content"],
                    reply_to=_answered(said.get("message_reference")),
                    files=tuple([await self._piece(http, file) for file in said["attachments"]]),
                )
                for said in room["messages"]
                if said["author"]["id"] == state["bot"]["id"]
            ]
            for room in state["rooms"]
        }

    async def called(self, http: aiohttp.ClientSession) -> str:
        return f"<@{(await self._get(http, '_fake/state'))['bot']['id']}>"

    async def _piece(self, http: aiohttp.ClientSession, file: Json) -> str:
        return piece_of(file["filename"], await self._load(http, file["url"]) or b"")

    async def _does(self, http: aiohttp.ClientSession, what: str, **given: object) -> str:
        return str((await self._post(http, f"_fake/{what}", **given))["result"])


class OtherDiscordRooms(DiscordRooms):
    """The same with another bot, which answers everything in its server.

    It needs two connections, and gets buttons over HTTP.
    """

    name = "discord.two"
    token = "other-token"
    needs = ("public_key",)

    @classmethod
    def flags(cls, gateway: str) -> Sequence[str]:
        endpoint = f"{gateway}/discord/two/interactions"
        return (*super().flags(gateway), "--shards", "2", "--interactions", endpoint)

    @property
    def settings(self) -> Json:
        return {**super().settings, "groups": "always", "public_key": self.facts["public_key"]}

    async def called(self, http: aiohttp.ClientSession) -> str:
        return ""


def _answered(reference: Json | None) -> str | None:
    return None if reference is None else reference.get("message_id")
