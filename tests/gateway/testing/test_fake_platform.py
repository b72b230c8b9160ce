"""The kit of the fake platforms: clock, changes, limits, schemas, control interface."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.testing.fake_platform import (
    Changes,
    Clock,
    Control,
    FakeServer,
    Patience,
    Refusal,
    Schemas,
    Window,
)


async def test_a_wait_ends_when_the_clock_is_moved_past_it():
    clock = Clock()
    async with asyncio.TaskGroup() as tasks:
        sleeping = tasks.create_task(clock.sleep(3600))
        await asyncio.sleep(0)
        assert clock.waiting == 1
        clock.advance(3600)
    assert sleeping.done()
    assert clock.waiting == 0


async def test_a_block_that_takes_too_long_on_the_platform_is_ended():
    clock = Clock()

    async def waits_forever() -> None:
        async with clock.within(60):
            clock.advance(60)
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await waits_forever()


def test_a_stopped_clock_moves_by_hand_alone():
    clock = Clock(skew=-10)
    clock.stop()
    before = clock.now()
    clock.advance(5)
    assert clock.now() == before + 5
    assert clock.date() == int(before + 5 - 10)


async def test_a_waiter_for_a_change_is_woken_by_it():
    changes = Changes()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(changes.after(0, 20))
        await asyncio.sleep(0)
        changes.bump()
    assert waiting.result() == 1


def test_a_window_takes_so_many_calls_in_so_many_seconds():
    clock = Clock()
    clock.stop()
    window = Window(clock, 2, 10)
    window.count()
    clock.advance(4)
    window.count()
    assert (window.used, window.wait(), window.wait(2)) == (2, pytest.approx(6), pytest.approx(10))
    window.forgive()
    assert window.wait() == 0
    clock.advance(6)
    assert window.used == 0


def test_a_call_that_left_before_the_refusal_was_read_is_early_and_not_impatient():
    clock = Clock(pace=2)
    clock.stop()
    patience = Patience(clock, grace=0.1)
    patience.ask("room", 5)
    assert (patience.left("room"), patience.is_impatient("room")) == (pytest.approx(5), False)
    clock.advance(1)
    assert (patience.left("room"), patience.is_impatient("room")) == (pytest.approx(4.5), True)
    assert patience.left("other") <= 0
    clock.advance(9)
    assert not patience.is_impatient("room")


SCHEMAS = Schemas(
    {
        "$defs": {
            "Circle": {
                "type": "object",
                "properties": {"type": {"const": "circle"}, "r": {"type": "integer", "minimum": 1}},
                "required": ["type", "r"],
                "additionalProperties": False,
            },
            "Square": {"type": "object", "properties": {"type": {"const": "square"}}},
            "Shape": {"anyOf": [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Square"}]},
        },
        "calls": {"draw": {"type": "array", "items": {"$ref": "#/$defs/Shape"}}},
    }
)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ([{"type": "circle", "r": 1}, {"type": "square", "more": 1}], []),
        ([{"type": "circle"}], [((0, "r"), "required", "Circle", "r")]),
        ([{"type": "circle", "r": 0}], [((0, "r"), "minimum", "Circle", "r")]),
        ([{"type": "circle", "r": 1, "x": 2}], [((0, "x"), "unknown", "Circle", "x")]),
        ([{"type": "star"}], [((0, "type"), "union", "Circle", "type")]),
        ([5], [((0,), "type", "Circle", "")]),
    ],
)
def test_a_finding_names_the_rule_of_the_type_that_was_meant(value: object, found: list[Any]):
    findings = SCHEMAS.check(value, "calls", "draw")
    assert [(one.at, one.keyword, one.owner, one.field) for one in findings] == found


def test_constants_that_select_nothing_are_reported_with_those_that_do():
    (finding,) = SCHEMAS.check([{"type": "star"}], "calls", "draw")
    assert finding.allowed == ("circle", "square")


class Board(FakeServer):
    """A platform where notes are pinned."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Clock(), {})
        self.notes: list[str] = []
        self._folder = folder

    def pin(self, text: str) -> int:
        if text == "spam":
            raise Refusal("no spam")
        self.notes.append(text)
        self.changes.bump()
        return len(self.notes)

    def routes(self) -> web.Application:
        app = web.Application()
        Control(self, self._folder, self._state, [self.pin]).add_to(app)
        return app

    async def start(self, stack: AsyncExitStack) -> None:
        self.record("start", {}, "begun too early", None)

    def _state(self, most: int) -> Mapping[str, Any]:
        return {"notes": self.notes[-most:]}


async def test_people_act_over_http_and_see_what_changed(tmp_path: Path):
    (tmp_path / "index.html").write_text("<html>Board</html>")
    async with Board(tmp_path) as board, aiohttp.ClientSession(board.url) as http:
        assert (await (await http.post("/_fake/pin", json={"text": "hi"})).json()) == {"result": "1"}
        refused = [await http.post("/_fake/pin", json=given) for given in ({"text": "spam"}, {"no": 1})]
        assert [answer.status for answer in refused] == [400, 400]
        assert (await refused[0].json()) == {"error": "no spam"}
        assert (await http.post("/_fake/start", json={})).status == 404
        assert (await http.post("/_fake/pin", data={"text": "a form"})).status == 415
        state = await (await http.get("/_fake/state?most=1")).json()
        assert state == {
            "version": 2,
            "calls": 1,
            "problems": ["start: begun too early"],
            "notes": ["hi"],
        }
        transcript = await (await http.get("/_fake/transcript")).json()
        assert [call["method"] for call in transcript["calls"]] == ["start"]
        page = [await http.get(path) for path in ("/", "/_fake/page/dom.js", "/_fake/page/..%2fx")]
        assert [answer.status for answer in page] == [200, 200, 404]
