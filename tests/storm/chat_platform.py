"""A platform of a storm as its people see it: how they write in its rooms, what stands there in the end.

Each runs in a process of its own, which nobody kills, and is driven over HTTP, as its page is.
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


class Stands(Struct, frozen=True, kw_only=True):
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


Rooms = dict[str, list[Stands]]
"""What stands of the bot, by room or by room/thread."""


class Platform(ABC):
    """A platform at ``url``. ``facts`` is what its process told besides, by name.

    ``name`` is the gateway's channel, ``kind`` whose it is. ``needs`` are the facts that the process has to
    tell first. ``spots`` says where each person writes, and ``zeal`` how much they do there: less where the
    platform takes few calls a minute, as what is owed when the storm ends has to be paid at that rate.
    ``asks`` says whether the bot can ask people there with buttons, ``tells_changes`` and ``tells_deletions``
    whether it is told that people change or delete what they wrote, ``takes_files`` whether messages can
    carry files there, ``files_in_order`` whether those of an answer are between its texts, and ``edits``
    whether the bot can change what it said.
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    needs: ClassVar[Sequence[str]] = ()
    zeal: ClassVar[Mapping[Spot, float]] = {"direct": 1.0, "group": 1.0, "thread": 1.0}
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
        """What its process is started with; ``gateway`` is the address of the gateway's own server."""
        return ()

    @property
    @abstractmethod
    def settings(self) -> Json:
        """The settings of the gateway's channel."""

    @abstractmethod
    async def open(self, http: aiohttp.ClientSession, person: str, spot: Spot) -> str:
        """A room for a person and the bot, or a thread of one. Returns its name."""

    @abstractmethod
    async def say(
        self, http: aiohttp.ClientSession, room: str, person: str, text: str, file: str | None = None
    ) -> str:
        """A person writes, with the file of this name if there is one. Returns the message's id."""

    async def edit(
        self, http: aiohttp.ClientSession, room: str, person: str, message: str, text: str
    ) -> None:
        """A person changes what they wrote."""
        raise LookupError(f"{self.name} tells of no changes")

    async def delete(self, http: aiohttp.ClientSession, room: str, message: str) -> None:
        """A person takes away what they wrote."""
        raise LookupError(f"{self.name} tells of no deletions")

    async def deletions(self, http: aiohttp.ClientSession) -> Mapping[str, float]:
        """When the gateway had confirmed each deletion, by room:message, in monotonic seconds; as far as the
        platform can tell."""
        return {}

    async def called(self, http: aiohttp.ClientSession) -> str:
        """What the bot is called where others read along; empty where it answers everything."""
        return ""

    async def questions(self, http: aiohttp.ClientSession) -> list[Question]:
        """What the bot asks in rooms, with buttons that can still be pressed."""
        return []

    async def press(self, http: aiohttp.ClientSession, question: Question, person: str) -> str:
        """A person allows what the bot asks for, once. Returns what ``is_acknowledged`` needs."""
        raise LookupError(f"{self.name} has no buttons")

    async def is_acknowledged(self, http: aiohttp.ClientSession, question: Question, press: str) -> bool:
        """Return whether the bot acknowledged a press, whatever the press came to."""
        raise LookupError(f"{self.name} has no buttons")

    @abstractmethod
    async def rooms(self, http: aiohttp.ClientSession) -> Rooms:
        """What stands of the bot in each room, in order."""

    async def transcript(self, http: aiohttp.ClientSession) -> bytes:
        """What the platform noted of the gateway's last calls, to look at afterwards."""
        async with http.get(f"{self.url}/_fake/transcript", timeout=_PATIENCE) as response:
            return await response.read()

    async def _post(self, http: aiohttp.ClientSession, path: str, **content: object) -> Json:
        async with http.post(f"{self.url}/{path}", json=content, timeout=_PATIENCE) as response:
            response.raise_for_status()
            return await response.json()

    async def _load(self, http: aiohttp.ClientSession, url: str, token: str = "") -> bytes | None:
        """Return a file's bytes; None if it was deleted. What fails by chance is tried again."""
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
