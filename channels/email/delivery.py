"""Delivery of answers by SMTP, with a copy in the folder of sent mail.

Every attempt to send an answer makes the same mail with the same Message-ID. The copy is stored after the
SMTP server has accepted the mail: a copy that was stored before would look like a sent mail after a crash,
and the answer would be lost. So a mail whose acceptance was not seen, and of which no copy was stored, is
sent again; receivers that know the Message-ID drop the second one.
"""

from __future__ import annotations

import asyncio
import smtplib
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress

import structlog

from channels.email.imap import ImapError, connected
from channels.email.options import LOGIN_ADVICE, Options, unencrypted
from channels.email.parse import Bot
from channels.email.render import has_files, mail_of
from gateway.channel import OutboundMessage, Placed, PlacementDeferred, PlacementRefused, PlacementUncertain

log = structlog.get_logger("trunkline.email")

_SECONDS, _LOGIN_SECONDS, _COPY_SECONDS = 60.0, 5.0, 30.0
"""Timeouts of a single SMTP operation, of one that only logs in, and of storing the copy."""
_MOST_BYTES = 1_000_000
"""Bytes of a response of the IMAP server."""
_TRANSIENT = (OSError, EOFError, TimeoutError, ImapError)


class Delivery:
    """The outgoing mails of one mailbox."""

    def __init__(self, bot: Bot, options: Options) -> None:
        self._bot = bot
        self._options = options

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Send an answer to all who got the question."""
        message_id = self._bot.message_id(outbound.nonce, outbound.part)
        mail = await asyncio.to_thread(mail_of, outbound, self._bot.address, message_id)
        recipients = [one for one in outbound.address.chat.split(",") if one]
        try:
            await self._submit(recipients, mail)
        except PlacementRefused as refused:
            if not has_files(outbound):
                raise
            # The answer must not depend on its files. If the recipients are gone, so is this refused.
            log.info("a mail with files was refused", channel=self._bot.channel, reason=str(refused))
            mail = await asyncio.to_thread(mail_of, outbound, self._bot.address, message_id, str(refused))
            await self._submit(recipients, mail)
        try:
            async with asyncio.timeout(_COPY_SECONDS):
                await self._store_copy(message_id, mail)
        except _TRANSIENT as error:
            log.warning("no copy of a sent mail was stored", channel=self._bot.channel, reason=str(error))
        return Placed(message_id)

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        """Return the answer if the folder of sent mail has it. Raises PlacementDeferred."""
        message_id = self._bot.message_id(outbound.nonce, outbound.part)
        try:
            async with connected(self._options, _MOST_BYTES) as imap:
                folder = self._options.sent_folder or await imap.sent_folder()
                if folder is None:
                    return None
                await imap.select(folder)
                return Placed(message_id) if await imap.has(message_id) else None
        except _TRANSIENT as error:
            raise PlacementDeferred(f"the folder of sent mail cannot be searched: {error}") from error

    async def _submit(self, recipients: Sequence[str], mail: bytes) -> None:
        submission = _Submission(self._options)
        try:
            await asyncio.to_thread(submission.run, recipients, mail)
        except asyncio.CancelledError:
            # The thread ends with its connection; without that it would wait for the server.
            submission.abort()
            raise

    async def _store_copy(self, message_id: str, mail: bytes) -> None:
        """Store a mail as sent, unless the SMTP server has done so, as those of some providers do."""
        async with connected(self._options, _MOST_BYTES) as imap:
            folder = self._options.sent_folder or await imap.sent_folder()
            if folder is None:
                log.warning("the mailbox has no folder for sent mail; set sent_folder")
                return
            await imap.select(folder)
            if not await imap.has(message_id):
                await imap.append(folder, mail)


async def log_in(options: Options) -> None:
    """Connect to the SMTP server and log in. Raises PlacementDeferred."""
    submission = _Submission(options, _LOGIN_SECONDS)
    try:
        (await asyncio.to_thread(submission.open)).close()
    except asyncio.CancelledError:
        submission.abort()
        raise


class _Submission:
    """One connection to the SMTP server, used by a thread."""

    def __init__(self, options: Options, seconds: float = _SECONDS) -> None:
        self._options = options
        self._seconds = seconds
        self._client: smtplib.SMTP | None = None

    def abort(self) -> None:
        """End the connection from another thread."""
        with suppress(OSError):
            if self._client is not None and self._client.sock is not None:
                self._client.sock.shutdown(socket.SHUT_RDWR)

    def run(self, recipients: Sequence[str], mail: bytes) -> None:
        """Hand the mail over. Raises the errors of ``Channel.send``."""
        client = self.open()
        try:
            self._address(client, recipients)
            code, said = client.data(mail)
        except smtplib.SMTPDataError as error:
            raise _failure(error.smtp_code, error.smtp_error) from error
        except (OSError, smtplib.SMTPException) as error:
            raise PlacementUncertain(_reason(error)) from error
        finally:
            client.close()
        if 400 <= code < 500:
            # A server that fails here may have stored the mail.
            raise PlacementUncertain(_text(said))
        if code != 250:
            raise _failure(code, said)

    def open(self) -> smtplib.SMTP:
        """Return a connection that is logged in. Raises PlacementDeferred."""
        try:
            return self._connect()
        except (OSError, smtplib.SMTPException) as error:
            raise PlacementDeferred(_unusable(error, self._options)) from error

    def _connect(self) -> smtplib.SMTP:
        options = self._options
        if options.tls == "off":
            client = smtplib.SMTP(options.smtp_host, options.smtp_port, timeout=self._seconds)
        elif options.smtp_port == smtplib.SMTP_SSL_PORT:
            context = ssl.create_default_context()
            client = smtplib.SMTP_SSL(
                options.smtp_host, options.smtp_port, timeout=self._seconds, context=context
            )
        else:
            client = smtplib.SMTP(options.smtp_host, options.smtp_port, timeout=self._seconds)
        self._client = client
        try:
            if options.tls != "off" and options.smtp_port != smtplib.SMTP_SSL_PORT:
                client.starttls(context=ssl.create_default_context())
            client.login(*options.login)
        except BaseException:
            client.close()
            raise
        return client

    def _address(self, client: smtplib.SMTP, recipients: Sequence[str]) -> None:
        """Name sender and recipients; those that the server refuses get no mail, if it accepts others."""
        try:
            code, said = client.mail(self._options.address)
            refused = [] if code == 250 else [(code, said)]
            accepted = 0
            for recipient in recipients if not refused else ():
                code, said = client.rcpt(recipient)
                accepted += code in (250, 251)
                if code not in (250, 251):
                    log.warning("a recipient was refused", recipient=recipient, reason=_text(said))
                    refused.append((code, said))
        except (OSError, smtplib.SMTPException) as error:
            raise PlacementDeferred(_reason(error)) from error
        later = next((one for one in refused if 400 <= one[0] < 500), None)
        if later is not None:
            raise _failure(*later)
        if not accepted:
            raise _failure(*refused[0])


def _failure(code: int, said: bytes | str) -> PlacementDeferred | PlacementRefused:
    text = f"{code} {_text(said)}"
    return PlacementRefused(text) if 500 <= code < 600 else PlacementDeferred(text)


def _text(said: bytes | str) -> str:
    return (said.decode("utf-8", "replace") if isinstance(said, bytes) else said)[:200]


def _unusable(error: Exception, options: Options) -> str:
    if isinstance(error, smtplib.SMTPAuthenticationError):
        said = f"{error.smtp_code} {_text(error.smtp_error)}"
        return f"the SMTP server refuses the login of {options.login[0]} ({said}); {LOGIN_ADVICE}"
    if isinstance(error, ssl.SSLError):
        return f"the SMTP server: {unencrypted(error, options.smtp_host, 'smtp', options.smtp_port)}"
    return f"the SMTP server cannot be used: {_reason(error)}; check smtp_host and smtp_port"


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
