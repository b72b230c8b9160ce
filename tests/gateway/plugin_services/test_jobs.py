"""Scheduled jobs of confined plugins: once for each due time, across crashes, processes and set clocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import Row

from gateway.contract.errors import PluginError
from gateway.extensions.admission.manifest import Schedule
from gateway.plugin_services.jobs import Jobs, zone_of
from gateway.store import Store
from gateway.store import schema as t
from gateway.store.writes import OwnStatement
from gateway.testing.served import until

pytestmark = pytest.mark.slow

OSLO = ZoneInfo("Europe/Oslo")
DAILY = Schedule("digest", "0 8 * * *", "Europe/Oslo")
DAY = timedelta(days=1)


def at(day: int, hour: int = 8, minute: int = 0) -> datetime:
    return datetime(2027, 1, day, hour, minute, tzinfo=OSLO)


class Clock:
    """A clock that a test sets."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now.timestamp()


class Runner:
    """A plugin that records its runs. ``result`` is what a run returns, None if it does not end."""

    def __init__(self) -> None:
        self.runs: list[datetime] = []
        self.result: bool | None = True
        self.ready = True

    def is_ready(self) -> bool:
        return self.ready

    async def run_job(self, name: str, due: int) -> bool:
        assert name == "digest"
        self.runs.append(datetime.fromtimestamp(due / 1000, OSLO))
        if self.result is None:
            await asyncio.Event().wait()
        return bool(self.result)


class Node:
    """The schedule of one process."""

    def __init__(self, store: Store, clock: Clock, runner: Runner) -> None:
        self._store = store
        self.jobs = Jobs(store, None, clock, look_seconds=0.005)
        self.runner = runner

    @asynccontextmanager
    async def following(self, schedule: Schedule = DAILY) -> AsyncIterator[asyncio.Task[None]]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.jobs.follow("news", (schedule,), {}, self.runner))
            try:
                yield task
            finally:
                task.cancel()


async def row_of(store: Store) -> Row[tuple[int, str, int]] | None:
    j = t.plugin_job.c
    query = t.plugin_job.select().with_only_columns(j.next_at, j.claimed, j.claimed_until)
    return await store.read(lambda c: c.execute(query).first())


async def waits_for(store: Store, due: datetime) -> None:
    """Wait until a time is the next one that is due, and no process runs the job."""
    async with asyncio.timeout(60):
        while (row := await row_of(store)) is None or (row.next_at, row.claimed) != (ms(due), ""):
            await asyncio.sleep(0.005)


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


async def test_a_job_runs_once_for_each_due_time_also_with_several_processes(store: Store) -> None:
    clock, runner = Clock(at(1, 9)), Runner()
    nodes = [Node(store, clock, runner) for _ in range(3)]
    async with nodes[0].following(), nodes[1].following(), nodes[2].following():
        await waits_for(store, at(2))
        for day in (2, 3, 4):
            clock.now = at(day) - timedelta(seconds=1)
            await asyncio.sleep(0.05)
            assert len(runner.runs) == day - 2
            clock.now = at(day)
            await waits_for(store, at(day + 1))
    assert runner.runs == [at(2), at(3), at(4)]


async def test_times_that_were_missed_run_once(store: Store) -> None:
    clock, runner = Clock(at(1, 9)), Runner()
    async with Node(store, clock, runner).following():
        await waits_for(store, at(2))
    clock.now = at(6, 7)
    async with Node(store, clock, runner).following():
        await waits_for(store, at(6))
        assert runner.runs == [at(2)]
        clock.now = at(6)
        await waits_for(store, at(7))
    assert runner.runs == [at(2), at(6)]


async def test_a_clock_that_is_set_back_repeats_nothing(store: Store) -> None:
    clock, runner = Clock(at(1, 9)), Runner()
    async with Node(store, clock, runner).following():
        await waits_for(store, at(2))
        clock.now = at(2)
        await waits_for(store, at(3))
        clock.now = at(2, 7)
        await asyncio.sleep(0.05)
        clock.now = at(2, 10)
        await asyncio.sleep(0.05)
        clock.now = at(3)
        await waits_for(store, at(4))
    assert runner.runs == [at(2), at(3)]


async def test_a_clock_that_was_years_ahead_does_not_hold_a_job_up(store: Store) -> None:
    clock, runner = Clock(at(1, 9).replace(year=2036)), Runner()
    async with Node(store, clock, runner).following():
        await waits_for(store, at(2).replace(year=2036))
        clock.now = at(1, 9)
        await waits_for(store, at(2))
        clock.now = at(2)
        await waits_for(store, at(3))
    assert runner.runs == [at(2)]


async def test_a_run_that_is_cancelled_is_repeated_at_once(store: Store) -> None:
    clock, runner = Clock(at(1, 9)), Runner()
    async with Node(store, clock, runner).following():
        await waits_for(store, at(2))
        runner.result = None
        clock.now = at(2)
        await until(lambda: len(runner.runs) == 1)
    runner.result = True
    async with Node(store, clock, runner).following():
        await waits_for(store, at(3))
    assert runner.runs == [at(2), at(2)]


@pytest.mark.parametrize("pass_on", [timedelta(seconds=16), timedelta(hours=-1)])
async def test_the_claim_of_a_dead_process_ends_also_if_the_clock_goes_back(
    store: Store, pass_on: timedelta
) -> None:
    clock, runner = Clock(at(1, 9)), Runner()
    node = Node(store, clock, runner)
    async with node.following():
        await waits_for(store, at(2))
    clock.now = at(2, 10)
    end = ms(clock.now + timedelta(seconds=15))
    text = "UPDATE plugin_job SET claimed = 'gone', claimed_until = ?1"
    await store.write((OwnStatement(99, t.plugin_job, text), (end,)))
    async with node.following():
        await asyncio.sleep(0.1)
        assert runner.runs == []
        clock.now += pass_on
        await waits_for(store, at(3))
    assert runner.runs == [at(2)]


async def test_the_claim_of_a_run_that_takes_long_is_extended(store: Store) -> None:
    clock, runner = Clock(at(1, 9)), Runner()
    async with Node(store, clock, runner).following():
        await waits_for(store, at(2))
        runner.result = None
        clock.now = at(2)
        await until(lambda: len(runner.runs) == 1)
        clock.now += timedelta(seconds=10)
        async with asyncio.timeout(60):
            while (row := await row_of(store)) is None or row.claimed_until < ms(clock.now) + 15_000:
                await asyncio.sleep(0.05)
        assert row.claimed


async def test_a_run_whose_plugin_dies_is_tried_three_times_and_waits_for_a_plugin_that_is_down(
    store: Store,
) -> None:
    clock, runner = Clock(at(1, 9)), Runner()
    async with Node(store, clock, runner).following():
        await waits_for(store, at(2))
        runner.ready = runner.result = False
        clock.now = at(2)
        await asyncio.sleep(0.05)
        assert runner.runs == []
        runner.ready = True
        await waits_for(store, at(3))
        assert runner.runs == [at(2)] * 3
        runner.result = True
        clock.now = at(3)
        await waits_for(store, at(4))
    assert runner.runs == [at(2)] * 3 + [at(3)]


async def test_the_times_of_a_new_version_replace_those_of_the_old_one(store: Store) -> None:
    clock, runner = Clock(at(1, 9)), Runner()
    later = Schedule("digest", "0 20 * * *", "Europe/Oslo")
    async with Node(store, clock, runner).following() as old:
        await waits_for(store, at(2))
        async with Node(store, clock, runner).following(later):
            await waits_for(store, at(1, 20))
            await old
            clock.now = at(1, 20)
            await waits_for(store, at(2, 20))
    assert runner.runs == [at(1, 20)]


async def test_a_deleted_job_is_not_followed(store: Store) -> None:
    clock, runner = Clock(at(1, 9)), Runner()
    async with Node(store, clock, runner).following() as task:
        await waits_for(store, at(2))
        await store.write(
            (OwnStatement(99, t.plugin_job, "DELETE FROM plugin_job WHERE plugin = ?1"), ("news",))
        )
        await task


def test_the_zone_is_that_of_the_manifest_the_settings_or_the_gateway() -> None:
    settings = {"timezone": "Asia/Tokyo"}
    config = Schedule("digest", "0 8 * * *")
    assert zone_of("news", DAILY, settings, "America/Lima").key == "Europe/Oslo"
    assert zone_of("news", config, settings, "America/Lima").key == "Asia/Tokyo"
    assert zone_of("news", config, {}, "America/Lima").key == "America/Lima"
    assert zone_of("news", config, {}, None).key == "UTC"
    with pytest.raises(
        PluginError, match=r"plugins.news.timezone: 'Mars/Base' is not a time zone; write one"
    ):
        zone_of("news", config, {"timezone": "Mars/Base"}, None)
