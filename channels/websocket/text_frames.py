"""Websocket text frames as bytes (RFC 6455, section 5.2): from a server, neither masked nor compressed."""

from __future__ import annotations

import struct
from collections.abc import Iterable

_WHOLE_TEXT = 0x81
_SHORT, _MEDIUM, _LONG = struct.Struct("!BB"), struct.Struct("!BBH"), struct.Struct("!BBQ")


def text_frames(payloads: Iterable[bytes]) -> bytes:
    """One frame for each payload, in one piece.

    What waits for a client leaves in a single system call; one for each frame was a sixth of a short turn.
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
