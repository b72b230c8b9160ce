"""Frames that the gateway sends to one connection besides the events of sessions, and their encoding."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from gateway import TrunklineError
from gateway.channel import Receipt

to_bytes = msgspec.json.Encoder().encode
PONG = b'{"type":"pong"}'


class Command(Struct, frozen=True):
    """A slash command."""

    name: str
    description: str


class Ready(Struct, frozen=True, tag_field="type", tag="ready"):
    """Greeting, sent after authentication."""

    user: str
    model: str
    version: str
    commands: tuple[Command, ...]
    channel: str = "websocket"
    """Channel of the sessions that begin on this connection."""
    upload_bytes: int = 10_000_000
    """Largest file that the client may upload."""
    frame_bytes: int = 1_000_000
    """Largest frame of the client; the socket is closed at a larger one."""
    protocol: int = 1
    signed_in: bool = False
    """A cookie authenticated the client; ``DELETE /api/browser`` ends this login."""


class Segment(Struct, frozen=True, omit_defaults=True):
    """A segment of the status line; ``texts`` has its text in other languages, by code."""

    text: str
    color: str | None = None
    dim: bool = False
    texts: Mapping[str, str] = {}


class Panel(Struct, frozen=True):
    """The panel of a plugin: HTML blocks without scripts, pictures and raw HTML of the plugin."""

    plugin: str
    blocks: tuple[str, ...]


class Contributions(Struct, frozen=True, tag_field="type", tag="contributions"):
    """Current contributions of plugins to the page: status line, and the keys and triggers that they
    handle; panels."""

    status: tuple[Segment, ...]
    shortcuts: tuple[str, ...]
    triggers: tuple[str, ...]
    panels: tuple[Panel, ...] = ()


class Completion(Struct, frozen=True):
    """A completion of a mention; ``value`` replaces the trigger and the typed beginning."""

    value: str
    label: str
    description: str


class Completions(Struct, frozen=True, tag_field="type", tag="completions"):
    """Completions of a mention by plugins; if empty, the page shows no picker."""

    id: int
    completions: tuple[Completion, ...]


class Ack(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="ack"):
    """Acknowledgement of a durable message; ``answer_id`` is the id that its answer will have.

    A ``refused`` message gets no answer, because too many messages wait in the session.
    """

    client_msg_id: str
    message_id: str
    answer_id: str
    session: str
    seq: int
    duplicate: bool = False
    refused: bool = False


class Refusal(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="error"):
    """Refusal of a frame; ``client_msg_id`` names a message, ``session`` one to resume."""

    error_name: str
    message: str
    retryable: bool | None
    client_msg_id: str | None = None
    session: str | None = None


def ack(client_msg_id: str, receipt: Receipt) -> bytes:
    """Encode the acknowledgement of a message."""
    return to_bytes(
        Ack(
            client_msg_id,
            receipt.message_id,
            receipt.answer_id,
            receipt.session,
            receipt.seq,
            receipt.duplicate,
            receipt.refused,
        )
    )


def refusal(error: TrunklineError, client_msg_id: str | None = None, session: str | None = None) -> bytes:
    """Encode the refusal of a frame."""
    return to_bytes(Refusal(error.name, str(error), error.retryable, client_msg_id, session))


_WHOLE_TEXT = 0x81
_SHORT, _MEDIUM, _LONG = struct.Struct("!BB"), struct.Struct("!BBH"), struct.Struct("!BBQ")


def text_frames(payloads: Iterable[bytes]) -> bytes:
    """Encode one frame for each payload, as a single byte string.

    All waiting frames leave in one system call; one call per frame took a sixth of the time of a short turn.
    """
    pieces: list[bytes] = []
    for payload in payloads:
        length = len(payload)
        if length < 126:
            head = _SHORT.pack(_WHOLE_TEXT, length)
        elif length < 65_536:
            head = _MEDIUM.pack(_WHOLE_TEXT, 126, length)
        else:
            head = _LONG.pack(_WHOLE_TEXT, 127, length)
        pieces += (head, payload)
    return b"".join(pieces)
