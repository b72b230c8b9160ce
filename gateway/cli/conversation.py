"""What a client knows of a session: its messages, each as pieces that are final or still open.

Pure: frames in, values out. A terminal draws the pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from gateway.assembler import Assembler
from gateway.cli.blocks import blocks
from gateway.cli.wire import Ack, Heard, Lost, Refusal
from gateway.deltas import (
    Complete,
    Delta,
    MetadataDelta,
    PartDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    ToolResultDelta,
    ToolResultEnd,
    ToolResultStart,
)
from gateway.frames import MessageFrame, Replayed, TurnStart
from gateway.messages import Message, Part, TextPart, ToolCallPart, ToolResultPart


class Prose(Struct, frozen=True):
    """A block of Markdown; ``kind`` sets reasoning apart."""

    source: str
    kind: str = "text"


class Said(Struct, frozen=True):
    """What a person wrote, as it was typed."""

    text: str


class ToolRun(Struct, frozen=True):
    """A call of a tool with its result, as far as there is one."""

    call: ToolCallPart
    result: ToolResultPart | None
    running: bool


class Whole(Struct, frozen=True):
    """Any other part: an error, a picture, a file, or a result without its call."""

    part: Part


Piece = Prose | Said | ToolRun | Whole


class Entry:
    """One message: whole from the log, or an answer being made."""

    def __init__(self, session: str, message_id: str) -> None:
        self.id = message_id
        self.message: Message | None = None
        self._assembler = Assembler(session, message_id)
        self._ended: set[str] = set()

    @property
    def done(self) -> bool:
        """Whether nothing more comes."""
        return self.message is not None

    def begin(self, session: str) -> None:
        """The answer begins (again): what was known of it is void."""
        self.message = None
        self._assembler = Assembler(session, self.id)
        self._ended.clear()

    def apply(self, delta: Delta) -> None:
        """Take a delta in. Raises DeltaParseError if it does not belong here."""
        self._assembler.apply(delta)
        if isinstance(delta, ToolResultEnd):
            self._ended.add(delta.tool_call_id)
        elif isinstance(delta, Complete):
            self.message = self._assembler.message()

    def pieces(self) -> tuple[list[Piece], list[Piece]]:
        """The pieces that are final, and those after the first one that is still open."""
        parts = self.message.parts if self.message is not None else self._assembler.message().parts
        final: list[Piece] = []
        open_: list[Piece] = []
        for piece, is_final in self._judged(parts):
            (final if is_final and not open_ else open_).append(piece)
        return final, open_

    def _judged(self, parts: Sequence[Part]) -> Iterator[tuple[Piece, bool]]:
        results = {part.tool_call_id: part for part in parts if isinstance(part, ToolResultPart)}
        calls = {part.tool_call_id for part in parts if isinstance(part, ToolCallPart)}
        for index, part in enumerate(parts):
            match part:
                case TextPart():
                    yield from self._text(part, growing=not self.done and index == len(parts) - 1)
                case ToolCallPart():
                    running = not self.done and part.tool_call_id not in self._ended
                    yield ToolRun(part, results.get(part.tool_call_id), running), not running
                case ToolResultPart() if part.tool_call_id in calls:
                    pass
                case _:
                    yield Whole(part), True

    def _text(self, part: TextPart, *, growing: bool) -> Iterator[tuple[Piece, bool]]:
        if self.message is not None and self.message.role == "user":
            yield Said(part.content), True
            return
        found = blocks(part.content, growing=growing)
        for index, block in enumerate(found):
            yield Prose(block, part.kind), not growing or index < len(found) - 1


class Question:
    """A message of ours on its way to its answer."""

    def __init__(self, client_msg_id: str, text: str) -> None:
        self.client_msg_id = client_msg_id
        self.text = text
        self.ack: Ack | None = None
        self.refusal: Refusal | None = None
        self._heard: set[str] = set()

    def take(self, heard: Heard) -> None:
        """Take in what concerns it."""
        match heard:
            case Ack() if heard.client_msg_id == self.client_msg_id:
                self.ack = heard
            case Refusal(retryable=False | None) if heard.client_msg_id == self.client_msg_id:
                self.refusal = heard
            case TurnStart():
                self._heard.add(heard.message_id)
            case MessageFrame():
                self._heard.add(heard.message.id)
            case Lost():
                self._heard.clear()
            case _:
                pass

    @property
    def unanswered(self) -> bool:
        """Asked after a replay: whether it shows the message without an answer, so that none will come."""
        ack = self.ack
        return ack is not None and ack.message_id in self._heard and ack.answer_id not in self._heard


class Conversation:
    """The messages of one session, by id, in the order they became known."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.entries: dict[str, Entry] = {}

    def take(self, heard: Heard) -> Entry | None:
        """Take a frame in. Returns the message it changed. Raises DeltaParseError if it does not fit."""
        match heard:
            case MessageFrame(message=message):
                entry = self._entry(message.id)
                entry.message = message
            case TurnStart():
                entry = self._entry(heard.message_id)
                entry.begin(self.session)
            case (
                TextDelta()
                | ToolCallStart()
                | ToolCallDelta()
                | ToolResultStart()
                | ToolResultDelta()
                | ToolResultEnd()
                | MetadataDelta()
                | PartDelta()
                | Complete()
            ):
                entry = self._entry(heard.message_id)
                entry.apply(heard)
            case _:
                return None
        return entry

    def answer(self, question: Question) -> Message | None:
        """The finished answer to a question."""
        entry = self.entries.get(question.ack.answer_id) if question.ack is not None else None
        return entry.message if entry is not None else None

    def settled(self, question: Question, heard: Heard) -> bool:
        """Whether nothing more is to come for a question, now that this was heard."""
        if question.refusal is not None or self.answer(question) is not None:
            return True
        return isinstance(heard, Replayed) and question.unanswered

    def _entry(self, message_id: str) -> Entry:
        return self.entries.setdefault(message_id, Entry(self.session, message_id))
