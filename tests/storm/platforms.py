"""The platforms of a storm: how people write in their rooms, and what stands there in the end.

Each runs in a process of its own, which nobody kills, and is driven over HTTP, as its page is.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, Final

import aiohttp
from msgspec import Struct

Serve = Callable[[Sequence[str], Callable[[], None]], Coroutine[None, None, None]]
Json = dict[str, Any]

_PATIENCE = aiohttp.ClientTimeout(total=20)


class Stands(Struct, frozen=True, kw_only=True):
    """A message of the bot that stands in a room. One that still grows is ``unfinished``."""

    id: str
    text: str
    reply_to: str | None = None
    unfinished: bool = False


class Platform(ABC):
    """A platform at ``url``. ``facts`` is what its process told besides, by name.

    ``flags`` are what it is started with; ``needs`` are the facts that it has to tell first. ``zeal`` is how
    much people write: less where the platform takes few calls a minute, as what is owed when the storm ends
    has to be paid at that rate.
    """

    name: ClassVar[str]
    flags: ClassVar[Sequence[str]] = ()
    needs: ClassVar[Sequence[str]] = ()
    zeal: ClassVar[float] = 1.0

    def __init__(self, url: str, facts: Mapping[str, str]) -> None:
        self.url = url
        self.facts = facts

    @property
    @abstractmethod
    def settings(self) -> Json:
        """The settings of the gateway's channel."""

    @abstractmethod
    async def open(self, http: aiohttp.ClientSession, person: str, *, group: bool) -> str:
        """A room for a person and the bot. Returns its name."""

    @abstractmethod
    async def say(self, http: aiohttp.ClientSession, room: str, person: str, text: str) -> str:
        """A person writes. Returns the message's id."""

    @abstractmethod
    async def rooms(self, http: aiohttp.ClientSession) -> dict[str, list[Stands]]:
        """What stands of the bot in each room, in order."""

    async def transcript(self, http: aiohttp.ClientSession) -> bytes:
        """What the platform noted of the gateway's last calls, to look at afterwards."""
        async with http.get(f"{self.url}/_fake/transcript", timeout=_PATIENCE) as response:
            return await response.read()

    async def _post(self, http: aiohttp.ClientSession, path: str, **content: object) -> Json:
        async with http.post(f"{self.url}/{path}", json=content, timeout=_PATIENCE) as response:
            response.raise_for_status()
            return await response.json()

    async def _get(self, http: aiohttp.ClientSession, path: str) -> Json:
        async with http.get(f"{self.url}/{path}", timeout=_PATIENCE) as response:
            response.raise_for_status()
            return await response.json()


class LineRooms(Platform):
    """The platform that comes with the gateway's tests."""

    name = "line"

    @property
    def settings(self) -> Json:
        return {"url": self.url}

    async def open(self, http: aiohttp.ClientSession, person: str, *, group: bool) -> str:
        return f"room-{person}"

    async def say(self, http: aiohttp.ClientSession, room: str, person: str, text: str) -> str:
        return str((await self._post(http, "say", chat=room, user=person, text=text))["id"])

    async def rooms(self, http: aiohttp.ClientSession) -> dict[str, list[Stands]]:
        return {
            room: [
                Stands(id=str(said["id"]), text=said["text"], reply_to=str(said["reply_to"]))
                for said in messages
                if said["nonce"] is not None
            ]
            for room, messages in (await self._get(http, "rooms")).items()
        }


class TelegramRooms(Platform):
    """Private chats and supergroups, which number their messages in different ways."""

    name = "telegram"
    zeal = 0.5
    needs = ("token",)

    @property
    def settings(self) -> Json:
        return {"token": self.facts["token"], "api_base_url": self.url, "groups": "always"}

    async def open(self, http: aiohttp.ClientSession, person: str, *, group: bool) -> str:
        asked: Json = {"kind": "private", "title": person}
        if group:
            asked = {"kind": "supergroup", "title": f"room-{person}", "people": [person], "admin": True}
        return str((await self._post(http, "_fake/open", **asked))["id"])

    async def say(self, http: aiohttp.ClientSession, room: str, person: str, text: str) -> str:
        return str((await self._post(http, "_fake/say", chat=int(room), user=person, text=text))["id"])

    async def rooms(self, http: aiohttp.ClientSession) -> dict[str, list[Stands]]:
        return {
            str(room["chat"]["id"]): [
                Stands(
                    id=str(said["message_id"]),
                    text=said.get("text", ""),
                    reply_to=_id(said.get("reply_to_message"), "message_id"),
                )
                for said in room["messages"]
                if said["mine"]
            ]
            for room in (await self._get(http, "_fake/state"))["rooms"]
        }


class DiscordRooms(Platform):
    """Direct messages and a server's channels."""

    name = "discord"
    zeal = 0.7
    flags = ("--no-limits",)

    @property
    def settings(self) -> Json:
        address = self.url.removeprefix("http")
        return {
            "token": "fake-token",
            "api_base_url": f"{self.url}/api/v10",
            "gateway_url": f"ws{address}/gw/",
            "groups": "always",
        }

    async def open(self, http: aiohttp.ClientSession, person: str, *, group: bool) -> str:
        if group:
            return str((await self._post(http, "_fake/add_channel", name=f"room-{person}"))["result"])
        return str((await self._post(http, "_fake/dm", user=person))["result"])

    async def say(self, http: aiohttp.ClientSession, room: str, person: str, text: str) -> str:
        return str((await self._post(http, "_fake/say", chat=int(room), user=person, text=text))["result"])

    async def rooms(self, http: aiohttp.ClientSession) -> dict[str, list[Stands]]:
        state = await self._get(http, "_fake/state?most=100000")
        return {
            room["id"]: [
                Stands(
                    id=said["id"],
                    text=said["content"],
                    reply_to=_id(said.get("message_reference"), "message_id"),
                )
                for said in room["messages"]
                if said["author"]["id"] == state["bot"]["id"]
            ]
            for room in state["rooms"]
        }


class SlackRooms(Platform):
    """Direct messages and public channels of a workspace."""

    name = "slack"
    zeal = 0.5
    needs = ("app_token", "bot_token")

    @property
    def settings(self) -> Json:
        return {
            "bot_token": self.facts["bot_token"].split(" ")[0],
            "app_token": self.facts["app_token"],
            "api_base_url": f"{self.url}/api/",
            "groups": "always",
            "session_strategy": "chat",
        }

    async def open(self, http: aiohttp.ClientSession, person: str, *, group: bool) -> str:
        room = f"room-{person}" if group else f"@{person}"
        await self._post(http, "_fake/act", do="open", chat=room)
        return room

    async def say(self, http: aiohttp.ClientSession, room: str, person: str, text: str) -> str:
        return (await self._post(http, "_fake/act", do="say", chat=room, user=person, text=text))["ts"]

    async def rooms(self, http: aiohttp.ClientSession) -> dict[str, list[Stands]]:
        team = (await self._get(http, "_fake/rooms"))["teams"][0]
        return {
            _slack_name(room, team["bot"]): [
                Stands(id=said["ts"], text=said["text"], unfinished=said["streaming"])
                for said in room["messages"]
                if said["bot"] and "only_for" not in said
            ]
            for room in team["rooms"]
        }


PLATFORMS: Final[Mapping[str, type[Platform]]] = {
    kind.name: kind for kind in (LineRooms, TelegramRooms, DiscordRooms, SlackRooms)
}


def server_of(name: str) -> Serve:
    """What runs a platform: it takes flags and what to call when the bot changed something."""
    module = "gateway.testing.platform" if name == "line" else f"channels.{name}.fake"
    return import_module(module).serve


async def arrived(output: asyncio.StreamReader, kind: type[Platform]) -> Platform | None:
    """The platform whose process tells of itself; None if it ends instead."""
    url = (await output.readline()).decode().strip()
    facts: dict[str, str] = {}
    while url and not all(name in facts for name in kind.needs):
        if not (line := await output.readline()):
            return None
        name, _, value = line.decode().strip().partition(" ")
        facts[name] = value
    return kind(url, facts) if url else None


def _id(message: Mapping[str, Any] | None, key: str) -> str | None:
    return None if message is None or message.get(key) is None else str(message[key])


def _slack_name(room: Mapping[str, Any], bot: str) -> str:
    """What people call a room: a direct message by the one who is not the bot."""
    if room["kind"] != "im":
        return room["name"]
    return f"@{next(name for name in room['members'] if name != bot)}"
