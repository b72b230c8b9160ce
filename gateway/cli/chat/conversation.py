"""The messages of a session, each as pieces that are final or open.

Pure: frames in, values out. Markdown is split into its top-level blocks, so that a terminal draws final
ones once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token
from msgspec import Struct

from gateway.cli.chat.link import Ack, Disconnected, Refusal, ServerFrame
from gateway.contract.assembler import Assembler
from gateway.contract.deltas import (
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
from gateway.contract.messages import Message, Part, TextPart, ToolCallPart, ToolResultPart
from gateway.session.frames import MessageFrame, Replayed, TurnStart


def blocks(markdown: str, *, growing: bool = False) -> list[str]:
    """Return the source of each top-level block, in order.

    If the text is ``growing``, all blocks except the last are final. Its last line may still become any
    kind of block, so it is not parsed.
    """
    if not markdown.strip():
        return []
    parser = _parser()
    tokens: list[Token] = []
    ended = markdown[: markdown.rfind("\n") + 1] if growing else markdown
    parser.block.parse(ended, parser, {}, tokens)
    starts = [token.map[0] for token in tokens if token.level == 0 and token.nesting >= 0 and token.map]
    lines = markdown.split("\n")
    return ["\n".join(lines[start:end]).rstrip() for start, end in pairwise((*(starts or [0]), len(lines)))]


@cache
def _parser() -> MarkdownIt:
    # No reference definitions: one at the end would change blocks that are already drawn.

    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable("reference")


class Prose(Struct, frozen=True):
    """A block of Markdown; ``kind`` distinguishes text from reasoning."""

    source: str
    kind: str = "text"


class Said(Struct, frozen=True):
    """The text of a user, as typed; ``author`` in rooms with several people.

    With ``context`` it is a message that was not for the bot, with ``quoted`` one that the user points at.
    """

    text: str
    author: str = ""
    context: bool = False
    quoted: bool = False


class ToolRun(Struct, frozen=True):
    """A tool call with its result, if there is one."""

    call: ToolCallPart
    result: ToolResultPart | None
    running: bool


class Whole(Struct, frozen=True):
    """Another part: an error, an image, a file, or a result without its call."""

    part: Part


Piece = Prose | Said | ToolRun | Whole


class Entry:
    """One message: complete, or an answer that is being streamed.

    ``rendered`` is the Markdown of a plugin that replaces its parts.
    """

    def __init__(self, session: str, message_id: str) -> None:
        self.id = message_id
        self.message: Message | None = None
        self.rendered: str | None = None
        self._assembler = Assembler(session, message_id)
        self._ended: set[str] = set()

    @property
    def done(self) -> bool:
        """Return whether the message is complete."""
        return self.message is not None

    def begin(self, session: str) -> None:
        """Start the answer, or start it again: drops what was received."""
        self.message = self.rendered = None
        self._assembler = Assembler(session, self.id)
        self._ended.clear()

    def apply(self, delta: Delta) -> None:
        """Apply a delta. Raises DeltaParseError if it does not fit."""
        self._assembler.apply(delta)
        if isinstance(delta, ToolResultEnd):
            self._ended.add(delta.tool_call_id)
        elif isinstance(delta, Complete):
            self.message = self._assembler.message()

    def pieces(self) -> tuple[list[Piece], list[Piece]]:
        """Return the final pieces, and the pieces from the first open one."""
        parts = self.message.parts if self.message is not None else self._assembler.message().parts
        final: list[Piece] = []
        open_: list[Piece] = []
        for piece, is_final in self._split(parts):
            (final if is_final and not open_ else open_).append(piece)
        return final, open_

    def _split(self, parts: Sequence[Part]) -> Iterator[tuple[Piece, bool]]:
        if self.rendered is not None:  # a plugin renders this message: its Markdown replaces the parts
            for block in blocks(self.rendered):
                yield Prose(block), True
            return
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
            origin = self.message.origin
            shown = origin is not None and (origin.group or origin.context)
            author = origin.author if origin is not None and shown and part.kind != "quote" else ""
            context = origin is not None and origin.context
            yield Said(part.content, author, context, part.kind == "quote"), True
            return
        if part.kind == "summary":
            yield Prose(f"Summary of the earlier conversation:\n{part.content}", part.kind), True
            return
        found = blocks(part.content, growing=growing)
        for index, block in enumerate(found):
            yield Prose(block, part.kind), not growing or index < len(found) - 1


class Question:
    """A message of this client that waits for its answer."""

    def __init__(self, client_msg_id: str, text: str) -> None:
        self.client_msg_id = client_msg_id
        self.text = text
        self.ack: Ack | None = None
        self.refusal: Refusal | None = None
        self._seen: set[str] = set()

    def take(self, frame: ServerFrame) -> None:
        """Update the state with a frame."""
        match frame:
            case Ack() if frame.client_msg_id == self.client_msg_id:
                self.ack = frame
            case Refusal(retryable=False | None) if frame.client_msg_id == self.client_msg_id:
                self.refusal = frame
            case TurnStart():
                self._seen.add(frame.message_id)
            case MessageFrame():
                self._seen.add(frame.message.id)
            case Disconnected():
                self._seen.clear()
            case _:
                pass

    @property
    def unanswered(self) -> bool:
        """Return whether a replay contained the message without an answer, so that none follows."""
        ack = self.ack
        return ack is not None and ack.message_id in self._seen and ack.answer_id not in self._seen


class Conversation:
    """The messages of one session by id, in the order of their arrival."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.entries: dict[str, Entry] = {}

    def take(self, frame: ServerFrame) -> Entry | None:
        """Apply a frame. Return the message that it changed. Raises DeltaParseError if it does not fit."""
        match frame:
            case MessageFrame(message=message):
                entry = self._entry(message.id)
                entry.message, entry.rendered = message, frame.rendered
            case TurnStart():
                entry = self._entry(frame.message_id)
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
                entry = self._entry(frame.message_id)
                entry.apply(frame)
            case _:
                return None
        return entry

    def answer(self, question: Question) -> Message | None:
        """Return the complete answer to a message, or None."""
        entry = self.entries.get(question.ack.answer_id) if question.ack is not None else None
        return entry.message if entry is not None else None

    def settled(self, question: Question, frame: ServerFrame) -> bool:
        """Return whether no more frames follow for a message, after this frame."""
        if question.refusal is not None or self.answer(question) is not None:
            return True
        return isinstance(frame, Replayed) and question.unanswered

    def _entry(self, message_id: str) -> Entry:
        return self.entries.setdefault(message_id, Entry(self.session, message_id))
