"""Live: a room sees an answer while it is made, and nothing that goes wrong there harms the answer."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import pytest

from gateway import (
    ErrorPart,
    Message,
    Tool,
    ToolCallPart,
    ToolContext,
    ToolResultPart,
    tool_from,
)
from gateway.channel import (
    Address,
    OutboundMessage,
    Placed,
    PlacementDeferred,
    PlacementRefused,
    PlacementUncertain,
    Streaming,
)
from gateway.session import Turn
from gateway.testing.chat import chatting, written
from gateway.testing.fake_models.script import Forever, Gate, Reply, Say, Use
from gateway.testing.letterbox import Letterbox
from tests.small_plugins import Brings


class Window(Letterbox):
    """A room that shows answers while they are made. ``failure`` is raised by the first edits."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__("window")
        self.failures = list(failures)
        self.seen: list[tuple[str, bool]] = []
        self.typed = 0
        self.news = asyncio.Event()

    def streaming(self, address: Address) -> Streaming | None:
        return Streaming("edit", 0.0)

    def pages(self, message: Message, *, final: bool) -> list[str]:
        return [message.text] if message.text else []

    async def send(self, outbound: OutboundMessage) -> Placed:
        self._see(outbound)
        return await super().send(outbound)

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        if self.failures:
            failure = self.failures.pop(0)
            self.news.set()
            raise failure
        self._see(outbound)

    async def typing(self, address: Address) -> None:
        self.typed += 1
        self.news.set()
        raise ZeroDivisionError("typing is not what an answer hangs on")

    async def until_seen(self, text: str) -> None:
        await self._until(lambda: any(text in seen for seen, _ in self.seen))

    async def until_typed(self) -> None:
        await self._until(lambda: self.typed > 0)

    async def until_failed(self) -> None:
        await self._until(lambda: not self.failures)

    async def until_final(self) -> None:
        await self._until(lambda: bool(self.seen) and self.seen[-1][1])

    async def _until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not true():
                self.news.clear()
                await self.news.wait()

    def _see(self, outbound: OutboundMessage) -> None:
        self.seen.append((outbound.page, outbound.final))
        self.news.set()


@pytest.fixture
def no_collector() -> Generator[None]:
    """What holds itself is not found while the test runs."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Calls(Window):
    """Shows calls, and of those that have a result whether that is an error."""

    def pages(self, message: Message, *, final: bool) -> list[str]:
        results = {part.tool_call_id: part for part in message.parts if isinstance(part, ToolResultPart)}
        calls = [part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart)]
        shown = [f"{call} {results[call].is_error if call in results else 'runs'}" for call in calls]
        return [", ".join([*shown, message.text])]


class Errors(Window):
    """Shows the text of an answer, or its error."""

    def pages(self, message: Message, *, final: bool) -> list[str]:
        errors = [part.message for part in message.parts if isinstance(part, ErrorPart)]
        return [message.text or errors[0]]


async def test_the_error_of_a_failed_attempt_replaces_what_was_shown_of_it(tmp_path: Path) -> None:
    window, opened = Errors(), asyncio.Event()
    async with chatting(tmp_path, Brings(window)) as chat:
        chat.model.then(Reply((Say("Half of it."), Gate(opened), Forever(b"which this model cannot do"))))
        await window.write(written("hi", channel=window.id))
        await window.until_seen("Half of it.")
        opened.set()
        await window.until_final()
        assert [sent.page for sent in window.sent] == ["Half of it."]
        assert window.seen[-1] == ("This could not be answered.", True)


async def test_an_answer_that_was_shown_before_a_crash_keeps_its_place_before_a_late_message(
    tmp_path: Path,
) -> None:
    before, after = Window(), Window()
    never = asyncio.Event()
    async with chatting(tmp_path, Brings(before), limits={"drain_seconds": 0}) as chat:
        chat.model.then(Reply((Say("Half of it."), Gate(never))))
        second = written("second", channel=before.id, order=2)
        await before.write(second)
        await before.until_seen("Half of it.")
        await before.write(written("first", channel=before.id, order=1))
    async with chatting(tmp_path, Brings(after)) as chat:
        while chat.gateway.parts.dispatcher.waiting:
            await asyncio.sleep(0.01)
        log = await chat.gateway.parts.sessions.read("s")
        said = [message.text for _, message in log if message.role == "assistant"]
        assert said == ["You said: second", "You said: first"]


async def test_a_tool_that_runs_is_not_shown_as_one_that_failed(tmp_path: Path) -> None:
    window, gate = Calls(), asyncio.Event()

    class Slow(Brings):
        def tools(self) -> Sequence[Tool]:
            return [tool]

    async def slow(context: ToolContext) -> str:
        """Take a while."""
        context.progress("half of it")
        await gate.wait()
        return " and the rest"

    tool = tool_from(slow)
    async with chatting(tmp_path, Slow(window)) as chat:
        chat.model.then(Reply((Use("slow", "{}", "c1"),), "tools"), Reply((Say("Done."),)))
        await window.write(written("hello", channel="window"))
        await window.until_seen("c1 runs")
        gate.set()
        await window.until_final()
    assert not [page for page, _ in window.seen if "c1 True" in page]
    assert window.seen[-1] == ("c1 False, Done.", True)


async def test_the_room_sees_the_answer_grow(tmp_path: Path) -> None:
    window, first, second = Window(), asyncio.Event(), asyncio.Event()
    async with chatting(tmp_path, Brings(window)) as chat:
        chat.model.then(Reply((Say("Good "), Gate(first), Say("morning"), Gate(second), Say("."))))
        await window.write(written("hello", channel="window"))
        await window.until_seen("Good ")
        first.set()
        await window.until_seen("Good morning")
        await window.until_typed()
        second.set()
        await window.until_seen("Good morning.")
        await window.until_final()
    assert window.seen[0] == ("Good ", False)
    assert window.seen[-1] == ("Good morning.", True)
    assert (len(window.sent), window.typed > 0) == (1, True)


async def test_what_the_platform_put_off_is_shown_without_another_word_of_the_model(tmp_path: Path) -> None:
    window, more, end = Window(PlacementDeferred("slow", 0.0)), asyncio.Event(), asyncio.Event()
    async with chatting(tmp_path, Brings(window)) as chat:
        chat.model.then(Reply((Say("Good "), Gate(more), Say("morning"), Gate(end))))
        await window.write(written("hello", channel="window"))
        await window.until_seen("Good ")
        more.set()
        await window.until_seen("Good morning")
        assert window.failures == []
        assert window.seen[-1] == ("Good morning", False)
        end.set()
        await window.until_final()


@pytest.mark.parametrize(
    "failure",
    [PlacementDeferred("slow", 0.0), PlacementUncertain(), PlacementRefused("no"), ZeroDivisionError()],
)
async def test_what_fails_meanwhile_is_made_good_by_the_end(tmp_path: Path, failure: Exception) -> None:
    window, more, end = Window(failure), asyncio.Event(), asyncio.Event()
    async with chatting(tmp_path, Brings(window)) as chat:
        chat.model.then(Reply((Say("Good "), Gate(more), Say("morning"), Gate(end))))
        await window.write(written("hello", channel="window"))
        await window.until_seen("Good ")
        more.set()
        await window.until_failed()
        end.set()
        await window.until_final()
    assert window.seen[-1] == ("Good morning", True)
    assert len(window.sent) == 1


async def test_an_answer_that_was_stopped_is_final_in_its_room(tmp_path: Path) -> None:
    window = Window()
    async with chatting(tmp_path, Brings(window)) as chat:
        chat.model.then(Reply((Say("Good "), Gate(asyncio.Event()))))
        asked = await window.write(written("hello", channel="window"))
        await window.until_seen("Good ")
        await chat.host.abort(asked.session)
        await window.until_final()
    assert window.seen[-1] == ("Good ", True)
    assert len(window.sent) == 1


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("shown", [True, False])
async def test_a_turn_that_was_shown_leaves_memory_without_the_collector(tmp_path: Path, shown: bool) -> None:
    others, window, end = _turns(), Window(), asyncio.Event()
    async with chatting(tmp_path, Brings(window)) as chat:
        chat.model.then(Reply((Say("Good "), Gate(end), Say("morning."))))
        await window.write(written("hello", channel="window"))
        if shown:
            await window.until_seen("Good ")
        end.set()
        await window.until_final()
        chat.model.calls.clear()
    assert _turns() <= others


def _turns() -> set[Turn]:
    return {found for found in gc.get_objects() if isinstance(found, Turn)}
