"""What was written while nobody listened: read from the histories, room by room, before what comes now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from channels.slack.api import Api, Json
from channels.slack.parse import Parsed, Rules, Seen, UnreadableError, Written, parse_history
from gateway.channel import Backoff, Cursor, PlacementDeferred, PlacementRefused, PlacementUncertain

log = structlog.get_logger("trunkline.slack")

Take = Callable[[str, Iterable[Written]], Awaitable[None]]

_OVERLAP = 60
"""Seconds before the last thing known that are read again: an earlier one may have been on its way still."""
_THREAD_DAYS = 3
_MOST_THREADS = 100
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
"""Seconds between attempts to read a history. The longest is short, because the channel is not ready while a
history is unread, and the pace of calls keeps to the platform's limits anyway."""
_LISTING = "the list of conversations"
START = "start"
"""The shard of the moment from which on this account listens at all."""


class CatchingUp:
    """How far each room was read. ``take`` makes messages durable.

    A room's cursor never passes a message that is known and not durable yet. A history that cannot be read is
    tried again until it is read or Slack refuses it for good; ``pause`` seconds after the first time, and
    later each time.
    """

    def __init__(self, api: Api, take: Take, pause: float = _SHORTEST_PAUSE) -> None:
        self._api = api
        self._take = take
        self._backoff = Backoff(pause, _LONGEST_PAUSE)
        self._known: dict[str, str] = {}
        self._newest: dict[str, str] = {}
        """The newest durable message, by room or thread; something older may not be durable yet."""
        self._open: dict[str, set[str]] = {}
        """Messages that are known and not durable, by room."""
        self._covered: dict[str, str] = {}
        """The newest message of each history that was read, whoever wrote it."""
        self._unread: dict[str, str] = {}
        """Rooms whose history could not be read so far, and why."""
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._listing: asyncio.Task[None] | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._urgent: set[str] = set()
        self.latest: dict[str, str] = {}
        self.rules: Rules | None = None

    @property
    def problem(self) -> str:
        """What could not be read yet; empty if there is nothing."""
        if not self._unread:
            return ""
        name, reason = next(iter(self._unread.items()))
        more = f" and {len(self._unread) - 1} more" if len(self._unread) > 1 else ""
        return f"what was missed cannot be read yet in {name}{more}: {reason}"

    def restore(self, cursors: Iterable[Cursor], account: str, now: str) -> bool:
        """Take up what an earlier process knew. Returns whether there was any."""
        self._known = {cursor.shard: cursor.value for cursor in cursors if cursor.account == account}
        known = START in self._known
        self._known.setdefault(START, now)
        return known

    def follows(self, chat: str, thread: str) -> bool:
        """Whether the bot answered in a thread before."""
        return f"{chat}:{thread}" in self._known

    def arrived(self, chat: str, ts: str) -> None:
        """A message is known; until it is durable no cursor of its room passes it."""
        self._open.setdefault(chat, set()).add(ts)

    def cursor(self, shard: str, ts: str) -> Cursor | None:
        """The cursor to commit with a message of a room or thread; None if it does not move."""
        value = max(ts, self._newest.get(shard, ""))
        waiting = [one for one in self._open.get(shard.partition(":")[0], ()) if one != ts]
        if waiting and min(waiting) <= value:
            value = f"{float(min(waiting)) - 0.000001:.6f}"
        if value <= self._known.get(shard, ""):
            return None
        return Cursor("" if self.rules is None else self.rules.team, value, shard)

    def committed(self, chat: str, ts: str, shards: Iterable[str], cursors: Iterable[Cursor | None]) -> None:
        """A message is durable, and so are the cursors that were committed with it."""
        for shard in shards:
            self._newest[shard] = max(ts, self._newest.get(shard, ""))
        for cursor in cursors:
            if cursor is not None:
                self._known[cursor.shard] = max(cursor.value, self._known.get(cursor.shard, ""))
        waiting = self._open.get(chat, set())
        waiting.discard(ts)
        if not waiting:
            self._open.pop(chat, None)

    def again(self, chat: str) -> None:
        """A message of a room could not be made durable: read it from the history."""
        reading = self._reading.get(chat)
        if self._tasks is not None and (reading is None or reading.done()):
            self._begin(self._tasks, chat)

    def saw(self, chat: str, ts: str) -> None:
        """A message stands in a room, whoever wrote it."""
        if ts[:1].isdigit():
            self.latest[chat] = max(ts, self.latest.get(chat, ""))
        if len(self.latest) > 10_000:
            self.latest.clear()

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Read all rooms that are known, and those the bot was invited to meanwhile."""
        self._reading = {chat: task for chat, task in self._reading.items() if not task.done()}
        for shard in [*self._known]:
            if shard != START:
                self._begin(tasks, shard.partition(":")[0])
        self._tasks = tasks
        if self._listing is not None:
            self._listing.cancel()
        self._listing = tasks.create_task(self._list(tasks))

    def ended(self) -> None:
        """Begin nothing any more."""
        self._tasks = None

    def fails(self, chat: str) -> bool:
        """Return whether the history of a room could not be read so far."""
        return chat in self._unread

    async def done(self, chat: str) -> None:
        """Wait until a room is read, if that is to be done; it goes first then."""
        listing = self._listing is not None and not self._listing.done()
        if chat not in self._reading and listing and self._tasks is not None:
            self._begin(self._tasks, chat, urgent=True)
        while (task := self._reading.get(chat)) is not None and not task.done():
            if chat not in self._urgent and self._tasks is not None:
                self._begin(self._tasks, chat, urgent=True)
                continue
            await asyncio.wait([task])

    def _begin(self, tasks: asyncio.TaskGroup, chat: str, *, urgent: bool = False) -> None:
        """Read a room; a reading that is under way begins again."""
        former = self._reading.get(chat)
        (self._urgent.add if urgent else self._urgent.discard)(chat)
        self._reading[chat] = tasks.create_task(self._read(chat))
        if former is not None:
            former.cancel()

    async def _list(self, tasks: asyncio.TaskGroup) -> None:
        """Read the rooms that the bot is in and of which nothing is known."""
        for kind in ("public_channel", "private_channel", "mpim", "im"):
            for chat in await self._rooms(kind):
                if chat not in self._reading:
                    self._begin(tasks, chat)

    async def _rooms(self, kind: str) -> set[str]:
        """Where the bot is."""
        found: set[str] = set()

        async def read() -> None:
            async for rows in self._api.pages("users.conversations", "channels", types=kind):
                found.update(str(row.get("id")) for row in rows if not row.get("is_archived"))

        try:
            await self._insist(_LISTING, read)
        except PlacementRefused as refused:
            log.debug("rooms of a kind are not listed", kind=kind, reason=str(refused))
        return found

    async def _read(self, chat: str) -> None:
        """Read a room and its threads, however long that takes."""
        try:
            await self._insist(chat, lambda: self._read_once(chat))
        except PlacementRefused as refused:
            self._open.pop(chat, None)  # what comes is all there will be
            log.info("a history cannot be read", chat=chat, reason=str(refused))

    async def _insist(self, name: str, read: Callable[[], Awaitable[None]]) -> None:
        """Read something until that works. Raises PlacementRefused."""
        failures = 0
        while True:
            try:
                await read()
            except (PlacementDeferred, PlacementUncertain) as error:
                failures += 1
                if failures > 1:
                    if name not in self._unread:
                        log.warning("what was missed cannot be read yet", chat=name, reason=str(error))
                    self._unread[name] = str(error)
                pause = self._backoff.pause(failures)
                await asyncio.sleep(getattr(error, "seconds", None) or pause)
            except PlacementRefused:
                self._unread.pop(name, None)
                raise
            else:
                if self._unread.pop(name, None) is not None:
                    log.info("what was missed is read", chat=name)
                return

    async def _read_once(self, chat: str) -> None:
        oldest, urgent = self._from(chat), chat in self._urgent
        found: list[Json] = []
        async for rows in self._api.pages(
            "conversations.history", "messages", urgent=urgent, channel=chat, oldest=oldest
        ):
            found += rows
        threads = {str(one["thread_ts"]) for one in found if one.get("reply_count") and "thread_ts" in one}
        for thread in threads | self._threads(chat):
            asked = self._from(f"{chat}:{thread}") if thread not in threads else oldest
            try:
                async for rows in self._api.pages(
                    "conversations.replies", "messages", urgent=urgent, channel=chat, ts=thread, oldest=asked
                ):
                    found += [row for row in rows if str(row.get("ts", "")) > asked]
            except PlacementRefused as refused:
                log.debug("a thread cannot be read", chat=chat, reason=str(refused))
        unique = {str(one.get("ts")): one for one in found}
        written = [
            read for ts in sorted(unique) if isinstance(read := self._parsed(unique[ts], chat), Written)
        ]
        await self._take(chat, written)
        self._covered[chat] = max([*unique, self._covered.get(chat, "")])

    def _parsed(self, message: Json, chat: str) -> Parsed:
        assert self.rules is not None
        try:
            found = parse_history(message, chat, self.rules)
        except UnreadableError as error:
            log.info("a message in a history cannot be read", chat=chat, reason=str(error))
            return None
        if isinstance(found, Seen | Written):
            self.saw(chat, found.ts)
        return found

    def _from(self, shard: str) -> str:
        """From when on a room or thread is read again."""
        start, chat = self._known[START], shard.partition(":")[0]
        known = max(self._known.get(shard, start), self._covered.get(chat, start) if shard == chat else start)
        known = min([known, *self._open.get(chat, ())])
        return max(start, f"{float(known) - _OVERLAP:.6f}") if known > start else start

    def _threads(self, chat: str) -> set[str]:
        """Threads of a room in which somebody wrote to the bot lately."""
        now = max(self._known.values())
        since = f"{float(now) - _THREAD_DAYS * 86_400:.6f}"
        found = [
            (value, shard.partition(":")[2])
            for shard, value in self._known.items()
            if shard.startswith(f"{chat}:") and value > since
        ]
        return {thread for _, thread in sorted(found)[-_MOST_THREADS:]}
