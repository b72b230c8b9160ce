"""Histories: reads messages that were written while the channel was not connected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from channels.slack.api import Api, Json
from channels.slack.parse import OtherMessage, Parsed, Rules, UnreadableError, UserMessage, parse_history
from gateway.channel import Backoff, Cursor, PlacementDeferred, PlacementRefused, PlacementUncertain

log = structlog.get_logger("trunkline.slack")

OnChats = Callable[[Iterable[Json]], None]
Commit = Callable[[str, Iterable[UserMessage]], Awaitable[None]]

_OVERLAP = 60
"""Seconds before the cursor that are read again, because messages may be stored out of order."""
_THREAD_DAYS = 3
_MOST_THREADS = 100
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
"""Seconds between attempts to read a history. The longest is short, because the channel is unhealthy while a
history is unread, and rate limits hold anyway.
"""
_CHAT_LIST = "the list of conversations"
START = "start"
"""Shard of the cursor that holds the time when the account was first connected."""


class HistoryReader:
    """Reader of the histories of one workspace, with a cursor for each chat and thread.

    A cursor never passes a known message that is not committed yet. A history that cannot be read is retried
    with backoff, beginning at ``pause`` seconds, until it is read or Slack refuses it. ``commit`` makes
    messages durable, and ``on_chats`` gets the rows of chats that are listed.
    """

    def __init__(
        self,
        api: Api,
        commit: Commit,
        pause: float = _SHORTEST_PAUSE,
        on_chats: OnChats = lambda _rows: None,
    ) -> None:
        self._api = api
        self._commit = commit
        self._on_chats = on_chats
        self._backoff = Backoff(pause, _LONGEST_PAUSE)
        self._known: dict[str, str] = {}
        self._called: dict[str, str] = {}
        """The timestamp at which the bot was first called into each thread, which the cursor also stores."""
        self._newest: dict[str, str] = {}
        """The newest committed message, by chat or thread; older ones may still be pending."""
        self._pending: dict[str, set[str]] = {}
        """Timestamps of known messages that are not committed, by chat."""
        self._covered: dict[str, str] = {}
        """The newest message up to which each chat's history was read, by any author."""
        self._unread: dict[str, str] = {}
        """Reasons why histories cannot be read, by chat."""
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._listing: asyncio.Task[None] | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._urgent: set[str] = set()
        self.latest: dict[str, str] = {}
        self.rules: Rules | None = None

    @property
    def problem(self) -> str:
        """Description of the first history that cannot be read; empty if there is none."""
        if not self._unread:
            return ""
        name, reason = next(iter(self._unread.items()))
        more = f" and {len(self._unread) - 1} more" if len(self._unread) > 1 else ""
        return f"missed messages cannot be read yet in {name}{more}: {reason}"

    def restore(self, cursors: Iterable[Cursor], account: str, now: str) -> bool:
        """Load the cursors of an account. Returns whether there were any."""
        stored = {cursor.shard: cursor.value.split() for cursor in cursors if cursor.account == account}
        self._known = {shard: value[0] for shard, value in stored.items() if value}
        # Cursors of former versions do not say when the bot was called: then it follows the whole thread.
        self._called = {
            shard: value[1] if len(value) > 1 else shard.partition(":")[2]
            for shard, value in stored.items()
            if value and ":" in shard
        }
        known = START in self._known
        self._known.setdefault(START, now)
        return known

    def follows(self, chat: str, thread: str, ts: str) -> bool:
        """Return whether the bot was called into a thread before a timestamp.

        The answer is the same when the message is read again after a restart.
        """
        called = self._called.get(f"{chat}:{thread}")
        return called is not None and called < ts

    def add_pending(self, chat: str, ts: str) -> None:
        """Add a known message, which no cursor of its chat passes until it is committed."""
        self._pending.setdefault(chat, set()).add(ts)

    def cursor(self, shard: str, ts: str, called: str = "") -> Cursor | None:
        """Return the cursor to commit with a message of a chat or thread; None if it does not move.

        ``called`` is when the message called the bot into its thread; the cursor of a thread also stores the
        first such time, after a space.
        """
        value = max(ts, self._newest.get(shard, ""))
        waiting = [one for one in self._pending.get(shard.partition(":")[0], ()) if one != ts]
        if waiting and min(waiting) <= value:
            value = f"{float(min(waiting)) - 0.000001:.6f}"
        if value <= self._known.get(shard, ""):
            return None
        if called and ":" in shard:
            value = f"{value} {min(called, self._called.get(shard, called))}"
        return Cursor("" if self.rules is None else self.rules.team, value, shard)

    def note_called(self, chat: str, thread: str, ts: str) -> None:
        """Note that the bot was called into a thread."""
        shard = f"{chat}:{thread}"
        self._called[shard] = min(ts, self._called.get(shard, ts))

    def note_committed(
        self, chat: str, ts: str, shards: Iterable[str], cursors: Iterable[Cursor | None]
    ) -> None:
        """Note that a message was committed together with these cursors."""
        for shard in shards:
            self._newest[shard] = max(ts, self._newest.get(shard, ""))
        for cursor in cursors:
            if cursor is not None:
                value = cursor.value.partition(" ")[0]
                self._known[cursor.shard] = max(value, self._known.get(cursor.shard, ""))
        waiting = self._pending.get(chat, set())
        waiting.discard(ts)
        if not waiting:
            self._pending.pop(chat, None)

    def read_again(self, chat: str) -> None:
        """Read a chat's history again, after a message of it could not be committed."""
        reading = self._reading.get(chat)
        if self._tasks is not None and (reading is None or reading.done()):
            self._start_reading(self._tasks, chat)

    def note_seen(self, chat: str, ts: str) -> None:
        """Note a message of a chat, by any author, for watermarks."""
        if ts[:1].isdigit():
            self.latest[chat] = max(ts, self.latest.get(chat, ""))
        if len(self.latest) > 10_000:
            self.latest.clear()

    def read_all(self, tasks: asyncio.TaskGroup) -> None:
        """Read the histories of all known chats, then of other chats that the bot is a member of."""
        self._reading = {chat: task for chat, task in self._reading.items() if not task.done()}
        for shard in [*self._known]:
            if shard != START:
                self._start_reading(tasks, shard.partition(":")[0])
        self._tasks = tasks
        if self._listing is not None:
            self._listing.cancel()
        self._listing = tasks.create_task(self._read_listed_chats(tasks))

    def stop(self) -> None:
        """Start no further reads."""
        self._tasks = None

    def is_failing(self, chat: str) -> bool:
        """Return whether the history of a chat could not be read so far."""
        return chat in self._unread

    async def wait_until_read(self, chat: str) -> None:
        """Wait until the history of a chat is read, with urgent calls, if it has to be read."""
        listing = self._listing is not None and not self._listing.done()
        if chat not in self._reading and listing and self._tasks is not None:
            self._start_reading(self._tasks, chat, urgent=True)
        while (task := self._reading.get(chat)) is not None and not task.done():
            if chat not in self._urgent and self._tasks is not None:
                self._start_reading(self._tasks, chat, urgent=True)
                continue
            await asyncio.wait([task])

    def _start_reading(self, tasks: asyncio.TaskGroup, chat: str, *, urgent: bool = False) -> None:
        """Start to read a chat; restart it if a read is in progress."""
        former = self._reading.get(chat)
        (self._urgent.add if urgent else self._urgent.discard)(chat)
        self._reading[chat] = tasks.create_task(self._read(chat))
        if former is not None:
            former.cancel()

    async def _read_listed_chats(self, tasks: asyncio.TaskGroup) -> None:
        """Read the chats that the bot is a member of and that are not being read."""
        for kind in ("public_channel", "private_channel", "mpim", "im"):
            for chat in await self._list_chats(kind):
                if chat not in self._reading:
                    self._start_reading(tasks, chat)

    async def _list_chats(self, kind: str) -> set[str]:
        """Return the ids of the chats of one kind that the bot is a member of."""
        found: set[str] = set()

        async def read() -> None:
            async for rows in self._api.pages("users.conversations", "channels", types=kind):
                self._on_chats(rows)
                found.update(str(row.get("id")) for row in rows if not row.get("is_archived"))

        try:
            await self._retry(_CHAT_LIST, read)
        except PlacementRefused as refused:
            log.debug("chats of a kind cannot be listed", kind=kind, reason=str(refused))
        return found

    async def _read(self, chat: str) -> None:
        """Read a chat and its threads, with retries."""
        try:
            await self._retry(chat, lambda: self._read_once(chat))
        except PlacementRefused as refused:
            self._pending.pop(chat, None)  # no history will bring them, so cursors may pass
            log.info("a history cannot be read", chat=chat, reason=str(refused))

    async def _retry(self, name: str, read: Callable[[], Awaitable[None]]) -> None:
        """Retry ``read`` with backoff until it succeeds. Raises PlacementRefused."""
        failures = 0
        while True:
            try:
                await read()
            except (PlacementDeferred, PlacementUncertain) as error:
                failures += 1
                if failures > 1:
                    if name not in self._unread:
                        log.warning("missed messages cannot be read yet", chat=name, reason=str(error))
                    self._unread[name] = str(error)
                pause = self._backoff.pause(failures)
                await asyncio.sleep(getattr(error, "seconds", None) or pause)
            except PlacementRefused:
                self._unread.pop(name, None)
                raise
            else:
                if self._unread.pop(name, None) is not None:
                    log.info("missed messages were read", chat=name)
                return

    async def _read_once(self, chat: str) -> None:
        oldest, urgent = self._oldest(chat), chat in self._urgent
        found: list[Json] = []
        async for rows in self._api.pages(
            "conversations.history", "messages", urgent=urgent, channel=chat, oldest=oldest
        ):
            found += rows
        threads = {str(one["thread_ts"]) for one in found if one.get("reply_count") and "thread_ts" in one}
        for thread in threads | self._active_threads(chat):
            asked = self._oldest(f"{chat}:{thread}") if thread not in threads else oldest
            try:
                async for rows in self._api.pages(
                    "conversations.replies", "messages", urgent=urgent, channel=chat, ts=thread, oldest=asked
                ):
                    found += [row for row in rows if str(row.get("ts", "")) > asked]
            except PlacementRefused as refused:
                log.debug("a thread cannot be read", chat=chat, reason=str(refused))
        unique = {str(one.get("ts")): one for one in found}
        parsed = (self._parsed(unique[ts], chat) for ts in sorted(unique))
        await self._commit(chat, (read for read in parsed if isinstance(read, UserMessage)))
        self._covered[chat] = max([*unique, self._covered.get(chat, "")])

    def _parsed(self, message: Json, chat: str) -> Parsed:
        assert self.rules is not None
        try:
            found = parse_history(message, chat, self.rules)
        except UnreadableError as error:
            log.info("a message in a history cannot be read", chat=chat, reason=str(error))
            return None
        if isinstance(found, OtherMessage | UserMessage):
            self.note_seen(chat, found.ts)
        return found

    def _oldest(self, shard: str) -> str:
        """Return the timestamp from which a chat or thread has to be read."""
        start, chat = self._known[START], shard.partition(":")[0]
        known = max(self._known.get(shard, start), self._covered.get(chat, start) if shard == chat else start)
        known = min([known, *self._pending.get(chat, ())])
        return max(start, f"{float(known) - _OVERLAP:.6f}") if known > start else start

    def _active_threads(self, chat: str) -> set[str]:
        """Return the threads of a chat in which the bot was addressed in the last three days."""
        now = max(self._known.values())
        since = f"{float(now) - _THREAD_DAYS * 86_400:.6f}"
        found = [
            (value, shard.partition(":")[2])
            for shard, value in self._known.items()
            if shard.startswith(f"{chat}:") and value > since
        ]
        return {thread for _, thread in sorted(found)[-_MOST_THREADS:]}
