"""The protocol between the gateway and a keeper: frames over a Unix socket.

In and out: bytes, in frames of a length, a kind and a payload. The gateway and the keeper import this module.
``../README.md`` has the table of frames.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False  # the module typing costs memory
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VERSION = 1
"""The version of the protocol. A keeper ignores kinds of frames and trailing fields that it does not know."""

MAX_FRAME = 1024 * 1024
HEAD = struct.Struct(">Ic")
"""The length of the payload, and the kind of a frame."""
ATTACH = struct.Struct(">32sQHB")
"""``A``: the key, the offset, the version, and 1 if the client serves streams."""
OFFSET = struct.Struct(">Q")
"""The begin of ``O``, ``W`` and ``D``."""
HELLO = struct.Struct(">HQQIQ36s")
"""``H``: version, oldest offset, end offset, pid of the program, its start in ms, boot id."""
SIZE = struct.Struct(">HH")
"""``R``: rows and columns."""
EXIT = struct.Struct(">iQ")
"""``X``: exit status, negative for a signal, and its time in ms."""
ERROR = struct.Struct(">HQ")
"""``E``: a code and the id of the command, or 0. A text follows."""
STREAM = struct.Struct(">I")
"""The begin of ``S``, ``B``, ``F`` and ``Z``: the number of a stream."""
CREDIT = struct.Struct(">II")
"""``N``: the number of a stream, and how many bytes more may be sent on it."""

WRONG_KEY, WRONG_OFFSET, BAD_FRAME, INPUT_FULL, STILL_RUNS, BAD_SIGNAL, HAS_ENDED = range(1, 8)
"""The codes of ``E``."""

WINDOW = 64 * 1024
"""Bytes that may be sent on a new stream, in each direction."""
READY, RUNS = b"ready\n", b"runs\n"
"""A keeper's reports of its start: it listens, or another one has the folder. Other text is a reason."""
UNAVAILABLE = b"unavailable gateway unavailable\n"
"""The answer to a connection from inside while no gateway is attached."""
MOST_ROWS, MOST_COLUMNS = 500, 1000
"""The largest terminal."""


class FrameError(Exception):
    """A frame is longer than allowed, or its payload is too short."""


def frame(kind: bytes, *parts: bytes | memoryview) -> bytes:
    """Return a frame."""
    return b"".join((HEAD.pack(sum(map(len, parts)), kind), *parts))


class FrameSplitter:
    """A splitter of a byte stream into frames."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Return the kind and payload of each frame that is complete. Raises FrameError."""
        buffer = self._buffer
        buffer += data
        frames: list[tuple[bytes, bytes]] = []
        at = 0
        while len(buffer) - at >= HEAD.size:
            length, kind = HEAD.unpack_from(buffer, at)
            if length > self.limit:
                raise FrameError(f"a frame of {length} bytes; the limit is {self.limit}")
            begin = at + HEAD.size
            if len(buffer) - begin < length:
                break
            frames.append((kind, bytes(buffer[begin : begin + length])))
            at = begin + length
        del buffer[:at]
        return frames


def pack(items: Iterable[bytes]) -> bytes:
    """Return a list of byte strings as one."""
    return b"".join(part for item in items for part in (struct.pack(">I", len(item)), item))


def unpack(data: bytes) -> Iterator[bytes]:
    """Yield the byte strings of a packed list."""
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        yield data[at + 4 : at + 4 + length]
        at += 4 + length


def clamp_size(rows: int, columns: int) -> tuple[int, int]:
    """Return a size that programs and screens can have."""
    return min(max(rows, 1), MOST_ROWS), min(max(columns, 1), MOST_COLUMNS)


def boot_id() -> str:
    """Return the id of the running kernel's start; another one later means that the machine was restarted."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
