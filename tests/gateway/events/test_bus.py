"""The event bus: who is notified, and what a slow, failing or leaving subscriber changes for others."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gateway import Activity, Plugin, PluginContext
from gateway.events import (
    AgentProgress,
    BusEvent,
    Disposed,
    FeedbackGiven,
    GatewayReady,
    ModelChanged,
    PluginRegistered,
    PluginUnregistered,
    SessionCreated,
    SessionDeleted,
    SessionTitled,
    SubAgentEvent,
    TurnFinished,
    TurnStarted,
)
from gateway.events.bus import ActivityBus, EventBus, OwnedEvents
from gateway.testing.chat import chatting
from gateway.testing.fake_models.script import Reply, Use


class Counted(BusEvent, frozen=True, tag="test.counted"):
    """A number."""

    number: int


class Said(BusEvent, frozen=True, tag="test.said"):
    """A word in a session."""

    session: str
    word: str


class Often(BusEvent, frozen=True, tag="test.often"):
    """An event that is emitted many times a second."""

    detailed = True


def test_004_t02_subscribers_get_the_events_of_their_type_and_all_events() -> None:
    bus, numbers, words, everything = EventBus(), list[Any](), list[Any](), list[Any]()
    bus.subscribe(Counted, numbers.append)
    stop = bus.subscribe(Said, words.append)
    bus.subscribe_all(everything.append)
    bus.emit(Counted(1))
    bus.emit(Said("s", "hi"))
    stop()
    stop()
    bus.emit(Said("s", "ho"))
    bus.emit(Often())
    assert (numbers, words) == ([Counted(1)], [Said("s", "hi")])
    assert everything == [Counted(1), Said("s", "hi"), Said("s", "ho")]


def test_a_subscription_to_a_session_gets_the_events_of_that_session() -> None:
    bus, here, anywhere = EventBus(), list[Said](), list[Said]()
    stop = bus.subscribe(Said, here.append, session="a")
    assert (bus.wants(Said, "a"), bus.wants(Said, "b"), bus.wants(Said)) == (True, False, False)
    assert bus.follows("a")
    bus.subscribe(Said, anywhere.append)
    for session in "ab":
        bus.emit(Said(session, "hi"))
    stop()
    bus.emit(Said("a", "ho"))
    assert [said.session for said in here] == ["a"]
    assert [said.session for said in anywhere] == ["a", "b", "a"]
    assert not bus.follows("a")


def test_detailed_events_reach_only_those_that_ask_for_them() -> None:
    bus = EventBus()
    stop = bus.subscribe_all(lambda _event: None)
    assert (bus.wants(Counted), bus.wants(Often)) == (True, False)
    stop()
    assert not bus.wants(Counted)
    assert SubAgentEvent.detailed
    assert AgentProgress.detailed
    assert not TurnFinished.detailed


def test_the_names_are_stable() -> None:
    kinds = (SessionCreated, SessionTitled, SessionDeleted, TurnStarted, TurnFinished, FeedbackGiven)
    assert [kind.event_name() for kind in kinds] == [
        "session.created",
        "session.titled",
        "session.deleted",
        "turn.started",
        "turn.finished",
        "feedback.given",
    ]
    assert [kind.event_name() for kind in (Activity, SubAgentEvent, Disposed)] == [
        "activity",
        "agent.step",
        "gateway.disposed",
    ]


async def test_a_subscriber_that_fails_is_logged_with_its_owner_and_disturbs_no_other() -> None:
    heard: list[int] = []

    def broken(event: Counted) -> None:
        raise ValueError(event.number)

    def exits(_event: Counted) -> None:
        raise SystemExit(1)

    async def breaks(event: Counted) -> None:
        if event.number == 1:
            raise asyncio.CancelledError
        heard.append(-event.number)

    with capture_logs() as logs:
        async with EventBus() as bus:
            OwnedEvents(bus, "careless").subscribe(Counted, broken)
            bus.subscribe(Counted, exits, owner="exiting")
            bus.subscribe(Counted, breaks, owner="breaking")
            bus.subscribe(Counted, lambda event: heard.append(event.number))
            bus.emit(Counted(1))
            bus.emit(Counted(2))
    assert heard == [1, 2, -2]
    failed = [line["owner"] for line in logs if line["event"] == "an event subscriber failed"]
    assert Counter(failed) == {"careless": 2, "exiting": 2, "breaking": 1}


async def test_an_async_subscriber_gets_its_events_one_after_another_and_in_order() -> None:
    heard, at_once, most = [], 0, 0

    async def slow(event: Counted) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        heard.append(event.number)
        at_once -= 1

    bus = EventBus()
    bus.subscribe(Counted, slow)
    bus.subscribe(Counted, lambda event: slow(event))
    bus.emit(Counted(0))  # before the bus runs
    async with bus:
        for number in range(1, 50):
            bus.emit(Counted(number))
    assert most == 2
    assert sorted(heard) == sorted([*range(50), *range(50)])
    assert list(dict.fromkeys(heard)) == list(range(50))


async def test_a_subscriber_that_blocks_delays_neither_the_emitter_nor_the_others() -> None:
    done = asyncio.Event()
    began = asyncio.Event()

    async def blocked(_event: Counted) -> None:
        began.set()
        await done.wait()

    heard: list[int] = []
    with capture_logs() as logs:
        async with EventBus(queue=10) as bus:
            stop = bus.subscribe(Counted, blocked, owner="stuck")
            bus.subscribe(Counted, lambda event: heard.append(event.number))
            bus.emit(Counted(0))
            await began.wait()
            for number in range(1, 100):
                bus.emit(Counted(number))
            assert heard == list(range(100))
            assert bus.dropped == {"stuck": 89}
            stop()
            done.set()
    said = [line["event"] for line in logs]
    assert said.count("an event subscriber is too slow and loses events") == 1
    assert [line["count"] for line in logs if line["event"] == "an event subscriber lost events"] == [89]


async def test_a_slow_subscriber_keeps_the_newest_events() -> None:
    first, heard = asyncio.Event(), list[int]()

    async def slow(event: Counted) -> None:
        await first.wait()
        heard.append(event.number)

    async with EventBus(queue=3) as bus:
        bus.subscribe(Counted, slow)
        bus.emit(Counted(0))
        await asyncio.sleep(0)
        for number in range(1, 10):
            bus.emit(Counted(number))
        first.set()
    assert heard == [0, 7, 8, 9]


@given(st.lists(st.sampled_from(("emit", "run")), max_size=200), st.integers(1, 5))
def test_no_event_is_lost_for_a_fast_subscriber_while_a_slow_one_overflows(
    steps: list[str], queue: int
) -> None:
    async def play() -> None:
        now, later, slow = list[int](), list[int](), list[int]()
        turn = asyncio.Semaphore(0)

        async def fast(event: Counted) -> None:
            later.append(event.number)

        async def waiting(event: Counted) -> None:
            await turn.acquire()
            slow.append(event.number)

        emitted = 0
        async with EventBus(queue) as bus:
            bus.subscribe(Counted, waiting, owner="slow")
            bus.subscribe(Counted, lambda event: now.append(event.number))
            bus.subscribe(Counted, fast, owner="fast")
            for step in steps:
                if step == "emit":
                    bus.emit(Counted(emitted))
                    emitted += 1
                    await asyncio.sleep(0)
                else:
                    turn.release()
                    await asyncio.sleep(0)
            for _ in steps:
                turn.release()
        assert now == list(range(emitted))
        assert later == list(range(emitted))
        assert len(slow) + bus.dropped["slow"] == emitted
        assert slow == sorted(slow)
        assert bus.dropped["fast"] == 0

    asyncio.run(play())


def test_subscribers_may_come_and_go_while_an_event_is_delivered() -> None:
    bus, heard = EventBus(), list[str]()

    def first(event: Counted) -> None:
        heard.append(f"first {event.number}")
        stop()
        leave()
        bus.subscribe(Counted, lambda later: heard.append(f"added {later.number}"))

    stop = bus.subscribe(Counted, first)
    leave = bus.subscribe(Counted, lambda event: heard.append(f"gone {event.number}"))
    bus.subscribe(Counted, lambda event: heard.append(f"last {event.number}"))
    bus.emit(Counted(1))
    bus.emit(Counted(2))
    assert heard == ["first 1", "last 1", "last 2", "added 2"]


async def test_once_is_once_also_when_the_handler_emits_or_the_event_comes_twice() -> None:
    heard: list[int] = []

    def again(event: Counted) -> None:
        heard.append(event.number)
        bus.emit(Counted(event.number + 1))

    async def late(event: Counted) -> None:
        heard.append(-event.number)

    async with EventBus() as bus:
        bus.once(Counted, again)
        bus.once(Counted, late)
        unused = bus.once(Counted, heard.append)
        unused()
        bus.emit(Counted(1))
        bus.emit(Counted(5))
        assert not bus.wants(Counted)
    assert heard == [1, -2]


def test_events_that_cause_themselves_end() -> None:
    bus, heard = EventBus(), list[int]()

    def echo(event: Counted) -> None:
        heard.append(event.number)
        bus.emit(Counted(event.number + 1))

    bus.subscribe(Counted, echo)
    with capture_logs() as logs:
        bus.emit(Counted(1))
    assert 1 < len(heard) < 100
    said = [line["event"] for line in logs if line["log_level"] == "error"]
    assert said == ["dropped an event: subscribers emit events in a circle"]


async def test_an_unsubscribed_handler_gets_nothing_that_waited() -> None:
    heard, go = list[int](), asyncio.Event()

    async def slow(event: Counted) -> None:
        heard.append(event.number)
        await go.wait()

    async with EventBus() as bus:
        stop = bus.subscribe(Counted, slow)
        for number in range(3):
            bus.emit(Counted(number))
        await asyncio.sleep(0)
        stop()
        go.set()
    assert heard == [0]


async def test_at_the_end_subscribers_get_a_last_event_and_the_time_to_finish() -> None:
    heard: list[object] = []

    async def finishing(event: BusEvent) -> None:
        await asyncio.sleep(0)
        heard.append(event)

    bus = EventBus()
    async with bus:
        bus.subscribe_all(finishing)
        bus.subscribe(Disposed, heard.append)
        bus.emit(Counted(1))
        bus.emit(Counted(2))
    assert heard == [Disposed(), Counted(1), Counted(2), Disposed()]
    bus.emit(Counted(3))
    assert bus.subscribe(Counted, heard.append)() is None
    bus.emit(Counted(4))
    assert len(heard) == 4


async def test_a_handler_that_never_ends_is_cancelled_at_the_end() -> None:
    cancelled: list[str] = []

    async def endless(event: Counted) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(event.event_name())
            raise

    with capture_logs() as logs:
        async with EventBus(disposal_seconds=0.05) as bus:
            bus.once(Counted, endless, owner="endless")
            bus.emit(Counted(1))
            await asyncio.sleep(0)
    assert cancelled == ["test.counted"]
    assert ("an event subscriber did not end in time", "endless") in [
        (line["event"], line.get("owner")) for line in logs
    ]


def test_activity_and_nested_runs_are_separate_streams() -> None:
    events = EventBus()
    bus, told = ActivityBus(events), list[Any]()
    bus.subscribe(told.append)
    stop = bus.subscribe_sub_agent(told.append)
    bus.emit("tool_start", "clock", "s")
    step = SubAgentEvent("run", None, "sub", "text_delta", 1, {"text": "hm"})
    events.emit(step)
    stop()
    events.emit(step)
    assert [type(event).__name__ for event in told] == ["Activity", "SubAgentEvent"]
    assert (told[0].kind, told[0].source, told[0].summary) == ("tool_start", "clock", "s")


class Listening(Plugin):
    """Hears everything, and waits in a handler."""

    name = "listening"

    def __init__(self, *, waits: bool = False) -> None:
        self._waits = waits
        self.heard: list[str] = []
        self.ended: list[str] = []

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.events is not None
        assert ctx.activity is not None
        ctx.events.subscribe_all(lambda event: self.heard.append(event.event_name()))
        ctx.events.subscribe(SessionCreated, self._wait)
        ctx.activity.subscribe(lambda activity: self.heard.append(activity.kind))

    async def _wait(self, event: SessionCreated) -> None:
        try:
            if self._waits:
                await asyncio.Event().wait()
        finally:
            self.ended.append(event.session)


async def test_a_gateway_reports_sessions_turns_plugins_models_and_its_end(tmp_path: Path) -> None:
    plugin = Listening()
    async with chatting(tmp_path, plugin) as chat:
        await chat.say("hi there")
        await chat.say("/model script/two")
        await chat.gateway.parts.sessions.delete("s")
        finished: list[TurnFinished] = []
        chat.gateway.events.subscribe(TurnFinished, finished.append)
        chat.model.then(Reply((Use("calculator", '{"expression": "1"}'),), "tools"))
        answer = await chat.say("more", "other")
    heard = [name for name in plugin.heard if "." in name and name != "contributions.changed"]
    assert heard == [
        "plugin.registered",
        "plugin.registered",
        "gateway.ready",
        "channel.health",
        "session.created",
        "turn.started",
        "session.titled",
        "agent.started",
        "cost.updated",
        "agent.completed",
        "turn.finished",
        "session.idle",
        "turn.started",
        "model.changed",
        "slash.command.executed",
        "turn.finished",
        "session.idle",
        "session.deleted",
        "session.created",
        "turn.started",
        "session.titled",
        "agent.started",
        "cost.updated",
        "agent.completed",
        "turn.finished",
        "session.idle",
        "gateway.disposed",
    ]
    assert plugin.heard.count("tool_start") == plugin.heard.count("tool_end") == 1
    [turn] = finished
    assert (turn.session, turn.answer, turn.outcome, turn.error) == ("other", answer.id, "end_turn", "")
    assert (turn.model, turn.output_tokens) == ("script/one", answer.metadata.output_tokens)


async def test_the_subscriptions_of_an_unregistered_plugin_end(tmp_path: Path) -> None:
    plugin = Listening(waits=True)
    async with chatting(tmp_path, plugin) as chat:
        removed: list[PluginUnregistered] = []
        chat.gateway.events.subscribe(PluginUnregistered, removed.append)
        await chat.say("hi")
        heard = len(plugin.heard)
        await chat.gateway.registry.unregister("listening")
        await chat.say("again")
        assert len(plugin.heard) == heard
        assert plugin.ended == ["s"]
        assert removed == [PluginUnregistered("listening")]
        assert not chat.gateway.events.wants(SessionCreated)


async def test_a_plugin_that_fails_to_activate_leaves_no_subscription(tmp_path: Path) -> None:
    class Failing(Listening):
        name = "failing"

        async def activate(self, ctx: PluginContext) -> None:
            await super().activate(ctx)
            raise ValueError("no")

    plugin = Failing()
    async with chatting(tmp_path) as chat:
        with pytest.raises(Exception, match="failed to activate"):
            await chat.gateway.registry.register(plugin)
        await chat.say("hi")
        assert plugin.heard == []
        assert not chat.gateway.events.wants(GatewayReady)
        assert not chat.gateway.events.wants(PluginRegistered)
        assert not chat.gateway.events.wants(ModelChanged)
