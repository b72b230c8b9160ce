"""What a websocket client may send, and what it means. Pure: bytes in, values out.

::

    {"type":"auth","token":…}
    {"type":"message","client_msg_id":…,"session"?:…,"text":…,"parts"?:[…],"audio"?:…}
    {"type":"abort","session":…}
    {"type":"resume","session":…,"after":…}
    {"type":"approval","session":…,"approval_id":…,"decision":"once"|"always"|"deny"}
    {"type":"ping"}
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from gateway import ClientMsgId, ClientParts, InvalidRequestError

_Session = Annotated[str, Meta(pattern=r"^[!-~]{1,200}$")]


class AuthFrame(Struct, frozen=True, tag_field="type", tag="auth"):
    """The token, for clients that cannot send it with the handshake."""

    token: str


class MessageFrame(Struct, frozen=True, tag_field="type", tag="message"):
    """Something a person wrote; ``client_msg_id`` names it for as long as the client may repeat it."""

    client_msg_id: ClientMsgId
    text: str = ""
    session: _Session | None = None
    parts: ClientParts = []
    audio: Any = None


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
        return _decode(payload)
    except RecursionError:
        raise InvalidRequestError("the frame is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"not a frame this server knows: {error}") from None
