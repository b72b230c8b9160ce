"""The announcer: a plugin that announces notices and asks questions, after messages and by itself."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from inquiries import LEFT, RIGHT, Inquiry, Ledger, inquiry_for, title_of, typed_answer, typed_words
from model import word_in
from notices import Notebook, Notice, companion_of, key_for, revision, revisions_of

from gateway import Answer, Choice, Pass, Plugin, PluginContext, TrunklineError, TurnContext, UserInput

_EVERY = 0.15
"""Seconds between two notices without a message."""
_ASKS_AGAIN = 0.01
"""Probability that it repeats a question then, which must have no effect."""


class Announcer(Plugin):
    """Announces a notice for some messages, then its next revisions, and repeats announcements.

    For some others it asks their sender. Its ``notebook`` and ``ledger`` record its announcements and
    questions across restarts; ``taken`` is called after each recorded answer.
    """

    name = "announcer"

    def __init__(self, notebook: Notebook, ledger: Ledger, taken: Callable[[], None]) -> None:
        self._notebook = notebook
        self._ledger = ledger
        self._taken = taken
        self._inquiries: dict[str, Inquiry] = {}
        self._notices: dict[str, Notice] = {}
        self._telling = asyncio.Lock()
        self._ctx: PluginContext | None = None

    async def activate(self, ctx: PluginContext) -> None:
        self._ctx = ctx
        self._notices, self._inquiries = self._notebook.read(), self._ledger.read()
        assert ctx.tasks is not None
        assert ctx.questions is not None
        ctx.questions.on_answer(self._take)
        ctx.tasks.create_task(self._remind())

    async def transform_user_input(self, text: str, ctx: TurnContext) -> UserInput:
        word, address = word_in(text), msgspec.to_builtins(ctx.inbound.address)
        key, asks = key_for(word), inquiry_for(word)
        if address["channel"].startswith("telegram") and ctx.inbound.address.group:
            return Pass()  # Telegram takes 20 messages a minute in a group: draining would take minutes
        # A repeated attempt announces or asks again.
        if key is not None and address["channel"] not in ("websocket", "api"):
            await self._tell(key, address, 1)
        if asks is not None and address["channel"] not in ("websocket", "api", "line"):
            await self._ask(asks, Inquiry(address, ctx.sender.id))
        return Pass()

    async def _take(self, answer: Answer) -> None:
        self._ledger.write("end", answer.key, answer.state, answer.values)
        self._taken()

    async def _ask(self, key: str, inquiry: Inquiry) -> None:
        assert self._ctx is not None
        assert self._ctx.questions is not None
        async with self._telling:
            if key not in self._inquiries:
                self._ledger.write("asks", key, inquiry.address, inquiry.answerer)
                self._inquiries[key] = inquiry
            known = self._inquiries[key]
            words = tuple(map(typed_answer, typed_words(key)))
            choices = (Choice(LEFT), Choice(RIGHT, words=words))
            with contextlib.suppress(TrunklineError):  # the gateway starts or stops: this is repeated later
                await self._ctx.questions.ask(
                    known.address, title_of(key), key, answerers=(known.answerer,), choices=choices
                )
                if not known.kept:
                    self._ledger.write("asked", key)
                    known.kept = True

    async def _remind(self) -> None:
        while True:
            await asyncio.sleep(_EVERY)
            for key, notice in [*self._notices.items()]:
                companion = companion_of(key)
                if notice.kept < notice.tried:
                    await self._tell(key, notice.address, notice.tried)
                elif companion is not None and companion not in self._notices:
                    await self._tell(companion, notice.address, 1)
            for key, inquiry in [*self._inquiries.items()]:
                if not inquiry.kept or random.random() < _ASKS_AGAIN:
                    await self._ask(key, inquiry)
            if self._notices:
                key = random.choice([*self._notices])
                await self._tell(key, self._notices[key].address, self._notices[key].tried)
            due = [key for key, notice in self._notices.items() if notice.tried < revisions_of(key)]
            if due:
                key = random.choice(due)
                await self._tell(key, self._notices[key].address, self._notices[key].tried + 1)

    async def _tell(self, key: str, address: Mapping[str, Any], number: int) -> None:
        """Announce a revision of a notice, or the newest one if that is newer."""
        assert self._ctx is not None
        assert self._ctx.announce is not None
        async with self._telling:
            notice = self._notices.setdefault(key, Notice(address))
            number = max(number, notice.tried)
            if number > notice.tried:
                self._notebook.write(key, number, notice.address, kept=False)
                notice.tried = number
            with contextlib.suppress(TrunklineError):  # the gateway starts or stops: this is repeated later
                await self._ctx.announce(notice.address, revision(key, number), key)
                if notice.kept < number:
                    self._notebook.write(key, number, notice.address, kept=True)
                    notice.kept = number
