"""IMAP client for what the channel needs: new mail, notifications of it, and the folder of sent mail.

Python's own client has no IDLE before version 3.14 and would need a thread. Errors are ImapError, OSError,
TimeoutError and EOFError; the connection is of no use after one, except after a RefusedError.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, closing

from msgspec import Struct

from channels.email.options import Options

SECONDS, _SLOWEST = 60.0, 50_000
"""Timeout of a command, and the bytes per second that a mail may need at worst."""
_LINE_BYTES = 1_000_000
_LITERAL = re.compile(rb"\{(\d{1,10})\}\r\n$")
_SECTION = re.compile(rb"BODY\[([0-9A-Z.]*)\](?:<\d+>)? (?:\{(\d+)\}\r\n|\"((?:[^\"\\]|\\.)*)\")")
_LISTED = re.compile(rb'\* LIST \(([^)]*)\) (?:NIL|"(?:[^"\\]|\\.)*") (?:"((?:[^"\\]|\\.)*)"|(\S+))\r\n')


class ImapError(Exception):
    """The server answered in a way that the client cannot use."""


class RefusedError(ImapError):
    """The server refused a command (NO or BAD)."""


class LoginError(RefusedError):
    """The server refused the user name or the password."""


class Fetched(Struct, frozen=True):
    """The fetched sections of a mail by their names, such as ``HEADER``."""

    uid: int
    size: int
    sections: Mapping[str, bytes]


class _Response(Struct, frozen=True):
    """A response. ``line`` is without the data of its literals."""

    line: bytes
    literals: Sequence[bytes]


class Imap:
    """Connection that is logged in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int) -> None:
        self._reader = reader
        self._writer = writer
        self._most = most
        self._number = 0
        self._has_news = False
        """True if the server reported new mail since the last ``uids_after``."""
        self.capabilities: frozenset[str] = frozenset()

    async def select(self, folder: str) -> tuple[int, int]:
        """Open a folder read-only. Return its UIDVALIDITY and the newest UID at most given so far."""
        text = b"".join([one.line for one in await self._command(f"EXAMINE {_quoted(folder)}")])
        validity, following = (
            re.search(rb"\[%b (\d+)\]" % name, text) for name in (b"UIDVALIDITY", b"UIDNEXT")
        )
        if validity is None or following is None:
            raise ImapError("the server does not number mails permanently")
        return int(validity[1]), int(following[1]) - 1

    async def uids_after(self, last: int) -> list[int]:
        """Return the UIDs of the mails after one, in ascending order."""
        self._has_news = False
        found = await self._search(f"UID {last + 1}:*")
        # The range contains the newest mail even if that is older.
        return sorted(uid for uid in found if uid > last)

    async def has(self, message_id: str) -> bool:
        """Return whether the open folder has a mail with this Message-ID."""
        return bool(await self._search(f"HEADER Message-ID {_quoted(message_id)}"))

    async def find(self, message_id: str, *sections: str) -> Fetched | None:
        """Return sections of the mail with a Message-ID in the open folder; None if there is none."""
        found = await self._search(f"HEADER Message-ID {_quoted(message_id)}")
        return await self.fetch(found[-1], *sections) if found else None

    async def fetch(self, uid: int, *sections: str, size: int = 0) -> Fetched | None:
        """Return sections of a mail without marking it as read; None if it is gone.

        A section may end with the number of its bytes: ``HEADER<1000>``. ``size`` is that of a large mail.
        """
        asked = [re.sub(r"^([^<]*)(<(\d+)>)?$", _peek, section) for section in sections]
        command = f"UID FETCH {uid} (UID RFC822.SIZE {' '.join(asked)})"
        for one in await self._command(command, seconds=SECONDS + size / _SLOWEST):
            # Without the sections, whose text is that of any sender.
            plain = _SECTION.sub(b"", one.line)
            number, length = (re.search(name + rb" (\d+)", plain) for name in (b"UID", b"RFC822.SIZE"))
            if b" FETCH " not in plain or number is None or length is None or int(number[1]) != uid:
                continue
            literals, found = iter(one.literals), dict[str, bytes]()
            for name, literal, text in _SECTION.findall(one.line):
                found[name.decode()] = next(literals) if literal else re.sub(rb"\\(.)", rb"\1", text)
            return Fetched(uid, int(length[1]), found)
        return None

    async def wait(self, seconds: float) -> None:
        """Return when there may be new mail, or after some seconds. Needs the capability IDLE."""
        async with asyncio.timeout(SECONDS):
            tag = await self._send("IDLE")
            await self._read_until(b"+", tag)
        try:
            async with asyncio.timeout(seconds):
                while not self._has_news:
                    await self._read()
        except TimeoutError:
            pass
        async with asyncio.timeout(SECONDS):
            self._writer.write(b"DONE\r\n")
            await self._writer.drain()
            await self._read_until(tag, tag)

    async def poll(self) -> None:
        """Make a server without IDLE report new mail."""
        await self._command("NOOP")

    async def sent_folder(self) -> str | None:
        """Return the folder that the server marks as that of sent mail, or one with the name Sent."""
        extended = " RETURN (SPECIAL-USE)" if "SPECIAL-USE" in self.capabilities else ""
        names: list[str] = []
        for one in await self._command(f'LIST "" "*"{extended}'):
            found = _LISTED.fullmatch(one.line)
            if found is not None:
                name = re.sub(rb"\\(.)", rb"\1", found[2] or found[3] or b"").decode("ascii", "replace")
                if rb"\sent" in found[1].lower().split():
                    return name
                names.append(name)
        return "Sent" if "Sent" in names else None

    async def append(self, folder: str, mail: bytes) -> None:
        """Store a mail in a folder, as read."""
        await self._command(f"APPEND {_quoted(folder)} (\\Seen) {{{len(mail)}}}", mail)

    async def log_in(self, user: str, password: str) -> None:
        """Log in. Raises LoginError."""
        secret = base64.b64encode(f"\0{user}\0{password}".encode())
        try:
            await self._command("AUTHENTICATE PLAIN", secret)
        except RefusedError as error:
            raise LoginError(str(error)) from None
        lines = [one.line.decode("ascii", "replace") for one in await self._command("CAPABILITY")]
        self.capabilities = frozenset(word for line in lines for word in line.upper().split())

    async def greeted(self) -> None:
        """Read the greeting."""
        async with asyncio.timeout(SECONDS):
            if not (await self._read()).line.upper().startswith(b"* OK"):
                raise ImapError("the server takes no connections")

    async def _search(self, query: str) -> list[int]:
        lines = [one.line for one in await self._command(f"UID SEARCH {query}")]
        return [int(n) for line in lines if line.upper().startswith(b"* SEARCH") for n in line.split()[2:]]

    async def _command(
        self, text: str, data: bytes | None = None, seconds: float = SECONDS
    ) -> list[_Response]:
        """Send a command, and ``data`` when the server asks for it. Return the untagged responses."""
        async with asyncio.timeout(seconds):
            tag = await self._send(text)
            before: list[_Response] = []
            if data is not None:
                before = await self._read_until(b"+", tag)
                self._writer.write(data + b"\r\n")
                await self._writer.drain()
            return [*before, *await self._read_until(tag, tag)]

    async def _send(self, text: str) -> bytes:
        self._number += 1
        tag = f"T{self._number}"
        self._writer.write(f"{tag} {text}\r\n".encode("ascii"))
        await self._writer.drain()
        return tag.encode()

    async def _read_until(self, wanted: bytes, tag: bytes) -> list[_Response]:
        """Read up to a tagged response or a continuation. Raises RefusedError."""
        read: list[_Response] = []
        size = 0
        while True:
            one = await self._read()
            word, _, rest = one.line.partition(b" ")
            if word == tag and rest[:2].upper() != b"OK":
                raise RefusedError(rest.decode("utf-8", "replace").strip()[:200])
            if word in (wanted, tag) or word.strip() == wanted:
                return read
            size += len(one.line) + sum(map(len, one.literals))
            if size > self._most:
                raise ImapError("the server sent more than was asked for")
            read.append(one)

    async def _read(self) -> _Response:
        line, literals = await self._line(), list[bytes]()
        while found := _LITERAL.search(line):
            if int(found[1]) > self._most:
                raise ImapError("the server sent more than was asked for")
            literals.append(await self._reader.readexactly(int(found[1])))
            line += await self._line()
        if re.match(rb"\* \d+ EXISTS", line, re.IGNORECASE):
            self._has_news = True
        if line.upper().startswith(b"* BYE"):
            raise ImapError("the server ended the connection")
        return _Response(line, literals)

    async def _line(self) -> bytes:
        try:
            return await self._reader.readuntil(b"\r\n")
        except asyncio.LimitOverrunError:
            raise ImapError("the server sent a line that is too long") from None


@asynccontextmanager
async def connected(options: Options, most: int) -> AsyncGenerator[Imap]:
    """Connect and log in. ``most`` is the largest response in bytes."""
    context = ssl.create_default_context() if options.tls == "required" else None
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection(
            options.imap_host, options.imap_port, ssl=context, limit=_LINE_BYTES
        )
    with closing(writer):
        imap = Imap(reader, writer, most)
        await imap.greeted()
        await imap.log_in(*options.login)
        yield imap


def _peek(section: re.Match[str]) -> str:
    return f"BODY.PEEK[{section[1]}]" + (f"<0.{section[3]}>" if section[3] else "")


def _quoted(text: str) -> str:
    """Return a text as a string of the protocol. Raises ImapError if it cannot be one."""
    if not text.isascii() or not text.isprintable():
        raise ImapError(f"{text[:100]!r} cannot be sent to the server")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
