"""What clients of our own server say: the checks that every way in shares."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from gateway.channel import Address, Audio, InboundMessage, Sender
from gateway.errors import InvalidRequestError, PartValidationError
from gateway.messages import FilePart, ImagePart, Part, TextPart, part_from

SESSION_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""What a client may call a session that it begins."""

ClientMsgId = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""A client's own name for a message: any characters but control ones."""

ClientParts = Annotated[list[Any], Meta(max_length=32)]

_PICTURES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))


class ClientAudio(Struct, frozen=True):
    """A voice message. ``data`` is base64."""

    mime_type: Annotated[str, Meta(pattern=r"^audio/[a-z0-9.+-]{1,80}$")]
    data: Annotated[str, Meta(min_length=4)]


class ClientMessage(Struct, frozen=True):
    """Something a user said. The same ``client_msg_id`` is the same message, however often it comes."""

    client_msg_id: str
    text: str
    parts: tuple[Part, ...] = ()
    audio: Audio | None = None

    @classmethod
    def checked(
        cls, client_msg_id: str, text: str, parts: Sequence[object], audio: object = None
    ) -> ClientMessage:
        """The message, if it can be one; ``audio`` is a ClientAudio, or the plain data of one.

        Raises InvalidRequestError (or one of its kinds).
        """
        known = tuple(_part(value) for value in parts)
        if not text.strip() and not known and audio is None:
            raise InvalidRequestError("the message is empty")
        heard = None if audio is None else _audio(audio)
        return cls(client_msg_id, text.replace("\0", "\ufffd"), known, heard)

    def inbound(self, channel: str, session: str, user: str) -> InboundMessage:
        """The message as the gateway takes it, from somebody who holds its token and so may do all.

        Raises InvalidRequestError for a name no session may have.
        """
        if not SESSION_NAME.fullmatch(session):
            raise InvalidRequestError("a session's name has 1 to 128 of the characters A-Z a-z 0-9 . _ : -")
        return InboundMessage(
            session=session,
            dedup_key=f"{user}:{self.client_msg_id}",
            address=Address(channel=channel, chat=session),
            sender=Sender(id=user),
            role="admin",
            kind="text" if self.audio is None else "audio",
            text=self.text,
            parts=self.parts,
            audio=self.audio,
        )


def _part(value: object) -> Part:
    part = part_from(value)
    if isinstance(part, ImagePart):
        return _picture(part)
    if not isinstance(part, TextPart | FilePart):
        raise InvalidRequestError("a message may hold text, image and file parts")
    return part


def _picture(part: ImagePart) -> ImagePart:
    """A picture that models take: one they refuse would be refused again with every later message."""
    if part.mime_type not in _PICTURES:
        raise PartValidationError(f"an image part is one of {', '.join(sorted(_PICTURES))}")
    if not _decoded(part.data):
        raise PartValidationError("an image part holds no data")
    return part


def _audio(value: object) -> Audio:
    try:
        given = msgspec.convert(value, ClientAudio)
    except msgspec.ValidationError as error:
        raise PartValidationError(f"audio: {error}") from None
    _decoded(given.data)
    return Audio(f"data:{given.mime_type};base64,{given.data}", given.mime_type)


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise PartValidationError("the data of an image part or of audio is base64") from None
