"""Intake of mails: each is committed together with the read position after it.

The position is the UIDVALIDITY of the folder and the UID of the last mail. It begins at the newest mail, and
again when the server renumbers its mails: old mail is never answered.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar

import structlog
from msgspec.structs import replace

from channels.email.imap import Fetched, Imap, ImapError, RefusedError
from channels.email.options import Options
from channels.email.parse import (
    HEADER_BYTES,
    Bot,
    File,
    Skipped,
    answer_alone,
    parse_headers,
    parse_mail,
    thread_of,
)
from gateway import FilePart, Part
from gateway.channel import Cursor, Host, InboundMessage, OverloadedError, Receipt, Receive, Rejected

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger("trunkline.email")

_IDLE_SECONDS = 200.0
"""Routers forget a connection without data, some after four minutes: no news would come then."""
_POLL_SECONDS = 30.0
_FULL_PAUSE = 1.0
_PARSE_SECONDS = 30.0
_EXCERPT = 65_536
"""Bytes of the text that are read of a mail that is not downloaded in full."""
_HOUR, _MOST_IN_THREAD, _MOST_OF_SENDER, _MOST_KEYS = 3600.0, 20, 60, 10_000


def largest_mail(options: Options) -> int:
    """Return the bytes of the largest mail that is downloaded in full: some of the largest files, encoded."""
    return 4 * options.file_bytes + 1_000_000


class LoopGuard:
    """Limit of answers in an hour, for each thread and each sender: the last defence against mail loops."""

    def __init__(self) -> None:
        self._answered: OrderedDict[str, deque[float]] = OrderedDict()

    def allows(self, message: InboundMessage) -> bool:
        """Return whether a message may be answered."""
        since = asyncio.get_running_loop().time() - _HOUR
        for key, most in _keys(message):
            times = self._answered.get(key)
            while times and times[0] < since:
                times.popleft()
            if times and len(times) >= most:
                return False
        return True

    def count(self, message: InboundMessage) -> None:
        """Record an answer."""
        for key, most in _keys(message):
            times = self._answered.setdefault(key, deque(maxlen=most))
            times.append(asyncio.get_running_loop().time())
            self._answered.move_to_end(key)
        while len(self._answered) > _MOST_KEYS:
            self._answered.popitem(last=False)


def _keys(message: InboundMessage) -> Sequence[tuple[str, int]]:
    address = message.address
    return (f"t{address.thread}", _MOST_IN_THREAD), (f"s{message.sender.id or address.chat}", _MOST_OF_SENDER)


class Inflow:
    """Intake of one folder."""

    def __init__(self, host: Host, bot: Bot, options: Options, receive: Receive, guard: LoopGuard) -> None:
        self._host = host
        self._bot = bot
        self._options = options
        self._receive = receive
        self._guard = guard
        self._validity = self._last = 0

    async def follow(self, imap: Imap, ready: Callable[[], None]) -> None:
        """Take new mails until cancelled. ``ready`` is called when the server answers."""
        self._validity, newest = await imap.select(self._options.folder)
        await self._restore(newest)
        while True:
            for uid in await imap.uids_after(self._last):
                await self._take(imap, uid)
            ready()
            if "IDLE" in imap.capabilities:
                await imap.wait(_IDLE_SECONDS)
            else:
                await asyncio.sleep(_POLL_SECONDS)
                await imap.poll()

    async def _restore(self, newest: int) -> None:
        """Continue after the last mail that was taken; at the newest if there is no such position."""
        for cursor in await self._host.cursors(self._bot.channel):
            if (cursor.account, cursor.shard) == (self._bot.address, self._options.folder):
                validity, _, last = cursor.value.partition(":")
                if validity == str(self._validity):
                    self._last = int(last)
                    return
                log.warning("the server renumbers its mails; older mails are not answered")
        await self._commit(newest)

    async def _take(self, imap: Imap, uid: int) -> None:
        """Take one mail. A mail that cannot be read goes to quarantine, and stays in the folder."""
        head = await imap.fetch(uid, f"HEADER<{HEADER_BYTES}>")
        if head is None:
            await self._commit(uid)
            return
        raw = head.sections.get("HEADER", b"")
        try:
            message = await self._read(imap, head, raw)
        except (ImapError, OSError, EOFError):
            raise
        except Exception as error:  # noqa: BLE001 - any failure of a parser: the next mails must be read
            reason = f"{type(error).__name__}: {error}"[:500]
            log.warning("a mail cannot be read", channel=self._bot.channel, uid=uid, reason=reason)
            text = raw[:_EXCERPT].decode("utf-8", "replace").replace("\0", "\ufffd")
            key = f"{self._validity}.{uid}"
            await self._commit(uid, rejected=[Rejected(self._bot.address, key, text, reason)])
            return
        if isinstance(message, Skipped):
            log.info("a mail is not answered", channel=self._bot.channel, uid=uid, reason=message.reason)
            await self._commit(uid)
            return
        for receipt in await self._commit(uid, message):
            if not (receipt.ignored or receipt.duplicate):
                self._guard.count(message)

    async def _read(self, imap: Imap, head: Fetched, raw: bytes) -> InboundMessage | Skipped:
        """Return the message of a mail, with files if it is answered."""
        if len(raw) >= HEADER_BYTES:
            raise ValueError("its headers are too long")
        if answered := await _in_thread(answer_alone, raw, self._bot):
            # Of two headers with the same name the first one counts.
            raw = await self._references(imap, answered) + raw
        found = await _in_thread(parse_headers, raw, self._bot, self._validity, head.uid)
        if isinstance(found, Skipped):
            return found
        if not self._guard.allows(found):
            return Skipped("too many answers in an hour")
        attention = self._host.attention(self._bot.channel, found)
        if attention == "ignore":
            return Skipped("the settings of the room")
        wanted = attention == "answer"
        whole = wanted and head.size <= largest_mail(self._options)
        if whole:
            fetched = await imap.fetch(head.uid, "", size=head.size)
        else:
            fetched = await _excerpt(imap, head.uid, raw)
        if fetched is None:
            return Skipped("it was deleted")
        most = self._options.file_bytes
        message, files = await _in_thread(parse_mail, fetched.sections.get("", b""), found, self._bot, most)
        parts = [await self._part(one) if wanted else FilePart(one.name) for one in files]
        text = message.text
        if wanted and not whole:
            note = f"[The mail has {head.size:,} bytes; only the beginning of its text was read.]"
            text = f"{text}\n\n{note}".strip()
        of: dict[int | None, list[Part]] = {}
        for part, file in zip(parts, files, strict=True):
            of.setdefault(file.quote, []).append(part)
        quotes = (replace(one, parts=tuple(of.get(number, ()))) for number, one in enumerate(message.quotes))
        return replace(message, text=text, parts=tuple(of.get(None, ())), quotes=tuple(quotes))

    async def _references(self, imap: Imap, answered: str) -> bytes:
        """Return the header that a reply lacks, from the copy of the answer; empty without a copy."""
        copy: Fetched | None = None
        try:
            folder = self._options.sent_folder or await imap.sent_folder()
            if folder is not None:
                await imap.select(folder)
                copy = await imap.find(answered, f"HEADER<{HEADER_BYTES}>")
        except RefusedError as error:
            log.info("the folder of sent mail cannot be read", channel=self._bot.channel, reason=str(error))
        validity, _ = await imap.select(self._options.folder)
        if validity != self._validity:
            raise ImapError("the server numbers its mails anew")
        root = await _in_thread(thread_of, copy.sections.get("HEADER", b"")) if copy else ""
        return f"References: {root} {answered}\r\n".encode("ascii") if root else b""

    async def _part(self, file: File) -> Part:
        if file.data is None:
            return FilePart(file.name, f"[it has more than {self._options.file_bytes:,} bytes]")
        return await self._host.read_file(file.name, file.mime_type, file.data)

    async def _commit(
        self, uid: int, *messages: InboundMessage, rejected: Sequence[Rejected] = ()
    ) -> Sequence[Receipt]:
        """Commit what a mail became, with the position after it; waits while the gateway is full."""
        cursor = Cursor(self._bot.address, f"{self._validity}:{uid}", self._options.folder)
        while True:
            try:
                receipts = await self._receive(*messages, cursor=cursor, rejected=rejected)
            except OverloadedError as error:
                log.info("the gateway takes no messages", channel=self._bot.channel, reason=str(error))
                await asyncio.sleep(_FULL_PAUSE)
            else:
                self._last = uid
                return receipts


async def _in_thread(function: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Run a function in a thread. Raises ValueError if it takes too long."""
    try:
        async with asyncio.timeout(_PARSE_SECONDS):
            return await asyncio.to_thread(function, *given, **named)
    except TimeoutError:
        raise ValueError("reading it takes too long") from None


async def _excerpt(imap: Imap, uid: int, header: bytes) -> Fetched | None:
    """Fetch the beginning of a mail's text, without its files. The section without a name is a mail."""
    if not re.search(rb"(?im)^content-type:\s*multipart/", header):
        fetched = await imap.fetch(uid, f"TEXT<{_EXCERPT}>")
        kind, text = b"", fetched.sections.get("TEXT", b"") if fetched else b""
    else:
        fetched = await imap.fetch(uid, f"1.MIME<{HEADER_BYTES}>", f"1<{_EXCERPT}>")
        sections: Mapping[str, bytes] = fetched.sections if fetched else {}
        kind, text = sections.get("1.MIME", b"").strip(b"\r\n"), sections.get("1", b"")
        if b"content-type:" not in kind.lower():
            kind = b"Content-Type: text/plain"
        kind += b"\r\n"
    # Of two headers with the same name the first one counts.
    mail = kind + header.rstrip(b"\r\n") + b"\r\n\r\n" + text
    return None if fetched is None else Fetched(uid, fetched.size, {"": mail})
