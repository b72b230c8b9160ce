"""The dispatcher and its mailboxes, one per session: order within a session, no waiting between sessions.

A mailbox keeps the first messages of a session in memory and leaves the others on disk, so that a flood in
one session costs disk space instead of memory. One worker empties each mailbox, one message at a time.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from gateway.backoff import Backoff
from gateway.contract.errors import CATCHABLE, StoreError, TrunklineError, is_cancellation_requested
from gateway.contract.messages import now_ms
from gateway.events.types import SessionIdle
from gateway.extensions.hooks import observing
from gateway.pipeline.revisions import supersede_older
from gateway.pipeline.runner import Runner
from gateway.rooms.context import without_context
from gateway.session import Session
from gateway.store import Store
from gateway.store.inbox import Backlog, Entry, Inbox, SenderKey
from gateway.trail import NO_TRAIL, TrailMode, begin_trail

log = structlog.get_logger("trunkline.dispatcher")

_LONGEST_PAUSE = 60.0
_READ_AGAIN_SECONDS = 5.0
"""Pause after a read of waiting messages that failed."""


class PoisonedMessageError(TrunklineError):
    """Raised for a message that was being answered each time the gateway died."""


class Mailbox:
    """The queue of one session, in the platform's order: ``capacity`` messages in memory, the rest on disk.

    All messages in memory come before those on disk. ``stored`` counts the messages on disk by sender. A
    mailbox of an earlier process has no session until it is loaded. A second one of a session, ``aside``,
    holds the commands that act beside its running answer.
    """

    def __init__(self, session: Session | None = None, capacity: int = 50, *, aside: bool = False) -> None:
        self.session, self.aside = session, aside
        self.overload_reported = False
        """Value for the session's attribute of this name when it is loaded."""
        self.capacity = capacity
        self.entries: list[Entry] = []
        self.stored: Counter[SenderKey] = Counter()
        self.withdrawn: set[tuple[str, str, str]] = set()
        """Channel, account and key of deleted messages that a running read of the disk may still return."""
        self.revised = False
        """An entry so far was a revision of another message."""
        self.revisions: list[Entry] = []
        """Revisions that stayed on disk, while a running read may still return what they replace."""
        self.asides: set[str] = set()
        """Ids of the commands beside the running answer that a running read may still return."""
        self.running: Entry | None = None
        self.worker: asyncio.Task[None] | None = None
        self.interrupted = asyncio.Event()
        """Set when the running message was stopped or deleted, so that it does not wait for its next
        attempt."""

    def add(self, entry: Entry) -> Entry | None:
        """Queue an entry in its place; /stop comes first, because it concerns the running answer.

        Returns the entry that has to stay on disk instead, if any: the last one, or the entry itself.
        """
        # Most sessions have no revisions, and the queue need not be grouped by message.
        self.revised = self.revised or entry.inbound.revises is not None
        if self.revised:
            self._abort(supersede_older([*self.all, entry]))
        stays = self._place(entry)
        if stays is not None and stays.inbound.revises is not None:
            self.revisions.append(stays)
        return stays

    def _place(self, entry: Entry) -> Entry | None:
        if not self.stored and len(self.entries) + 1 < self.capacity:
            self._insert(entry)
            return None
        waiting = [one for one in self.entries if _can_stay_on_disk(one)]
        is_last = not waiting or waiting[-1].ord <= entry.ord
        is_full = len(waiting) + (self.running is not None) >= self.capacity
        if _can_stay_on_disk(entry) and is_last and (self.stored or is_full):
            return entry
        self._insert(entry)
        if not (_can_stay_on_disk(entry) and is_full and waiting):
            return None
        # The last one moves to disk. It is loaded in its order, so no message there overtakes it.
        self.entries.remove(waiting[-1])
        return waiting[-1]

    def _insert(self, entry: Entry) -> None:
        if self.entries and self.entries[-1].sort_key > entry.sort_key:
            insort(self.entries, entry, key=lambda e: e.sort_key)
        else:
            self.entries.append(entry)

    def load(self, entries: Sequence[Entry], arrange: Callable[[list[Entry]], list[Entry]] = list) -> int:
        """Queue those entries from disk that ``arrange`` selects, in their places. Returns their number."""
        # What was deleted or revised while they were read is known here alone. It is applied first: messages
        # that ``arrange`` merges are answered as they are.
        for entry in entries:
            if any(entry.is_revision_of(*name) for name in self.withdrawn):
                entry.silent, entry.interrupted = True, "withdrawn"
        loaded = {entry.id for entry in (*self.all, *entries)}
        supersede_older([*self.all, *entries, *(one for one in self.revisions if one.id not in loaded)])
        arranged = arrange([*entries])
        for entry in arranged:
            self._insert(entry)
            self.revised = self.revised or entry.inbound.revises is not None
        return len(arranged)

    def withdraw(self, channel: str, account: str, dedup_key: str) -> list[Entry]:
        """Mark a message as deleted, in all its revisions, so that it is not answered.

        Returns those in memory.
        """
        unanswered = [entry for entry in self.all if not entry.answered]
        several = [one for entry in unanswered for one in (*entry.merged, entry)]
        found = [one for one in several if one.is_revision_of(channel, account, dedup_key)]
        for one in found:
            one.silent, one.interrupted, one.trail = True, "withdrawn", NO_TRAIL
        for one in several:
            if one.inbound.before and one.channel == channel and one.inbound.address.account == account:
                one.inbound = without_context(one.inbound, (dedup_key,))
        if self.stored:
            self.withdrawn.add((channel, account, dedup_key))
        self._abort([entry for entry in unanswered if not entry.to_answer])
        return found

    def stop(self, answer_id: str | None = None) -> Entry | None:
        """Stop the running answer, or the next one if none is running; with ``answer_id``, only if it is
        that one. Returns the message it answers."""
        entry = self.running or next((entry for entry in self.entries if not entry.priority), None)
        if entry is None or entry.answered or entry.silent or answer_id not in (None, entry.answer_id):
            return None
        entry.interrupted = "stopped"
        self._abort([entry])
        return entry

    def find(self, entry_id: str) -> Entry | None:
        """Return an entry that is in memory and not settled."""
        return next((entry for entry in self.all if entry.id == entry_id and not entry.closed), None)

    @property
    def announced(self) -> list[Entry]:
        """The announcements that it holds."""
        return [entry for entry in self.all if entry.announced]

    @property
    def all(self) -> list[Entry]:
        """The entries in memory, with the running one."""
        return self.entries if self.running is None else [self.running, *self.entries]

    def _abort(self, entries: Sequence[Entry]) -> None:
        """Abort the running turn if it answers one of these entries."""
        if any(entry is self.running for entry in entries):
            self.interrupted.set()
        turn = self.session.turn if entries and self.session is not None else None
        if turn is not None and any(turn.entry is entry for entry in entries):
            turn.abort()


@dataclass(kw_only=True, eq=False)
class Dispatcher:
    """Hands accepted messages to the workers of their sessions.

    The workers live in the given task group. ``waiting`` counts accepted messages that are not settled,
    ``stored`` those that are only on disk, by sender. ``capacity`` is the number of messages of a session
    that are kept in memory. ``longest_wait`` limits, in seconds, the pauses before a message is tried again
    that was being answered when the gateway died, and before a read that failed is repeated.
    """

    tasks: asyncio.TaskGroup
    runner: Runner
    store: Store
    inbox: Inbox
    max_attempts: int
    capacity: int = 50
    trail: TrailMode = "full"

    def __post_init__(self) -> None:
        self._mailboxes: dict[tuple[str, bool], Mailbox] = {}
        self._arriving: defaultdict[str, set[str]] = defaultdict(set)
        """Ids of entries that are being committed and are not in their mailbox yet, by session."""
        self._workers: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.stopping = False
        self.waiting = 0
        self.stored: Counter[SenderKey] = Counter()
        self.arrange: Callable[[list[Entry]], list[Entry]] = lambda entries: entries
        """Selects the entries to answer from those loaded from disk; the intake merges old ones."""
        self.longest_wait = _LONGEST_PAUSE

    def mailbox(self, session_id: str) -> Mailbox | None:
        """Return the mailbox of a session; None if nothing waits in it."""
        return self._mailboxes.get((session_id, False))

    def worker(self, session_id: str) -> asyncio.Task[None] | None:
        """Return the task that answers the messages of a session; None if nothing waits in it."""
        mailbox = self.mailbox(session_id)
        return None if mailbox is None else mailbox.worker

    def mailboxes(self) -> list[Mailbox]:
        """Return the mailboxes in which something waits or runs."""
        return [mailbox for mailbox in self._mailboxes.values() if not mailbox.aside]

    def announcing(self, session_id: str) -> asyncio.Task[None] | None:
        """Return the worker of a session in which an announcement is being delivered or waits."""
        mailbox = self.mailbox(session_id)
        worker = mailbox.worker if mailbox is not None and mailbox.announced else None
        return None if worker is None or worker.done() else worker

    def expect(self, session: Session) -> int:
        """Count a message that is being accepted. Returns 1 if it runs at once, as its first attempt."""
        session.pending += 1
        self.waiting += 1
        return 1 if session.pending == 1 else 0

    def register(self, session: Session, entry: Entry) -> None:
        """Register the entry of an expected message, so that no read of the disk delivers it first."""
        self._arriving[session.id].add(entry.id)
        if entry.counted:
            self.stored[entry.sender_key] += 1

    def forget(self, session: Session, entry: Entry | None = None) -> None:
        """Discount an expected message that is settled or was not accepted."""
        session.pending -= 1
        self.waiting -= 1
        if entry is not None:
            self._arrived(session, entry)
            self._uncount(entry)

    def enqueue(self, session: Session, entry: Entry) -> None:
        """Queue a committed message that was expected."""
        self._arrived(session, entry)
        if entry.aside is None:
            entry.aside = (session.id, False) in self._mailboxes and self._acts_at_once(entry)
        mailbox = self._mailbox(session, entry.aside)
        if entry.aside:
            self._mailboxes[session.id, False].asides.add(entry.id)
        stays = mailbox.add(entry)
        if stays is not entry:
            self._uncount(entry)
        if stays is not None:
            mailbox.stored[stays.sender_key] += 1
            if not stays.counted:
                stays.counted = True
                self.stored[stays.sender_key] += 1
        self._wake(mailbox, session)

    def resume(self, session_id: str, entries: Sequence[Entry], backlog: Backlog) -> None:
        """Queue ``entries`` of an earlier process; ``open`` answers them when their session is loaded."""
        for entry in entries[1:]:
            entry.aside = self._acts_at_once(entry)
        if aside := [entry for entry in entries if entry.aside]:
            self._mailboxes[session_id, True] = Mailbox(aside=True)
            self._mailboxes[session_id, True].load(aside)
        mailbox = self._mailboxes[session_id, False] = Mailbox(capacity=self.capacity)
        mailbox.load([entry for entry in entries if not entry.aside])
        mailbox.overload_reported = backlog.overload_reported
        mailbox.stored += backlog.stored
        self.stored += backlog.stored
        self.waiting += len(entries) + backlog.stored.total()

    def open(self, session: Session) -> None:
        """Answer the messages that an earlier process left for a session that was loaded just now."""
        for aside in (False, True):
            mailbox = self._mailboxes.get((session.id, aside))
            if mailbox is not None and mailbox.session is None:
                mailbox.session = session
                session.pending += len(mailbox.entries) + mailbox.stored.total()
                session.overload_reported |= mailbox.overload_reported
                self._wake(mailbox, session)

    def unopened(self) -> list[Entry]:
        """Return the first entry of each resumed mailbox that still waits for its session."""
        return [one.entries[0] for one in self._mailboxes.values() if one.session is None]

    def _arrived(self, session: Session, entry: Entry) -> None:
        arriving = self._arriving[session.id]
        arriving.discard(entry.id)
        if not arriving:
            del self._arriving[session.id]

    def _uncount(self, entry: Entry) -> None:
        """Stop counting an entry against its sender's limit on disk."""
        if entry.counted:
            entry.counted = False
            self.stored -= Counter((entry.sender_key,))

    def _mailbox(self, session: Session, aside: bool) -> Mailbox:
        mailbox = self._mailboxes.get((session.id, aside))
        if mailbox is None:
            mailbox = self._mailboxes[session.id, aside] = Mailbox(session, self.capacity, aside=aside)
        return mailbox

    def _acts_at_once(self, entry: Entry) -> bool:
        """Return whether an entry is a command that does not wait for the running answer."""
        waits = entry.silent or entry.refused or entry.inbound.revises is not None
        return not waits and self.runner.acts_at_once(entry.inbound.text)

    def _wake(self, mailbox: Mailbox, session: Session) -> None:
        if mailbox.worker is None and not self.stopping:
            self._idle.clear()
            worker = mailbox.worker = self.tasks.create_task(self._work(mailbox, session))
            self._workers.add(worker)
            worker.add_done_callback(self._on_ended)

    def _on_ended(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        if not self._workers:
            self._idle.set()

    def withdraw(self, channel: str, account: str, dedup_key: str) -> list[Entry]:
        """Mark a message as deleted, in all its revisions, so that it is not answered.

        Returns those in memory.
        """
        # The message's session is not known here: a chat may have been moved after it was accepted.
        found = [mailbox.withdraw(channel, account, dedup_key) for mailbox in self._mailboxes.values()]
        return [entry for entries in found for entry in entries]

    def stop(self, session_id: str, answer_id: str | None = None) -> Entry | None:
        """Stop a session's running answer, or its next one; with ``answer_id``, only if it is that one.
        Returns the message it answers."""
        mailbox = self.mailbox(session_id)
        return None if mailbox is None else mailbox.stop(answer_id)

    async def drain(self, seconds: float) -> bool:
        """Start no new turns and wait for running ones. Returns whether all ended in time."""
        self.stopping = True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def cancel(self) -> None:
        """Cancel running turns. Their messages stay accepted and are answered after the restart."""
        for worker in tuple(self._workers):
            worker.cancel()

    async def _work(self, mailbox: Mailbox, session: Session) -> None:
        turns = 0
        try:
            while (mailbox.entries or mailbox.stored) and not self.stopping:
                if not mailbox.entries:
                    await self._load(mailbox, session)
                    continue
                entry = mailbox.running = mailbox.entries.pop(0)
                mailbox.interrupted.clear()
                try:
                    await self._attempt(mailbox, session, entry)
                finally:
                    mailbox.running = None
                    self.forget(session)
                if mailbox.aside and not entry.aside:
                    # A hook made another text of the command: it waits like all others.
                    entry.attempts = self.expect(session)
                    self.enqueue(session, entry)
                turns += 1
        finally:
            del self._mailboxes[session.id, mailbox.aside]
        if not (self.stopping or mailbox.aside) and session.events.wants(SessionIdle, session.id):
            session.events.emit(SessionIdle(session.id, session.row.channel, session.row.owner, turns))

    async def _load(self, mailbox: Mailbox, session: Session) -> None:
        """Bring the next messages of a session from disk to memory."""
        mailbox.asides = {one.id for one in self._mailboxes.get((session.id, True), mailbox).all}
        before = mailbox.stored.copy()
        quiet = session.id not in self._arriving
        try:
            backlogs = await self.inbox.load_backlogs(self.capacity, session.id)
        except StoreError as error:
            # Such as a query beyond its time limit: the messages stay on disk, and the gateway must not end.
            log.warning("could not read waiting messages; retrying", session=session.id, reason=str(error))
            await asyncio.sleep(min(_READ_AGAIN_SECONDS, self.longest_wait))
            return
        found = backlogs.get(session.id) or Backlog([], Counter())
        known = {one.id for one in mailbox.entries} | mailbox.asides | self._arriving.get(session.id, set())
        entries = [entry for entry in found.entries if entry.id not in known]
        loaded = Counter(entry.sender_key for entry in entries)
        # A message that was accepted during the read may or may not be in its result. The counts then only
        # lose what was loaded; the next read without such a message corrects them.
        exact = quiet and not known and mailbox.stored == before
        left = found.stored if exact else mailbox.stored - loaded
        settled = mailbox.stored.total() - left.total() - mailbox.load(entries, self.arrange)
        session.pending -= settled
        self.waiting -= settled
        self.stored -= mailbox.stored
        self.stored += left
        mailbox.stored = left
        if not left:
            mailbox.withdrawn.clear()
            mailbox.revisions.clear()
        if not entries:
            await asyncio.sleep(0)  # those that are being accepted are queued in the next step

    async def _attempt(self, mailbox: Mailbox, session: Session, entry: Entry) -> None:
        """Answer one entry. Errors end here, as a dead letter, so that the next entries are answered."""
        first = entry.attempts == 1 and not entry.recovered
        before = 0 if first else entry.attempts
        # The trail of a deleted message is gone with it, and no step is written after that.
        redact = session.redactor.redact_text
        begun = begin_trail(self.trail, entry.id, redact, entry.trail_row, entry.recovered)
        entry.trail = NO_TRAIL if entry.interrupted == "withdrawn" else begun
        # In the context of the worker's task; the next message replaces it.
        observing.set(entry.trail.hook)
        try:
            if session.changing.locked():
                entry.trail.await_next("mailbox")
            async with session.changing:
                entry.trail.end_wait()
            # Durable before one is shown: those of a session that an earlier process had are not yet.
            if not session.numbers_reserved:
                await session.save()
            if first or not entry.to_answer or await self._claim(mailbox, session, entry):
                await self.runner.run(session, entry)
        except CATCHABLE as error:
            if is_cancellation_requested(error):
                # The gateway is stopping: this attempt does not count towards the limit of the message. One
                # whose end is being committed already does.
                if not entry.closed:
                    entry.attempts = before
                    self.store.submit([entry.claim(), entry.interrupt(), *entry.trail.suspend()])
                raise
            log.exception("failed to answer a message", session=session.id, message=entry.id)
            entry.trail.reopen()
            try:
                await self.runner.dead_letter(session, entry, error)
            except StoreError:
                # The database refuses the notice, too. Left open, the message would end every later process.
                await self.store.write(*entry.give_up(f"{type(error).__name__}: {error}", None))

    async def _claim(self, mailbox: Mailbox, session: Session, entry: Entry) -> bool:
        """Commit the attempt before it is made, so that one that kills the process is counted."""
        if entry.attempts >= self.max_attempts:
            entry.trail.add("restart", attempt=entry.attempts)
            died = PoisonedMessageError(f"gave up after {entry.attempts} attempts (limits.max_attempts)")
            await self.runner.dead_letter(session, entry, died)
            return False
        await self._wait(mailbox, entry)
        if not entry.to_answer:
            return True
        entry.attempts += 1
        # Random: of the messages that ran when the gateway died, those that are due after the one that ended
        # it are not counted again then, and those that are due before it have time to be answered.
        pause = retry_pause(entry.attempts, self.longest_wait, jitter=-1)
        entry.not_before = now_ms() + round(pause * 1000)
        begun = entry.trail.start(entry.attempts, entry.received_at, recovered=entry.recovered)
        await self.store.write(entry.claim(), *begun)
        return True

    async def _wait(self, mailbox: Mailbox, entry: Entry) -> None:
        """Wait until the next attempt is due. A stopped message calls no model, so it does not wait."""
        pause = seconds_until_due(entry, now_ms(), self.longest_wait)
        if pause and entry.interrupted != "stopped":
            entry.trail.await_next("retry", pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await mailbox.interrupted.wait()


def _can_stay_on_disk(entry: Entry) -> bool:
    """Return whether an entry may wait on disk: not urgent, and without state that is only in memory."""
    return not (entry.priority or entry.silent or entry.answered or entry.merged or entry.late or entry.aside)


def seconds_until_due(entry: Entry, now: int, longest: float = _LONGEST_PAUSE) -> float:
    """Return the seconds until the next attempt to answer a message; ``now`` is in milliseconds.

    Never longer than the pause after the last attempt.
    """
    # The stored time may come from a clock that was ahead, and would then delay the message for hours.
    return min(max(0, entry.not_before - now) / 1000, retry_pause(entry.attempts, longest))


def retry_pause(attempts: int, longest: float = _LONGEST_PAUSE, jitter: float = 0) -> float:
    """Return the seconds between two attempts: 0 after the first, then 1, 2, 4 … up to ``longest``."""
    # No pause after the first attempt: usually the gateway was restarted, and the message is not the cause.
    return Backoff(1, longest, jitter).pause(attempts - 1)
