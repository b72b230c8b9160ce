"""How the gateway packs what it sends: as text, or as one stream of zlib or zstd for a whole connection."""

from __future__ import annotations

import zlib
from typing import Protocol


class Packer(Protocol):
    """Packs one payload after the other."""

    def __call__(self, payload: bytes) -> str | bytes: ...


def packer(name: str) -> Packer:
    """The packing that a connection asked for. Raises LookupError for one that does not exist."""
    return {"": Plain, "zlib-stream": ZlibStream, "zstd-stream": ZstdStream}[name]()


class Plain:
    """Text. When the bot said ``compress`` as it logged in, large payloads are packed one by one."""

    def __init__(self) -> None:
        self.compress = False

    def __call__(self, payload: bytes) -> str | bytes:
        if self.compress and len(payload) > 1024:
            return zlib.compress(payload)
        return payload.decode()


class ZlibStream:
    """One zlib stream, flushed after every payload."""

    def __init__(self) -> None:
        self._stream = zlib.compressobj()

    def __call__(self, payload: bytes) -> bytes:
        return self._stream.compress(payload) + self._stream.flush(zlib.Z_SYNC_FLUSH)


class ZstdStream:
    """One zstd frame that does not end, flushed after every payload."""

    def __init__(self) -> None:
        # Only bots that have zstandard ask for this.
        import zstandard

        self._flush = zstandard.COMPRESSOBJ_FLUSH_BLOCK
        self._stream = zstandard.ZstdCompressor().compressobj()

    def __call__(self, payload: bytes) -> bytes:
        return self._stream.compress(payload) + self._stream.flush(self._flush)
