"""Rendering of answers as mails: the Markdown as text, the same as HTML, and files. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from email.headerregistry import BaseHeader, HeaderRegistry, UnstructuredHeader
from email.message import EmailMessage
from email.policy import SMTP, Policy
from functools import cache

from markdown_it import MarkdownIt

from gateway import Message
from gateway.channel import OutboundMessage, answer_files, answer_markdown, one_line
from gateway.markdown import bound_tables

_LONGEST_NAMES = 200
_EMPTY_ANSWER = "_There was nothing to say._"


class _Ids(UnstructuredHeader, BaseHeader):
    """A header of Message-IDs, one in each line.

    Python would encode ids of more than 77 characters, such as Outlook's: no program finds a thread by those.
    """

    def fold(self, *, policy: Policy) -> str:
        """Return the header as it is written into the mail."""
        return f"{self.name}: " + f"{policy.linesep} ".join(self.split()) + policy.linesep


def has_files(outbound: OutboundMessage) -> bool:
    """Return whether the mail of an answer has files."""
    return any(True for _ in answer_files(outbound.message))


def is_silent(message: Message) -> bool:
    """Return whether an answer was stopped before it had content: no mail is sent then."""
    stopped = message.metadata.stop_reason == "cancelled"
    return stopped and not (answer_markdown(message.parts).strip() or any(answer_files(message)))


def mail_of(outbound: OutboundMessage, sender: str, message_id: str, refused: str = "") -> bytes:
    """Return an answer as a mail: the same bytes in every attempt.

    If the server ``refused`` the mail with its files, a line with the reason takes their place.
    """
    message, address = outbound.message, outbound.address
    mail = EmailMessage(_policy())
    mail["Message-ID"] = message_id
    mail["From"] = sender
    mail["To"] = address.chat.replace(",", ", ")
    mail["Subject"] = f"Re: {one_line(address.title)}".strip()
    mail["Date"] = datetime.fromtimestamp(message.created_at / 1000, UTC)
    # A mail that answers none continues its thread.
    if answered := address.reply_to or address.thread:
        mail["In-Reply-To"] = answered
        mail["References"] = " ".join(dict.fromkeys(filter(None, (address.thread, answered))))
    # Automatic programs do not answer such mail (RFC 3834).
    mail["Auto-Submitted"] = "auto-replied"
    mail["X-Auto-Response-Suppress"] = "All"
    markdown, files = answer_markdown(message.parts), list(answer_files(message))
    if not (markdown.strip() or files):
        markdown = _EMPTY_ANSWER
    if refused:
        names = ", ".join(file.name for file in files).replace("`", "")[:_LONGEST_NAMES]
        markdown += f"\n\n⚠️ `{names}` could not be sent: `{one_line(refused).replace('`', '')}`"
        files = []
    mail.set_content(markdown + "\n", cte="quoted-printable")
    mail.add_alternative(html_of(markdown), subtype="html", cte="quoted-printable")
    for file in files:
        main, _, sub = file.mime_type.partition("/")
        # Python refuses to attach data as a part that is made of parts.
        main, sub = ("application", "octet-stream") if main in ("multipart", "message") else (main, sub)
        mail.add_attachment(file.data, maintype=main, subtype=sub, filename=file.name)
    for number, part in enumerate(part for part in mail.walk() if part.is_multipart()):
        part.set_boundary(f"={number}={outbound.nonce}=")
    return mail.as_bytes()


def html_of(markdown: str) -> str:
    """Return Markdown as HTML. Markup in it is shown as text, and pictures are links: nothing is loaded."""
    return f"<html><body>\n{_parser().render(markdown)}</body></html>\n"


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable(["strikethrough", "table"])
    parser.disable(["image", "html_block", "html_inline"])
    bound_tables(parser)
    return parser


@cache
def _policy() -> Policy:
    headers = HeaderRegistry()
    for name in ("in-reply-to", "references"):
        headers.map_to_type(name, _Ids)
    return SMTP.clone(cte_type="7bit", header_factory=headers)
