"""E-mail channel of one mailbox."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

import structlog

from channels.email.delivery import Delivery, log_in
from channels.email.imap import ImapError, LoginError, RefusedError, connected
from channels.email.inflow import Inflow, LoopGuard, largest_mail
from channels.email.options import LOGIN_ADVICE, Options, unencrypted
from channels.email.parse import Bot, session_of
from channels.email.render import is_silent
from gateway import Message
from gateway.channel import (
    Address,
    Backoff,
    Health,
    Host,
    OutboundMessage,
    Placed,
    PlacementDeferred,
    Receive,
)

log = structlog.get_logger("trunkline.email")

_BACKOFF = Backoff(1.0, 60, jitter=0.25)
_LINE_BYTES = 1_000_000
_FAILURES = (ImapError, OSError, EOFError, TimeoutError)
_UNVERIFIED = 'without authserv_id all senders are unknown, and only allow = "*" admits them'


class EmailChannel:
    """Channel of one mailbox: answers each mail with one mail."""

    def __init__(self, host: Host, channel_id: str, options: Options) -> None:
        self.id = channel_id
        self._host = host
        self._options = options
        self._bot = Bot(channel_id, options.address, options.authserv_id, options.aliases)
        self._delivery = Delivery(self._bot, options)
        self._guard = LoopGuard()
        self._failures = 0
        self._health = Health(ok=False, detail="starting")

    async def run(self, receive: Receive) -> None:
        """Receive mails until cancelled; a lost connection is made again."""
        if not self._options.authserv_id:
            log.warning(_UNVERIFIED, channel=self.id)
        while True:
            inflow = Inflow(self._host, self._bot, self._options, receive, self._guard)
            try:
                await self._follow(inflow)
            except _FAILURES as error:
                await self._failed(_meaning(error, self._options))

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Send an answer as a mail."""
        return await self._delivery.send(outbound)

    def pages(self, message: Message, *, final: bool) -> Sequence[None]:
        """Return one page, the whole mail; none for an answer that was stopped before its first word."""
        return [None] if final and not is_silent(message) else []

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        """Return the answer after an uncertain send, if the folder of sent mail has it."""
        return await self._delivery.find(outbound)

    def session_of(self, address: Address) -> str:
        """Return the session of a thread. Raises InvalidRequestError for an address that names none."""
        return session_of(address, self._bot)

    def health(self) -> Health:
        """Return the health of the connection to the IMAP server."""
        return self._health

    async def _follow(self, inflow: Inflow) -> None:
        async with connected(self._options, largest_mail(self._options) + _LINE_BYTES) as imap:
            await inflow.follow(imap, self._ready)

    def _ready(self) -> None:
        if not self._health.ok:
            log.info("connected", channel=self.id, address=self._options.address)
        self._failures = 0
        self._health = Health(ok=True, detail="" if self._options.authserv_id else _UNVERIFIED)

    async def _failed(self, reason: str) -> None:
        """Record a failure, and wait before the next connection."""
        self._failures += 1
        if reason != self._health.detail:
            log.warning("the mailbox cannot be read", channel=self.id, reason=reason)
        self._health = Health(ok=False, detail=reason)
        await asyncio.sleep(_BACKOFF.pause(self._failures))


def _meaning(error: Exception, options: Options) -> str:
    if isinstance(error, LoginError):
        return f"the IMAP server refuses the login of {options.login[0]}: {error}; {LOGIN_ADVICE}"
    if isinstance(error, RefusedError):
        return f"the IMAP server refused: {error}; check folder, which is {options.folder!r}"
    if isinstance(error, ssl.SSLError):
        return f"the IMAP server: {unencrypted(error, options.imap_host, 'imap', options.imap_port)}"
    reason = str(error) or type(error).__name__
    return f"the IMAP server cannot be reached: {reason}; check imap_host and imap_port"


async def probe(options: Options) -> Sequence[Health]:
    """Log in at both servers and open the folder, for ``trunkline doctor``; changes nothing there."""
    problems: list[str] = []
    try:
        async with connected(options, _LINE_BYTES) as imap:
            await imap.select(options.folder)
    except _FAILURES as error:
        problems.append(_meaning(error, options))
    try:
        await log_in(options)
    except PlacementDeferred as error:
        problems.append(str(error))
    about = f"IMAP and SMTP accept the login of {options.login[0]}"
    about += "" if options.authserv_id else f"; {_UNVERIFIED}"
    return [Health(ok=False, detail=problem) for problem in problems] or [Health(ok=True, detail=about)]
