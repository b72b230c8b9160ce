"""Messages from clients of the gateway's own server, and the validation that all endpoints share."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from gateway.contract.channel import Address, Audio, InboundMessage, Sender
from gateway.contract.errors import InvalidRequestError, PartValidationError
from gateway.contract.messages import FilePart, ImagePart, Part, TextPart, part_from

SESSION_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""The names that a client may give to a new session."""

ClientMsgId = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""A client's own id of a message: any characters but control characters."""

ClientParts = Annotated[list[Any], Meta(max_length=32)]
ClientFiles = Annotated[list[Any], Meta(max_length=32)]
UploadId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
ClientUploads = Annotated[list[UploadId], Meta(max_length=32)]
"""The ids of files that were uploaded ahead of a message."""

_PICTURES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))


class ClientAudio(Struct, frozen=True):
    """A voice message. ``data`` is base64."""

    mime_type: Annotated[str, Meta(pattern=r"^audio/[a-z0-9.+-]{1,80}$")]
    data: Annotated[str, Meta(min_length=4)]


class ClientFile(Struct, frozen=True):
    """A file that the gateway reads, such as a document. ``data`` is base64."""

    name: Annotated[str, Meta(min_length=1, max_length=255)]
    data: str
    mime_type: Annotated[str, Meta(max_length=150)] = ""


class ClientMessage(Struct, frozen=True):
    """A user's message. Another message with the same ``client_msg_id`` is a duplicate.

    ``files`` become parts by ``read_files``, before the message is accepted, and ``uploads`` by the host.
    """

    client_msg_id: str
    text: str
    parts: tuple[Part, ...] = ()
    audio: Audio | None = None
    files: tuple[ClientFile, ...] = ()
    uploads: tuple[str, ...] = ()

    @classmethod
    def checked(
        cls,
        client_msg_id: str,
        text: str,
        parts: Sequence[object],
        audio: object = None,
        files: Sequence[object] = (),
        uploads: Sequence[str] = (),
    ) -> ClientMessage:
        """Validate a message; ``audio`` is a ClientAudio and each file a ClientFile, or plain data of one.

        Raises InvalidRequestError (or one of its kinds).
        """
        known = tuple(_part(value) for value in parts)
        sent = tuple(_file(value) for value in files)
        if not (text.strip() or known or sent or uploads) and audio is None:
            raise InvalidRequestError("the message is empty")
        heard = None if audio is None else _audio(audio)
        return cls(
            client_msg_id, text.replace("\0", "\ufffd"), known, heard, sent, tuple(dict.fromkeys(uploads))
        )

    async def read_files(self, read_file: Callable[..., Awaitable[Part]]) -> ClientMessage:
        """Return the message with its files as parts; ``read_file`` is that of the host."""
        if not self.files:
            return self

        async def read(file: ClientFile) -> Part:
            return await read_file(file.name, file.mime_type, base64.b64decode(file.data))

        async with asyncio.TaskGroup() as tasks:
            reads = [tasks.create_task(read(file)) for file in self.files]
        parts = (*self.parts, *(each.result() for each in reads))
        return msgspec.structs.replace(self, parts=parts, files=())

    def inbound(self, channel: str, session: str, user: str, seen: int = 0) -> InboundMessage:
        """Return the inbound message, with the role of an admin because the client presented the token.

        ``seen`` is the last event that the client had shown. Raises InvalidRequestError for an invalid
        session name.
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
            seen=seen,
        )


def _part(value: object) -> Part:
    part = part_from(value)
    if isinstance(part, ImagePart):
        return _picture(part)
    if not isinstance(part, TextPart | FilePart):
        raise InvalidRequestError("a message may hold text, image and file parts")
    return part


def _picture(part: ImagePart) -> ImagePart:
    """Check an image, because one that models reject would fail again with every later message."""
    if part.mime_type not in _PICTURES:
        raise PartValidationError(f"an image part must be one of {', '.join(sorted(_PICTURES))}")
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


def _file(value: object) -> ClientFile:
    try:
        given = msgspec.convert(value, ClientFile)
    except msgspec.ValidationError as error:
        raise PartValidationError(f"a file: {error}") from None
    _decoded(given.data)
    return given


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise PartValidationError("the data of an image part, of audio or of a file must be base64") from None
