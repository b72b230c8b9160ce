"""The watch over pull requests: each event once, also over crashes, and few requests."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from gateway import TrunklineError
from plugins.coding_agents.forges.contract import NewPullRequest
from plugins.coding_agents.forges.watch import (
    INTERVAL_MS,
    LONGEST_PAUSE_MS,
    MOST_COMMENTS,
    PullRequestEvent,
    PullRequestWatch,
)
from tests.plugins.coding_agents.forges.fakes import KINDS, FakeForge, Scripted, fake_forge, reaching

CONTEXT = {"workspace": "ws-1", "owner": "ada"}


class Crash(BaseException):
    """The end of the process."""


class MemoryTable:
    """A table whose entries outlive a watch. ``crash_at`` is the number of a write that crashes instead."""

    def __init__(self) -> None:
        self.entries: dict[str, Any] = {}
        self.writes = 0
        self.crash_at = 0

    async def get(self, key: str) -> Any:
        return copy.deepcopy(self.entries.get(key))

    async def put(self, key: str, value: Any, *, expected: Any = ...) -> bool:
        self._step()
        if expected is not ... and self.entries.get(key) != expected:
            return False
        self.entries[key] = copy.deepcopy(value)
        return True

    async def delete(self, key: str, *, expected: Any = ...) -> bool:
        self._step()
        return self.entries.pop(key, None) is not None

    async def items(self, prefix: str = "") -> list[tuple[str, Any]]:
        return sorted(copy.deepcopy(self.entries).items())

    def _step(self) -> None:
        self.writes += 1
        if self.writes == self.crash_at:
            raise Crash


class Watching:
    """A watch with a clock that the test moves. ``seen`` are the reported events."""

    def __init__(self, fake: FakeForge, table: MemoryTable, watch: Any) -> None:
        self.fake, self.table, self.watch = fake, table, watch
        self.seen: list[PullRequestEvent] = []
        self.fail = 0
        self.now = 1_000_000

    async def report(self, event: PullRequestEvent) -> None:
        if self.fail:
            self.fail -= 1
            raise TrunklineError("the database is locked")
        self.seen.append(event)

    async def minute(self) -> list[str]:
        """Look once, a minute later; return the kinds of the new events."""
        before = len(self.seen)
        self.now += INTERVAL_MS
        await self.watch.look(self.now)
        return [event.kind for event in self.seen[before:]]


@asynccontextmanager
async def watching(kind: str, table: MemoryTable | None = None) -> AsyncGenerator[Watching]:
    async with fake_forge(kind) as fake, reaching(fake) as forges:
        forge = forges.forge_for(fake.url)
        pull = await forge.create_pr(NewPullRequest(head="trunkline/x", base="main", title="Fix it"))
        found = Watching(fake, table or MemoryTable(), None)
        found.watch = PullRequestWatch(found.table, forges.forge_for, found.report)
        await found.watch.add(fake.url, pull, CONTEXT)
        fake.requests.clear()
        yield found


@pytest_asyncio.fixture(params=KINDS)
async def watched(request: pytest.FixtureRequest) -> AsyncGenerator[Watching]:
    async with watching(request.param) as found:
        yield found


async def test_each_event_is_reported_once(watched: Watching) -> None:
    fake = watched.fake
    assert await watched.minute() == []
    fake.add_comment("Please add a test")
    fake.checks.append(("test", "pending"))
    assert await watched.minute() == ["comments"]
    fake.checks[0] = ("test", "failed")
    fake.add_comment("Wrong variable", "line", path="src/auth.py", line=12)
    assert await watched.minute() == ["comments", "checks_failed"]
    assert await watched.minute() == []
    fake.pulls[0].state = "merged"
    assert await watched.minute() == ["merged"]
    assert await watched.minute() == []
    assert watched.table.entries == {}
    first, second, failed, _ = watched.seen
    assert [one.body for one in (*first.comments, *second.comments)] == [
        "Please add a test",
        "Wrong variable",
    ]
    assert [one.name for one in failed.checks] == ["test"]
    assert len({event.key for event in watched.seen}) == 4
    assert all(event.context == CONTEXT for event in watched.seen)


async def test_a_closed_pull_request_is_reported_with_its_last_comments(watched: Watching) -> None:
    watched.fake.add_comment("Not needed any more")
    watched.fake.pulls[0].state = "closed"
    assert await watched.minute() == ["comments", "closed"]
    assert watched.table.entries == {}


async def test_a_check_that_fails_again_after_a_push_is_reported_again(watched: Watching) -> None:
    watched.fake.checks.append(("test", "failed"))
    assert await watched.minute() == ["checks_failed"]
    watched.fake.pulls[0].sha = "ab" * 20
    assert await watched.minute() == ["checks_failed"]
    assert await watched.minute() == []


async def test_many_comments_come_in_several_events_and_none_is_missing(watched: Watching) -> None:
    for number in range(2 * MOST_COMMENTS + 5):
        watched.fake.add_comment(f"{number} {'long ' * 300}")
    watched.fake.pulls[0].state = "merged"
    kinds = [kind for _ in range(3) for kind in await watched.minute()]
    assert kinds == ["comments", "comments", "comments", "merged"]
    bodies = [one.body.split()[0] for event in watched.seen for one in event.comments]
    assert bodies == [str(number) for number in range(2 * MOST_COMMENTS + 5)]
    assert max(len(one.body) for event in watched.seen for one in event.comments) <= 500


async def test_one_is_looked_at_once_a_minute(watched: Watching) -> None:
    await watched.minute()
    asked = len(watched.fake.requests)
    for _ in range(10):
        assert await watched.watch.look(watched.now + INTERVAL_MS - 1) == 1
    assert len(watched.fake.requests) == asked
    await watched.minute()
    assert len(watched.fake.requests) == 2 * asked
    # Nothing has changed: GitHub and GitLab send nothing again.
    assert watched.fake.unchanged == (0 if watched.fake.kind == "gitea" else asked)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", range(1, 9))
async def test_a_crash_at_any_step_loses_and_changes_no_event(kind: str, step: int) -> None:
    """A repeated event has the key and the content of the first one, with which the chat shows it once."""
    table = MemoryTable()
    async with watching(kind, table) as found:
        fake = found.fake
        fake.add_comment("first")
        fake.checks.append(("test", "failed"))
        table.crash_at = table.writes + step
        crashes = 0
        for round_ in range(6):
            if round_ == 3:
                fake.pulls[0].state = "merged"
            fake.add_comment(f"round {round_}") if round_ < 3 else None
            try:
                await found.minute()
            except* Crash:
                crashes += 1
        assert crashes == 1
        shown = {event.key: event for event in found.seen}
        assert all(shown[event.key] == event for event in found.seen)
        assert len(found.seen) - len(shown) <= 1
        bodies = [one.body for event in shown.values() for one in event.comments]
        assert bodies == ["first", "round 0", "round 1", "round 2"]
        kinds = [event.kind for event in shown.values() if event.kind != "comments"]
        assert kinds == ["checks_failed", "merged"]
        assert table.entries == {}


async def test_an_event_that_cannot_be_reported_now_is_reported_later(watched: Watching) -> None:
    watched.fake.add_comment("first")
    watched.fail = 2
    assert await watched.minute() == []
    watched.fake.add_comment("second")
    assert await watched.minute() == []
    assert await watched.minute() == ["comments"]
    assert await watched.minute() == ["comments"]
    assert [len(event.comments) for event in watched.seen] == [1, 1]


async def test_a_failing_service_is_asked_less_often_until_it_answers(watched: Watching) -> None:
    watched.fake.then(*[Scripted(500)] * 6)
    waits = []
    for _ in range(6):
        wait = await watched.watch.look(watched.now)
        waits.append(wait)
        watched.now += wait
    assert waits == [60_000, 120_000, 240_000, 480_000, 960_000, 1_920_000]
    watched.fake.add_comment("still here")
    assert await watched.watch.look(watched.now) == INTERVAL_MS
    assert [event.kind for event in watched.seen] == ["comments"]


async def test_a_rate_limit_is_waited_for(watched: Watching) -> None:
    watched.fake.then(Scripted(429, headers={"Retry-After": "600"}))
    assert await watched.watch.look(watched.now) == 600_000


async def test_a_rejected_token_is_reported_once_until_it_is_accepted_again(watched: Watching) -> None:
    fake = watched.fake
    fake.then(Scripted(401), Scripted(401))
    assert await watched.minute() == ["denied"]
    assert "plugins.coding_agents.forges" in watched.seen[0].reason
    watched.now += 10 * INTERVAL_MS
    assert await watched.minute() == []
    watched.now += 10 * INTERVAL_MS
    assert await watched.minute() == []
    fake.then(Scripted(403))
    assert await watched.minute() == ["denied"]


async def test_a_removed_pull_request_is_not_looked_at(watched: Watching) -> None:
    await watched.watch.remove(next(iter(watched.table.entries)))
    watched.fake.add_comment("first")
    assert await watched.minute() == []
    assert watched.fake.requests == []
    assert await watched.watch.look(watched.now) is None


async def test_adding_one_again_changes_nothing(watched: Watching) -> None:
    watched.fake.add_comment("first")
    assert await watched.minute() == ["comments"]
    entry = watched.table.entries[next(iter(watched.table.entries))]
    async with reaching(watched.fake) as forges:
        pull = await forges.forge_for(watched.fake.url).pr_state(5)
    await watched.watch.add(watched.fake.url, pull, CONTEXT)
    assert watched.table.entries[pull.url] == entry
    assert await watched.minute() == []


async def test_a_clock_that_was_ahead_or_names_a_far_end_of_a_limit_delays_no_look_for_days() -> None:
    async with watching("github") as found:
        watch, fake, day = found.watch, found.fake, 86_400_000
        await watch.look(found.now + 300 * day)
        fake.add_comment("Please add a test")
        assert await watch.look(found.now) == INTERVAL_MS
        assert [event.kind for event in found.seen] == ["comments"]
        # The end of a limit is a time of the service's clock.
        far = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "32503680000"}
        fake.then(Scripted(429, headers=far))
        assert await watch.look(found.now + INTERVAL_MS) == LONGEST_PAUSE_MS
