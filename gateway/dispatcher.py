"""The dispatcher: one mailbox per session. Strict order inside a session, no waiting between sessions."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Sequence

import structlog

from gateway.errors import FAILURES, TrunklineError, asked_for
from gateway.inbox import Entry
from gateway.messages import now_ms
from gateway.runner import Runner
from gateway.session import Session
from gateway.store import Store
from gateway.wordings import replace_older

log = structlog.get_logger("trunkline.dispatcher")

_LONGEST_BACKOFF = 60.0


class PoisonedMessageError(TrunklineError):
    """The gateway died every time it tried to answer this message."""


class Mailbox:
    """What waits in one session, in the platform's order."""

    __slots__ = ("entries", "running", "session", "working")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.entries: list[Entry] = []
        self.running: Entry | None = None
        self.working = False

    def add(self, entry: Entry) -> None:
        """Put an entry in its place; /stop comes first, for it is about what runs now."""
        insort(self.entries, entry, key=lambda e: (e.inbound.text.strip() != "/stop", e.ord))
        self._stop(replace_older(self._open))

    def withdraw(self, dedup_key: str) -> bool:
        """Let a message need no answer, in whichever wording it stands. Returns whether there was one."""
        found = [entry for entry in self._open if entry.inbound.original == dedup_key]
        for entry in found:
            entry.silent = True
        self._stop(found)
        return bool(found)

    @property
    def _open(self) -> list[Entry]:
        """What has no answer yet that counts."""
        there = self.entries if self.running is None else [self.running, *self.entries]
        return [entry for entry in there if not (entry.answered or entry.merged)]

    def _stop(self, silent: Sequence[Entry]) -> None:
        """End the turn of one of these, if it runs."""
        turn = self.session.turn if silent else None
        if turn is not None and any(turn.entry is entry for entry in silent):
            turn.abort()


class Dispatcher:
    """Hands accepted messages to their sessions' workers.

    Its tasks live in the group it is given. ``waiting`` counts what is accepted and not settled. A message
    that the gateway died with again and again waits ever longer, at most ``longest_wait`` seconds.
    """

    def __init__(self, tasks: asyncio.TaskGroup, runner: Runner, store: Store, max_attempts: int) -> None:
        self._tasks = tasks
        self._runner = runner
        self._store = store
        self._max_attempts = max_attempts
        self._mailboxes: dict[str, Mailbox] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.stopping = False
        self.waiting = 0
        self.longest_wait = _LONGEST_BACKOFF

    def expect(self, session: Session) -> int:
        """A message is about to be accepted. Returns 1 if it will run at once: that is its first attempt."""
        session.pending += 1
        self.waiting += 1
        return 1 if session.pending == 1 else 0

    def forget(self, session: Session) -> None:
        """A message that was expected is settled, or did not come."""
        session.pending -= 1
        self.waiting -= 1

    def deliver(self, session: Session, entry: Entry) -> None:
        """Queue a committed message that was expected."""
        mailbox = self._mailboxes.get(session.id)
        if mailbox is None:
            mailbox = self._mailboxes[session.id] = Mailbox(session)
        mailbox.add(entry)
        if not mailbox.working and not self.stopping:
            mailbox.working = True
            self._idle.clear()
            worker = self._tasks.create_task(self._work(mailbox))
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    def withdraw(self, session: Session, dedup_key: str) -> bool:
        """Let a message that is not answered yet need no answer, in whichever wording it stands.

        Returns whether there was one.
        """
        mailbox = self._mailboxes.get(session.id)
        return mailbox is not None and mailbox.withdraw(dedup_key)

    async def drain(self, seconds: float) -> bool:
        """Start nothing new and wait for running turns. Returns whether all ended in time."""
        self.stopping = True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def cancel(self) -> None:
        """End what still runs; it stays accepted and is run again after the restart."""
        for worker in tuple(self._workers):
            worker.cancel()

    async def _work(self, mailbox: Mailbox) -> None:
        try:
            while mailbox.entries and not self.stopping:
                entry = mailbox.running = mailbox.entries.pop(0)
                try:
                    await self._attempt(mailbox.session, entry)
                finally:
                    mailbox.running = None
                    self.forget(mailbox.session)
        finally:
            mailbox.working = False
            del self._mailboxes[mailbox.session.id]
            if not self._mailboxes:
                self._idle.set()

    async def _attempt(self, session: Session, entry: Entry) -> None:
        """Bring one entry to its outcome; whatever goes wrong with it ends here."""
        first = entry.attempts == 1 and not entry.recovered
        before = 0 if first else entry.attempts
        try:
            if first or entry.silent or await self._claim(session, entry):
                await self._runner.run(session, entry)
        except FAILURES as error:
            if asked_for(error):
                # The gateway stops in good order: that is no attempt the message could be blamed for.
                entry.attempts = before
                self._store.submit([entry.claim()])
                raise
            log.exception("a message could not be answered", session=session.id, message=entry.id)
            await self._runner.bury(session, entry, error)

    async def _claim(self, session: Session, entry: Entry) -> bool:
        """Count the attempt before it is made, so that a message that kills the process counts too."""
        if entry.attempts >= self._max_attempts:
            died = PoisonedMessageError(f"gave up after {entry.attempts} attempts")
            await self._runner.bury(session, entry, died)
            return False
        await asyncio.sleep(max(0, entry.not_before - now_ms()) / 1000)
        entry.attempts += 1
        entry.not_before = now_ms() + round(backoff(entry.attempts, self.longest_wait) * 1000)
        await self._store.write(entry.claim(), session.touch())
        return True


def backoff(attempts: int, longest: float = _LONGEST_BACKOFF) -> float:
    """Seconds from one attempt to the next: none after the first crash, then 1, 2, 4 … up to the longest."""
    return 0.0 if attempts < 2 else min(longest, 2.0 ** min(attempts - 2, 30))
