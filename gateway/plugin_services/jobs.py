"""Scheduled jobs of confined plugins: each runs once for each due time, also across crashes.

A row of each job has its next due time. Before a run, the process claims the row in the store for some
seconds, and extends the claim while it runs the job; a claim that ends was made by a process that is gone.
So one of several gateways runs a job, and a run that a crash interrupted is repeated with the same key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal
from zoneinfo import ZoneInfo

from msgspec import Struct
from sqlalchemy import select

from gateway.contract.errors import PluginError
from gateway.contract.messages import new_id
from gateway.extensions.admission.manifest import Schedule
from gateway.extensions.confined.plugin import RunsJobs
from gateway.store import Store
from gateway.store import schema as t
from gateway.store.writes import OwnStatement, Write

ADD_JOB = Write("insert-new", 96, t.plugin_job, "id plugin name times next_at claimed claimed_until")
CHANGE_JOB = OwnStatement(
    97,
    t.plugin_job,
    "UPDATE plugin_job SET times = ?1, next_at = ?2, claimed = ?3, claimed_until = ?4 "
    "WHERE id = ?5 AND times = ?6 AND next_at = ?7 AND claimed = ?8 RETURNING claimed",
)
"""Changes a row that is as it was read; the last four values are those of then."""

_LOOK_SECONDS = 30.0
"""Longest pause between two looks at the clock, which may be set."""
_RETRY_SECONDS = 5.0
_CLAIM_SECONDS = 15.0
_DAY_MS = 86_400_000
_MOST_TRIES = 3


class Job(Struct, frozen=True):
    """A job of a plugin, in the time zone of the settings."""

    plugin: str
    entry: Schedule
    zone: ZoneInfo

    @property
    def id(self) -> str:
        """The id of its row."""
        return f"{self.plugin}\n{self.entry.name}"

    @property
    def times(self) -> str:
        """The cron fields and the zone: a plugin's next version may change them."""
        return f"{self.entry.cron} {self.zone.key}"

    def next_after(self, ms: int) -> int:
        """Return the first time after a time, in ms."""
        return self.entry.next_after(ms / 1000, self.zone) * 1000


class _Row(Struct, frozen=True):
    times: str
    next_at: int
    claimed: str
    claimed_until: int


class Jobs:
    """The jobs of all confined plugins.

    ``zone`` is the gateway's time zone. ``clock`` returns seconds since the epoch; it is looked at in pauses
    of at most ``look_seconds``.
    """

    def __init__(
        self,
        store: Store,
        zone: str | None,
        clock: Callable[[], float] = time.time,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._store = store
        self._zone = zone
        self._clock = clock
        self._look_seconds = look_seconds

    def follow(
        self, plugin: str, entries: Sequence[Schedule], config: Mapping[str, Any], runner: RunsJobs
    ) -> Coroutine[Any, Any, None]:
        """Return what runs the jobs of a plugin when they are due, until cancelled. Raises PluginError."""
        jobs = [Job(plugin, entry, zone_of(plugin, entry, config, self._zone)) for entry in entries]

        async def run() -> None:
            async with asyncio.TaskGroup() as tasks:
                for job in jobs:
                    tasks.create_task(self._follow(job, runner), name=f"{plugin}: {job.entry.name}")

        return run()

    async def _follow(self, job: Job, runner: RunsJobs) -> None:
        await self._adopt(job)
        tries = 0
        # Until another version of the plugin has changed the times: its own task follows the job.
        while (row := await self._read(job)) is not None and row.times == job.times:
            now = self._now()
            coming = job.next_after(now)
            if row.next_at > coming + _DAY_MS:
                # The clock was wrong and far ahead: without this the job would wait until that time.
                await self._change(job, row, coming)
            elif row.next_at > now:
                await self._sleep((row.next_at - now) / 1000)
            elif not runner.is_ready() or self._is_claimed(row, now):
                await self._sleep(_RETRY_SECONDS)
            elif (claimed := await self._claim(job, row, now)) is not None:
                tries += 1
                if await self._run(job, claimed, runner, last=tries == _MOST_TRIES):
                    tries = 0
                else:
                    await self._sleep(_RETRY_SECONDS)

    async def _run(self, job: Job, claimed: _Row, runner: RunsJobs, *, last: bool) -> bool:
        """Run a job that is claimed. Return whether it is done, or given up because this try is the last."""
        due = claimed.next_at
        next_at, done = due, False
        try:
            async with asyncio.TaskGroup() as tasks:
                extending = tasks.create_task(self._extend(job, claimed))
                done = await runner.run_job(job.entry.name, due) or last
                extending.cancel()
            # From now, not from the due time: times that were missed run once.
            next_at = job.next_after(max(self._now(), due)) if done else due
        finally:
            # Also if it is cancelled: the next process shall not wait for the end of the claim.
            freed = self._change(job, claimed, next_at)
        await freed
        return done

    async def _extend(self, job: Job, claimed: _Row) -> None:
        while True:
            await asyncio.sleep(_CLAIM_SECONDS / 3)
            await self._change(job, claimed, claimed.next_at, claimed.claimed)

    async def _adopt(self, job: Job) -> None:
        """Add the row of a job, or set the times of this version of its plugin."""
        coming = job.next_after(self._now())
        row = (job.id, job.plugin, job.entry.name, job.times, coming, "", 0)
        if job.id in await self._store.write((ADD_JOB, row)):
            return  # what another version changes from now on shall stay
        while (found := await self._read(job)) is not None and found.times != job.times:
            await self._change(job, found, coming)

    async def _read(self, job: Job) -> _Row | None:
        j = t.plugin_job.c
        query = select(j.times, j.next_at, j.claimed, j.claimed_until).where(j.id == job.id)
        row = await self._store.read(lambda c: c.execute(query).first())
        return None if row is None else _Row(*row)

    def _is_claimed(self, row: _Row, now: int) -> bool:
        """Return whether a process runs a job. A claim that ends too late is older than a clock set back."""
        return bool(row.claimed) and 0 < row.claimed_until - now <= 2 * _CLAIM_SECONDS * 1000

    async def _claim(self, job: Job, row: _Row, now: int) -> _Row | None:
        """Claim a job. None if another process was faster."""
        token = new_id()
        changed = await self._change(job, row, row.next_at, token)
        return _Row(row.times, row.next_at, token, now) if token in changed else None

    def _change(self, job: Job, row: _Row, next_at: int, claimed: str = "") -> asyncio.Future[frozenset[str]]:
        """Change a row, unless another process has changed it. Begins at once."""
        until = self._now() + round(_CLAIM_SECONDS * 1000) if claimed else 0
        before = (job.id, row.times, row.next_at, row.claimed)
        return self._store.submit([(CHANGE_JOB, (job.times, next_at, claimed, until, *before))])

    def _now(self) -> int:
        return round(self._clock() * 1000)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, self._look_seconds))


def zone_of(plugin: str, entry: Schedule, config: Mapping[str, Any], default: str | None) -> ZoneInfo:
    """Return the time zone of a job; ``config`` is that of the plugin's settings, or the gateway's.

    Raises PluginError.
    """
    name: object = entry.timezone
    place: Literal["plugin.yml"] | str = "plugin.yml"
    if name == "config":
        name, place = config.get("timezone") or default or "UTC", f"plugins.{plugin}.timezone"
    try:
        return ZoneInfo(str(name))
    except (ValueError, OSError, LookupError):
        raise PluginError(
            f'{place}: {name!r} is not a time zone; write one such as "Europe/Berlin"'
        ) from None
