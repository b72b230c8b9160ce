"""Conversion of mails to messages. Pure; run it in a thread, because large mails take seconds."""

from __future__ import annotations

import email
import mimetypes
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from email import policy
from email.message import EmailMessage
from itertools import islice
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from channels.email.identity import addresses, author, header, headers, is_verified
from channels.email.options import ADDRESS
from channels.email.text import decoded, plain_of, split_quotes
from gateway import now_ms
from gateway.channel import (
    Address,
    Addressing,
    InboundMessage,
    InvalidRequestError,
    Quoted,
    QuoteKind,
    Sender,
    SessionKey,
)

HEADER_BYTES = 262_144
"""Most bytes of the headers of a mail; a mail with more is not read."""
_MOST_PARTS, _LONGEST_PART_HEADER = 500, 8_192
_MOST_FILES, _MOST_TEXT, _MOST_QUOTE = 20, 200_000, 8_000
_MOST_RECIPIENTS, _LONGEST_RECIPIENTS = 30, 1_000
_PART_HEADER = re.compile(rb"(?:^|[\r\n])content-[a-z-]+:[^\r\n]*(?:(?:\r\n|\r|\n)[ \t][^\r\n]*)*", re.I)
_ID = re.compile(r"<[!-;=?-~]{1,250}>")
_REPLY = re.compile(r"((re|aw|sv|antw|rif|odp)(\[\d+\])?: *)+", re.IGNORECASE)
_FORWARD = re.compile(r"(fwd?|wg|tr|rv|i): ", re.IGNORECASE)
_ROBOTS = re.compile(r"(mailer-daemon|postmaster|(do-?)?not?-?reply|bounces?)\b.*@.*")


class Bot(Struct, frozen=True):
    """The mailbox: the id of its channel, its address, the name of the server that verifies senders, and
    its other addresses.
    """

    channel: str
    address: str
    authserv_id: str
    aliases: tuple[str, ...] = ()

    def owns(self, address: str) -> bool:
        """Return whether mail to an address comes to this mailbox: its own, an alias, or one with a tag."""
        local, _, domain = address.rpartition("@")
        plain = f"{local.partition('+')[0]}@{domain}"
        return any(one in (self.address, *self.aliases) for one in (address, plain))

    def message_id(self, nonce: str, part: int) -> str:
        """Return the Message-ID of an answer, the same in every attempt."""
        return f"<{nonce}.{part}@{self.address.rpartition('@')[2]}>"

    def wrote(self, message_id: str) -> bool:
        """Return whether a Message-ID is that of an answer of the bot."""
        domain = re.escape(self.address.rpartition("@")[2])
        return re.fullmatch(rf"<[0-9a-f]{{24}}\.\d+@{domain}>", message_id) is not None


class File(Struct, frozen=True):
    """A file of a mail. ``data`` is None if it is too large.

    ``quote`` is the index of the quote that it belongs to: that of a mail which is attached as a whole.
    """

    name: str
    mime_type: str
    data: bytes | None
    quote: int | None = None


class Skipped(Struct, frozen=True):
    """A mail that is not answered, for a reason."""

    reason: str


def parse_headers(raw: bytes, bot: Bot, validity: int, uid: int) -> InboundMessage | Skipped:
    """Return the message that the headers of a mail announce, still without its text."""
    mail = _mail(raw)
    reason = _automatic(mail, bot)
    if reason:
        return Skipped(reason)
    sender, name = author(mail)
    if not sender and not addresses(mail, "From"):
        return Skipped("it has no author")
    known = bool(sender) and is_verified(mail, sender, bot.authserv_id)
    claimed = sender or addresses(mail, "From")[0]
    if not ADDRESS.fullmatch(claimed):
        return Skipped("the address of its author is malformed")
    others = [one for one in addresses(mail, "To", "Cc") if one != claimed and not bot.owns(one)]
    people = [one for one in sorted({claimed, *others}) if ADDRESS.fullmatch(one)]
    if len(people) > _MOST_RECIPIENTS or len(",".join(people)) > _LONGEST_RECIPIENTS:
        return Skipped("it has too many recipients")
    own = next(iter(_ID.findall(header(mail, "Message-ID"))), f"<{validity}.{uid}@unnamed.invalid>")
    before = _ID.findall(header(mail, "References")) or _ID.findall(header(mail, "In-Reply-To"))
    root = before[0] if before else own
    return InboundMessage(
        session=str(SessionKey(bot.channel, bot.address, "mail", root, _owner(claimed, known, bool(others)))),
        dedup_key=own,
        address=Address(
            bot.channel,
            bot.address,
            ",".join(people),
            root,
            own,
            # The true author of an unverified mail is another person than the one who gets the answer.
            group=bool(others) or not known,
            title=_REPLY.sub("", header(mail, "Subject")[:500]).strip()[:200],
        ),
        sender=Sender(claimed if known else "", name or claimed, claimed if known else ""),
        addressed=_addressed(mail, bot, bool(others)),
        in_reply_to=before[-1] if before else None,
        order=(validity % 2**31 << 32) + uid,
        sent_at=_sent_at(mail),
    )


def answer_alone(raw: bytes, bot: Bot) -> str:
    """Return the Message-ID of the bot's answer that a mail replies to, if it does not name the thread.

    Some programs write In-Reply-To only. Empty for other mails.
    """
    mail = _mail(raw)
    replied = _ID.findall(header(mail, "In-Reply-To"))
    alone = not _ID.findall(header(mail, "References")) and len(replied) == 1 and bot.wrote(replied[0])
    return replied[0] if alone else ""


def thread_of(raw: bytes) -> str:
    """Return the Message-ID that began the thread of a sent answer; empty if it names none."""
    return next(iter(_ID.findall(header(_mail(raw), "References"))), "")


def parse_mail(
    raw: bytes, message: InboundMessage, bot: Bot, most: int
) -> tuple[InboundMessage, Sequence[File]]:
    """Return a message with the text of its mail, and the files. ``most`` is the largest file in bytes.

    Raises ValueError for a mail that would take too long to read.
    """
    _check(raw)
    mail = _mail(raw)
    leaves = list(_leaves(mail))
    text = _text(leaves)
    split = split_quotes(text[:_MOST_TEXT])
    subject = header(mail, "Subject")[:500].strip()
    is_forward = split.is_forward or _FORWARD.match(subject) is not None
    own = split.own + ("\n[cut]" if len(text) > _MOST_TEXT else "")
    begins = message.address.thread == message.address.reply_to
    if begins and subject and not own.startswith("/"):
        own = f"{subject}\n\n{own}".strip()
    is_command = own.startswith("/")
    people = message.address.chat.split(",")
    # The session has what was quoted if the bot has written in the thread.
    before = _ID.findall(f"{header(mail, 'References')} {header(mail, 'In-Reply-To')}")
    is_new = not any(map(bot.wrote, before))
    wanted = split.quoted and (is_new or is_forward or split.in_place)
    kind: QuoteKind = "forward" if is_forward else "quote" if split.in_place else "reply"
    quotes = [Quoted(kind, _cut(split.quoted))] if wanted else []
    attached: list[tuple[EmailMessage, int | None]] = [(part, None) for part in _attached(leaves)]
    for said, parts in islice(filter(any, map(_forwarded, leaves)), _MOST_FILES):
        attached += [(part, len(quotes)) for part in parts]
        quotes.append(Quoted("forward", _cut(said)))
    if len(people) > 1 and own:
        readers = f"This mail is from or to {', '.join(people)}. All of them get the answer."
        quotes.append(Quoted("room", readers, message.sender))
    addressed: Addressing = message.addressed
    if is_command and message.address.group and addressed != "direct":
        addressed = "command"
    message = replace(message, text=own, quotes=() if is_command else tuple(quotes), addressed=addressed)
    attached = [one for one in attached if one[1] is None or not is_command][:_MOST_FILES]
    return message, [_file(part, number, most, quote) for number, (part, quote) in enumerate(attached, 1)]


def _check(raw: bytes) -> None:
    """Raise ValueError for a mail whose parts or headers are so many that reading it would not end."""
    for count, found in enumerate(_PART_HEADER.finditer(raw), 1):
        if count > _MOST_PARTS or len(found[0]) > _LONGEST_PART_HEADER:
            raise ValueError("the mail has too many parts, or too long headers of parts")


def _mail(raw: bytes) -> EmailMessage:
    return email.message_from_bytes(raw, policy=policy.default)


def _automatic(mail: EmailMessage, bot: Bot) -> str:
    """Return why a mail must not be answered; empty if it may be. Answers to such mail make loops."""
    sender = addresses(mail, "From")
    kind = header(mail, "Auto-Submitted").lower().partition(";")[0].strip()
    suppressed = header(mail, "X-Auto-Response-Suppress").lower()
    if any(map(bot.owns, sender)) or bot.wrote(header(mail, "Message-ID")):
        return "the bot wrote it"
    if kind not in ("", "no") or any(word in suppressed for word in ("all", "oof", "autoreply")):
        return "it is automatic"
    if header(mail, "Precedence").lower() in ("bulk", "list", "junk", "auto_reply"):
        return "it is bulk mail"
    if any(headers(mail, name) for name in ("List-Id", "List-Unsubscribe", "List-Post")):
        return "it is from a list"
    if header(mail, "Return-Path") == "<>" or any(map(_ROBOTS.fullmatch, sender)):
        return "it is from a mail server"
    content = header(mail, "Content-Type").lower()
    return "it is a report" if content.startswith("multipart/report") else ""


def session_of(address: Address, bot: Bot) -> str:
    """Return the session of a thread. Raises InvalidRequestError for an address that names none."""
    people = address.chat.split(",")
    if address.account != bot.address or not address.thread or not all(map(ADDRESS.fullmatch, people)):
        raise InvalidRequestError(
            f"an address on {bot.channel} needs the account {bot.address!r}, recipients, and the Message-ID "
            f"that began the thread, not {(address.account, address.chat, address.thread)}"
        )
    owner = _owner(people[0], not (address.group and len(people) == 1), len(people) > 1)
    return str(SessionKey(bot.channel, bot.address, "mail", address.thread, owner))


def _owner(claimed: str, known: bool, group: bool) -> str | None:
    """Return the owner of a thread; None for a thread of several people.

    Other senders cannot continue it by its Message-ID, which every recipient knows.
    """
    if not known:
        return f"unverified:{claimed}"
    return None if group else claimed


def _addressed(mail: EmailMessage, bot: Bot, group: bool) -> Addressing:
    if not group:
        # Of one recipient; an unverified author's mail counts as that of a group.
        return "direct"
    if any(map(bot.wrote, _ID.findall(header(mail, "In-Reply-To")))):
        return "reply"
    return "mention" if any(map(bot.owns, addresses(mail, "To"))) else "none"


def _sent_at(mail: EmailMessage) -> int:
    """Return the time of a mail in milliseconds; a time in the future is that of now."""
    try:
        at = getattr(mail["Date"], "datetime", None)
        return min(now_ms(), max(0, int(at.timestamp() * 1000))) if isinstance(at, datetime) else now_ms()
    except (ValueError, OverflowError, TypeError, IndexError):
        return now_ms()


def _leaves(mail: EmailMessage) -> Iterator[EmailMessage]:
    """Yield the parts that are not made of parts, and forwarded mails as a whole, in order."""
    waiting = [mail]
    while waiting:
        part = waiting.pop()
        if part.get_content_maintype() == "multipart" and part.is_multipart():
            waiting += reversed(cast("list[EmailMessage]", part.get_payload()))
        else:
            yield part


def _is_text(part: EmailMessage) -> bool:
    shown = part.get_content_disposition() != "attachment" and not part.get_filename()
    return shown and part.get_content_type() in ("text/plain", "text/html")


def _attached(leaves: Sequence[EmailMessage]) -> list[EmailMessage]:
    signatures = ("application/pgp-signature", "application/pkcs7-signature", "message/rfc822")
    found = [one for one in leaves if not _is_text(one) and one.get_content_type() not in signatures]
    return [one for one in found if one.get_content_maintype() != "multipart"][:_MOST_FILES]


def _text(leaves: Sequence[EmailMessage]) -> str:
    """Return the text: that of plain parts, or of HTML parts if there are none."""
    shown = [part for part in leaves if _is_text(part)]
    plain = [_decoded(one) for one in shown if one.get_content_type() == "text/plain"]
    text = "\n".join(plain).replace("\r\n", "\n")
    if text.strip():
        return text
    return "\n\n".join(plain_of(_decoded(one)) for one in shown if one.get_content_type() == "text/html")


def _decoded(part: EmailMessage) -> str:
    data = cast("bytes | None", part.get_payload(decode=True)) or b""
    text = decoded(data, part.get_content_charset("ascii"))
    return text.replace("\0", "\ufffd").replace("\xa0", " ")


def _forwarded(part: EmailMessage) -> tuple[str, Sequence[EmailMessage]]:
    """Return author, subject and text of a mail that is attached as a whole, and the parts with its files."""
    if part.get_content_type() != "message/rfc822" or not part.is_multipart():
        return "", ()
    mail = cast("EmailMessage", part.get_payload(0))
    leaves = list(_leaves(mail))
    lines = [f"{name}: {value}" for name in ("From", "Subject") if (value := header(mail, name)[:300])]
    return "\n".join([*lines, "", _text(leaves)]).strip(), _attached(leaves)


def _file(part: EmailMessage, number: int, most: int, quote: int | None) -> File:
    mime = part.get_content_type()
    name = part.get_filename() or f"file-{number}{mimetypes.guess_extension(mime) or ''}"
    data = cast("bytes | None", part.get_payload(decode=True)) or b""
    return File(" ".join(name.split())[:200], mime, data if len(data) <= most else None, quote)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_QUOTE else text[:_MOST_QUOTE] + "…"
