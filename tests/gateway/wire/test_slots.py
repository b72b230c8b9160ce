"""Several keys and limits of a provider: who may call when, and with which key. Time is the test's own."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import AuthFailedError, ProviderError, RateLimitError, ServerFailedError
from gateway.messages import Attachment, ImagePart, ToolResultPart
from gateway.provider import ProviderConfig
from gateway.testing.talk import assistant, user
from gateway.wire.slots import REFUSED_SECONDS, RESTS_SECONDS, Slots, slots_for
from gateway.wire.waiting import Slot, Waiting, Wish, wish_for
from tests.gateway.clock import Time, settled

ONE = Wish("s", "m")
LONG = 1_000.0


def slots(time: Time, **given: Any) -> Slots:
    return Slots(ProviderConfig(id="fake", **given), time)


def got(asked: Slot | Waiting) -> Slot:
    assert isinstance(asked, Slot)
    return asked


def waiting(asked: Slot | Waiting) -> Waiting:
    assert isinstance(asked, Waiting)
    return asked


def keys_of(many: Slots, count: int, session: str = "s") -> list[str | None]:
    """The keys of so many calls of a session, one after the other."""
    used: list[str | None] = []
    for _ in range(count):
        slot = got(many.ask(Wish(session, "m")))
        used.append(slot.config.api_key)
        slot.release()
    return used


def test_who_has_one_key_and_no_limit_needs_no_slots() -> None:
    assert slots_for(ProviderConfig(id="x", api_key="a")) is None
    assert slots_for(ProviderConfig(id="x", api_key="a", api_keys=("a",))) is None
    for limit in ({"api_keys": ("a", "b")}, {"concurrency": 1}, {"tokens_per_minute": 1}):
        assert slots_for(ProviderConfig(id="x", **limit)) is not None


async def test_a_session_keeps_to_a_key_and_sessions_are_spread_over_all() -> None:
    many = slots(Time(), api_keys=("a", "b", "c"))
    used = {f"s{number}": keys_of(many, 3, f"s{number}") for number in range(60)}
    assert all(len(set(keys)) == 1 for keys in used.values())
    counts = Counter(keys[0] for keys in used.values())
    assert min(counts[key] for key in ("a", "b", "c")) >= 10


async def test_a_key_with_far_more_to_do_is_passed_over() -> None:
    many = slots(Time(), api_keys=("a", "b"))
    held = [got(many.ask(ONE)) for _ in range(16)]
    shares = Counter(slot.config.api_key for slot in held)
    assert shares == {"a": 8, "b": 8}
    assert len({slot.config.api_key for slot in held[:4]}) == 1


async def test_a_key_that_is_refused_is_only_tried_when_there_is_no_other() -> None:
    time = Time()
    many = slots(time, api_keys=("a", "b"))
    first = got(many.ask(ONE))
    other = many.instead(first, AuthFailedError("no", status=401))
    assert other is not None
    assert (first.position, other.position, other.config.api_key) == (1, 2, "b")
    other.release()
    assert keys_of(many, 3) == ["b", "b", "b"]
    other = got(many.ask(ONE))
    last = many.instead(other, AuthFailedError("no", status=402))
    assert last is not None
    last.release()
    time.strike(REFUSED_SECONDS)
    assert keys_of(many, 2) == ["a", "a"]


async def test_a_call_tries_each_key_once() -> None:
    many = slots(Time(), api_keys=("a", "b", "c"))
    slot: Slot | Waiting | None = got(many.ask(ONE))
    tried: list[str | None] = []
    while slot is not None:
        tried.append(got(slot).config.api_key)
        slot = many.instead(got(slot), AuthFailedError("no", status=401))
    assert tried == ["a", "b", "c"]
    assert isinstance(many.ask(ONE), Slot)


async def test_a_call_whose_key_is_refused_waits_for_another_that_is_busy() -> None:
    many = slots(Time(), api_keys=("a", "b"), concurrency=1)
    mine, other = got(many.ask(ONE)), got(many.ask(Wish("t", "m")))
    behind = waiting(many.ask(Wish("u", "m")))
    line = many.instead(mine, AuthFailedError("no", status=401))
    assert isinstance(line, Waiting)
    assert not behind.future.done(), "a key that was just refused goes to nobody while there is another"
    other.release()
    assert behind.future.result().position == other.position
    behind.future.result().release()
    assert line.future.result().position == other.position
    assert many.instead(line.future.result(), AuthFailedError("no", status=401)) is None


async def test_a_model_that_a_key_may_not_use_says_nothing_of_other_models() -> None:
    many = slots(Time(), api_keys=("a", "b"))
    many.note(1, "m", AuthFailedError("not this model", status=403))
    assert keys_of(many, 2) == ["b", "b"]
    assert got(many.ask(Wish("s", "other"))).config.api_key == "a"


async def test_a_key_that_is_too_busy_rests_as_long_as_it_was_told() -> None:
    time = Time()
    many = slots(time, api_keys=("a", "b"))
    slot = many.instead(got(many.ask(ONE)), RateLimitError("slow", retry_after=20))
    assert slot is not None
    assert slot.config.api_key == "b"
    slot.release()
    time.strike(19)
    assert keys_of(many, 2) == ["b", "b"]
    time.strike(1)
    assert keys_of(many, 2) == ["a", "a"]


async def test_when_all_keys_rest_the_failure_tells_when_the_first_is_back() -> None:
    many = slots(Time(), api_keys=("a", "b"))
    slot = many.instead(got(many.ask(ONE)), RateLimitError("slow", retry_after=20))
    failure = RateLimitError("slow", retry_after=70)
    assert slot is not None
    assert many.instead(slot, failure) is None
    assert failure.retry_after == 20
    assert waiting(many.ask(ONE)).seconds == 20
    unsaid = RateLimitError("slow")
    many.note(1, "else", unsaid)
    many.note(2, "else", unsaid)
    assert waiting(many.ask(Wish("t", "else"))).seconds > RESTS_SECONDS - 0.1


@pytest.mark.parametrize("failure", [ServerFailedError("no"), ProviderError("no")])
async def test_another_key_is_no_help_against_a_server_that_fails(failure: ProviderError) -> None:
    many = slots(Time(), api_keys=("a", "b"))
    assert many.instead(got(many.ask(ONE)), failure) is None
    assert keys_of(many, 2) == ["a", "a"]


async def test_a_quota_that_is_used_up_is_like_a_key_that_is_refused() -> None:
    many = slots(Time(), api_keys=("a", "b"))
    spent = RateLimitError("quota")
    spent.retryable = False
    assert many.instead(got(many.ask(ONE)), spent) is not None
    many.note(2, "m", RateLimitError("slow", retry_after=5))
    assert waiting(many.ask(ONE)).seconds == 5


async def test_the_only_key_is_asked_again_rather_than_rest_longer_than_a_call_may_wait() -> None:
    many = slots(Time(), api_key="a", timeout=10_000)
    many.rest(1, "m", 11)
    assert isinstance(many.ask(ONE), Slot)
    many.rest(1, "m", 9)
    assert isinstance(many.ask(ONE), Waiting)
    assert isinstance(many.ask(Wish("s", "other")), Slot)


async def test_no_more_calls_run_at_once_than_may() -> None:
    many = slots(Time(), api_keys=("a", "b"), concurrency=2)
    held = [got(many.ask(ONE)) for _ in range(4)]
    assert sorted(slot.config.api_key or "" for slot in held) == ["a", "a", "b", "b"]
    line = waiting(many.ask(ONE))
    assert line.seconds == 0
    held[1].release()
    held[1].release()
    slot = await line.slot(LONG)
    assert slot.position == held[1].position
    assert isinstance(many.ask(ONE), Waiting)


async def test_no_more_calls_begin_in_a_minute_than_may() -> None:
    time = Time()
    many = slots(time, requests_per_minute=3)
    for _ in range(3):
        got(many.ask(ONE)).release()
        time.strike(10)
    lines = [waiting(many.ask(ONE)) for _ in range(2)]
    assert [line.seconds for line in lines] == [30, 50]
    await time.pass_by(29.9)
    assert not lines[0].future.done()
    await time.pass_by(0.2)
    assert (lines[0].future.done(), lines[1].future.done()) == (True, False)
    await time.pass_by(10)
    assert lines[1].future.done()


async def test_tokens_are_reckoned_before_a_call_and_counted_after_it() -> None:
    time = Time()
    many = slots(time, tokens_per_minute=1000)
    small, large = Wish("s", "m", 400), Wish("s", "m", 5000)
    first = got(many.ask(small))
    got(many.ask(small))
    line = waiting(many.ask(small))
    with line:
        assert line.seconds == 60
        first.used(100)
        first.release()
        assert line.future.done()
    many.leave(line)
    await time.pass_by(60)
    got(many.ask(large)).release()
    assert waiting(many.ask(small)).seconds == 60


async def test_one_session_with_many_calls_keeps_no_other_waiting() -> None:
    many = slots(Time(), concurrency=1)
    slot = got(many.ask(ONE))
    order: list[str] = []

    async def call(session: str) -> None:
        line = waiting(many.ask(Wish(session, "m")))
        with line:
            granted = await line.slot(LONG)
        order.append(session)
        await asyncio.sleep(0)
        granted.release()

    async with asyncio.TaskGroup() as group:
        for session in ("busy", "busy", "busy", "busy", "a", "b", "a"):
            group.create_task(call(session))
        await settled()
        slot.release()
    assert order == ["busy", "a", "b", "busy", "a", "busy", "busy"]


async def test_who_waits_for_a_model_keeps_no_other_model_waiting_and_who_needs_much_is_not_passed() -> None:
    many = slots(Time(), api_key="a", tokens_per_minute=1000)
    many.rest(1, "m", 30)
    held = waiting(many.ask(ONE))
    assert got(many.ask(Wish("t", "other", 900))).config.api_key == "a"
    large = waiting(many.ask(Wish("u", "other", 500)))
    small = waiting(many.ask(Wish("v", "other", 50)))
    assert not any(line.future.done() for line in (held, large, small))


async def test_who_waits_may_leave_and_gives_back_what_came_too_late() -> None:
    many = slots(Time(), concurrency=1)
    slot = got(many.ask(ONE))
    first, second, third = (waiting(many.ask(ONE)) for _ in range(3))
    many.leave(first)
    many.leave(first)
    slot.release()
    assert second.future.done()
    with pytest.raises(asyncio.CancelledError), second:
        raise asyncio.CancelledError
    assert third.future.result().release() is None
    assert isinstance(many.ask(ONE), Slot)


async def test_who_is_cancelled_as_a_turn_comes_takes_none() -> None:
    many = slots(Time(), concurrency=1)
    slot = got(many.ask(ONE))

    async def wait(line: Waiting) -> None:
        with line:
            await line.slot(LONG)

    lines = [waiting(many.ask(ONE)), waiting(many.ask(Wish("t", "m")))]
    tasks = [asyncio.ensure_future(wait(line)) for line in lines]
    await settled()
    for task in tasks:
        task.cancel()
    slot.release()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [task.cancelled() for task in tasks] == [True, True]
    assert isinstance(many.ask(ONE), Slot)


async def test_a_wait_beyond_what_a_call_may_wait_is_a_rate_limit() -> None:
    many = slots(Time(), concurrency=1, timeout=500_000)
    got(many.ask(ONE))
    with pytest.raises(RateLimitError, match="the limits of fake leave no room for 0 s and more"):
        await waiting(many.ask(ONE)).slot(0.01)
    busy = slots(Time(), api_key="a")
    busy.rest(1, "m", 100)
    with pytest.raises(RateLimitError, match="for 100 s") as caught:
        await waiting(busy.ask(ONE)).slot(50)
    assert (caught.value.retry_after, caught.value.provider) == (100, "fake")


def test_a_picture_is_not_reckoned_by_its_bytes() -> None:
    picture = "x" * 100_000
    seen = assistant(ToolResultPart("a", "made", attachments=(Attachment("image/png", picture),)))
    messages = (user("Look", ImagePart(picture, "image/png")), seen)
    assert wish_for(messages, "m", 200_400) == Wish("s", "m", 2100)
    assert wish_for((), "m", 0) == Wish("", "m", 1)


class Callers:
    """Calls at random: who has a slot, who waits, and when each key was used."""

    FAILURES = {
        "refused": lambda _: AuthFailedError("no", status=401),
        "busy": lambda number: RateLimitError("slow", retry_after=number * 5),
        "broken": lambda _: ServerFailedError("oops"),
    }

    def __init__(self, concurrency: int | None, rate: int | None) -> None:
        self.time = Time()
        self.concurrency, self.rate = concurrency or 99, rate or 10_000
        limits = {"concurrency": concurrency, "requests_per_minute": rate}
        self.slots = slots(self.time, api_keys=("a", "b", "c"), **limits)
        self.held: list[Slot] = []
        self.lines: list[Waiting] = []
        self.begun: dict[int, list[float]] = {}

    def take(self, asked: Slot | Waiting | None) -> None:
        if isinstance(asked, Slot):
            self.held.append(asked)
            self.begun.setdefault(asked.position, []).append(self.time.now)
        elif asked is not None:
            self.lines.append(asked)

    async def move(self, kind: str, which: int, number: int) -> None:
        if kind == "ask":
            self.take(self.slots.ask(Wish(f"s{number}", f"m{number % 2}")))
        elif kind == "wait":
            await self.time.pass_by(which * 7)
        elif kind == "cancel" and self.lines:
            line = self.lines.pop(which % len(self.lines))
            line.future.cancel()
            self.slots.leave(line)
        elif self.held:
            self.end(kind, self.held.pop(which % len(self.held)), number)
        self.settle()

    def end(self, kind: str, slot: Slot, number: int) -> None:
        slot.used(5)
        if kind in self.FAILURES:
            self.take(self.slots.instead(slot, self.FAILURES[kind](number)))
        else:
            slot.release()

    def settle(self) -> None:
        for line in [line for line in self.lines if line.future.done()]:
            self.lines.remove(line)
            self.take(line.future.result())
        under_way = Counter(slot.position for slot in self.held)
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
async def test_whatever_happens_no_limit_is_crossed_and_everybody_has_a_turn(
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
