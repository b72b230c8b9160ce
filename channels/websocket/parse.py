"""Frames that a websocket client may send. Pure: bytes in, values out.

::

    {"type":"auth","token":…}
    {"type":"message","client_msg_id":…,"session"?:…,"text":…,"parts"?:[…],"audio"?:…,"files"?:[…],"uploads"?:[id,…],
     "seen"?:…}
    {"type":"abort","session":…}
    {"type":"resume","session":…,"after":…}
    {"type":"show","session":…,"message_id":…}
    {"type":"approval","session":…,"approval_id":…,"decision":…}
    {"type":"key","key":"ctrl+t"}
    {"type":"complete_mention","id":…,"trigger":"@","partial":…}
    {"type":"ping"}
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from gateway.channel import ClientFiles, ClientMsgId, ClientParts, ClientUploads, InvalidRequestError

_Answer = Annotated[str, Meta(max_length=4_000)] | Annotated[list[str], Meta(max_length=25)]
_Session = Annotated[str, Meta(pattern=r"^[!-~]{1,200}$")]


class AuthFrame(Struct, frozen=True, tag_field="type", tag="auth"):
    """Token, for clients that cannot send it with the handshake."""

    token: str


class MessageFrame(Struct, frozen=True, tag_field="type", tag="message"):
    """A message of a user; ``client_msg_id`` identifies it while the client may repeat it.

    ``seen`` is the number of the session's last event that was shown when it was written; 0 if unknown.
    """

    client_msg_id: ClientMsgId
    text: str = ""
    session: _Session | None = None
    parts: ClientParts = []
    audio: Any = None
    files: ClientFiles = []
    uploads: ClientUploads = []
    seen: Annotated[int, Meta(ge=0, le=2**53)] = 0


class AbortFrame(Struct, frozen=True, tag_field="type", tag="abort"):
    """Stop the answer of a session."""

    session: _Session


class ResumeFrame(Struct, frozen=True, tag_field="type", tag="resume"):
    """Follow a session, starting after the event with this number."""

    session: _Session
    after: Annotated[int, Meta(ge=0, le=2**53)] = 0


class ShowFrame(Struct, frozen=True, tag_field="type", tag="show"):
    """Send the log of a followed session again, with an older message that the replay left out."""

    session: _Session
    message_id: Annotated[str, Meta(min_length=1, max_length=64)]


class ApprovalFrame(Struct, frozen=True, tag_field="type", tag="approval"):
    """An answer to a question: ``once``, ``always`` or ``deny`` for a tool, else its choices or a text."""

    session: _Session
    approval_id: str
    decision: _Answer


class KeyFrame(Struct, frozen=True, tag_field="type", tag="key"):
    """A press of a key that a plugin handles."""

    key: Annotated[str, Meta(min_length=1, max_length=40)]


class MentionFrame(Struct, frozen=True, tag_field="type", tag="complete_mention"):
    """The beginning of a mention to complete; the response has the same ``id``."""

    id: Annotated[int, Meta(ge=0, le=2**53)]
    trigger: Annotated[str, Meta(min_length=1, max_length=40)]
    partial: Annotated[str, Meta(max_length=200)] = ""


class PingFrame(Struct, frozen=True, tag_field="type", tag="ping"):
    """Liveness check."""


ClientFrame = (
    AuthFrame
    | MessageFrame
    | AbortFrame
    | ResumeFrame
    | ShowFrame
    | ApprovalFrame
    | KeyFrame
    | MentionFrame
    | PingFrame
)

_decode = msgspec.json.Decoder(ClientFrame).decode


def parse_frame(payload: bytes | str) -> ClientFrame:
    """Decode one frame of a client. Raises InvalidRequestError with the reason."""
    try:
        return _decode(payload)
    except RecursionError:
        raise InvalidRequestError("the frame is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"unknown or invalid frame: {error}") from None
