"""The persons of a storm, who write in rooms of platforms, and edit, delete and undo messages."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence

import aiohttp
from chat_platform import Platform, Question, ShownMessage
from client import Sent, next_message, think
from model import is_slow

_CHATS = 0.3
"""Probability that a person writes to others before asking the bot."""
_UNSAYS = 0.3
"""Probability that they delete that after asking."""
_CHANGES, _SLOW_CHANGES = 0.15, 0.5
"""Probability that a message is edited, in general and if its answer is slow."""
_DELETES, _SLOW_DELETES = 0.05, 0.2
_SECOND_THOUGHTS = 2.5
"""Maximum seconds until the edit."""
_REVISES_AFTER = 1.0
"""Seconds until the edit of a message with a slow answer, which takes about twice as long."""
_UNDOES, _REDOES = 0.5, 0.4
"""Probability of an undo after a message, and of a redo after that."""
_READS = 30.0
"""Maximum seconds to wait for the end of an answer before an undo."""
_LOOKS = 4.0
"""Maximum seconds to wait for the beginning of an answer."""


class Person:
    """A person who writes in a room of a platform, alone with the bot, with some ``activity``.

    With ``chats`` they also write messages that do not address the bot by the name ``called``. Each
    revision of a message has its own word. ``files`` is the probability that a message is about a
    file; ``rings`` says whether the storm waits for a question with buttons.
    """

    def __init__(
        self,
        number: int,
        platform: Platform,
        room: str,
        dice: random.Random,
        activity: float = 1.0,
        called: str = "",
        files: float = 0.0,
        rings: Callable[[], bool] = bool,
        *,
        chats: bool = False,
        undoes: bool = False,
    ) -> None:
        self.undoes = undoes
        """Whether they undo and redo, and neither edit nor delete messages."""
        self.number = number
        self.name = name_of(number)
        self.platform = platform
        self.room = room
        self.activity = activity
        self.sent: list[Sent] = []
        self.typed: list[str] = []
        """The words of answers that they typed to inquiries."""
        self._dice = dice
        self._called = called
        self._chats = chats
        self._files = files if platform.takes_files else 0.0
        self._rings = rings

    async def write(self, pace: Callable[[], float], until: Callable[[], bool]) -> None:
        """Write messages, one every ``pace`` seconds on average; with less activity, less often."""
        async with aiohttp.ClientSession() as http:
            while not until():
                await think(self._dice.uniform(0, 2 * pace()) / self.activity, until)
                await self.say(http)
                await self._revise(http, until)

    async def say(self, http: aiohttp.ClientSession) -> None:
        """Write one message."""
        aside = None
        if self._chats and self._dice.random() < _CHATS:
            aside = await self.platform.say(http, self.room, self.name, "This is not for you.")
        sent = self._thought()
        words = self._spoken(sent)
        sent.message_id = await self.platform.say(http, self.room, self.name, words, sent.file)
        self.sent.append(sent)
        if aside is not None and self.platform.tells_deletions and self._dice.random() < _UNSAYS:
            await self.platform.delete(http, self.room, aside)

    @property
    def can_type(self) -> bool:
        """Return whether their messages need no bot name in front, so that they can answer a question."""
        return not self._called

    async def type(self, http: aiohttp.ClientSession, question: Question, word: str, text: str) -> None:
        """Answer an inquiry by typing."""
        self.typed.append(word)
        await self.platform.answer(http, question, self.name, text)

    async def write_and_revise(self, http: aiohttp.ClientSession) -> None:
        """Write a message with a slow answer, and edit or delete it while the answer grows."""
        await self.say(http)
        if self.platform.tells_deletions and self.number % 2:
            await self._look(http)
            await self._delete(http)
        else:
            await asyncio.sleep(_REVISES_AFTER)
            await self._change(http)

    async def _look(
        self,
        http: aiohttp.ClientSession,
        text: str = "",
        seconds: float = _LOOKS,
        until: Callable[[], bool] = bool,
    ) -> None:
        """Wait until a part of the answer is shown, so that there is something to delete."""
        word = text or self.sent[-1].word
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not until() and not any(word in said.text for said in await self._standing(http)):
                    await asyncio.sleep(0.05)

    async def _standing(self, http: aiohttp.ClientSession) -> Sequence[ShownMessage]:
        return (await self.platform.rooms(http)).get(self.room, ())

    async def _revise(self, http: aiohttp.ClientSession, until: Callable[[], bool]) -> None:
        """Edit or delete the last message before, during or after its answer."""
        if self.undoes:
            await self._look(http, f"end of {self.sent[-1].word}", _READS, until)
            for command, likely in (("/undo", _UNDOES), ("/undo", _UNDOES / 2), ("/redo", _REDOES)):
                if self._dice.random() < likely:
                    await think(self._dice.uniform(0, 2 * _SECOND_THOUGHTS), until)
                    await self.platform.say(http, self.room, self.name, command)
            return
        while self.platform.tells_changes and self._is(_CHANGES, _SLOW_CHANGES):
            await think(self._dice.uniform(0, _SECOND_THOUGHTS), until)
            await self._change(http)
        if self.platform.tells_deletions and self._is(_DELETES, _SLOW_DELETES):
            await think(self._dice.uniform(0, _SECOND_THOUGHTS), until)
            await self._delete(http)

    async def _change(self, http: aiohttp.ClientSession) -> None:
        before, sent = self.sent[-1], self._thought()
        sent.message_id, sent.revises = before.message_id, before
        sent.file = before.file  # another text, the same file
        await self.platform.edit(http, self.room, self.name, sent.message_id or "", self._spoken(sent))
        before.replaced = True
        self.sent.append(sent)

    async def _delete(self, http: aiohttp.ClientSession) -> None:
        last = self.sent[-1]
        await self.platform.delete(http, self.room, last.message_id or "")
        last.deleted = True

    def _is(self, likely: float, for_slow: float) -> bool:
        return self._dice.random() < (for_slow if is_slow(self.sent[-1].word) else likely)

    def _thought(self) -> Sent:
        asks, rings = self.platform.asks, self._rings()
        return next_message(self.number, len(self.sent), self._dice, self._files, asks=asks, rings=rings)

    def _spoken(self, sent: Sent) -> str:
        return f"{self._called} {sent.text}".strip()


def name_of(number: int) -> str:
    """Return the name of a person."""
    return f"p{number}"
