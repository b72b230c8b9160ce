"""What a session tells its readers beside deltas, and the envelope both travel in.

A frame goes out as one JSON object with ``session`` and ``seq`` added; it is encoded once, however many
read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from gateway.deltas import Delta
from gateway.messages import Message, to_json

Status = Literal["idle", "queued", "running"]


class MessageFrame(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="message"):
    """A whole message of the log; it replaces whatever a reader holds under its id.

    ``rendered`` is what a plugin's renderer made of it: Markdown to show instead of its parts.
    """

    message: Message
    rendered: str | None = None


class TurnStart(Struct, frozen=True, gc=False, tag_field="type", tag="turn_start"):
    """The answer ``message_id`` begins. After a crash it begins again with a higher ``attempt``."""

    message_id: str
    reply_to: str
    attempt: int = 1


class ApprovalAsked(Struct, frozen=True, tag_field="type", tag="approval_request"):
    """A tool waits for a person."""

    approval_id: str
    tool_name: str
    arguments: Mapping[str, Any]
    timeout_ms: int


class ApprovalResolved(Struct, frozen=True, tag_field="type", tag="approval_resolved"):
    """A request for approval is settled (``timeout`` and ``cancelled`` count as no)."""

    approval_id: str
    decision: str


class Totals(Struct, frozen=True, gc=False):
    """What a session took so far: tokens, and US dollars."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0


class SessionFrame(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="session"):
    """Something about the session itself changed."""

    title: str | None = None
    usage: Totals | None = None
    status: Status | None = None


class Replayed(Struct, frozen=True, gc=False, tag_field="type", tag="replayed"):
    """What a reader had missed ends here; everything after is live."""


Frame = Delta | Replayed | MessageFrame | TurnStart | ApprovalAsked | ApprovalResolved | SessionFrame


class Event:
    """A frame at its place in a session."""

    __slots__ = ("_json", "frame", "seq", "session")

    def __init__(self, session: str, seq: int, frame: Frame) -> None:
        self.session = session
        self.seq = seq
        self.frame = frame
        self._json: bytes | None = None

    @property
    def json(self) -> bytes:
        """The frame as every transport sends it."""
        if self._json is None:
            tail = b',"session":%b,"seq":%d}' % (to_json(self.session), self.seq)
            self._json = to_json(self.frame)[:-1] + tail
        return self._json
