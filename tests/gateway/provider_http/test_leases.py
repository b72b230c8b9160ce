"""Several keys and limits of a provider: who may call when, and with which key. Time is the test's own."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.contract.errors import AuthFailedError, ProviderError, RateLimitError, ServerFailedError
from gateway.contract.messages import Attachment, ImagePart, ToolResultPart
from gateway.contract.provider import ProviderConfig
from gateway.provider_http.leases import (
    HOLD_SECONDS,
    REFUSED_SECONDS,
    CallRequest,
    KeyLease,
    KeyScheduler,
    LeaseTicket,
    estimate_request,
    scheduler_for,
)
from gateway.testing.contracts.provider_calls import assistant, user
from tests.gateway.clock import Time, settled

ONE = CallRequest("s", "m")
LONG = 1_000.0


def scheduler(time: Time, **given: Any) -> KeyScheduler:
    return KeyScheduler(ProviderConfig(id="fake", **given), time)


def got(asked: KeyLease | LeaseTicket) -> KeyLease:
    assert isinstance(asked, KeyLease)
    return asked


def waiting(asked: KeyLease | LeaseTicket) -> LeaseTicket:
    assert isinstance(asked, LeaseTicket)
    return asked


def keys_of(many: KeyScheduler, count: int, session: str = "s") -> list[str | None]:
    """The keys of so many calls of a session, one after the other."""
    used: list[str | None] = []
    for _ in range(count):
        lease = got(many.acquire(CallRequest(session, "m")))
        used.append(lease.config.api_key)
        lease.release()
    return used


def test_who_has_one_key_and_no_limit_needs_no_slots() -> None:
    assert scheduler_for(ProviderConfig(id="x", api_key="a")) is None
    assert scheduler_for(ProviderConfig(id="x", api_key="a", api_keys=("a",))) is None
    for limit in ({"api_keys": ("a", "b")}, {"concurrency": 1}, {"tokens_per_minute": 1}):
        assert scheduler_for(ProviderConfig(id="x", **limit)) is not None


async def test_a_session_keeps_to_a_key_and_sessions_are_spread_over_all() -> None:
    many = scheduler(Time(), api_keys=("a", "b", "c"))
    used = {f"s{number}": keys_of(many, 3, f"s{number}") for number in range(60)}
    assert all(len(set(keys)) == 1 for keys in used.values())
    counts = Counter(keys[0] for keys in used.values())
    assert min(counts[key] for key in ("a", "b", "c")) >= 10


async def test_a_key_with_far_more_to_do_is_passed_over() -> None:
    many = scheduler(Time(), api_keys=("a", "b"))
    held = [got(many.acquire(ONE)) for _ in range(16)]
    shares = Counter(lease.config.api_key for lease in held)
    assert shares == {"a": 8, "b": 8}
    assert len({lease.config.api_key for lease in held[:4]}) == 1


async def test_a_key_that_is_refused_is_only_tried_when_there_is_no_other() -> None:
    time = Time()
    many = scheduler(time, api_keys=("a", "b"))
    first = got(many.acquire(ONE))
    other = many.next_lease(first, AuthFailedError("no", status=401))
    assert other is not None
    assert (first.position, other.position, other.config.api_key) == (1, 2, "b")
    other.release()
    assert keys_of(many, 3) == ["b", "b", "b"]
    other = got(many.acquire(ONE))
    last = many.next_lease(other, AuthFailedError("no", status=402))
    assert last is not None
    last.release()
    time.strike(REFUSED_SECONDS)
    assert keys_of(many, 2) == ["a", "a"]


async def test_a_call_tries_each_key_once() -> None:
    many = scheduler(Time(), api_keys=("a", "b", "c"))
    lease: KeyLease | LeaseTicket | None = got(many.acquire(ONE))
    tried: list[str | None] = []
    while lease is not None:
        tried.append(got(lease).config.api_key)
        lease = many.next_lease(got(lease), AuthFailedError("no", status=401))
    assert tried == ["a", "b", "c"]
    assert isinstance(many.acquire(ONE), KeyLease)


async def test_a_call_whose_key_is_refused_waits_for_another_that_is_busy() -> None:
    many = scheduler(Time(), api_keys=("a", "b"), concurrency=1)
    mine, other = got(many.acquire(ONE)), got(many.acquire(CallRequest("t", "m")))
    behind = waiting(many.acquire(CallRequest("u", "m")))
    line = many.next_lease(mine, AuthFailedError("no", status=401))
    assert isinstance(line, LeaseTicket)
    assert not behind.future.done(), "a key that was just refused goes to nobody while there is another"
    other.release()
    assert behind.future.result().position == other.position
    behind.future.result().release()
    assert line.future.result().position == other.position
    assert many.next_lease(line.future.result(), AuthFailedError("no", status=401)) is None


async def test_a_model_that_a_key_may_not_use_says_nothing_of_other_models() -> None:
    many = scheduler(Time(), api_keys=("a", "b"))
    many.record_failure(1, "m", AuthFailedError("not this model", status=403))
    assert keys_of(many, 2) == ["b", "b"]
    assert got(many.acquire(CallRequest("s", "other"))).config.api_key == "a"


async def test_a_key_that_is_too_busy_rests_as_long_as_the_provider_asked() -> None:
    time = Time()
    many = scheduler(time, api_keys=("a", "b"))
    lease = many.next_lease(got(many.acquire(ONE)), RateLimitError("slow", retry_after=20))
    assert lease is not None
    assert lease.config.api_key == "b"
    lease.release()
    time.strike(19)
    assert keys_of(many, 2) == ["b", "b"]
    time.strike(1)
    assert keys_of(many, 2) == ["a", "a"]


async def test_when_all_keys_rest_the_failure_tells_when_the_first_is_back() -> None:
    many = scheduler(Time(), api_keys=("a", "b"))
    lease = many.next_lease(got(many.acquire(ONE)), RateLimitError("slow", retry_after=20))
    failure = RateLimitError("slow", retry_after=70)
    assert lease is not None
    assert many.next_lease(lease, failure) is None
    assert failure.retry_after == 20
    assert waiting(many.acquire(ONE)).seconds == 20
    unsaid = RateLimitError("slow")
    many.record_failure(1, "else", unsaid)
    many.record_failure(2, "else", unsaid)
    assert waiting(many.acquire(CallRequest("t", "else"))).seconds > HOLD_SECONDS - 0.1


@pytest.mark.parametrize("failure", [ServerFailedError("no"), ProviderError("no")])
async def test_another_key_is_not_tried_after_a_server_error(failure: ProviderError) -> None:
    many = scheduler(Time(), api_keys=("a", "b"))
    assert many.next_lease(got(many.acquire(ONE)), failure) is None
    assert keys_of(many, 2) == ["a", "a"]


async def test_a_quota_that_is_used_up_is_like_a_key_that_is_refused() -> None:
    many = scheduler(Time(), api_keys=("a", "b"))
    spent = RateLimitError("quota")
    spent.retryable = False
    assert many.next_lease(got(many.acquire(ONE)), spent) is not None
    many.record_failure(2, "m", RateLimitError("slow", retry_after=5))
    assert waiting(many.acquire(ONE)).seconds == 5


async def test_the_only_key_is_asked_again_rather_than_rest_longer_than_a_call_may_wait() -> None:
    many = scheduler(Time(), api_key="a", timeout=10_000)
    many.hold(1, "m", 11)
    assert isinstance(many.acquire(ONE), KeyLease)
    many.hold(1, "m", 9)
    assert isinstance(many.acquire(ONE), LeaseTicket)
    assert isinstance(many.acquire(CallRequest("s", "other")), KeyLease)


async def test_no_more_calls_run_at_once_than_may() -> None:
    many = scheduler(Time(), api_keys=("a", "b"), concurrency=2)
    held = [got(many.acquire(ONE)) for _ in range(4)]
    assert sorted(lease.config.api_key or "" for lease in held) == ["a", "a", "b", "b"]
    line = waiting(many.acquire(ONE))
    assert line.seconds == 0
    held[1].release()
    held[1].release()
    lease = await line.wait(LONG)
    assert lease.position == held[1].position
    assert isinstance(many.acquire(ONE), LeaseTicket)


async def test_no_more_calls_begin_in_a_minute_than_may() -> None:
    time = Time()
    many = scheduler(time, requests_per_minute=3)
    for _ in range(3):
        got(many.acquire(ONE)).release()
        time.strike(10)
    lines = [waiting(many.acquire(ONE)) for _ in range(2)]
    assert [line.seconds for line in lines] == [30, 50]
    await time.pass_by(29.9)
    assert not lines[0].future.done()
    await time.pass_by(0.2)
    assert (lines[0].future.done(), lines[1].future.done()) == (True, False)
    await time.pass_by(10)
    assert lines[1].future.done()


async def test_tokens_are_reckoned_before_a_call_and_counted_after_it() -> None:
    time = Time()
    many = scheduler(time, tokens_per_minute=1000)
    small, large = CallRequest("s", "m", 400), CallRequest("s", "m", 5000)
    first = got(many.acquire(small))
    got(many.acquire(small))
    line = waiting(many.acquire(small))
    with line:
        assert line.seconds == 60
        first.record_tokens(100)
        first.release()
        assert line.future.done()
    many.withdraw(line)
    await time.pass_by(60)
    got(many.acquire(large)).release()
    assert waiting(many.acquire(small)).seconds == 60


async def test_one_session_with_many_calls_keeps_no_other_waiting() -> None:
    many = scheduler(Time(), concurrency=1)
    lease = got(many.acquire(ONE))
    order: list[str] = []

    async def call(session: str) -> None:
        line = waiting(many.acquire(CallRequest(session, "m")))
        with line:
            granted = await line.wait(LONG)
        order.append(session)
        await asyncio.sleep(0)
        granted.release()

    async with asyncio.TaskGroup() as group:
        for session in ("busy", "busy", "busy", "busy", "a", "b", "a"):
            group.create_task(call(session))
        await settled()
        lease.release()
    assert order == ["busy", "a", "b", "busy", "a", "busy", "busy"]


async def test_who_waits_for_a_model_keeps_no_other_model_waiting_and_who_needs_much_is_not_passed() -> None:
    many = scheduler(Time(), api_key="a", tokens_per_minute=1000)
    many.hold(1, "m", 30)
    held = waiting(many.acquire(ONE))
    assert got(many.acquire(CallRequest("t", "other", 900))).config.api_key == "a"
    large = waiting(many.acquire(CallRequest("u", "other", 500)))
    small = waiting(many.acquire(CallRequest("v", "other", 50)))
    assert not any(line.future.done() for line in (held, large, small))


async def test_who_waits_may_leave_and_gives_back_what_came_too_late() -> None:
    many = scheduler(Time(), concurrency=1)
    lease = got(many.acquire(ONE))
    first, second, third = (waiting(many.acquire(ONE)) for _ in range(3))
    many.withdraw(first)
    many.withdraw(first)
    lease.release()
    assert second.future.done()
    with pytest.raises(asyncio.CancelledError), second:
        raise asyncio.CancelledError
    assert third.future.result().release() is None
    assert isinstance(many.acquire(ONE), KeyLease)


async def test_who_is_cancelled_as_a_turn_comes_takes_none() -> None:
    many = scheduler(Time(), concurrency=1)
    lease = got(many.acquire(ONE))

    async def wait(line: LeaseTicket) -> None:
        with line:
            await line.wait(LONG)

    lines = [waiting(many.acquire(ONE)), waiting(many.acquire(CallRequest("t", "m")))]
    tasks = [asyncio.ensure_future(wait(line)) for line in lines]
    await settled()
    for task in tasks:
        task.cancel()
    lease.release()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [task.cancelled() for task in tasks] == [True, True]
    assert isinstance(many.acquire(ONE), KeyLease)


async def test_a_wait_beyond_what_a_call_may_wait_is_a_rate_limit() -> None:
    many = scheduler(Time(), concurrency=1, timeout=500_000)
    got(many.acquire(ONE))
    with pytest.raises(RateLimitError, match="the limits of fake leave no room for 0 s and more"):
        await waiting(many.acquire(ONE)).wait(0.01)
    busy = scheduler(Time(), api_key="a")
    busy.hold(1, "m", 100)
    with pytest.raises(RateLimitError, match="for 100 s") as caught:
        await waiting(busy.acquire(ONE)).wait(50)
    assert (caught.value.retry_after, caught.value.provider) == (100, "fake")


def test_a_picture_is_not_reckoned_by_its_bytes() -> None:
    picture = "x" * 100_000
    seen = assistant(ToolResultPart("a", "made", attachments=(Attachment("image/png", picture),)))
    messages = (user("Look", ImagePart(picture, "image/png")), seen)
    assert estimate_request(messages, "m", 200_400) == CallRequest("s", "m", 2100)
    assert estimate_request((), "m", 0) == CallRequest("", "m", 1)


class Callers:
    """Calls at random: who has a lease, who waits, and when each key was used."""

    FAILURES = {
        "refused": lambda _: AuthFailedError("no", status=401),
        "busy": lambda number: RateLimitError("slow", retry_after=number * 5),
        "broken": lambda _: ServerFailedError("oops"),
    }

    def __init__(self, concurrency: int | None, rate: int | None) -> None:
        self.time = Time()
        self.concurrency, self.rate = concurrency or 99, rate or 10_000
        limits = {"concurrency": concurrency, "requests_per_minute": rate}
        self.scheduler = scheduler(self.time, api_keys=("a", "b", "c"), **limits)
        self.held: list[KeyLease] = []
        self.lines: list[LeaseTicket] = []
        self.begun: dict[int, list[float]] = {}

    def take(self, asked: KeyLease | LeaseTicket | None) -> None:
        if isinstance(asked, KeyLease):
            self.held.append(asked)
            self.begun.setdefault(asked.position, []).append(self.time.now)
        elif asked is not None:
            self.lines.append(asked)

    async def move(self, kind: str, which: int, number: int) -> None:
        if kind == "ask":
            self.take(self.scheduler.acquire(CallRequest(f"s{number}", f"m{number % 2}")))
        elif kind == "wait":
            await self.time.pass_by(which * 7)
        elif kind == "cancel" and self.lines:
            line = self.lines.pop(which % len(self.lines))
            line.future.cancel()
            self.scheduler.withdraw(line)
        elif self.held:
            self.end(kind, self.held.pop(which % len(self.held)), number)
        self.settle()

    def end(self, kind: str, lease: KeyLease, number: int) -> None:
        lease.record_tokens(5)
        if kind in self.FAILURES:
            self.take(self.scheduler.next_lease(lease, self.FAILURES[kind](number)))
        else:
            lease.release()

    def settle(self) -> None:
        for line in [line for line in self.lines if line.future.done()]:
            self.lines.remove(line)
            self.take(line.future.result())
        under_way = Counter(lease.position for lease in self.held)
        assert max(under_way.values(), default=0) <= self.concurrency

    async def rest(self) -> None:
        """Let everybody have a turn, and end it."""
        for _ in range(300):
            while self.held:
                self.held.pop().release()
            await self.time.pass_by(60)
            self.settle()


KINDS = st.sampled_from(["ask", "ask", "end", *Callers.FAILURES, "cancel", "wait"])


@settings(max_examples=150)
@given(
    moves=st.lists(st.tuples(KINDS, st.integers(0, 5), st.integers(0, 3)), max_size=60),
    concurrency=st.sampled_from([None, 1, 2]),
    rate=st.sampled_from([None, 3]),
)
async def test_no_limit_is_exceeded_and_every_session_gets_a_lease(
    moves: list[tuple[str, int, int]], concurrency: int | None, rate: int | None
) -> None:
    callers = Callers(concurrency, rate)
    for move in moves:
        await callers.move(*move)
    await callers.rest()
    assert (callers.held, callers.lines) == ([], [])
    for times in callers.begun.values():
        later = times[callers.rate :]
        assert all(after - before > 59.9 for before, after in zip(times, later, strict=False))
