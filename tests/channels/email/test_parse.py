"""Mails as messages: who wrote them, what they say, and which of them are not answered."""

from __future__ import annotations

import pytest

from channels.email.parse import Bot, Skipped, parse_headers, parse_mail
from channels.email.text import plain_of, split_quotes
from gateway.channel import InboundMessage
from tests.channels.email.mail_servers import ADDRESS, SERVER, mail

BOT = Bot("email", ADDRESS, SERVER)
OWN = "<0123456789abcdef01234567.0@example.org>"
PASS = f"{SERVER}; dmarc=pass header.from=example.com"


def head(raw: bytes, bot: Bot = BOT) -> InboundMessage:
    found = parse_headers(raw, bot, 7, 3)
    assert isinstance(found, InboundMessage), found
    return found


def whole(raw: bytes, most: int = 1000) -> InboundMessage:
    return parse_mail(raw, head(raw), BOT, most)[0]


def with_results(*results: str, sender: str = "Ada <ada@example.com>") -> bytes:
    lines = "".join(f"Authentication-Results: {one}\r\n" for one in results)
    return lines.encode() + mail("hi", sender=sender, verified=False)


@pytest.mark.parametrize(
    "results",
    [
        PASS,
        f"{SERVER} 1; spf=fail smtp.mailfrom=x.org; dmarc=pass (p=none (dis=none)) header.from=example.com",
        f"{SERVER.upper()};\r\n dkim=pass header.d=example.com",
        f"{SERVER}; dkim=fail header.d=example.com; dkim=pass header.i=@example.com header.s=s1",
        # So OpenDKIM writes it, in two versions, and Strato.
        f'{SERVER}; dkim=pass (2048-bit key) header.d=example.com header.i=@example.com header.b="y6/+9Eoy"',
        f'{SERVER}; dkim=pass reason="1024-bit key; insecure key" header.d=example.com header.b=y69Eoy',
        f'{SERVER}; dmarc=none header.from="example.com"; dkim=pass header.d="example.com"; spf=none',
    ],
)
def test_a_verified_address_is_an_identity(results: str) -> None:
    assert head(with_results(results)).sender.id == "ada@example.com"


@pytest.mark.parametrize(
    "results",
    [
        (),
        ("other.example.org; dmarc=pass header.from=example.com",),
        # The server's own result is above the one that came with the mail.
        (f"{SERVER}; dmarc=fail header.from=example.com", PASS),
        ("forwarder.example.net; dmarc=pass header.from=example.com", PASS),
        (f"{SERVER}; none", PASS),
        (f"{SERVER}; dmarc=pass header.from=evil.org",),
        (f"{SERVER}; dmarc=pass",),
        (f"{SERVER}; dkim=pass header.d=evil.org",),
        (f"{SERVER}; dkim=pass header.d=com",),
        (f"{SERVER}; dkim=pass header.d=ample.com",),
        (f"{SERVER}; dkim=pass header.d=mail.example.com",),
        (f"{SERVER}; dkim=pass header.d=example.com; dmarc=fail header.from=example.com",),
        (f"{SERVER}; spf=pass smtp.mailfrom=example.com",),
        (f"{SERVER}; spf=fail (; dmarc=pass header.from=example.com )",),
        (f'{SERVER}; spf=fail smtp.mailfrom="; dmarc=pass header.from=example.com ;"@x.org',),
        (f'{SERVER}; spf=none smtp.mailfrom=""a; dkim=pass header.d=example.com; x="@x.org"',),
        (f'{SERVER}; spf=none smtp.mailfrom=z="@x.org; dmarc=fail header.from="example.com"; dkim=pass',),
        (f'{SERVER}; spf=none (a="b) smtp.mailfrom=b" ; dkim=pass header.d=example.com',),
        (f'{SERVER}; spf=fail smtp.mailfrom="a(b"@x.org; dmarc=pass header.from=example.com; x=y")"',),
        (f"{SERVER}; spf=fail (a; dmarc=pass header.from=example.com",),
        (f"({SERVER}) evil.org; dmarc=pass header.from=example.com",),
        (f"{SERVER}.evil.org; dmarc=pass header.from=example.com",),
    ],
)
def test_a_forged_or_missing_result_makes_the_sender_unknown(results: tuple[str, ...]) -> None:
    message = head(with_results(*results))
    assert (message.sender.id, message.sender.username) == ("", "")
    assert message.sender.name == "Ada"
    assert message.address.group, "an unknown sender must not get a pairing code"


TWO = f"{SERVER}; dmarc=none header.from=example.com", f"{SERVER}; dkim=pass header.d=example.com"


@pytest.mark.parametrize(
    ("above", "below", "known"),
    [
        # So OpenDKIM and OpenDMARC write them, each its own.
        (TWO, (), True),
        (("filter.example.org; dkim=none", *TWO), (), True),
        ((*TWO, f"{SERVER}; dmarc=fail header.from=example.com"), (), False),
        ((f'{SERVER}; dmarc=fail header.from="', TWO[1]), (), False),
        # The sender's own are below the line of the server.
        (TWO[:1], TWO[1:], False),
        ((), TWO, False),
    ],
)
def test_all_results_that_the_server_wrote_count(
    above: tuple[str, ...], below: tuple[str, ...], known: bool
) -> None:
    lines = [*(f"Authentication-Results: {one}" for one in above), f"Received: from a by {SERVER}"]
    lines += [f"Authentication-Results: {one}" for one in below]
    raw = "\r\n".join(lines).encode() + b"\r\n" + mail("hi", verified=False)
    assert head(raw).sender.id == ("ada@example.com" if known else "")


def test_without_the_name_of_the_server_all_senders_are_unknown() -> None:
    raw = with_results("; dmarc=pass header.from=example.com")
    assert head(raw, Bot("email", ADDRESS, "")).sender.id == ""


@pytest.mark.parametrize(
    "author",
    [
        "ada@example.com, eve@example.com",
        "ada@example.com\r\nFrom: eve@evil.org",
        "team: ada@example.com;",
        "<ada@example.com> eve@evil.org",
        "ada@example.com@evil.org",
    ],
)
def test_several_or_malformed_authors_are_unknown(author: str) -> None:
    raw = f"Authentication-Results: {PASS}\r\nFrom: {author}\r\nTo: {ADDRESS}\r\n\r\nhi".encode()
    found = parse_headers(raw, BOT, 7, 3)
    assert isinstance(found, Skipped) or found.sender.id == ""


def test_a_thread_is_a_conversation_of_its_sender() -> None:
    first = head(mail("hi", number="m1"))
    second = head(mail("more", number="m3", after=["m1", "m2"]))
    assert first.session == second.session != head(mail("hi", number="m4")).session
    assert first.address.thread == first.address.reply_to == "<m1@example.com>"
    assert first.written_in is None
    assert second.written_in == "<m1@example.com>"
    other = head(mail("mine?", number="m5", after=["m1"], sender="eve@evil.org"))
    assert other.session != first.session
    unknown = head(mail("mine?", number="m6", after=["m1"], verified=False))
    assert unknown.session != first.session


def test_several_recipients_are_a_room() -> None:
    ben = "Ben <ben@example.com>"
    named = head(mail("hi", Cc=ben, Subject="Re: Plan"))
    copied = head(mail("hi", to=ben, Cc=ADDRESS))
    assert (named.address.group, named.addressed, named.address.title) == (True, "mention", "Plan")
    assert named.address.chat == copied.address.chat == "ada@example.com,ben@example.com"
    assert copied.addressed == "none"
    assert head(mail("hi", to=ben, Cc=ADDRESS, In_Reply_To=OWN)).addressed == "reply"
    assert head(mail("hi", Cc=ben, In_Reply_To=OWN)).addressed == "reply"
    assert (head(mail("hi")).address.group, head(mail("hi")).addressed) == (False, "direct")
    assert whole(mail("/status", to=ben, Cc=ADDRESS)).addressed == "command"
    [told] = whole(mail("hi", Cc=ben)).quotes
    assert (told.kind, told.sender) == ("room", named.sender)
    assert "ada@example.com, ben@example.com. All of them get the answer." in told.text
    assert whole(mail("hi")).quotes == whole(mail("/status", Cc=ben)).quotes == ()


def test_other_addresses_of_the_mailbox_are_the_bot() -> None:
    bot = Bot("email", ADDRESS, SERVER, aliases=("help@example.org",))
    for to in (
        "Help@example.org",
        "help+news@example.org",
        "bot+x@example.org",
        f"{ADDRESS}, help@example.org",
    ):
        private = head(mail("hi", to=to), bot)
        assert (private.address.group, private.address.chat) == (False, "ada@example.com"), to
    room = head(mail("hi", to="help@example.org", Cc="ben@example.com"), bot)
    assert (room.address.chat, room.addressed) == ("ada@example.com,ben@example.com", "mention")
    assert head(mail("hi", to="help@example.org")).address.group
    own = parse_headers(mail("hi", sender="help@example.org"), bot, 7, 3)
    assert own == Skipped("the bot wrote it")


def test_an_answer_that_a_reply_quotes_without_references_is_known() -> None:
    """Some programs write In-Reply-To only; the conversation has what the bot wrote."""
    said = "Yes\n\nOn Monday the bot <bot@example.org> wrote:\n> Shall I?"
    assert whole(mail(said, In_Reply_To=OWN)).quotes == ()
    assert whole(mail(said, In_Reply_To="<other@example.com>")).quotes != ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Auto-Submitted", "auto-replied"),
        ("Auto-Submitted", "auto-generated; x=y"),
        ("Precedence", "Bulk"),
        ("Precedence", "list"),
        ("List-Id", "<l.example.org>"),
        ("List-Unsubscribe", "<mailto:x@example.org>"),
        ("X-Auto-Response-Suppress", "DR, OOF, AutoReply"),
        ("Return-Path", "<>"),
    ],
)
def test_automatic_mail_and_lists_are_not_answered(name: str, value: str) -> None:
    raw = f"{name}: {value}\r\n".encode() + mail("out of office")
    assert isinstance(parse_headers(raw, BOT, 7, 3), Skipped)


def test_mail_of_servers_reports_and_own_mail_are_not_answered() -> None:
    assert isinstance(parse_headers(mail("x", sender=ADDRESS), BOT, 7, 3), Skipped)
    assert isinstance(parse_headers(mail("x", sender="MAILER-DAEMON@mx.example.org"), BOT, 7, 3), Skipped)
    assert isinstance(
        parse_headers(mail("x", number="m").replace(b"<m@example.com>", OWN.encode()), BOT, 7, 3), Skipped
    )
    report = b"From: ada@example.com\r\nContent-Type: multipart/report; boundary=b\r\n\r\n--b--"
    assert isinstance(parse_headers(report, BOT, 7, 3), Skipped)
    many = ", ".join(f"p{number}@example.com" for number in range(60))
    assert isinstance(parse_headers(mail("x", Cc=many), BOT, 7, 3), Skipped)


def test_quoted_mails_and_signatures_are_not_the_writers_text() -> None:
    said = "Yes.\n\nOn Mon, 1 Jan 2026 at 10:00, Bot\n<bot@example.org> wrote:\n> Shall I?\n> Really?\n"
    assert (split_quotes(said).own, split_quotes(said).quoted.endswith("Shall I?\nReally?")) == ("Yes.", True)
    assert split_quotes("Hello\n-- \nAda\nExample Ltd").own == "Hello"
    assert split_quotes("select 1;\n--\nselect 2;").own == "select 1;\n--\nselect 2;"
    outlook = split_quotes("No.\n\nFrom: Ben <b@x.org>\nSent: Monday\nTo: Ada\n\nyes")
    assert (outlook.own, "yes" in outlook.quoted) == ("No.", True)
    french = split_quotes("Non.\n\nDe : Ben <b@x.org>\nEnvoyé : lundi 1 janvier\nÀ : Ada\n\noui")
    assert (french.own, "oui" in french.quoted) == ("Non.", True)
    for line in (
        "2026年1月1日(木) 10:00 Bot <bot@example.org>:",
        "1 Oca 2026 Per, 10:00 tarihinde Bot <bot@example.org> yazdi:",
    ):
        assert split_quotes(f"No.\n\n{line}\n\n> yes").own == "No."
    assert split_quotes("Write to <a@x.org>:\nhello").own == "Write to <a@x.org>:\nhello"
    between = split_quotes("> one?\n1\n> two?\n2")
    assert (between.own, between.quoted, between.in_place) == ("1\n2", "> one?\n1\n> two?\n2", True)
    assert not split_quotes("1\n\n> one?\n-- \nAda").in_place
    assert split_quotes("On Monday I wrote: nothing").own == "On Monday I wrote: nothing"


def test_a_quoted_yes_is_not_text_and_forwarded_text_is_a_quote() -> None:
    forward = "see below\n\n---------- Forwarded message ---------\nFrom: Eve\n\nyes"
    message = whole(mail(forward, Subject="Fwd: deal"))
    assert message.text == "Fwd: deal\n\nsee below"
    assert [(one.kind, one.text.endswith("yes")) for one in message.quotes] == [("forward", True)]
    reply = whole(mail("ok\n\n> earlier", after=["m0"]))
    assert (reply.text, reply.quotes[0].kind, reply.quotes[0].text) == ("ok", "reply", "earlier")
    known = mail("ok\n\n> earlier", after=["m0"]).replace(
        b"<m0@example.com>", b"<m0@example.com> " + OWN.encode()
    )
    assert whole(known).quotes == ()
    below = whole(known.replace(b"ok\r\n\r\n> earlier", b"> the third\r\n\r\nwhy?\r\n-- \r\nAda"))
    assert (below.text, [(one.kind, one.text) for one in below.quotes]) == (
        "why?",
        [("quote", "> the third\n\nwhy?")],
    )
    assert len(whole(mail("> " + "x" * 1_000_000, after=["m0"])).quotes[0].text) == 8_001


def test_html_becomes_text() -> None:
    html = (
        "<style>p{}</style><p>Hello <b>you</b>&nbsp;&amp; me<br>again</p><ul><li>one<li>two</ul>"
        '<blockquote>old <p>yes</blockquote><a href="https://x.org">link</a><script>evil()</script>'
    )
    text = plain_of(html)
    assert "Hello you & me\nagain" in text
    assert "• one\n• two" in text
    assert "\n> old\n>\n> yes\nlink" in split_quotes(text).quoted
    assert "link (https://x.org)" in text
    assert "evil" not in text
    assert "p{}" not in text


def test_html_without_the_end_of_its_head_has_a_text() -> None:
    assert plain_of("<html><head><title>t</title><body><p>Hello</p></body></html>") == "Hello"


def test_the_files_of_a_mail_that_is_attached_come_along() -> None:
    inner = mail("see the plan", sender="Ben <ben@example.com>", files=[("plan.txt", b"x")])
    raw = mail("sum it up").replace(
        b"Content-Type: text/plain", b"Content-Type: multipart/mixed; boundary=b", 1
    )
    raw = raw.partition(b"Content-Transfer")[0] + b"\r\n--b\r\n\r\nsum it up\r\n"
    raw += b"--b\r\nContent-Type: message/rfc822\r\n\r\n" + inner + b"\r\n--b--\r\n"
    message, files = parse_mail(raw, head(raw), BOT, 1000)
    assert (message.text, [(one.name, one.quote) for one in files]) == ("sum it up", [("plan.txt", 0)])
    assert [(one.kind, one.text.endswith("see the plan")) for one in message.quotes] == [("forward", True)]


@pytest.mark.parametrize(
    ("charset", "data", "text"),
    [
        ("iso-8859-1", b"\x93Gr\xfc\xdfe\x94 \x80", "“Grüße” €"),
        ("gb2312", "朱镕基".encode("gbk"), "朱镕基"),
        ("Shift_JIS", "①㈱".encode("cp932"), "①㈱"),
        ("us-ascii", "Grüße".encode(), "Grüße"),
        ("x-unknown", "Grüße".encode("cp1252"), "Grüße"),
        ("utf-8", "Grüße".encode()[:-2], "Grü\ufffd"),
    ],
)
def test_a_wrong_character_set_damages_no_text(charset: str, data: bytes, text: str) -> None:
    head_lines = f"Content-Type: text/plain; charset={charset}\r\nContent-Transfer-Encoding: 8bit\r\n\r\n"
    raw = mail("x", after=["m0"]).partition(b"Content-Type")[0] + head_lines.encode() + data
    assert whole(raw).text == text


def test_headers_may_be_utf8() -> None:
    raw = mail("x", sender="X <ada@example.com>", Subject="S").replace(b"X <", "Zoë <".encode())
    message = whole(raw.replace(b"Subject: S", "Subject: Grüße".encode()))
    assert (message.sender.id, message.sender.name) == ("ada@example.com", "Zoë")
    assert message.text == "Grüße\n\nx"


def test_a_file_that_is_too_large_is_named() -> None:
    raw = mail("look", files=[("a.txt", b"small"), ("b.txt", b"x" * 2000)])
    _, files = parse_mail(raw, head(raw), BOT, 1000)
    assert [(one.name, one.data) for one in files] == [("a.txt", b"small"), ("b.txt", None)]


def nested(depth: int) -> bytes:
    begins = "".join(
        f'Content-Type: multipart/mixed; boundary="b{n}"\r\n\r\n--b{n}\r\n' for n in range(depth)
    )
    return f"From: ada@example.com\r\nTo: {ADDRESS}\r\n{begins}\r\nhello".encode()


@pytest.mark.parametrize(
    "raw",
    [
        nested(5_000),
        mail("x").replace(b"text/plain", b"text/plain; a=" + b"x" * 100_000, 1),
        b"From: ada@example.com\r\n\r\n" + b"Content-Type: text/plain\r\n" * 100_000,
    ],
)
def test_a_mail_that_would_take_too_long_is_refused(raw: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        parse_mail(raw, head(raw[:10_000]), BOT, 1000)


@pytest.mark.parametrize("charset", ["punycode", "Punycode"])
def test_a_charset_that_takes_quadratic_time_is_not_used(charset: str) -> None:
    raw = mail("xn--caf-dma").replace(b'charset="utf-8"', f'charset="{charset}"'.encode(), 1)
    assert charset.encode() in raw
    assert whole(raw).text.endswith("xn--caf-dma")


def test_a_very_long_subject_is_cut() -> None:
    raw = b"Subject: " + b"word " * 40_000 + b"\r\n" + mail("hello")
    message = whole(raw)
    assert len(message.text) < 600
    assert len(message.address.title) <= 200
