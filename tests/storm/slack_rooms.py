"""Slack in a storm: an app with Socket Mode, and one with HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import aiohttp
from chat_platform import HISTORY_OUTAGE, Json, Platform, Question, Rooms, ShownMessage, Spot
from files import encoded, piece_of
from inquiries import inquiry_in
from model import word_in


class SlackRooms(Platform):
    """Direct messages and public channels of a workspace, each of them one conversation."""

    name, kind = "slack.socket", "slack"
    activity: ClassVar[Mapping[Spot, float]] = {"direct": 0.35, "group": 0.3, "thread": 0.25}
    needs = ("app_token", "signing_secret", "bot_token")
    spots: ClassVar[Sequence[Spot]] = ("direct", "direct", "direct", "direct", "group", "group")

    @classmethod
    def flags(cls, gateway: str) -> Sequence[str]:
        return ("--limits", "--outage", HISTORY_OUTAGE)

    @property
    def settings(self) -> Json:
        return {
            "bot_token": self._token,
            "app_token": self.facts["app_token"],
            "api_base_url": f"{self.url}/api/",
            "groups": "always",
            "session_strategy": "chat",
        }

    async def open(self, http: aiohttp.ClientSession, person: str, spot: Spot) -> str:
        if spot == "thread":
            root = await self._act(http, "say", chat="threads", user="somebody", text=f"{person}, go on here")
            return f"threads/{root}"
        room = f"room-{person}" if spot == "group" else f"@{person}"
        await self._act(http, "open", chat=room)
        return room

    async def say(
        self, http: aiohttp.ClientSession, room: str, person: str, text: str, file: str | None = None
    ) -> str:
        chat, _, thread = room.partition("/")
        files = {} if file is None else {file: encoded(file)}
        said: Json = {"chat": chat, "user": person, "text": text, "files": files}
        return await self._act(http, "say", **said, thread=thread or None)

    async def edit(
        self, http: aiohttp.ClientSession, room: str, person: str, message: str, text: str
    ) -> None:
        await self._act(http, "edit", chat=room.partition("/")[0], ts=message, user=person, text=text)

    async def delete(self, http: aiohttp.ClientSession, room: str, message: str) -> None:
        await self._act(http, "delete", chat=room.partition("/")[0], ts=message)

    async def questions(self, http: aiohttp.ClientSession) -> list[Question]:
        team = (await self._get(http, "_fake/state"))["teams"][0]
        return [
            Question(
                _place(_name(room, team["bot"]), said),
                said["ts"],
                block["elements"][0]["text"]["text"],
                block["elements"][0]["value"].split(" ")[1],
                word_in(said["text"]),
                inquiry_in(said["text"]),
            )
            for room in team["rooms"]
            for said in room["messages"]
            for block in said["raw"].get("blocks", ())
            if block["type"] == "actions"
        ]

    async def press(self, http: aiohttp.ClientSession, question: Question, person: str) -> str:
        chat = question.room.partition("/")[0]
        asked: Json = {"chat": chat, "ts": question.id, "user": person, "what": question.button}
        return str((await self._post(http, "_fake/press", **asked))["result"])

    async def is_acknowledged(self, http: aiohttp.ClientSession, question: Question, press: str) -> bool:
        return (await self._post(http, "_fake/is_acknowledged", envelope=press))["result"]

    async def rooms(self, http: aiohttp.ClientSession) -> Rooms:
        team = (await self._get(http, "_fake/state"))["teams"][0]
        found: Rooms = {}
        for room in team["rooms"]:
            name = _name(room, team["bot"])
            for said in room["messages"]:
                if not said["bot"] or "only_for" in said:
                    continue
                files = [await self._piece(http, file) for file in said["raw"].get("files", ())]
                left = tuple(piece for piece in files if piece is not None)
                if files and not left:
                    continue  # a message that only showed a file is removed with it
                shown = ShownMessage(
                    id=said["ts"], text=said["text"], unfinished=said["streaming"], files=left
                )
                found.setdefault(_place(name, said), []).append(shown)
        return found

    @property
    def _token(self) -> str:
        return self.facts["bot_token"].split(" ")[0]

    async def _piece(self, http: aiohttp.ClientSession, file: Json) -> str | None:
        """Return the piece of a file; None if it was deleted."""
        data = await self._load(http, file["url_private"], self._token)
        return None if data is None else piece_of(file["name"], data)

    async def _act(self, http: aiohttp.ClientSession, what: str, **given: object) -> str:
        return str((await self._post(http, f"_fake/{what}", **given))["result"])


class CalledSlackRooms(SlackRooms):
    """The same over HTTP, where threads are conversations and the app answers in channels to its name."""

    name = "slack.http"
    spots: ClassVar[Sequence[Spot]] = ("direct", "direct", "thread", "thread", "thread", "thread")

    @classmethod
    def flags(cls, gateway: str) -> Sequence[str]:
        return (*super().flags(gateway), "--events", f"{gateway}/slack/http/events")

    @property
    def settings(self) -> Json:
        return {
            "mode": "http",
            "bot_token": self._token,
            "signing_secret": self.facts["signing_secret"],
            "api_base_url": f"{self.url}/api/",
            "groups": "mention",
            "session_strategy": "thread",
        }

    async def called(self, http: aiohttp.ClientSession) -> str:
        return "@trunkline"


def _place(name: str, said: Mapping[str, Any]) -> str:
    return f"{name}/{said['thread']}" if said["thread"] else name


def _name(room: Mapping[str, Any], bot: str) -> str:
    """Return the display name of a room; for a direct message the name of the person."""
    if room["kind"] != "im":
        return room["name"]
    return f"@{next(name for name in room['members'] if name != bot)}"
