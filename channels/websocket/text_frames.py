"""Encoding of server-side websocket text frames (RFC 6455, section 5.2): neither masked nor compressed."""

from __future__ import annotations

import struct
from collections.abc import Iterable

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
