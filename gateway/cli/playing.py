"""Showing stored messages in a terminal, at once or in the time they took."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

from msgspec import Struct
from rich.console import Console

from gateway.cli.conversation import Entry
from gateway.cli.screen import Screen
from gateway.deltas import Delta, DeltaWriter, deltas_of
from gateway.messages import Message, TextPart

_FRAMES_PER_SECOND = 30


class Pace(Struct, frozen=True):
    """How fast to play: times as fast as it was; silences cut to so many seconds."""

    speed: float = 1.0
    longest_pause: float = 3.0

    def wait(self, milliseconds: float) -> None:
        """Let the time pass that something took."""
        time.sleep(min(self.longest_pause, max(0.0, milliseconds / 1000)) / self.speed)


def show_messages(console: Console, messages: Sequence[Message]) -> None:
    """Print messages, whole."""
    screen = Screen(console)
    for message in messages:
        screen.show(_whole(message))


def play(console: Console, messages: Sequence[Message], pace: Pace) -> None:
    """Play messages: answers grow as they did, over the time that was recorded."""
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
        screen.rest()


def _play_answer(screen: Screen, message: Message, duration: int, pace: Pace) -> None:
    entry = Entry(message.session_id, message.id)
    deltas = list(_deltas(message))
    each = duration / max(1, len(deltas))
    frame, waited = 1000 / _FRAMES_PER_SECOND * pace.speed, 0.0
    for delta in deltas:
        entry.apply(delta)
        waited += each
        if waited >= frame:
            screen.show(entry)
            pace.wait(waited)
            waited = 0.0


def _deltas(message: Message) -> Iterator[Delta]:
    """The message as it may have come: text word by word, all else whole."""
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
