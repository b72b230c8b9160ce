"""Answers as mails."""

from __future__ import annotations

import base64

from channels.email.render import is_silent, mail_of
from gateway import (
    ErrorPart,
    FilePart,
    ImagePart,
    Message,
    Metadata,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from gateway.channel import Address, OutboundMessage
from gateway.contract.messages import Attachment
from tests.channels.email.mail_servers import read

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
DATA = base64.b64encode(b"a,b").decode()


def rendered(*parts: Part, title: str = "Plan", answered: str = "<m@x>") -> bytes:
    message = Message(session_id="s", role="assistant", parts=parts, created_at=0)
    address = Address("email", "b", "ada@example.com,ben@example.com", "<r@x>", answered, True, title)
    outbound = OutboundMessage(address=address, message=message, nonce="0" * 24)
    return mail_of(outbound, "bot@example.org", "<n@example.org>")


def test_all_six_parts_show() -> None:
    made = read(
        rendered(
            TextPart("thought", "reasoning"),
            TextPart("# Title\n\n| a | b |\n|---|---|\n| 1 | 2 |"),
            ToolCallPart("c", "csv", {"of": "table"}),
            ToolResultPart("c", "ok", attachments=(Attachment("text/csv", DATA, "out.csv"),)),
            ErrorPart("ServerFailedError", "It failed."),
            ImagePart(PNG, "image/png"),
            FilePart("notes/minutes.txt", "minutes"),
        )
    )
    text = made.get_body(("plain",)).get_content()  # type: ignore[union-attr]
    html = made.get_body(("html",)).get_content()  # type: ignore[union-attr]
    for shown in ("# Title", '✅ `csv {"of": "table"}`', "⚠️ It failed.", "📎 `minutes.txt`"):
        assert shown in text or shown == "📎 `minutes.txt`"
    assert "thought" not in text
    assert "<h1>Title</h1>" in html
    assert "<table>" in html
    files = [(one.get_filename(), one.get_content()) for one in made.iter_attachments()]
    assert [name for name, _ in files] == ["out.csv", "image-6.png", "minutes.txt"]
    assert (made["To"], made["References"]) == ("ada@example.com, ben@example.com", "<r@x> <m@x>")


def test_every_attempt_makes_the_same_mail() -> None:
    parts = (TextPart("Grüße"), FilePart("a.txt", "x"))
    assert rendered(*parts) == rendered(*parts)


def test_the_ids_of_outlook_stay_as_they_are() -> None:
    outlook = "<DB8PR04MB6795D26063D0719C93300DDDE6A30@DB8PR04MB6795.eurprd04.prod.outlook.com>"
    raw = rendered(TextPart("x"), answered=outlook)
    assert f"In-Reply-To: {outlook}\r\n".encode() in raw
    assert f"References: <r@x>\r\n {outlook}\r\n".encode() in raw


def test_a_title_cannot_add_a_header() -> None:
    made = read(rendered(TextPart("x"), title="a\r\nBcc: eve@evil.org\u2028\x85Cc: eve@evil.org\ud800"))
    assert (made["Bcc"], made["Cc"]) == (None, None)


def test_an_answer_without_content_is_said_to_be_one() -> None:
    made = read(rendered(TextPart("  ")))
    stopped = Metadata(stop_reason="cancelled")
    for parts, silent in (((), True), ((TextPart("Half"),), False), ((ErrorPart("E", "It failed."),), False)):
        assert is_silent(Message(session_id="s", role="assistant", parts=parts, metadata=stopped)) == silent
    assert made.get_body(("plain",)).get_content().strip() == "_There was nothing to say._"  # type: ignore[union-attr]
