"""Telegram in a storm: a bot that polls, and one with a webhook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import aiohttp
from chat_platform import Json, Platform, Question, Rooms, ShownMessage, Spot
from files import encoded, piece_of
from inquiries import inquiry_in
from model import word_in

_SECRET = "only-telegram-knows"


class TelegramRooms(Platform):
    """Private chats and supergroups, which number their messages in different ways, and a forum's topics."""

    name, kind = "telegram.polling", "telegram"
    activity: ClassVar[Mapping[Spot, float]] = {"direct": 0.2, "group": 0.035, "thread": 0.03}
    needs = ("token",)
    tells_deletions = False
    files_in_order = True

    @classmethod
    def flags(cls, gateway: str) -> Sequence[str]:
        return ("--limits",)

    @property
    def settings(self) -> Json:
        return {"token": self.facts["token"], "api_base_url": self.url, "groups": "always"}

    async def open(self, http: aiohttp.ClientSession, person: str, spot: Spot) -> str:
        if spot == "direct":
            return await self._room(http, kind="private", title=person)
        group: Json = {"kind": "supergroup", "people": [person], "admin": True}
        if spot == "group":
            return await self._room(http, **group, title=f"room-{person}")
        self._shared = self._shared or await self._room(http, **group, title="Forum", forum=True)
        asked = {"chat": int(self._shared), "name": person, "user": person}
        return f"{self._shared}/{(await self._post(http, '_fake/topic', **asked))['result']}"

    async def say(
        self, http: aiohttp.ClientSession, room: str, person: str, text: str, file: str | None = None
    ) -> str:
        chat, _, topic = room.partition("/")
        said: Json = {"chat": int(chat), "user": person, "thread": int(topic) if topic else None}
        if file is None:
            told = await self._post(http, "_fake/say", **said, text=text)
        else:
            told = await self._post(http, "_fake/send", **said, caption=text, name=file, data=encoded(file))
        return str(told["result"])

    async def edit(
        self, http: aiohttp.ClientSession, room: str, person: str, message: str, text: str
    ) -> None:
        chat = int(room.partition("/")[0])
        await self._post(http, "_fake/edit", chat=chat, message=int(message), text=text)

    async def questions(self, http: aiohttp.ClientSession) -> list[Question]:
        return [
            Question(
                _name(room["chat"]["id"], said),
                str(said["message_id"]),
                button := keys[0][0]["callback_data"],
                button.partition(":")[2].partition(":")[0],  # empty for the channel's own probe
                word_in(_text(said)),
                inquiry_in(_text(said)),
            )
            for room in (await self._get(http, "_fake/state?most=40"))["rooms"]
            for said in room["messages"]
            if (keys := said.get("reply_markup", {}).get("inline_keyboard"))
        ]

    async def press(self, http: aiohttp.ClientSession, question: Question, person: str) -> str:
        chat = int(question.room.partition("/")[0])
        asked = {"chat": chat, "message": int(question.id), "button": question.button}
        return str((await self._post(http, "_fake/press", **asked, user=person))["result"])

    async def is_acknowledged(self, http: aiohttp.ClientSession, question: Question, press: str) -> bool:
        return any(
            said["toast"] is not None
            for room in (await self._get(http, "_fake/state?most=40"))["rooms"]
            for said in room["messages"]
            if (_name(room["chat"]["id"], said), str(said["message_id"])) == (question.room, question.id)
        )

    async def rooms(self, http: aiohttp.ClientSession) -> Rooms:
        found: Rooms = {}
        for room in (await self._get(http, "_fake/state?most=100000"))["rooms"]:
            for said in room["messages"]:
                if said["mine"] and not said["service"]:
                    stands = await self._stands(http, said)
                    found.setdefault(_name(room["chat"]["id"], said), []).append(stands)
        return found

    async def _stands(self, http: aiohttp.ClientSession, said: Mapping[str, Any]) -> ShownMessage:
        answered, file = said.get("reply_to_message"), said.get("document")
        pieces: tuple[str, ...] = ()
        if file is not None:
            data = await self._load(http, f"{self.url}/_fake/file/{file['file_id']}")
            pieces = (piece_of(file["file_name"], data or b""),)
        reply_to = None if answered is None else str(answered["message_id"])
        return ShownMessage(id=str(said["message_id"]), text=_text(said), reply_to=reply_to, files=pieces)

    async def _room(self, http: aiohttp.ClientSession, **wanted: object) -> str:
        return str((await self._post(http, "_fake/open", **wanted))["result"])


class DeliveredTelegramRooms(TelegramRooms):
    """The same by webhook, where the bot answers in groups to its name alone."""

    name = "telegram.webhook"

    @property
    def settings(self) -> Json:
        return {
            **super().settings,
            "mode": "webhook",
            "webhook_url": f"{self.gateway}/telegram/updates",
            "webhook_secret": _SECRET,
            "groups": "mention",
        }

    async def called(self, http: aiohttp.ClientSession) -> str:
        return "@fake_bot"


def _name(chat: int, said: Mapping[str, Any]) -> str:
    return f"{chat}/{said['message_thread_id']}" if said.get("is_topic_message") else str(chat)


def _text(said: Mapping[str, Any]) -> str:
    return said.get("text", said.get("caption", ""))
