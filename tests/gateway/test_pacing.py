"""Pacing: what a platform allows is used, never crossed, and shared fairly. Time is the test's own."""

from __future__ import annotations

import asyncio
import gc
import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.pacing import Key, Limit, Pacer
from tests.gateway.clock import Time, settled

pytestmark = pytest.mark.slow

TELEGRAM = {"all": Limit(30), "chat": Limit(60, 60, burst=3), "group": Limit(20, 60, burst=5)}
DISCORD = {"all": Limit(50), "bucket": Limit(1)}
SLACK = {
    "chat.postMessage": Limit(60, 60, burst=3),
    "chat.update": Limit(50, 60),
    "chat.delete": Limit(50, 60),
}


class Calls:
    """Calls that take their turns, and when each had its own."""

    def __init__(self, limits: dict[str, Limit]) -> None:
        self.time = Time()
        self.pacer = Pacer(limits, self.time)
        self.made: list[tuple[float, str]] = []

    async def call(self, name: str, *keys: Key, urgent: bool = False) -> None:
        async with self.pacer.turn(*keys, urgent=urgent):
            self.made.append((self.time.now - 1_000, name))

    async def many(self, tasks: asyncio.TaskGroup, count: int, name: str, *keys: Key) -> None:
        for _ in range(count):
            tasks.create_task(self.call(name, *keys))
        await settled()

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.made]

    def times(self, name: str) -> list[float]:
        return [when for when, called in self.made if called == name]


def most_within(times: Sequence[float], seconds: float) -> int:
    """How many of the times lie in the fullest window of so many seconds."""
    return max((bisect_right(times, when + seconds - 1e-6) - at for at, when in enumerate(times)), default=0)


async def test_a_call_within_the_limit_does_not_wait():
    calls = Calls(TELEGRAM)
    await calls.call("one", ("chat", "1"), "all")
    assert calls.made == [(0, "one")]


async def test_a_burst_goes_at_once_and_then_one_a_second():
    calls = Calls(TELEGRAM)
    async with asyncio.TaskGroup() as tasks:
        await calls.many(tasks, 6, "x", ("chat", "1"), "all")
        assert calls.times("x") == [0, 0, 0]
        await calls.time.pass_by(10)
    assert calls.times("x") == pytest.approx([0, 0, 0, 1, 2, 3])


async def test_room_for_a_burst_comes_back_while_it_is_quiet():
    calls = Calls(TELEGRAM)
    async with asyncio.TaskGroup() as tasks:
        await calls.many(tasks, 3, "x", ("chat", "1"))
        await calls.time.pass_by(3)
        await calls.many(tasks, 3, "y", ("chat", "1"))
    assert calls.times("y") == [3, 3, 3]


async def test_calls_with_the_same_keys_go_in_order():
    calls = Calls({"chat": Limit(1)})
    async with asyncio.TaskGroup() as tasks:
        for name in "abcde":
            tasks.create_task(calls.call(name, ("chat", "1")))
        await calls.time.pass_by(10)
    assert calls.names == list("abcde")


async def test_a_busy_chat_keeps_no_other_one_waiting():
    calls = Calls({"all": Limit(10)})
    async with asyncio.TaskGroup() as tasks:
        await calls.many(tasks, 500, "busy", "all", ("chat", "busy"))
        for n in range(9):
            await calls.many(tasks, 1, "quiet", "all", ("chat", str(n)))
        await calls.time.pass_by(1)
        assert Counter(calls.names[10:20]) == {"quiet": 9, "busy": 1}
        await calls.time.pass_by(60)


async def test_the_queue_stays_in_order_when_it_moves():
    """A call arrives in the moment between the end of a wait and the waking of who waited."""
    calls = Calls({"all": Limit(1, 10)})
    async with asyncio.TaskGroup() as tasks:
        await calls.many(tasks, 1, "first", "all")
        await calls.many(tasks, 1, "waits", "all", ("chat", "1"))
        calls.time.now += 10
        await calls.many(tasks, 1, "new", "all", ("chat", "2"))
        await calls.time.pass_by(20)
    assert calls.names == ["first", "waits", "new"]


async def test_chats_take_turns():
    calls = Calls({"all": Limit(1)})
    async with asyncio.TaskGroup() as tasks:
        for name in "abc":
            await calls.many(tasks, 3, name, "all", ("chat", name))
        await calls.time.pass_by(20)
    assert sorted(calls.names[1:4]) == sorted(calls.names[4:7]) == list("abc")


async def test_what_is_urgent_comes_first():
    calls = Calls({"all": Limit(1)})
    async with asyncio.TaskGroup() as tasks:
        await calls.many(tasks, 5, "edit", "all", ("chat", "1"))
        tasks.create_task(calls.call("final", "all", ("chat", "1"), urgent=True))
        tasks.create_task(calls.call("other", "all", ("chat", "2"), urgent=True))
        await calls.time.pass_by(20)
    assert calls.names[:4] == ["edit", "final", "other", "edit"]


async def test_a_hold_holds_its_key_alone():
    calls = Calls(TELEGRAM)
    calls.pacer.hold(("chat", "1"), 30)
    async with asyncio.TaskGroup() as tasks:
        await calls.many(tasks, 1, "held", "all", ("chat", "1"))
        await calls.many(tasks, 1, "other", "all", ("chat", "2"))
        assert calls.names == ["other"]
        await calls.time.pass_by(29.9)
        assert calls.names == ["other"]
        await calls.time.pass_by(0.2)
    assert calls.made[-1] == (pytest.approx(30), "held")


async def test_a_hold_is_reported_and_never_made_shorter():
    calls = Calls(TELEGRAM)
    assert calls.pacer.held("all") == 0
    calls.pacer.hold("all", 30)
    calls.pacer.hold("all", 5)
    await calls.time.pass_by(10)
    assert calls.pacer.held("all") == pytest.approx(20)
    assert calls.pacer.held(("chat", "1")) == 0
    await calls.time.pass_by(25)
    assert calls.pacer.held("all") == 0


async def test_a_hold_on_what_others_wait_for_delays_them():
    calls = Calls({"all": Limit(1)})
    async with asyncio.TaskGroup() as tasks:
        await calls.many(tasks, 3, "x", "all")
        calls.pacer.hold("all", 10)
        await calls.time.pass_by(20)
    assert calls.times("x") == pytest.approx([0, 10, 11])


async def test_a_key_without_a_limit_waits_only_when_held():
    calls = Calls({})
    async with asyncio.TaskGroup() as tasks:
        await calls.many(tasks, 100, "x", "anything")
        assert len(calls.made) == 100
        calls.pacer.hold("anything", 5)
        await calls.many(tasks, 100, "y", "anything")
        assert len(calls.made) == 100
        await calls.time.pass_by(5)
        assert len(calls.made) == 200


async def test_how_long_a_turn_would_take_is_reported():
    calls = Calls({"all": Limit(2, 10)})
    assert calls.pacer.wait("all", ("chat", "1")) == 0
    await calls.call("x", "all")
    await calls.call("x", "all")
    await calls.time.pass_by(4)
    assert calls.pacer.wait("all") == pytest.approx(6)


async def test_how_long_a_turn_would_take_counts_those_who_wait_already():
    calls = Calls({"all": Limit(2, 10)})
    async with asyncio.TaskGroup() as tasks:
        await calls.many(tasks, 6, "x", "all")
        assert calls.pacer.wait("all") == pytest.approx(10 + 4 * 10 / 2)
        await calls.time.pass_by(100)
    assert calls.pacer.wait("all") == 0


def test_a_limit_times_less_than_one_takes_longer_for_a_turn():
    limit = Limit(30, 1.0, burst=10)
    assert limit.times(2) == Limit(60, 1.0, burst=20)
    assert limit.times(0.5) == Limit(15, 1.0, burst=5)
    assert limit.times(0.01) == Limit(1, 1 / 0.3, burst=1)
    assert Limit(5, 5).times(1) == Limit(5, 5)


async def test_who_is_cancelled_while_waiting_uses_nothing_up():
    calls = Calls({"all": Limit(1, 10)})
    async with asyncio.TaskGroup() as tasks:
        await calls.many(tasks, 1, "first", "all")
        given_up = [tasks.create_task(calls.call("given up", "all")) for _ in range(50)]
        await calls.many(tasks, 1, "last", "all")
        for task in given_up:
            task.cancel()
        await calls.time.pass_by(10)
    assert calls.made == [(0, "first"), (10, "last")]


async def test_a_turn_that_was_given_and_not_taken_goes_to_the_next():
    """The caller is cancelled between being woken and going on."""
    calls = Calls({"all": Limit(1, 10, burst=1)})
    async with asyncio.TaskGroup() as tasks:
        await calls.many(tasks, 1, "first", "all")
        late = tasks.create_task(calls.call("late", "all", ("chat", "a")))
        await calls.many(tasks, 1, "next", "all", ("chat", "b"))
        calls.time.strike(10)
        late.cancel()
        await calls.time.pass_by(0)
    assert calls.made == [(0, "first"), (10, "next")]


@pytest.mark.parametrize("wrong", [(0, 1.0, None), (1, 0.0, None), (1, 1.0, 0)])
def test_a_limit_that_lets_nothing_through_is_refused(wrong: tuple[int, float, int | None]):
    with pytest.raises(ValueError, match="needs a positive count"):
        Limit(*wrong)


@pytest.mark.parametrize(
    ("limits", "keys", "per_second"),
    [
        (TELEGRAM, [("all", ("chat", "1"))], 1),
        (TELEGRAM, [("all", ("chat", "g"), ("group", "g"))], 20 / 60),
        (TELEGRAM, [("all", ("chat", str(n))) for n in range(100)], 30),
        ({**DISCORD, "bucket": Limit(5, 5)}, [("all", ("bucket", "b", "1"))], 1),
        ({**DISCORD, "bucket": Limit(5, 5)}, [("all", ("bucket", "b", str(n))) for n in range(100)], 50),
        (SLACK, [(("chat.postMessage", "C1"),)], 1),
        (SLACK, [("chat.update",)], 50 / 60),
    ],
)
async def test_what_is_allowed_is_used_and_never_crossed(
    limits: dict[str, Limit], keys: list[tuple[Key, ...]], per_second: float
):
    calls = Calls(limits)
    seconds = 300
    each = int(seconds * per_second / len(keys)) + 10
    async with asyncio.TaskGroup() as tasks:
        for key in keys:
            await calls.many(tasks, each, repr(key), *key)
        await calls.time.pass_by(seconds)
        made = list(calls.made)
        await calls.time.pass_by(seconds)
    assert len(made) >= 0.95 * per_second * seconds
    for key in set(itertools.chain(*keys)):
        limit = limits[key if isinstance(key, str) else key[0]]
        times = [when for when, name in calls.made if repr(key) in name]
        assert most_within(times, limit.seconds) <= limit.count


async def test_waiting_for_a_method_keeps_the_place_among_all():
    """Forty rooms share ten calls a second, so a round takes four; a method that waits three is not later."""
    calls = Calls({"all": Limit(10), "slow": Limit(1, 3.05)})
    async with asyncio.TaskGroup() as tasks:
        for n in range(40):
            await calls.many(tasks, 20, "fast", "all", ("chat", str(n)))
        await calls.many(tasks, 10, "slow", "all", "slow", ("chat", "x"))
        await calls.time.pass_by(50)
        assert len(calls.times("slow")) == 10
        await calls.time.pass_by(200)


async def test_waiters_are_woken_without_polling():
    calls = Calls({"all": Limit(10), "chat": Limit(1)})
    async with asyncio.TaskGroup() as tasks:
        for n in range(50):
            await calls.many(tasks, 20, "x", "all", ("chat", str(n)))
        calls.pacer.hold("all", 50)
        await calls.time.pass_by(45)
        assert calls.time.woken <= 50 + 2
        await calls.time.pass_by(300)
    assert len(calls.made) == 1_000
    assert calls.time.woken <= 2_500


async def test_ten_thousand_chats_are_forgotten():
    calls = Calls(TELEGRAM)
    async with asyncio.TaskGroup() as tasks:
        for n in range(10_000):
            tasks.create_task(calls.call("x", ("chat", str(n)), ("group", str(n))))
        await calls.time.pass_by(1)
        assert len(calls.made) == 10_000
        assert len(calls.pacer) == 20_000
        await calls.time.pass_by(130)
    assert len(calls.pacer) == 0
    assert calls.time.waiting == 0


async def test_a_chat_that_is_held_or_waited_for_is_not_forgotten():
    calls = Calls({"all": Limit(1, 1_000)})
    async with asyncio.TaskGroup() as tasks:
        await calls.many(tasks, 2, "x", "all", ("chat", "1"))
        calls.pacer.hold(("chat", "2"), 500)
        await calls.time.pass_by(400)
        assert len(calls.pacer) == 3
        assert calls.pacer.held(("chat", "2")) == pytest.approx(100)
        await calls.time.pass_by(700)
    assert calls.times("x") == [0, 1_000]
    await calls.time.pass_by(2_000)
    assert len(calls.pacer) == 0


async def test_a_limit_longer_than_memory_is_kept():
    calls = Calls({"all": Limit(2, 300)})
    async with asyncio.TaskGroup() as tasks:
        await calls.many(tasks, 2, "x", "all")
        await calls.time.pass_by(200)
        await calls.many(tasks, 1, "x", "all")
        await calls.time.pass_by(200)
    assert calls.times("x") == [0, 0, 300]


def _futures() -> int:
    gc.collect()
    return sum(isinstance(one, asyncio.Future) for one in gc.get_objects())


async def test_waiters_that_gave_up_leave_nothing_behind():
    calls = Calls({"all": Limit(1, 10)})
    await calls.call("x", "all")
    before, futures = asyncio.all_tasks(), _futures()
    for _ in range(1_000):
        task = asyncio.ensure_future(calls.call("given up", "all", ("chat", "1")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert asyncio.all_tasks() == before
    del task
    assert _futures() < futures + 100
    await calls.time.pass_by(200)
    assert (len(calls.pacer), calls.time.waiting) == (0, 0)


async def test_the_running_loop_is_the_clock_unless_another_is_given():
    pacer = Pacer({"all": Limit(1, 0.01)})
    loop = asyncio.get_running_loop()
    before = loop.time()
    async with pacer.turn("all"):
        pass
    async with pacer.turn("all"):
        assert loop.time() >= before + 0.0095


@settings(max_examples=60, deadline=None)
@given(
    limits=st.fixed_dictionaries(
        {
            kind: st.builds(Limit, st.integers(1, 6), st.integers(1, 20), st.none() | st.integers(1, 6))
            for kind in "abc"
        }
    ),
    calls=st.lists(
        st.tuples(
            st.integers(0, 5),
            st.lists(st.sampled_from(["a", "b", ("c", "1"), ("c", "2")]), unique=True, max_size=3),
            st.booleans(),
            st.booleans(),
        ),
        max_size=40,
    ),
)
def test_any_mixture_of_calls_is_served_within_every_limit(
    limits: dict[str, Limit], calls: list[tuple[int, list[Key], bool, bool]]
):
    async def serve() -> tuple[list[tuple[float, int]], int]:
        made = Calls(limits)
        given_up = 0
        async with asyncio.TaskGroup() as tasks:
            for number, (pause, keys, urgent, gives_up) in enumerate(calls):
                task = tasks.create_task(made.call(str(number), *keys, urgent=urgent))
                await made.time.pass_by(pause)
                if gives_up:
                    given_up += task.cancel()
            await made.time.pass_by(5_000)
        assert (len(made.pacer), made.time.waiting) == (0, 0)
        return [(when, int(number)) for when, number in made.made], given_up

    made, given_up = asyncio.run(serve())
    assert len(made) + given_up == len(calls)
    for key in ("a", "b", ("c", "1"), ("c", "2")):
        limit = limits[key[0]]
        times = [when for when, number in made if key in calls[number][1]]
        assert most_within(times, limit.seconds) <= limit.count
        if limit.burst is not None:
            spread = limit.seconds / limit.count
            assert most_within(times, spread) <= limit.burst
