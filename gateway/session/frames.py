"""The frames that a session sends besides deltas, and the envelope of both.

A frame goes out as one JSON object with ``session`` and ``seq`` added; it is encoded once for all readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from gateway.contract.deltas import Delta
from gateway.contract.messages import Message, to_json
from gateway.contract.questions import Choice

Status = Literal["idle", "queued", "running"]


class MessageFrame(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="message"):
    """A whole message of the log; it replaces the reader's state of the message with its id.

    ``rendered`` is the result of a plugin's renderer: Markdown to show instead of its parts.
    """

    message: Message
    rendered: str | None = None


class TurnStart(Struct, frozen=True, gc=False, tag_field="type", tag="turn_start"):
    """The start of the answer ``message_id``. After a crash it is repeated with a higher ``attempt``."""

    message_id: str
    reply_to: str
    attempt: int = 1


class ApprovalAsked(Struct, frozen=True, tag_field="type", tag="approval_request"):
    """A question to a user. Of a tool call that waits for approval ``always`` is the text that a permanent
    approval will match; without it none is offered. ``reason`` says why a call is asked that rules or an
    earlier approval allow. Any other question has a title and choices, and no name of a tool.
    """

    approval_id: str
    tool_name: str
    arguments: Mapping[str, Any]
    timeout_ms: int
    always: str | None = None
    reason: str = ""
    title: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET
    choices: tuple[Choice, ...] | UnsetType = UNSET
    multiple: bool | UnsetType = UNSET
    free_text: bool | UnsetType = UNSET


class ApprovalResolved(Struct, frozen=True, tag_field="type", tag="approval_resolved"):
    """The end of a question: the decision or answer, ``timeout`` or ``cancelled``, which count as no."""

    approval_id: str
    decision: str


class Totals(Struct, frozen=True, gc=False):
    """Usage of a session so far: tokens, and US dollars."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0


class SessionFrame(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="session"):
    """A change of the session itself."""

    title: str | None = None
    usage: Totals | None = None
    status: Status | None = None
    model: str | None = None


class LogChanged(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="log_changed"):
    """Other messages of the log are shown now: the reader discards its copy of the session.

    Its number is 0. The whole log follows, with the numbers that its messages always had. Messages may be
    left out after the one with the id ``gap``; if it comes twice, none are.
    """

    gap: str | None = None


class Replayed(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="replayed"):
    """The end of the replay; every later event is live.

    ``earlier`` says that the log has messages before those that were sent.
    """

    earlier: bool = False


Frame = (
    Delta | LogChanged | Replayed | MessageFrame | TurnStart | ApprovalAsked | ApprovalResolved | SessionFrame
)


class Event:
    """A frame with its number in a session.

    ``at`` is the number from which a reader that has the event can resume: its ``seq``, except in a replay of
    a running answer, where events are not numbered below the preceding ones.
    """

    __slots__ = ("_json", "at", "frame", "seq", "session")

    def __init__(self, session: str, seq: int, frame: Frame, at: int | None = None) -> None:
        self.session = session
        self.seq = seq
        # A replayed frame is numbered no lower than the one before it; ``at`` keeps where it was new.
        self.at = seq if at is None else at
        self.frame = frame
        self._json: bytes | None = None

    @property
    def json(self) -> bytes:
        """The frame as every transport sends it."""
        # Kept on the event: a session with many readers would encode the same frame for each of them.
        if self._json is None:
            tail = b',"session":%b,"seq":%d}' % (to_json(self.session), self.seq)
            self._json = to_json(self.frame)[:-1] + tail
        return self._json
