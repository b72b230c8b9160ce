"""Versions: editors edit messages and have answers regenerated over HTTP, and switch between the versions.

Replaced messages stay as a version. An acknowledged edit or switch survives every crash: each message is
answered once, the log shows what its editor saw last, and every hidden version still has its messages.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import aiohttp
from client import think
from failpoints import SWITCHED
from model import is_long, is_slow, is_whole, word_in
from msgspec import Struct, field
from record import Record, failed, text_of
from verdict import Verdict

from gateway.contract.messages import Message

EDITORS = 8
"""Number of editors."""
_FIRST = 500
"""The number of the first; clients and persons have lower ones."""
_PACE = 0.5
"""Seconds between two changes, on average."""
_AGAIN = 0.05
_LONGEST = 6
"""Exchanges of a conversation: a summary of a longer one would end its versions."""
_FRESH = 0.06
"""Probability that an editor begins a new conversation."""
_PATIENCE = aiohttp.ClientTimeout(total=10)


class Exchange(Struct, frozen=True):
    """An accepted message and its answer, by their ids; the answer holds the word of the message."""

    word: str
    message_id: str
    answer_id: str

    @property
    def ids(self) -> tuple[str, str]:
        """The ids of both."""
        return self.message_id, self.answer_id


class Hidden(Struct):
    """A version that is not shown: the answer before it, empty for none, and its exchanges."""

    point: str
    exchanges: list[Exchange]


class Conversation(Struct):
    """A conversation as the acknowledgements to its editor describe it."""

    session: str
    shown: list[Exchange] = field(default_factory=list[Exchange])
    hidden: dict[str, Hidden] = field(default_factory=dict[str, Hidden])
    """The hidden versions, by the ids of their first messages."""

    def hide(self, at: int) -> None:
        """Hide the shown exchanges from one on."""
        if tail := self.shown[at:]:
            point = self.shown[at - 1].answer_id if at else ""
            self.hidden[tail[0].message_id] = Hidden(point, tail)
            self.shown = self.shown[:at]

    def show(self, version: str) -> None:
        """Show a hidden version in place of what is shown there."""
        found = self.hidden.pop(version)
        self.hide(self._place(found) or 0)
        self.shown += found.exchanges

    @property
    def hidden_here(self) -> list[str]:
        """The versions that can be shown: those that follow an exchange that is shown."""
        return [version for version, found in self.hidden.items() if self._place(found) is not None]

    def _place(self, version: Hidden) -> int | None:
        answers = ["", *(exchange.answer_id for exchange in self.shown)]
        return answers.index(version.point) if version.point in answers else None


class Editor:
    """A person who changes a conversation, one request after the other, each repeated until acknowledged.

    ``armed`` returns the failpoint that the storm waits for, and ``reach`` is called at those of the editor.
    """

    def __init__(
        self,
        number: int,
        url: str,
        dice: random.Random,
        armed: Callable[[], str | None],
        reach: Callable[[str], None],
    ) -> None:
        self.conversations: list[Conversation] = []
        self.changes = 0
        """The number of acknowledged edits, repetitions and switches."""
        self.refusals: list[str] = []
        self._number = _FIRST + number
        self._url = f"{url}/api/sessions"
        self._dice = dice
        self._armed = armed
        self._reach = reach
        self._index = 0
        self._begin()

    async def write(self, until: Callable[[], bool]) -> None:
        """Make changes one after the other; return when the storm ends and the last change is complete."""
        async with aiohttp.ClientSession(timeout=_PATIENCE) as http:
            while not until():
                await think(self._dice.uniform(0, 2 * _PACE), until)
                await self._change(http)

    def _begin(self) -> None:
        self._now = Conversation(f"edited-{self._number}-{len(self.conversations)}")
        self.conversations.append(self._now)

    async def _change(self, http: aiohttp.ClientSession) -> None:
        now = self._now
        if len(now.shown) >= _LONGEST or self._dice.random() < _FRESH:
            self._begin()
            now = self._now
        kinds = {
            self._say: 0.35,
            self._edit: 0.25 if now.shown else 0,
            self._repeat: 0.15 if now.shown else 0,
        }
        kinds[self._switch] = 0.25 if now.hidden_here else 0
        if self._armed() == SWITCHED and now.hidden_here:
            kinds = {self._switch: 1}
        [act] = self._dice.choices([*kinds], [*kinds.values()])
        await act(http)

    async def _say(self, http: aiohttp.ClientSession) -> None:
        word = self._word()
        told = await self._acknowledged(http, "POST", "messages", word, text=f"{word}, please")
        await self._answered(http, word, told)

    async def _edit(self, http: aiohttp.ClientSession) -> None:
        word, at = self._word(), self._dice.randrange(len(self._now.shown))
        path = f"messages/{self._now.shown[at].message_id}/edit"
        told = await self._acknowledged(http, "POST", path, word, text=f"{word}, please")
        self._replaced(at, told)
        await self._answered(http, word, told)

    async def _repeat(self, http: aiohttp.ClientSession) -> None:
        at = self._dice.randrange(len(self._now.shown))
        old = self._now.shown[at]
        path = f"messages/{old.answer_id}/regenerate"
        told = await self._acknowledged(http, "POST", path, f"again-{self._word()}")
        self._replaced(at, told)
        await self._answered(http, old.word, told)

    def _replaced(self, at: int, told: Mapping[str, Any] | None) -> None:
        if told is not None:
            self._now.hide(at)
            self.changes += 1

    async def _switch(self, http: aiohttp.ClientSession) -> None:
        version = self._dice.choice(self._now.hidden_here)
        told = await self._acknowledged(http, "PUT", "branch", message_id=version)
        if told is None:
            return
        self._reach(SWITCHED)
        shown = {one["id"] for branch in told["branches"] for one in branch["versions"] if one["shown"]}
        if version not in shown:
            self.refusals.append(f"the switch to {version} was acknowledged, and {shown} are shown")
        self._now.show(version)
        self.changes += 1

    async def _acknowledged(
        self, http: aiohttp.ClientSession, method: str, path: str, key: str = "", **body: str
    ) -> Mapping[str, Any] | None:
        """Repeat a request until it is acknowledged, and return what the gateway says; None if refused."""
        url = f"{self._url}/{self._now.session}/{path}"
        given: dict[str, Any] = {"json": body} if body else {}
        headers = {"Idempotency-Key": key} if key else {}
        while True:
            try:
                async with http.request(method, url, headers=headers, **given) as response:
                    if response.status < 300:
                        return await response.json()
                    if response.status in (400, 404, 422):
                        self.refusals.append(f"{method} {path}: {response.status} {await response.text()}")
                        return None
            except (aiohttp.ClientError, ConnectionError, TimeoutError):
                pass
            await asyncio.sleep(_AGAIN)

    async def _answered(self, http: aiohttp.ClientSession, word: str, told: Mapping[str, Any] | None) -> None:
        """Wait for the answer to an accepted message."""
        if told is None:
            return
        self._now.shown.append(Exchange(word, told["message_id"], told["answer_id"]))
        while True:
            log = await self._acknowledged(http, "GET", "messages")
            if log is None or any(one["message"]["id"] == told["answer_id"] for one in log["messages"]):
                return
            await asyncio.sleep(_AGAIN)

    def _word(self) -> str:
        """Return the next word whose answer is short: no summary is made for it, and few kills meet it."""
        self._index += 1
        while is_long(word := f"q{self._number}x{self._index}") or is_slow(word):
            self._index += 1
        return word


def check_versions(verdict: Verdict, record: Record, editors: Sequence[Editor]) -> None:
    """Check the shown and hidden messages of each conversation. Its log is then no longer in the record."""
    verdict.channel = "versions"
    for editor in editors:
        for line in editor.refusals:
            verdict.add("wrong", line)
        for conversation in editor.conversations:
            _check_conversation(verdict, record, conversation)
    verdict.channel = ""


def _check_conversation(verdict: Verdict, record: Record, told: Conversation) -> None:
    session, log = told.session, record.take_out(told.session)
    _check_messages(verdict, f"{session} shows", told.shown, log)
    rows = {row["id"]: row for row in record.branches if row["session_id"] == session}
    for version, hidden in told.hidden.items():
        row = rows.pop(version, None)
        if row is None:
            verdict.add("lost", f"{session} has no version {version}")
            continue
        stored = record.hidden[session].get(-row["hidden"], ())
        _check_messages(verdict, f"the version {version} of {session} has", hidden.exchanges, stored)
    for version in rows:
        verdict.add("wrong", f"{session} has a version {version} that no change made")


def _check_messages(
    verdict: Verdict, where: str, wanted: Sequence[Exchange], found: Sequence[Message]
) -> None:
    """Check that there are these exchanges and no others, and that each answer is whole."""
    ids, there = [one for exchange in wanted for one in exchange.ids], [message.id for message in found]
    if missing := [one for one in ids if one not in there]:
        verdict.add("lost", f"{where} no {', '.join(missing)}")
    if more := [one for one in there if one not in ids]:
        verdict.add("duplicate", f"{where} also {', '.join(more)}")
    if sorted(ids) == sorted(there) and ids != there:
        verdict.add("out_of_order", f"{where} {there} instead of {ids}")
    texts = {message.id: message for message in found}
    for exchange in wanted:
        answer = texts.get(exchange.answer_id)
        if answer is not None and not failed(answer):
            text = text_of(answer)
            if not is_whole(text) or word_in(text) != exchange.word:
                verdict.add("wrong", f"{where} {text!r} as the answer to {exchange.word}")
