"""A chat with a gateway: receives frames, draws messages, and reports what the user must act on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct
from rich.text import Text

from gateway.cli.chat.conversation import Conversation, Question
from gateway.cli.chat.link import (
    Command,
    Completions,
    Contributions,
    Disconnected,
    Link,
    Offer,
    Ready,
    Refusal,
    ServerFrame,
)
from gateway.cli.chat.prompt import Prompt, status_text
from gateway.cli.chat.screen import Screen
from gateway.contract.deltas import MetadataDelta, RateLimit
from gateway.contract.errors import DeltaParseError, TrunklineError
from gateway.session.frames import ApprovalAsked, ApprovalResolved, MessageFrame, Replayed

_REDRAW_SECONDS = 0.08
_HISTORY_SHOWN = 20
_MOST_NEWS = 1_000
_COMPLETION_SECONDS = 2.0
_COLOURS = {"ansibrightblack": "dim", "ansired": "red", "ansigreen": "green", "ansiyellow": "yellow"}


class Opened(Struct, frozen=True):
    """The session is open; its history was received."""


class Settled(Struct, frozen=True):
    """The answer is complete, or none follows."""


class Interrupted(Struct, frozen=True):
    """The user pressed Ctrl-C during an answer."""


class Ended(Struct, frozen=True):
    """The link failed and does not reconnect."""

    error: TrunklineError


News = Opened | Settled | Interrupted | Ended | ApprovalAsked


class ChatSession:
    """One session. ``news`` has what the user must act on, or waits for."""

    def __init__(self, url: str, token: str | None, session: str, screen: Screen) -> None:
        self.session = session
        self.news: asyncio.Queue[News] = asyncio.Queue(_MOST_NEWS)
        self.model = ""
        self.question: Question | None = None
        self.prompt = Prompt(self._complete, lambda key: self._enqueue(lambda: self._link.press(key)))
        self._conversation = Conversation(session)
        self._link = Link(url, token, self._receive, contributions=True)
        self._screen = screen
        self._is_open = False
        self._user_types = False
        self._asked: set[str] = set()
        self._redraw: asyncio.TimerHandle | None = None
        self._work: asyncio.Queue[Callable[[], Awaitable[Any]]] = asyncio.Queue(_MOST_NEWS)
        self._completions: dict[int, asyncio.Future[Sequence[Offer]]] = {}
        self._numbers = itertools.count(1)

    async def run(self) -> None:
        """Stay connected until cancelled. The first news is Opened or Ended."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._work_off())
                await self._link.run()
        except* TrunklineError as group:
            error = next(each for each in group.exceptions if isinstance(each, TrunklineError))
            self.news.put_nowait(Ended(error))
        finally:
            self._screen.close_open()

    async def send(self, text: str) -> None:
        """Send a message; Settled follows when its answer is complete."""
        self._user_types = False
        self.question = Question(f"cli-{secrets.token_hex(12)}", text)
        await self._link.send(self.session, text, self.question.client_msg_id)

    async def abort(self) -> None:
        """Stop the answer."""
        await self._link.abort(self.session)

    async def approve(self, approval_id: str, decision: str | Sequence[str]) -> None:
        """Send the decision on a tool call, or the answer to another question."""
        self._user_types = False
        await self._link.approve(self.session, approval_id, decision)

    async def _complete(self, trigger: str, partial: str) -> Sequence[Offer]:
        """Ask the plugins for the completions of a mention."""
        number = next(self._numbers)
        answer = self._completions[number] = asyncio.get_running_loop().create_future()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_COMPLETION_SECONDS):
                    await self._link.complete(number, trigger, partial)
                    return await answer
            return ()
        finally:
            del self._completions[number]

    def _enqueue(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Run this after earlier work, because frames are received in a plain function."""
        with contextlib.suppress(asyncio.QueueFull):
            self._work.put_nowait(work)

    async def _work_off(self) -> None:
        while True:
            work = await self._work.get()
            await work()

    def _receive(self, session: str, frame: ServerFrame) -> None:
        """Process one frame."""
        match frame:
            case Ready():
                self._greet(frame)
            case Contributions():
                self._contribute(frame)
            case Completions():
                answer = self._completions.get(frame.id)
                if answer is not None and not answer.done():
                    answer.set_result(frame.completions)
            case Disconnected() if self._is_open:
                self._note(f"{frame.reason}; reconnecting …")
            case Refusal():
                self._refuse(frame)
            case _ if session == self.session:
                self._take(frame)
            case _:
                pass
        question = self.question
        if question is not None:
            question.take(frame)
            if self._conversation.settled(question, frame):
                self.question = None
                self._hand_over(Settled())

    def _greet(self, ready: Ready) -> None:
        self.model = ready.model
        self.prompt.offer_commands((*ready.commands, Command("exit", "Leave the chat")))
        if not self._is_open:
            self._enqueue(lambda: self._link.follow(self.session))

    def _contribute(self, frame: Contributions) -> None:
        self.prompt.contribute(frame.status, frame.shortcuts, frame.triggers)
        pieces = ((text, _COLOURS.get(style, "")) for style, text, *_ in status_text(frame.status))
        self._screen.status = Text.assemble(*pieces)

    def _refuse(self, refusal: Refusal) -> None:
        if refusal.error_name == "NotFoundError" and not self._is_open:
            self._open()  # a new session: its first message creates it
            return
        again = "; retrying …" if refusal.retryable and refusal.client_msg_id else ""
        self._note(f"{refusal.message}{again}", "red")

    def _take(self, frame: ServerFrame) -> None:
        match frame:
            case Replayed():
                if not self._is_open:
                    self._open()
            case ApprovalAsked() if frame.approval_id not in self._asked:
                self._asked.add(frame.approval_id)
                self._hand_over(frame)
            case ApprovalResolved(decision="timeout"):
                self._note("The question was not answered in time, which counts as no.")
            case MetadataDelta(rate_limit=RateLimit(retry_after_ms=wait, provider=provider)):
                how_long = f"{wait / 1000:.0f} s" if wait >= 1000 else "less than a second"
                self._note(f"{provider} is rate limited; retrying in {how_long}")
            case _:
                self._change(frame)

    def _change(self, frame: ServerFrame) -> None:
        try:
            entry = self._conversation.take(frame)
        except DeltaParseError:
            # A delta is missing: request the answer from its beginning.
            self._enqueue(lambda: self._link.follow_again(self.session))
            return
        if entry is None:
            return
        if isinstance(frame, MessageFrame) and self._is_own(frame):
            self._screen.skip(entry)
        if self._is_open and self._redraw is None:
            self._redraw = asyncio.get_running_loop().call_later(_REDRAW_SECONDS, self._draw)

    def _is_own(self, frame: MessageFrame) -> bool:
        """Return whether it is the message that the user just typed, which the screen already shows."""
        question, message = self.question, frame.message
        if question is None or message.role != "user":
            return False
        if question.ack is not None:
            return message.id == question.ack.message_id
        return message.text == question.text

    def _open(self) -> None:
        entries = list(self._conversation.entries.values())
        for entry in entries[:-_HISTORY_SHOWN]:
            self._screen.skip(entry)
        if len(entries) > _HISTORY_SHOWN:
            self._screen.note(f"… {len(entries) - _HISTORY_SHOWN} earlier messages: trunkline sessions show")
        for entry in entries:
            if entry.message is not None and entry.message.role == "user":
                self.prompt.remember(entry.message.text)
        self._is_open = True
        self._hand_over(Opened())

    def _draw(self) -> None:
        """Draw the changes; while the user types, only complete messages."""
        if self._redraw is not None:
            self._redraw.cancel()
            self._redraw = None
        entries = list(self._conversation.entries.values())[-_HISTORY_SHOWN:]
        if not self._user_types:
            self._screen.show(*entries)
            return
        complete = [entry for entry in entries if entry.done and not self._screen.has(entry)]
        if complete:
            self._print_above(lambda: self._screen.show(*complete))

    def _hand_over(self, news: News) -> None:
        """Give the terminal to the user until the next message is sent."""
        self._draw()
        self._screen.close_open()
        self._user_types = True
        self.news.put_nowait(news)

    def _note(self, text: str, style: str = "dim") -> None:
        self._print_above(lambda: self._screen.note(text, style))

    def _print_above(self, show: Callable[[], None]) -> None:
        self._enqueue(lambda: self.prompt.print_above(show))
