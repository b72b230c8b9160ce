"""Playing a session again: the same parts in the same order, with the recorded durations."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from gateway.cli.commands.replay import Pace, play
from gateway.contract.messages import (
    Message,
    Metadata,
    ResultMetadata,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

SLOW = ToolResultPart("c", "sunny", metadata=ResultMetadata(duration_ms=4_000))
ASKED = Message(session_id="s", role="user", parts=(TextPart("weather?"),), created_at=1_000)
ANSWER = Message(
    session_id="s",
    role="assistant",
    parts=(TextPart("Let me look. "), ToolCallPart("c", "weather", {}), SLOW, TextPart("It is sunny.")),
    created_at=3_000,
    metadata=Metadata(duration_ms=5_000),
)


class Clock(Pace, frozen=True):
    """A pace that lets no time pass. ``log`` gets each wait (ms) with what was on the screen during it."""

    screen: io.StringIO = io.StringIO()
    log: list[tuple[float, str]] = []

    def wait(self, milliseconds: float) -> None:
        self.log.append((milliseconds, self.screen.getvalue()))


def played(*messages: Message) -> tuple[list[tuple[float, str]], str]:
    screen = io.StringIO()
    clock = Clock(screen=screen, log=[])
    play(Console(file=screen, width=60, force_terminal=True, no_color=True), messages, clock)
    return clock.log, screen.getvalue()


def test_004_09_a_tool_takes_its_recorded_time_and_the_text_the_rest() -> None:
    waits, _ = played(ANSWER)
    (tool,) = [shown for milliseconds, shown in waits if milliseconds == 4_000]
    assert "Let me look." in tool, "what was said before the tool is shown while it runs"
    assert "weather" in tool
    assert "sunny" not in tool
    assert sum(milliseconds for milliseconds, _ in waits) == pytest.approx(5_000)


def test_004_09_the_pause_before_an_answer_is_the_recorded_one() -> None:
    waits, _ = played(ASKED, ANSWER)
    assert next(milliseconds for milliseconds, shown in waits if "weather?" in shown) == 2_000


def test_004_09_parts_are_shown_in_their_order() -> None:
    _, screen = played(ASKED, ANSWER)
    order = ["weather?", "Let me look.", "sunny", "It is sunny."]
    assert sorted(order, key=screen.index) == order
