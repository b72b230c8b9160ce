"""What a websocket client may send, and what it means. Pure: bytes in, values out.

::

    {"type":"auth","token":…}
    {"type":"message","client_msg_id":…,"session"?:…,"text":…,"parts"?:[…]}
    {"type":"abort","session":…}
    {"type":"resume","session":…,"after":…}
    {"type":"approval","session":…,"approval_id":…,"decision":"once"|"always"|"deny"}
    {"type":"ping"}
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from gateway import Address, InboundMessage, InvalidRequestError, Part, Sender, part_from

SESSION_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_ClientMsgId = Annotated[str, Meta(min_length=1, max_length=128)]
_Session = Annotated[str, Meta(min_length=1, max_length=128)]
_MOST_PARTS = 32


class AuthFrame(Struct, frozen=True, tag_field="type", tag="auth"):
    """The token, for clients that cannot send it with the handshake."""

    token: str


class MessageFrame(Struct, frozen=True, tag_field="type", tag="message"):
    """Something a person wrote; ``client_msg_id`` names it for as long as the client may repeat it."""

    client_msg_id: _ClientMsgId
    text: str = ""
    session: _Session | None = None
    parts: Annotated[list[Any], Meta(max_length=_MOST_PARTS)] = []


class AbortFrame(Struct, frozen=True, tag_field="type", tag="abort"):
    """Stop the answer of a session."""

    session: _Session


class ResumeFrame(Struct, frozen=True, tag_field="type", tag="resume"):
    """Read a session along, from everything after a number on."""

    session: _Session
    after: Annotated[int, Meta(ge=0, le=2**53)] = 0


class ApprovalFrame(Struct, frozen=True, tag_field="type", tag="approval"):
    """A person's word on a tool."""

    session: _Session
    approval_id: str
    decision: Literal["once", "always", "deny"]


class PingFrame(Struct, frozen=True, tag_field="type", tag="ping"):
    """Is anybody there?"""


ClientFrame = AuthFrame | MessageFrame | AbortFrame | ResumeFrame | ApprovalFrame | PingFrame

_decode = msgspec.json.Decoder(ClientFrame).decode


def parse_frame(payload: bytes | str) -> ClientFrame:
    """One frame of a client. Raises InvalidRequestError with what is wrong with it."""
    try:
        frame = _decode(payload)
    except RecursionError:
        raise InvalidRequestError("the frame is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"not a frame this server knows: {error}") from None
    session = getattr(frame, "session", None)
    if session is not None and not SESSION_NAME.fullmatch(session):
        raise InvalidRequestError("a session's name has 1 to 128 of the characters A-Z a-z 0-9 . _ : -")
    return frame


def parse_message(channel: str, frame: MessageFrame, session: str, user: str) -> InboundMessage:
    """A message frame as the gateway takes it. Raises InvalidRequestError (or one of its kinds)."""
    parts = tuple(_part(value) for value in frame.parts)
    if not frame.text.strip() and not parts:
        raise InvalidRequestError("the message is empty")
    return InboundMessage(
        session=session,
        dedup_key=f"{user}:{frame.client_msg_id}",
        address=Address(channel=channel, chat=session),
        sender=Sender(id=user),
        text=frame.text.replace("\0", "\ufffd"),
        parts=parts,
    )


def _part(value: object) -> Part:
    part = part_from(value)
    if type(part).__name__ not in ("TextPart", "ImagePart", "FilePart"):
        raise InvalidRequestError("a message may hold text, image and file parts")
    return part
