"""Output of stored messages on a terminal, at once or with their original timing."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

from msgspec import Struct
from rich.console import Console

from gateway.cli.chat.conversation import Entry
from gateway.cli.chat.screen import Screen
from gateway.contract.deltas import Delta, DeltaWriter, PartDelta, deltas_of
from gateway.contract.messages import Message, TextPart, ToolResultPart

_FRAMES_PER_SECOND = 30


class Pace(Struct, frozen=True):
    """The timing of a replay: a factor for the speed, and the maximum pause in seconds."""

    speed: float = 1.0
    longest_pause: float = 3.0

    def wait(self, milliseconds: float) -> None:
        """Wait for a recorded duration, scaled and limited."""
        time.sleep(min(self.longest_pause, max(0.0, milliseconds / 1000)) / self.speed)


def show_messages(console: Console, messages: Sequence[Message]) -> None:
    """Print complete messages."""
    screen = Screen(console)
    for message in messages:
        screen.show(_whole(message))


def play(console: Console, messages: Sequence[Message], pace: Pace) -> None:
    """Replay messages; answers grow as they were streamed, over their recorded time."""
    screen = Screen(console)
    then: int | None = None
    try:
        for message in messages:
            pace.wait(0 if then is None else message.created_at - then)
            duration = message.metadata.duration_ms or 0
            if message.role == "assistant":
                _play_answer(screen, message, duration, pace)
            screen.show(_whole(message))
            then = message.created_at + duration
    finally:
        screen.close_open()


def _play_answer(screen: Screen, message: Message, duration: int, pace: Pace) -> None:
    entry = Entry(message.session_id, message.id)
    frame, waited = 1000 / _FRAMES_PER_SECOND * pace.speed, 0.0
    for delta, took in _timed_deltas(message, duration):
        if took >= frame:  # a tool ran: show the text before it meanwhile
            screen.show(entry)
        waited += took
        if waited >= frame:
            pace.wait(waited)
            waited = 0.0
        entry.apply(delta)
        if not waited:
            screen.show(entry)


def _timed_deltas(message: Message, duration: int) -> list[tuple[Delta, float]]:
    """Return the deltas of an answer, each with the milliseconds before it.

    A tool result comes after the recorded duration of the tool; the other deltas share the remaining time.
    """
    deltas = list(_deltas(message))
    tools = [_tool_duration(delta) for delta in deltas]
    rest = max(0.0, duration - sum(filter(None, tools)))
    each = rest / max(1, tools.count(None))
    return [(delta, each if tool is None else tool) for delta, tool in zip(deltas, tools, strict=True)]


def _tool_duration(delta: Delta) -> float | None:
    """Return the recorded milliseconds of a tool result; None for other deltas."""
    part = delta.part if isinstance(delta, PartDelta) else None
    recorded = part.metadata.duration_ms if isinstance(part, ToolResultPart) and part.metadata else None
    return None if recorded is None else float(recorded)


def _deltas(message: Message) -> Iterator[Delta]:
    """Yield the message as it may have been streamed: text word by word, other parts complete."""
    writer = DeltaWriter(message.id)
    for part in message.parts:
        if isinstance(part, TextPart):
            for word in re.findall(r"\s*\S+\s*|\s+", part.content):
                yield writer.text(word, part.kind)
        else:
            yield from deltas_of(part, message.id, writer.next_index)
            writer.skip_to(writer.next_index + 1)


def _whole(message: Message) -> Entry:
    entry = Entry(message.session_id, message.id)
    entry.message = message
    return entry
