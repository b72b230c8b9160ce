"""Matrix in a storm: an account of a homeserver, whose questions people answer by typing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import aiohttp
from chat_platform import HISTORY_OUTAGE, Json, Platform, Question, Rooms, ShownMessage, Spot
from files import encoded, piece_of
from inquiries import inquiry_in


class MatrixRooms(Platform):
    """Direct chats, rooms, and threads of a room that all share."""

    name = kind = "matrix"
    needs = ("access_token",)
    activity: ClassVar[Mapping[Spot, float]] = {"direct": 0.4, "group": 0.4, "thread": 0.4}
    asks = False

    @classmethod
    def flags(cls, gateway: str) -> Sequence[str]:
        # Few events in an answer: after a restart of the gateway, the others are paged.
        return ("--outage", HISTORY_OUTAGE, "--timeline", "3")

    @property
    def settings(self) -> Json:
        # Synapse lets a user send 12 messages a minute in all rooms together; operators raise that for bots.
        return {"homeserver": self.url, "access_token": self._token, "groups": "always", "pace": 50}

    async def open(self, http: aiohttp.ClientSession, person: str, spot: Spot) -> str:
        if spot != "thread":
            name = f"room-{person}" if spot == "group" else ""
            return await self._act(http, "open", user=person, name=name)
        self._shared = self._shared or await self._act(http, "open", user=person, name="threads")
        root = await self._act(http, "say", room=self._shared, user="ben", text=f"{person}, go on here")
        return f"{self._shared}/{root}"

    async def say(
        self, http: aiohttp.ClientSession, room: str, person: str, text: str, file: str | None = None
    ) -> str:
        chat, _, root = room.partition("/")
        said: Json = {"room": chat, "user": person, "text": text, "m.relates_to": _relation(root)}
        if file is not None:
            uri = await self._act(http, "keep", mime_type="text/plain", data=encoded(file))
            said |= {"msgtype": "m.file", "filename": file, "url": uri, "info": {"mimetype": "text/plain"}}
        return await self._act(http, "say", **said)

    async def answer(self, http: aiohttp.ClientSession, question: Question, person: str, text: str) -> str:
        # As a reply: a plain text answers a question only if no other one is open.
        chat, _, root = question.room.partition("/")
        related = {**_relation(root), "m.in_reply_to": {"event_id": question.id}}
        return await self._act(http, "say", room=chat, user=person, text=text, **{"m.relates_to": related})

    async def edit(
        self, http: aiohttp.ClientSession, room: str, person: str, message: str, text: str
    ) -> None:
        chat = room.partition("/")[0]
        await self._act(http, "edit", room=chat, user=person, event=message, text=text)

    async def delete(self, http: aiohttp.ClientSession, room: str, message: str) -> None:
        await self._act(http, "remove", room=room.partition("/")[0], event=message)

    async def questions(self, http: aiohttp.ClientSession) -> list[Question]:
        return [
            Question(_place(room["id"], said), said["id"], "", said["id"], "", key)
            for room, said in await self._said(http, 40)
            if (key := inquiry_in(said["content"]["body"])) and not said["edited"]
        ]

    async def rooms(self, http: aiohttp.ClientSession) -> Rooms:
        found: Rooms = {}
        for room, said in await self._said(http, 100_000):
            content = said["content"]
            files = () if content["msgtype"] == "m.text" else (await self._piece(http, content),)
            shown = ShownMessage(
                id=said["id"],
                text="" if files else content["body"],
                reply_to=said["relation"].get("m.in_reply_to", {}).get("event_id"),
                files=files,
            )
            found.setdefault(_place(room["id"], said), []).append(shown)
        return found

    @property
    def _token(self) -> str:
        return self.facts["access_token"]

    async def _said(self, http: aiohttp.ClientSession, most: int) -> list[tuple[Json, Json]]:
        """Return the messages of the bot, each with its room."""
        state = await self._get(http, f"_fake/state?most={most}")
        return [
            (room, said)
            for room in state["rooms"]
            for said in room["messages"]
            if said["sender"] == state["bot"]
        ]

    async def _piece(self, http: aiohttp.ClientSession, content: Mapping[str, Any]) -> str:
        server, _, name = content["url"].removeprefix("mxc://").partition("/")
        url = f"{self.url}/_matrix/client/v1/media/download/{server}/{name}"
        return piece_of(content["filename"], await self._load(http, url, self._token) or b"")

    async def _act(self, http: aiohttp.ClientSession, what: str, **given: object) -> str:
        return str((await self._post(http, f"_fake/{what}", **given))["result"])


def _relation(root: str) -> Json:
    return {"rel_type": "m.thread", "event_id": root} if root else {}


def _place(room: str, said: Mapping[str, Any]) -> str:
    related = said["relation"]
    return f"{room}/{related['event_id']}" if related.get("rel_type") == "m.thread" else room
