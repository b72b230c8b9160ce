"""The websocket protocol, seen from a client: what the gateway says, as values."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from gateway.frames import Frame

PROTOCOL = 1
SUBPROTOCOL = "trunkline.v1"


class Command(Struct, frozen=True):
    """A slash command the gateway knows."""

    name: str
    description: str = ""


class Ready(Struct, frozen=True, tag_field="type", tag="ready"):
    """The gateway's greeting."""

    protocol: int
    model: str = ""
    version: str = ""
    user: str = ""
    commands: tuple[Command, ...] = ()


class Ack(Struct, frozen=True, tag_field="type", tag="ack"):
    """A message is durable; ``answer_id`` is the id its answer will have."""

    client_msg_id: str
    message_id: str
    answer_id: str
    session: str
    seq: int
    duplicate: bool = False


class Refusal(Struct, frozen=True, tag_field="type", tag="error"):
    """Something we sent was not accepted; ``retryable`` is None when trying again may or may not help."""

    error_name: str
    message: str
    retryable: bool | None = None
    client_msg_id: str | None = None


class Pong(Struct, frozen=True, tag_field="type", tag="pong"):
    """An answer to a ping."""


class Lost(Struct, frozen=True):
    """Not from the gateway: the connection broke, and another one is being made."""

    reason: str


Heard = Frame | Ready | Ack | Refusal | Pong | Lost


class _Envelope(Struct, frozen=True):
    session: str = ""
    seq: int = 0


_envelope = msgspec.json.Decoder(_Envelope).decode
_heard = msgspec.json.Decoder(Frame | Ready | Ack | Refusal | Pong).decode
_encode = msgspec.json.Encoder().encode


def parse(payload: bytes | str) -> tuple[str, int, Heard] | None:
    """One frame with its session and number, or None for a kind this client does not know."""
    try:
        envelope = _envelope(payload)
        return envelope.session, envelope.seq, _heard(payload)
    except msgspec.DecodeError:
        return None


def render(kind: str, **fields: Any) -> str:
    """One frame to send; fields that are None are left out."""
    given = {name: value for name, value in fields.items() if value is not None}
    return _encode({"type": kind, **given}).decode()
