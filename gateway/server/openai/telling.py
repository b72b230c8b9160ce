"""The text of an answer as a stream can tell it: only ever more of it.

What was sent cannot be taken back. A part that a fallback empties stays where it was read; a part that a
hook words anew follows behind a blank line, unless it only became longer.
"""

from __future__ import annotations

from gateway.contract.deltas import PartDelta, TextDelta
from gateway.contract.messages import ErrorPart, Message, TextPart, is_said
from gateway.session.frames import Frame


class Telling:
    """Turns a session's frames into the text to send of one answer. ``begun`` says whether there was any."""

    def __init__(self, answer_id: str) -> None:
        self._answer_id = answer_id
        self._told: dict[int, list[str]] = {}
        self.begun = False

    def more(self, frame: Frame) -> str:
        """What to send now; empty for what is no text of the answer."""
        match frame:
            case TextDelta(kind=kind, content=text) if is_said(kind) and self._is_ours(frame):
                return self._add(self._told.setdefault(frame.part_index, []), text)
            case PartDelta(part=TextPart(content="")):
                # What was sent stays sent. If the part comes back as it was, it is not sent again.
                return ""
            case PartDelta(part=TextPart(kind=kind, content=text)) if is_said(kind) and self._is_ours(frame):
                before = "".join(self._told.get(frame.part_index, ()))
                longer = bool(before) and text.startswith(before)
                told = self._told[frame.part_index] = [before] if longer else []
                return self._add(told, text[len(before) :] if longer else text)
            case _:
                return ""

    def _is_ours(self, delta: TextDelta | PartDelta) -> bool:
        return delta.message_id == self._answer_id

    def _add(self, told: list[str], more: str) -> str:
        gap = "\n\n" if more and self.begun and not told else ""
        if more:
            told.append(more)
            self.begun = True
        return gap + more


def text_of(answer: Message) -> str:
    """The text of a whole answer: its text parts joined by blank lines, without reasoning and notices."""
    texts = (p.content for p in answer.parts if isinstance(p, TextPart) and is_said(p.kind))
    return "\n\n".join(filter(None, texts))


def failure_in(answer: Message) -> ErrorPart | None:
    """The error that an answer ended with, if it did."""
    last = answer.parts[-1] if answer.parts else None
    return last if isinstance(last, ErrorPart) else None
