"""A conversation with a gateway, run by an event loop in a thread of its own.

The thread that belongs to the terminal asks and waits; this one keeps the link, draws what comes, and
hands over what the other must act on.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import signal
import threading
from collections.abc import Coroutine
from typing import Any

from msgspec import Struct

from gateway.cli.conversation import Conversation, Question
from gateway.cli.link import Link
from gateway.cli.prompt import Prompt
from gateway.cli.screen import Screen
from gateway.cli.wire import Heard, Lost, Ready, Refusal
from gateway.deltas import MetadataDelta, RateLimit
from gateway.errors import DeltaParseError, TrunklineError
from gateway.frames import ApprovalAsked, ApprovalResolved, MessageFrame, Replayed

_REDRAW_SECONDS = 0.08
_HISTORY_SHOWN = 20
_NEWS = 1_000
_FAREWELL_SECONDS = 5.0


class Opened(Struct, frozen=True):
    """The session is there, with what was said in it so far."""


class Settled(Struct, frozen=True):
    """The answer is finished, or there will be none."""


class Ended(Struct, frozen=True):
    """The link cannot go on."""

    error: TrunklineError


News = Opened | Settled | Ended | ApprovalAsked


class Talk:
    """One session. ``news`` is what the terminal's thread waits for."""

    def __init__(self, url: str, token: str | None, session: str, screen: Screen, prompt: Prompt) -> None:
        self.session = session
        self.news: queue.Queue[News] = queue.Queue(_NEWS)
        self.model = ""
        self.question: Question | None = None
        self._conversation = Conversation(session)
        self._link = Link(url, token, self._receive)
        self._screen = screen
        self._prompt = prompt
        self._open = False
        self._handed_over = False
        self._asked: set[str] = set()
        self._redraw: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)

    def start(self) -> None:
        """Connect, in the background. The first news is Opened or Ended."""
        self._thread.start()

    def stop(self) -> None:
        """Let the link go."""
        if self._loop is not None and self._task is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(_FAREWELL_SECONDS)

    def say(self, text: str) -> Question:
        """Send a message; Settled comes when its answer is finished."""
        self._handed_over = False
        self.question = Question(f"cli-{secrets.token_hex(12)}", text)
        self._soon(self._link.say(self.session, text, self.question.client_msg_id))
        return self.question

    def abort(self) -> None:
        """Stop the answer."""
        self._soon(self._link.abort(self.session))

    def approve(self, approval_id: str, decision: str) -> None:
        """Answer a tool's question."""
        self._handed_over = False
        self._soon(self._link.approve(self.session, approval_id, decision))

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        if self._loop is None or self._loop.is_closed():
            work.close()
        else:
            asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run(self) -> None:
        # Ctrl-C is for the thread of the terminal, which waits in a call that only a signal of its own ends.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            asyncio.run(self._serve())
        except asyncio.CancelledError:
            pass  # ``stop`` asked for it, and this thread ends here
        finally:
            self._screen.rest()

    async def _serve(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            await self._link.run()
        except TrunklineError as error:
            self.news.put_nowait(Ended(error))

    def _receive(self, session: str, heard: Heard) -> None:
        """Take one frame in, and say what follows from it."""
        match heard:
            case Ready():
                self._greeted(heard)
            case Lost() if self._open:
                self._say_aside(f"{heard.reason}; connecting again …")
            case Refusal():
                self._refused(heard)
            case _ if session == self.session:
                self._event(heard)
            case _:
                pass
        question = self.question
        if question is not None:
            question.take(heard)
            if self._conversation.settled(question, heard):
                self.question = None
                self._hand_over(Settled())

    def _greeted(self, ready: Ready) -> None:
        self.model = ready.model
        self._prompt.offer([f"/{command.name}" for command in ready.commands] + ["/exit"])
        if not self._open:
            self._soon(self._link.follow(self.session))

    def _refused(self, refusal: Refusal) -> None:
        if refusal.error_name == "NotFoundError" and not self._open:
            self._opened()  # the session is a new one; its first message makes it
            return
        again = "; trying again …" if refusal.retryable and refusal.client_msg_id else ""
        self._say_aside(f"{refusal.error_name}: {refusal.message}{again}", "red")

    def _event(self, heard: Heard) -> None:
        match heard:
            case Replayed():
                if not self._open:
                    self._opened()
            case ApprovalAsked() if heard.approval_id not in self._asked:
                self._asked.add(heard.approval_id)
                self._hand_over(heard)
            case ApprovalResolved(decision="timeout"):
                self._say_aside("Nobody answered in time; the tool does not run.")
            case MetadataDelta(rate_limit=RateLimit(retry_after_ms=wait, provider=provider)):
                how_long = f"{wait / 1000:.0f} s" if wait >= 1000 else "a moment"
                self._say_aside(f"{provider} has to be waited for: {how_long}")
            case _:
                self._changed(heard)

    def _changed(self, heard: Heard) -> None:
        try:
            entry = self._conversation.take(heard)
        except DeltaParseError:
            # Something is missing here: let the gateway show the answer from its beginning.
            self._soon(self._link.follow_again(self.session))
            return
        if entry is None:
            return
        if isinstance(heard, MessageFrame) and self._is_ours(heard):
            self._screen.skip(entry)
        if self._open and self._redraw is None and self._loop is not None:
            self._redraw = self._loop.call_later(_REDRAW_SECONDS, self._draw)

    def _is_ours(self, frame: MessageFrame) -> bool:
        """Whether it is the message that was just typed, which stands on the screen already."""
        question, message = self.question, frame.message
        if question is None or message.role != "user":
            return False
        if question.ack is not None:
            return message.id == question.ack.message_id
        return message.text == question.text

    def _opened(self) -> None:
        entries = list(self._conversation.entries.values())
        for entry in entries[:-_HISTORY_SHOWN]:
            self._screen.skip(entry)
        if len(entries) > _HISTORY_SHOWN:
            self._screen.note(f"… {len(entries) - _HISTORY_SHOWN} earlier messages: trunkline sessions show")
        for entry in entries:
            if entry.message is not None and entry.message.role == "user":
                self._prompt.remember(entry.message.text)
        self._open = True
        self._hand_over(Opened())

    def _draw(self) -> None:
        """Draw what changed; while a person has the terminal, only messages that are finished."""
        if self._redraw is not None:
            self._redraw.cancel()
            self._redraw = None
        entries = list(self._conversation.entries.values())[-_HISTORY_SHOWN:]
        if not self._handed_over:
            self._screen.show(*entries)
            return
        finished = [entry for entry in entries if entry.done and not self._screen.has(entry)]
        if finished:
            self._prompt.aside(lambda: self._screen.show(*finished))

    def _hand_over(self, news: News) -> None:
        """The terminal belongs to the person until they have said something."""
        self._draw()
        self._screen.rest()
        self._handed_over = True
        self.news.put_nowait(news)

    def _say_aside(self, text: str, style: str = "dim") -> None:
        self._prompt.aside(lambda: self._screen.note(text, style))
