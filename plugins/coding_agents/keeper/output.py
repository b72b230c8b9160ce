"""The output of a program: numbered bytes in memory and in two files.

In: pieces of output. Out: the retained output from an offset.
"""

from __future__ import annotations

import os
import struct

_START = struct.Struct(">Q")

RING = 512 * 1024
FILE_BYTES = 8 * 1024 * 1024
FILE_HEAD = _START.size
"""A file of output begins with the offset of its first byte."""
_STORE_AFTER = 128 * 1024
_STORE_SECONDS = 1.0
_DISK_SECONDS = 10.0


class OutputFile:
    """One of the two files of output, open for writing and reading."""

    def __init__(self, name: str, start: int) -> None:
        self.name = name
        self.start = start
        self.size = 0
        self.fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.pwrite(self.fd, _START.pack(start), 0)

    @property
    def end(self) -> int:
        """The offset behind the last byte."""
        return self.start + self.size

    def append(self, data: bytes) -> None:
        """Write bytes at the end. Raises OSError."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self.fd, view, FILE_HEAD + self.size)
            self.size += written
            view = view[written:]

    def read(self, offset: int, most: int) -> bytes:
        """Return bytes from an offset. Raises OSError."""
        return os.pread(self.fd, min(most, self.end - offset), FILE_HEAD + offset - self.start)


class Output:
    """The output of the program: the last 512 KiB in memory, and up to 16 MiB in two files.

    Offsets count the bytes since the start. A full disk costs the files, never the program.
    """

    def __init__(self, ring: int = RING, file_bytes: int = FILE_BYTES) -> None:
        self._ring = bytearray(ring)
        self._file_bytes = file_bytes
        self._store_after = min(_STORE_AFTER, ring // 4)
        self._files: list[OutputFile] = []
        self._stored = 0
        self._next_name = 0
        self._blocked_until = 0.0
        self.end = 0
        self.store_at: float | None = None
        """The time at which output must be written to the files; None if it has been."""

    @property
    def _ring_start(self) -> int:
        return max(0, self.end - len(self._ring))

    @property
    def oldest(self) -> int:
        """The offset of the first byte that is retained."""
        return min(self._files[0].start, self._ring_start) if self._files else self._ring_start

    def append(self, data: bytes, now: float) -> None:
        """Keep output."""
        size = len(self._ring)
        for at in range(0, len(data), self._store_after):
            piece = memoryview(data)[at : at + self._store_after]
            begin = self.end % size
            first = min(len(piece), size - begin)
            self._ring[begin : begin + first] = piece[:first]
            self._ring[: len(piece) - first] = piece[first:]
            self.end += len(piece)
            if self.end - self._stored >= self._store_after:
                self.store(now)
        if self.store_at is None and self._stored < self.end:
            self.store_at = now + _STORE_SECONDS

    def store(self, now: float) -> None:
        """Write to the files what they lack. After an error, try again later, with what memory retains."""
        self.store_at = None
        if now < self._blocked_until:
            return
        try:
            self._stored = max(self._stored, self._ring_start)
            while self._stored < self.end:
                data = self._from_ring(self._stored, self.end - self._stored)
                self._file(len(data)).append(data)
                self._stored += len(data)
        except OSError:
            self._forget()
            self._blocked_until = now + _DISK_SECONDS

    def read(self, offset: int, most: int) -> bytes:
        """Return up to some bytes of retained output; b"" at the end, or if a file was damaged."""
        if offset >= self._ring_start:
            return self._from_ring(offset, min(most, self.end - offset))
        try:
            data = next(file.read(offset, most) for file in self._files if file.start <= offset < file.end)
        except (OSError, StopIteration):
            data = b""
        if not data:
            self._forget()
        return data

    def tail(self, most: int) -> bytes:
        """Return the last bytes."""
        begin = max(self._ring_start, self.end - most)
        data = self._from_ring(begin, self.end - begin)
        return data + self._from_ring(begin + len(data), self.end - begin - len(data))

    def _from_ring(self, offset: int, length: int) -> bytes:
        begin = offset % len(self._ring)
        return bytes(memoryview(self._ring)[begin : begin + length])

    def _file(self, more: int) -> OutputFile:
        """Return the file for the next bytes."""
        if not self._files or self._files[-1].size + more > self._file_bytes:
            if len(self._files) == 2:
                os.close(self._files.pop(0).fd)
            self._files.append(OutputFile(f"output.{self._next_name}", self._stored))
            self._next_name = 1 - self._next_name
        return self._files[-1]

    def _forget(self) -> None:
        """Empty the files: what follows would not be contiguous with their content."""
        for file in self._files:
            try:
                os.ftruncate(file.fd, 0)
            except OSError:
                pass
            os.close(file.fd)
        self._files = []
        self._stored = self._ring_start
