"""Calls wait as Slack wants them to, each method by itself."""

from __future__ import annotations

from channels.slack.pace import Pace


async def test_signs_are_left_out_when_there_is_no_room_for_them() -> None:
    pace = Pace()
    shown = [await pace.spare("reactions.remove") for _ in range(21)]
    assert shown == [*[True] * 20, False]
    assert await pace.spare("reactions.add")


async def test_a_workspace_that_is_granted_more_is_called_more_often() -> None:
    pace = Pace(10)
    assert [await pace.spare("reactions.remove") for _ in range(200)] == [True] * 200
    assert not await pace.spare("reactions.remove")


async def test_calls_that_are_owed_count_as_made() -> None:
    pace = Pace()
    assert pace.has_room("chat.update", 0.5, owed=24)
    assert not pace.has_room("chat.update", 0.5, owed=25)


async def test_a_method_that_is_to_wait_holds_up_no_other() -> None:
    pace = Pace()
    pace.hold("chat.update", 60)
    assert not await pace.spare("chat.update")
    assert await pace.spare("chat.postMessage")
    await pace.turn("chat.postMessage", "C1")


async def test_what_may_be_left_out_leaves_room_for_what_may_not() -> None:
    now = 0.0
    pace = Pace(clock=lambda: now)
    for _ in range(25):
        assert pace.has_room("chat.update", 0.5)
        await pace.turn("chat.update")
    assert not pace.has_room("chat.update", 0.5)
    assert pace.has_room("chat.update", 0.8)
    now = 61.0
    assert pace.has_room("chat.update", 0.5)
    pace.hold("chat.update", 60)
    assert not pace.has_room("chat.update", 0.5)
