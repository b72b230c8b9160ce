"""The text of an answer as a stream can tell it: only ever more of it.

What was sent cannot be taken back. A part that a fallback empties stays where it was read; a part that a
hook words anew follows behind a blank line, unless it only became longer.
"""

from __future__ import annotations

from gateway.deltas import PartDelta, TextDelta
from gateway.frames import Frame
from gateway.messages import ErrorPart, Message, TextPart


class Telling:
    """Turns a session's frames into the text to send of one answer. ``begun`` says whether there was any."""

    def __init__(self, answer_id: str) -> None:
        self._answer_id = answer_id
        self._told: dict[int, str] = {}
        self.begun = False

    def more(self, frame: Frame) -> str:
        """What to send now; empty for what is no text of the answer."""
        if not isinstance(frame, TextDelta | PartDelta) or frame.message_id != self._answer_id:
            return ""
        told = self._told.get(frame.part_index, "")
        match frame:
            case TextDelta(kind=kind, content=text) if kind != "reasoning":
                return self._add(frame.part_index, told + text, text, anew=not told)
            case PartDelta(part=TextPart(kind=kind, content=text)) if kind != "reasoning":
                longer = bool(told) and text.startswith(told)
                more = text[len(told) :] if longer else text
                return self._add(frame.part_index, text, more, anew=not longer)
            case _:
                return ""

    def _add(self, index: int, told: str, text: str, *, anew: bool) -> str:
        self._told[index] = told
        gap = "\n\n" if anew and text and self.begun else ""
        self.begun = self.begun or bool(text)
        return gap + text


def text_of(answer: Message) -> str:
    """The text of a whole answer: its text parts joined by blank lines, without reasoning."""
    texts = (p.content for p in answer.parts if isinstance(p, TextPart) and p.kind != "reasoning")
    return "\n\n".join(filter(None, texts))


def failure_in(answer: Message) -> ErrorPart | None:
    """The error that an answer ended with, if it did."""
    last = answer.parts[-1] if answer.parts else None
    return last if isinstance(last, ErrorPart) else None
