"""What was written while nobody listened: read from the histories, room by room, before what comes now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from channels.slack.api import Api, Json
from channels.slack.parse import Parsed, Rules, Seen, UnreadableError, Written, parse_history
from gateway import Cursor, PlacementDeferred, PlacementRefused, PlacementUncertain

log = structlog.get_logger("trunkline.slack")

Take = Callable[[str, Iterable[Written]], Awaitable[None]]

_OVERLAP = 60
"""Seconds before the last thing known that are read again: an earlier one may have been on its way still."""
_THREAD_DAYS = 3
_MOST_THREADS = 100
_TRIES = 5
START = "start"
"""The shard of the moment from which on this account listens at all."""


class CatchingUp:
    """How far each room was read. ``take`` makes messages durable."""

    def __init__(self, api: Api, take: Take) -> None:
        self._api = api
        self._take = take
        self._known: dict[str, str] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._listing: asyncio.Task[None] | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._urgent: set[str] = set()
        self.latest: dict[str, str] = {}
        self.rules: Rules | None = None

    def restore(self, cursors: Iterable[Cursor], account: str, now: str) -> bool:
        """Take up what an earlier process knew. Returns whether there was any."""
        self._known = {cursor.shard: cursor.value for cursor in cursors if cursor.account == account}
        known = START in self._known
        self._known.setdefault(START, now)
        return known

    def follows(self, chat: str, thread: str) -> bool:
        """Whether the bot answered in a thread before."""
        return f"{chat}:{thread}" in self._known

    def passed(self, shard: str, ts: str) -> Cursor | None:
        """A message of a room or thread is durable: the cursor to store with it, if it is the newest."""
        if ts <= self._known.get(shard, ""):
            return None
        self._known[shard] = ts
        return Cursor("" if self.rules is None else self.rules.team, ts, shard)

    def saw(self, chat: str, ts: str) -> None:
        """A message stands in a room, whoever wrote it."""
        if ts[:1].isdigit():
            self.latest[chat] = max(ts, self.latest.get(chat, ""))
        if len(self.latest) > 10_000:
            self.latest.clear()

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Read all rooms that are known, and those the bot was invited to meanwhile."""
        for shard in [*self._known]:
            if shard != START:
                self._begin(tasks, shard.partition(":")[0])
        self._tasks = tasks
        self._listing = tasks.create_task(self._list(tasks))

    async def done(self, chat: str) -> None:
        """Wait until a room is read, if it is being read; it goes first then."""
        if chat not in self._reading and self._listing is not None and not self._listing.done():
            await asyncio.wait([self._listing])
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
        for chat in await self._rooms():
            if chat not in self._reading:
                self._begin(tasks, chat)

    async def _rooms(self) -> set[str]:
        """Where the bot is."""
        found: set[str] = set()
        for kinds in ("public_channel", "private_channel", "mpim", "im"):
            try:
                async for rows in self._api.pages("users.conversations", "channels", types=kinds):
                    found |= {str(row.get("id")) for row in rows if not row.get("is_archived")}
            except PlacementRefused as refused:
                log.debug("rooms of a kind are not listed", kind=kinds, reason=str(refused))
            except (PlacementDeferred, PlacementUncertain) as error:
                log.info("the list of rooms is not complete", kind=kinds, reason=str(error))
        return found

    async def _read(self, chat: str) -> None:
        """Read a room and its threads, as often as it takes."""
        for attempt in range(_TRIES):
            try:
                await self._read_once(chat)
            except PlacementRefused as refused:
                log.info("a history cannot be read", chat=chat, reason=str(refused))
            except (PlacementDeferred, PlacementUncertain) as error:
                pause = getattr(error, "seconds", None) or 2.0**attempt / 2
                log.info("a history is read again", chat=chat, reason=str(error))
                await asyncio.sleep(pause)
                continue
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
        start = self._known[START]
        known = self._known.get(shard, start)
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
