"""Feeds: what a slow reader gets, and when it is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from gateway.contract.deltas import (
    Complete,
    Delta,
    DeltaWriter,
    PartDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    ToolResultDelta,
    ToolResultEnd,
    ToolResultStart,
)
from gateway.contract.errors import BackpressureError
from gateway.contract.messages import ErrorPart, Metadata
from gateway.counters import Counters
from gateway.session.feed import CAPACITY, Feed
from gateway.session.frames import Event, Frame, SessionFrame


def offer(feed: Feed, frames: Sequence[Frame], session: str = "s", first: int = 1) -> None:
    for seq, frame in enumerate(frames, first):
        feed.offer(Event(session, seq, frame))


def texts(count: int, message_id: str = "m", part: int = 0) -> list[Delta]:
    write = DeltaWriter(message_id, part)
    return [write.text(f"w{n} ") for n in range(count)]


async def test_004_21_a_reader_in_the_same_process_gets_every_event_in_order():
    feed = Feed()
    offer(feed, texts(3))
    events = await feed.take()
    assert [(event.session, event.seq, event.frame) for event in events] == [
        ("s", seq, frame) for seq, frame in enumerate(texts(3), 1)
    ]


async def test_a_reader_waits_until_there_is_something():
    feed = Feed()
    async with asyncio.TaskGroup() as tasks:
        taking = tasks.create_task(feed.take())
        await asyncio.sleep(0)
        assert not taking.done()
        offer(feed, texts(1))
    assert len(taking.result()) == 1


async def test_what_comes_is_poured_until_the_sink_has_enough():
    feed = Feed()
    got: list[list[int]] = []

    def sink(events: list[Event]) -> bool:
        got.append([event.seq for event in events])
        return len(got) == 2

    offer(feed, texts(1))
    async with asyncio.TaskGroup() as tasks:
        pouring = tasks.create_task(feed.pour(sink))
        await asyncio.sleep(0)
        offer(feed, texts(2), first=2)
        await asyncio.sleep(0)
        offer(feed, texts(1), first=4)
    assert pouring.result() is True
    assert got == [[1], [2]]
    assert [event.seq for event in await feed.take()] == [3, 4]


async def test_a_reader_with_little_patience_gets_what_came_and_may_ask_again():
    feed = Feed()
    got: list[Event] = []

    def sink(events: list[Event]) -> bool:
        got.extend(events)
        return False

    assert await feed.pour(sink, 0.001) is False
    offer(feed, texts(2))
    assert got == []
    assert await feed.pour(sink, 0.001) is False
    assert len(got) == 2


async def test_a_reader_that_is_cancelled_while_it_waits_leaves_the_rest_to_the_next():
    feed = Feed()
    async with asyncio.TaskGroup() as tasks:
        taking = tasks.create_task(feed.take())
        await asyncio.sleep(0)
        offer(feed, texts(1))
        taking.cancel()
    assert len(await feed.take()) == 1


@pytest.mark.parametrize("early", [True, False])
async def test_what_a_sink_raises_is_raised_where_the_reader_waits(early: bool):
    feed = Feed()

    def sink(events: list[Event]) -> bool:
        raise ConnectionResetError(f"gone at {len(events)}")

    async def read():
        with pytest.raises(ConnectionResetError, match="gone at 1"):
            await feed.pour(sink, 60)

    async with asyncio.TaskGroup() as tasks:
        if early:
            offer(feed, texts(1))
        tasks.create_task(read())
        await asyncio.sleep(0)
        if not early:
            offer(feed, texts(1))


async def test_a_waiting_reader_gets_the_end_of_the_feed():
    feed = Feed()

    async def read():
        with pytest.raises(BackpressureError):
            await feed.pour(lambda _events: False, 60)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read())
        await asyncio.sleep(0)
        feed.close(BackpressureError("too slow"))


async def test_004_22_a_hundred_events_wait_as_they_came_and_then_text_is_merged():
    feed = Feed(counters=(counters := Counters()))
    offer(feed, texts(CAPACITY))
    assert (CAPACITY, counters.coalesced) == (100, 0)
    offer(feed, texts(101)[100:], first=101)
    events = await feed.take()
    assert [event.seq for event in events] == [100, 101]
    merged = events[0].frame
    assert isinstance(merged, TextDelta)
    assert merged.content == "".join(f"w{n} " for n in range(100))
    assert merged.accumulated_length == len(merged.content)
    assert counters.coalesced == 99


async def test_004_22_a_reader_that_keeps_up_gets_every_chunk():
    feed, seen = Feed(counters=(counters := Counters())), 0
    for start in range(0, 1000, 50):
        offer(feed, texts(50), first=start + 1)
        seen += len(await feed.take())
    assert (seen, counters.coalesced) == (1000, 0)


async def test_004_22_text_is_never_merged_across_parts_kinds_messages_or_sessions():
    feed = Feed(capacity=4)
    frames: list[Delta] = [
        TextDelta("m", 0, "a", 1, "reasoning"),
        TextDelta("m", 0, "b", 1),
        TextDelta("m", 1, "c", 1),
        TextDelta("n", 1, "d", 1),
    ]
    offer(feed, frames)
    feed.offer(Event("t", 1, TextDelta("n", 1, "e", 1)))
    feed.offer(Event("s", 5, TextDelta("n", 2, "f", 1)))
    events = await feed.take()
    assert [event.frame.content for event in events if isinstance(event.frame, TextDelta)] == list("abcdef")


async def test_004_22_text_is_merged_within_each_of_several_sessions():
    feed = Feed(capacity=4)
    write = DeltaWriter("m")
    for seq, text in enumerate("abc", 1):
        delta = write.text(text)
        feed.offer(Event("s", seq, delta))
        feed.offer(Event("t", seq, delta))
    whole = {event.session: event for event in await feed.take()}
    assert {name: event.seq for name, event in whole.items()} == {"s": 3, "t": 3}


async def test_004_22_starts_ends_and_whole_parts_are_never_dropped_or_reordered():
    lifecycle: list[Delta] = [
        ToolCallStart("m", 1, "c", "t"),
        ToolCallDelta("m", 1, "c", "{}"),
        ToolResultStart("m", 2, "c"),
        ToolResultDelta("m", 2, "c", "out"),
        ToolResultEnd("m", 2, "c", False, 1),
        PartDelta("m", 3, ErrorPart("E", "x")),
    ]
    feed = Feed(capacity=3)
    frames: list[Frame] = [*texts(10), *lifecycle, *texts(10, part=4), Complete("m", Metadata(), "end_turn")]
    offer(feed, [*frames, SessionFrame(status="idle")])
    got = [event.frame for event in await feed.take()]
    assert [frame for frame in got if not isinstance(frame, TextDelta)] == [
        *lifecycle,
        Complete("m", Metadata(), "end_turn"),
        SessionFrame(status="idle"),
    ]
    assert "".join(frame.content for frame in got if isinstance(frame, TextDelta)) == 2 * "".join(
        f"w{n} " for n in range(10)
    )


async def test_004_29_a_reader_far_too_slow_is_dropped_with_a_backpressure_error():
    dropped: list[bool] = []
    feed = Feed(capacity=10, on_drop=lambda: dropped.append(True), counters=(counters := Counters()))
    with capture_logs() as logs:
        offer(feed, [SessionFrame(title=str(n)) for n in range(1_001)])
    assert (dropped, counters.dropped) == ([True], 1)
    with pytest.raises(BackpressureError, match="resume"):
        await feed.take()
    offer(feed, texts(1))
    with pytest.raises(BackpressureError):
        await feed.take()
    assert logs[-1]["event"] == "a reader was too slow and is disconnected"
    assert (logs[-1]["waiting"], logs[-1]["log_level"]) == (1_000, "warning")


async def test_004_29_coalescing_is_logged_with_its_counts():
    feed = Feed(capacity=10)
    with capture_logs() as logs:
        offer(feed, texts(11))
    assert [(entry["before"], entry["after"]) for entry in logs if entry["event"] == "coalesced"] == [(10, 1)]


async def test_a_feed_of_text_alone_never_grows_beyond_its_bound():
    feed = Feed(capacity=10)
    offer(feed, texts(5_000))
    events = await feed.take()
    assert len(events) <= 10
    assert "".join(e.frame.content for e in events if isinstance(e.frame, TextDelta)).endswith("w4999 ")


async def test_a_closed_feed_wakes_its_reader_with_the_reason():
    feed = Feed()
    async with asyncio.TaskGroup() as tasks:
        taking = tasks.create_task(outcome(feed))
        await asyncio.sleep(0)
        feed.close(ConnectionResetError("gone"))
        feed.close(ValueError("a later reason does not count"))
    assert isinstance(taking.result(), ConnectionResetError)


async def outcome(feed: Feed) -> Exception | None:
    try:
        await feed.take()
    except (ConnectionError, ValueError) as error:
        return error
    return None
