"""A platform of a storm, as its users see it: they write in its rooms and read them.

Each runs in its own process, which is never killed, and is driven over HTTP, as its page is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import aiohttp
from msgspec import Struct

Json = dict[str, Any]
Spot = Literal["direct", "group", "thread"]
"""Where a person writes: alone with the bot, in a group, or in a thread (a topic) of one that all share."""

HISTORY_OUTAGE = "3"
"""Seconds of each 12 in which histories cannot be read: a minute, twenty times as fast."""

_PATIENCE = aiohttp.ClientTimeout(total=20)
_LOADS = 20
"""How often a file is asked for again: platforms fail up to a third of all downloads."""


class ShownMessage(Struct, frozen=True, kw_only=True):
    """A message of the bot in a room. One that still grows is ``unfinished``.

    ``files`` are the pieces of answers that its files are, as ``piece_of`` names them.
    """

    id: str
    text: str
    reply_to: str | None = None
    unfinished: bool = False
    files: tuple[str, ...] = ()


class Question(Struct, frozen=True):
    """A message of the bot with buttons; ``button``, the first, allows what it asks for, once.

    ``approval`` is the gateway's id of the question, ``word`` the word that its tool is called with, and
    ``inquiry`` the key of the inquiry that it is instead.
    """

    room: str
    id: str
    button: str
    approval: str
    word: str
    inquiry: str | None = None


Rooms = dict[str, list[ShownMessage]]
"""The bot's messages, by room or by room/thread."""


class Platform(ABC):
    """A platform at ``url``. ``facts`` are further values that its process reported, by name.

    ``name`` is the gateway's channel, ``kind`` the platform. ``needs`` are the facts that the process has to
    report first. ``spots`` says where each person writes, and ``activity`` how much: less where
    the platform takes few calls a minute, because answers that are open when the faults end need that rate.
    ``asks`` says whether the bot can ask people there with buttons, ``tells_changes`` and ``tells_deletions``
    whether it is told that people change or delete what they wrote, ``takes_files`` whether messages can
    carry files there, ``files_in_order`` whether those of an answer are between its texts, and ``edits``
    whether the bot can change what it said.
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    needs: ClassVar[Sequence[str]] = ()
    activity: ClassVar[Mapping[Spot, float]] = {"direct": 1.0, "group": 1.0, "thread": 1.0}
    asks: ClassVar[bool] = True
    tells_changes: ClassVar[bool] = True
    tells_deletions: ClassVar[bool] = True
    takes_files: ClassVar[bool] = True
    files_in_order: ClassVar[bool] = False
    edits: ClassVar[bool] = True
    spots: ClassVar[Sequence[Spot]] = ("direct", "direct", "direct", "group", "thread", "thread")

    def __init__(self, url: str, facts: Mapping[str, str], gateway: str) -> None:
        self.url = url
        self.facts = facts
        self.gateway = gateway
        self._shared = ""

    @classmethod
    def flags(cls, gateway: str) -> Sequence[str]:
        """Return the flags of its process; ``gateway`` is the address of the gateway's own server."""
        return ()

    @property
    @abstractmethod
    def settings(self) -> Json:
        """Return the settings of the gateway's channel."""

    @abstractmethod
    async def open(self, http: aiohttp.ClientSession, person: str, spot: Spot) -> str:
        """Open a room for a person and the bot, or a thread of one. Returns its name."""

    @abstractmethod
    async def say(
        self, http: aiohttp.ClientSession, room: str, person: str, text: str, file: str | None = None
    ) -> str:
        """Write as a person, with the file of this name if there is one. Returns the message's id."""

    async def edit(
        self, http: aiohttp.ClientSession, room: str, person: str, message: str, text: str
    ) -> None:
        """Edit a message as its writer."""
        raise LookupError(f"{self.name} tells of no changes")

    async def delete(self, http: aiohttp.ClientSession, room: str, message: str) -> None:
        """Delete a message as its writer."""
        raise LookupError(f"{self.name} tells of no deletions")

    async def answer(self, http: aiohttp.ClientSession, question: Question, person: str, text: str) -> str:
        """Write as a person, as an answer to a question. Returns the message's id."""
        return await self.say(http, question.room, person, text)

    async def deletions(self, http: aiohttp.ClientSession) -> Mapping[str, float]:
        """Return when the gateway confirmed each deletion, by room:message, in monotonic seconds.

        Empty if the platform cannot tell.
        """
        return {}

    async def called(self, http: aiohttp.ClientSession) -> str:
        """Return the bot's name in rooms with several people; empty where it answers every message."""
        return ""

    async def questions(self, http: aiohttp.ClientSession) -> list[Question]:
        """Return the bot's questions in rooms whose buttons can still be pressed."""
        return []

    async def press(self, http: aiohttp.ClientSession, question: Question, person: str) -> str:
        """Press "allow once" as a person. Returns the argument for ``is_acknowledged``."""
        raise LookupError(f"{self.name} has no buttons")

    async def is_acknowledged(self, http: aiohttp.ClientSession, question: Question, press: str) -> bool:
        """Return whether the bot acknowledged a press, whatever its result."""
        raise LookupError(f"{self.name} has no buttons")

    @abstractmethod
    async def rooms(self, http: aiohttp.ClientSession) -> Rooms:
        """Return the bot's messages in each room, in order."""

    async def transcript(self, http: aiohttp.ClientSession) -> bytes:
        """Return the platform's log of the gateway's last calls, for diagnosis."""
        async with http.get(f"{self.url}/_fake/transcript", timeout=_PATIENCE) as response:
            return await response.read()

    async def _post(self, http: aiohttp.ClientSession, path: str, **content: object) -> Json:
        async with http.post(f"{self.url}/{path}", json=content, timeout=_PATIENCE) as response:
            response.raise_for_status()
            return await response.json()

    async def _load(self, http: aiohttp.ClientSession, url: str, token: str = "") -> bytes | None:
        """Return a file's bytes; None if it was deleted. Random failures are retried."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        for last in (*[False] * _LOADS, True):
            try:
                async with http.get(url, headers=headers, timeout=_PATIENCE) as response:
                    if response.status == 404:
                        return None
                    response.raise_for_status()
                    return await response.read()
            except aiohttp.ClientError:
                if last:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _get(self, http: aiohttp.ClientSession, path: str) -> Json:
        async with http.get(f"{self.url}/{path}", timeout=_PATIENCE) as response:
            response.raise_for_status()
            return await response.json()
