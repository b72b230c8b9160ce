"""Slack in a storm: an app with a socket, and one that is called over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import aiohttp
from chat_platform import Json, Platform, Question, Rooms, Spot, Stands


class SlackRooms(Platform):
    """Direct messages and public channels of a workspace, each of them one conversation."""

    name, kind = "slack.socket", "slack"
    zeal: ClassVar[Mapping[Spot, float]] = {"direct": 0.35, "group": 0.3, "thread": 0.25}
    needs = ("app_token", "signing_secret", "bot_token")
    spots: ClassVar[Sequence[Spot]] = ("direct", "direct", "direct", "direct", "group", "group")

    @classmethod
    def flags(cls, gateway: str) -> Sequence[str]:
        return ("--limits",)

    @property
    def settings(self) -> Json:
        return {
            "bot_token": self.facts["bot_token"].split(" ")[0],
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

    async def say(self, http: aiohttp.ClientSession, room: str, person: str, text: str) -> str:
        chat, _, thread = room.partition("/")
        return await self._act(http, "say", chat=chat, user=person, text=text, thread=thread or None)

    async def edit(
        self, http: aiohttp.ClientSession, room: str, person: str, message: str, text: str
    ) -> None:
        await self._act(http, "edit", chat=room.partition("/")[0], ts=message, user=person, text=text)

    async def delete(self, http: aiohttp.ClientSession, room: str, message: str) -> None:
        await self._act(http, "delete", chat=room.partition("/")[0], ts=message)

    async def questions(self, http: aiohttp.ClientSession) -> list[Question]:
        team = (await self._get(http, "_fake/rooms"))["teams"][0]
        return [
            Question(_place(_name(room, team["bot"]), said), said["ts"], "Allow once")
            for room in team["rooms"]
            for said in room["messages"]
            if any(block["type"] == "actions" for block in said["raw"].get("blocks", ()))
        ]

    async def press(self, http: aiohttp.ClientSession, question: Question, person: str) -> None:
        chat = question.room.partition("/")[0]
        await self._act(http, "press", chat=chat, ts=question.id, user=person, text=question.button)

    async def rooms(self, http: aiohttp.ClientSession) -> Rooms:
        team = (await self._get(http, "_fake/rooms"))["teams"][0]
        found: Rooms = {}
        for room in team["rooms"]:
            name = _name(room, team["bot"])
            for said in room["messages"]:
                if said["bot"] and "only_for" not in said:
                    stands = Stands(id=said["ts"], text=said["text"], unfinished=said["streaming"])
                    found.setdefault(_place(name, said), []).append(stands)
        return found

    async def _act(self, http: aiohttp.ClientSession, what: str, **given: object) -> str:
        return str((await self._post(http, "_fake/act", do=what, **given))["ts"])


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
            "bot_token": self.facts["bot_token"].split(" ")[0],
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
    """What people call a room: a direct message by the one who is not the bot."""
    if room["kind"] != "im":
        return room["name"]
    return f"@{next(name for name in room['members'] if name != bot)}"
