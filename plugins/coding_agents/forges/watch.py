"""The watch over open pull requests: it reads each at most once a minute and reports what is new, once.

In: pull requests that ``finalize`` opened. Out: events for ``chat``: merged, closed, checks that failed, new
comments. What was found is stored before it is reported, and stays stored until its report has returned, so
after a crash nothing is lost, and an event comes again only with the same ``key``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol

import msgspec
import structlog
from msgspec import Struct, structs

from gateway import TrunklineError, now_ms
from plugins.coding_agents.errors import CredentialDeniedError
from plugins.coding_agents.forges import locate
from plugins.coding_agents.forges.contract import Check, Comment, Forge, ForgeError, PullRequest
from plugins.coding_agents.forges.webhooks import ChangedPlace

log = structlog.get_logger("trunkline.coding_agents")

INTERVAL_MS = 60_000
"""Shortest time between two looks at a pull request."""
HURRY_MS = 5_000
"""Shortest time between two looks if webhooks report changes: they come in bursts."""
LONGEST_PAUSE_MS = 3_600_000
"""Longest time between two looks, after failures."""
MOST_COMMENTS = 30
"""Comments of one event; further ones are reported at the next look."""
LONGEST_COMMENT = 500

_AT_ONCE = 4

EventKind = Literal["merged", "closed", "checks_failed", "comments", "denied"]


class Table(Protocol):
    """The part of a plugin's table that is used here."""

    async def get(self, key: str) -> Any: ...
    async def put(self, key: str, value: Any, *, expected: Any = ...) -> bool: ...
    async def delete(self, key: str, *, expected: Any = ...) -> bool: ...
    async def items(self, prefix: str = "") -> list[tuple[str, Any]]: ...


class PullRequestEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """News of a pull request. ``context`` is that of ``add``; ``reason`` is the error of ``denied``.

    ``key`` names it: the same event may be reported again after a crash, with the same key and content.
    """

    key: str
    kind: EventKind
    pull: PullRequest
    context: Mapping[str, Any]
    checks: tuple[Check, ...] = ()
    comments: tuple[Comment, ...] = ()
    reason: str = ""


class Watched(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pull request and what was reported of it, as it is stored. Times are in ms.

    ``since`` is when it was added: one that is added again later has other keys of events. ``seen`` are ids
    of comments, ``failed`` those of checks of the newest commit. ``pending`` are events that are not reported
    yet. ``failures`` counts the looks in a row that failed.
    """

    url: str
    pull: PullRequest
    context: Mapping[str, Any] = {}
    since: int = 0
    next_at: int = 0
    seen: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    pending: tuple[PullRequestEvent, ...] = ()
    events: int = 0
    failures: int = 0
    denied: bool = False


class PullRequestWatch:
    """Watches the pull requests of a table, and reports events to one handler.

    A handler that raises TrunklineError gets the event again a minute later.
    """

    def __init__(
        self,
        table: Table,
        forge_for: Callable[[str], Forge],
        report: Callable[[PullRequestEvent], Awaitable[None]],
    ) -> None:
        self._table = table
        self._forge_for = forge_for
        self._report = report
        self._added = asyncio.Event()
        self._hurried: set[str] = set()
        """Those that a webhook reported since the last look at them began. Only in memory: each is looked at
        once a minute without that."""

    async def add(self, url: str, pull: PullRequest, context: Mapping[str, Any]) -> None:
        """Watch a pull request of the repository at ``url``; durable on return. Once is enough."""
        entry = msgspec.to_builtins(Watched(url=url, pull=pull, context=context, since=now_ms()))
        await self._table.put(pull.url, entry, expected=None)
        self._added.set()

    async def remove(self, pull_url: str) -> None:
        """Watch a pull request no longer."""
        self._hurried.discard(pull_url)
        await self._table.delete(pull_url)

    async def hurry(self, place: ChangedPlace) -> int:
        """Look soon at the pull requests of a place. Return how many there are; failures keep their pause."""
        items = await self._table.items()
        found = [key for key, stored in items if _is_at(msgspec.convert(stored, Watched), place)]
        self._hurried.update(found)
        self._added.set()
        return len(found)

    async def run(self) -> None:
        """Look at the pull requests until cancelled."""
        while True:
            self._added.clear()
            wait: int | None = INTERVAL_MS
            try:
                wait = await self.look(now_ms())
            except* TrunklineError as group:
                log.warning("pull requests not read", reason=str(group.exceptions[0]))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if wait is None else wait / 1000):
                    await self._added.wait()

    async def look(self, now: int) -> int | None:
        """Look at each pull request that is due. Returns the ms until the next one is; None without any."""
        limit = asyncio.Semaphore(_AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            for key, stored in await self._table.items():
                if self._due_at(key, stored, now) <= now:
                    tasks.create_task(self._look_at(limit, key, stored, now))
        times = [self._due_at(key, stored, now) for key, stored in await self._table.items()]
        return max(0, min(times) - now) if times else None

    def _due_at(self, key: str, stored: Any, now: int) -> int:
        """Return when the next look at a pull request is due, in ms; failures keep their pause."""
        watched = msgspec.convert(stored, Watched)
        if watched.next_at - now > LONGEST_PAUSE_MS:
            return now  # the clock was ahead
        hurries = key in self._hurried and not watched.failures
        return watched.next_at - (INTERVAL_MS - HURRY_MS if hurries else 0)

    async def _look_at(self, limit: asyncio.Semaphore, key: str, stored: Any, now: int) -> None:
        async with limit:
            watched = msgspec.convert(stored, Watched)
            # Data that is read from here on may be older than a later webhook.
            self._hurried.discard(key)
            found, pause = (watched, INTERVAL_MS) if watched.pending else await self._read(watched)
            found = structs.replace(found, next_at=now + pause)
            # If it was removed meanwhile, it stays removed and is not reported.
            if await self._table.put(key, entry := msgspec.to_builtins(found), expected=stored):
                await self._deliver(key, found, entry)

    async def _read(self, watched: Watched) -> tuple[Watched, int]:
        """Return the pull request with the events that are new, and the ms until the next look."""
        try:
            forge = self._forge_for(watched.url)
            pull = await forge.pr_state(watched.pull.number)
            comments = await forge.comments(pull.number)
            checks = await forge.checks(pull.sha) if pull.state == "open" and pull.sha else ()
        except (ForgeError, CredentialDeniedError) as error:
            return _after_failure(watched, error)
        new = [one for one in comments if one.id not in watched.seen][:MOST_COMMENTS]
        reported = watched.failed if pull.sha == watched.pull.sha else ()
        failed = [one for one in checks if one.state == "failed"]
        found = structs.replace(watched, pull=pull, failures=0, denied=False)
        if new:
            short = tuple(structs.replace(one, body=one.body[:LONGEST_COMMENT]) for one in new)
            found = _with_event(found, "comments", comments=short)
        if fresh := tuple(one for one in failed if one.id not in reported):
            found = _with_event(found, "checks_failed", checks=fresh[:MOST_COMMENTS])
        # Further comments first: a pull request that has ended is not looked at again.
        if pull.state != "open" and len(new) < MOST_COMMENTS:
            found = _with_event(found, pull.state)
        seen = (*watched.seen, *(one.id for one in new))
        return structs.replace(found, seen=seen, failed=tuple(one.id for one in failed)), INTERVAL_MS

    async def _deliver(self, key: str, watched: Watched, stored: Any) -> None:
        """Report the events that are stored, oldest first, and take each from the store afterwards."""
        while watched.pending:
            event, *rest = watched.pending
            try:
                await self._report(event)
            except TrunklineError as error:
                log.warning("news of a pull request not reported", pull=event.pull.url, reason=str(error))
                return
            if event.kind in ("merged", "closed"):
                await self._table.delete(key)
                return
            watched = structs.replace(watched, pending=tuple(rest))
            if not await self._table.put(key, left := msgspec.to_builtins(watched), expected=stored):
                return
            stored = left


def _is_at(watched: Watched, place: ChangedPlace) -> bool:
    known = locate(watched.url)
    hosts = (known.host, known.host.partition(":")[0])
    # A service below a path, https://example.org/git: the path is no part of the repository's name there.
    path, named = f"/{known.path}".casefold(), f"/{place.repository}".casefold()
    return place.host in hosts and path.endswith(named) and place.number in (0, watched.pull.number)


def _with_event(watched: Watched, kind: EventKind, **content: Any) -> Watched:
    event = PullRequestEvent(
        key=f"{watched.pull.url} {watched.since}.{watched.events + 1} {kind}",
        kind=kind,
        pull=watched.pull,
        context=watched.context,
        **content,
    )
    return structs.replace(watched, pending=(*watched.pending, event), events=watched.events + 1)


def _after_failure(watched: Watched, error: ForgeError | CredentialDeniedError) -> tuple[Watched, int]:
    failures = watched.failures + 1
    log.info("pull request not read", pull=watched.pull.url, failures=failures, reason=str(error))
    found = structs.replace(watched, failures=failures)
    if isinstance(error, CredentialDeniedError) and not watched.denied:
        found = structs.replace(_with_event(found, "denied", reason=str(error)), denied=True)
    wait = error.retry_after if isinstance(error, ForgeError) else None
    pause = max(INTERVAL_MS * 2 ** min(failures - 1, 10), round((wait or 0) * 1000))
    return found, min(LONGEST_PAUSE_MS, pause)
