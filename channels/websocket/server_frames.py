"""What the gateway says to one connection, beside the events of sessions."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from gateway import Receipt, TrunklineError

to_bytes = msgspec.json.Encoder().encode
PONG = b'{"type":"pong"}'


class Command(Struct, frozen=True):
    """A slash command that may be typed."""

    name: str
    description: str


class Ready(Struct, frozen=True, tag_field="type", tag="ready"):
    """The greeting, once it is known who the client is."""

    user: str
    model: str
    version: str
    commands: tuple[Command, ...]
    protocol: int = 1


class Ack(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="ack"):
    """A message is durable; ``answer_id`` is the id its answer will have."""

    client_msg_id: str
    message_id: str
    answer_id: str
    session: str
    seq: int
    duplicate: bool = False


class Refused(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="error"):
    """A frame was not accepted; ``client_msg_id`` names the message, if it was one."""

    error_name: str
    message: str
    retryable: bool | None
    client_msg_id: str | None = None


def ack(client_msg_id: str, receipt: Receipt) -> bytes:
    """The acknowledgement of a message."""
    return to_bytes(
        Ack(
            client_msg_id,
            receipt.message_id,
            receipt.answer_id,
            receipt.session,
            receipt.seq,
            receipt.duplicate,
        )
    )


def refused(error: TrunklineError, client_msg_id: str | None) -> bytes:
    """The refusal of a frame."""
    return to_bytes(Refused(error.name, str(error), error.retryable, client_msg_id))
