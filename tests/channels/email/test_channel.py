"""The channel in a gateway, with Dovecot and an SMTP server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from channels.email.delivery import Delivery
from channels.email.imap import connected
from channels.email.options import Options
from channels.email.parse import Bot
from gateway import FilePart, Message, TextPart
from gateway.app import Gateway
from gateway.channel import Address, OutboundMessage
from gateway.testing.contracts.channel_platform import Trial, settled, trial, until
from gateway.testing.fake_models.script import Reply, Say
from tests.channels.email.mail_servers import ADDRESS, SERVER, mail
from tests.channels.email.test_contract import EmailPlatform

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("dovecot_path")]


class OwnCopies(EmailPlatform):
    """A provider that does not file what it sends."""

    async def __aenter__(self) -> OwnCopies:
        await super().__aenter__()
        self.smtp.files = None
        return self

    def check(self) -> None:
        """The tests look at the copies."""


@asynccontextmanager
async def running(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[Trial, EmailPlatform, Gateway]]:
    platform = OwnCopies()
    async with trial(platform, tmp_path) as made, made.gateway(**settings) as gateway:
        yield made, platform, gateway


async def test_a_mail_is_answered_with_text_html_and_headers(tmp_path: Path) -> None:
    async with running(tmp_path) as (made, platform, gateway):
        made.models.then(Reply((Say("**Hello** <b>x</b>\n\n![p](https://evil.org/p.png)"),)))
        subject = "=?utf-8?q?Gr=C3=BC=C3=9Fe=0D=0ABcc=3A_eve=40evil=2Eorg?="
        raw = f"Subject: {subject}\r\n".encode() + mail("hi", number="m1")
        platform.dovecot.deliver(raw)
        await until(lambda: len(platform.smtp.accepted) == 1)
        await settled(gateway)
        (answer,) = platform.smtp.mails
        assert platform.smtp.recipients == [["ada@example.com"]]
        assert answer["Subject"].startswith("Re: Grüße")
        assert answer["Bcc"] is None
        assert (answer["In-Reply-To"], answer["References"]) == ("<m1@example.com>", "<m1@example.com>")
        html = answer.get_body(("html",)).get_content()
        assert "<strong>Hello</strong> &lt;b&gt;x&lt;/b&gt;" in html
        assert "<img" not in html
        copies = platform.dovecot.mails("Sent")
        assert [one["Message-ID"] for one in copies] == [answer["Message-ID"]]
        # Some programs name only the mail that they reply to, not the thread.
        platform.dovecot.deliver(mail("and then?", number="m2", In_Reply_To=answer["Message-ID"]))
        await until(lambda: len(platform.smtp.accepted) == 2)
        await settled(gateway)
        second = platform.smtp.mails[1]
        assert (second["In-Reply-To"], second["References"].split()[0]) == (
            "<m2@example.com>",
            "<m1@example.com>",
        )


async def test_old_mail_is_not_answered(tmp_path: Path) -> None:
    platform = OwnCopies()
    async with trial(platform, tmp_path) as made:
        platform.write("old")
        async with made.gateway() as gateway:
            platform.write("new")
            await made.shows("You said: new")
            await settled(gateway)


async def test_a_renumbered_folder_starts_at_its_newest_mail(tmp_path: Path) -> None:
    platform = OwnCopies()
    async with trial(platform, tmp_path) as made:
        async with made.gateway() as gateway:
            platform.write("one")
            await made.shows("You said: one")
            await settled(gateway)
        platform.dovecot.stop()
        for file in (platform.dovecot.folder / "mail").glob("dovecot*"):
            file.unlink()
        platform.dovecot.start()
        async with made.gateway() as gateway:
            platform.write("two")
            await made.shows("You said: one", "You said: two")
            await settled(gateway)
    assert made.asked() == ["one", "two"]


async def test_unverified_senders_are_not_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as (made, platform, gateway):
        platform.dovecot.deliver(mail("forged", number="f1", verified=False))
        platform.write("one")
        await made.shows("You said: one")
        await settled(gateway)
        assert len(platform.smtp.accepted) == 1


async def test_unverified_senders_talk_where_everyone_may(tmp_path: Path) -> None:
    async with running(tmp_path, allow="*") as (_, platform, gateway):
        platform.dovecot.deliver(mail("open", number="f2", verified=False))
        await until(lambda: len(platform.smtp.accepted) == 1)
        await settled(gateway)


async def test_a_verified_sender_who_may_not_talk_gets_a_pairing_code(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, platform, gateway):
        platform.dovecot.deliver(mail("hi", sender="eve@evil.org"))
        await until(lambda: len(platform.smtp.accepted) == 1)
        await settled(gateway)
    assert platform.smtp.recipients == [["eve@evil.org"]]
    assert "pairing code" in platform.smtp.mails[0].get_body(("plain",)).get_content()


async def test_a_mail_loop_ends(tmp_path: Path) -> None:
    async with running(tmp_path) as (made, platform, gateway):
        for _ in range(25):
            platform.write("again")
        await until(lambda: len(platform.smtp.accepted) == 20)
        platform.dovecot.deliver(mail("other", number="o1"))
        await until(lambda: made.asked()[-1:] == ["other"])
        await settled(gateway)
    assert len(made.models.requests) == 21


async def test_a_recipient_that_is_gone_is_a_dead_letter(tmp_path: Path) -> None:
    async with running(tmp_path, allow="*") as (made, platform, gateway):
        platform.dovecot.deliver(mail("hi", sender="gone@example.com"))
        await until(lambda: len(made.models.requests) == 1)
        await settled(gateway)
        assert platform.smtp.accepted == []


async def test_an_answer_is_sent_without_files_that_are_too_large() -> None:
    async with OwnCopies() as platform:
        platform.smtp.largest = 10_000
        options = Options.model_validate({k: v for k, v in platform.settings().items() if k != "allow"})
        parts = (TextPart("Here it is."), FilePart("all.txt", "x" * 20_000))
        message = Message(session_id="s", role="assistant", parts=parts)
        address = Address("email", ADDRESS, "ada@example.com", "<m1@x>", "<m1@x>", title="Plan")
        outbound = OutboundMessage(address=address, message=message, nonce="0" * 24)
        placed = await Delivery(Bot("email", ADDRESS, SERVER), options).send(outbound)
        (sent,) = platform.smtp.mails
        assert sent["Message-ID"] == placed.platform_id
        text = sent.get_body(("plain",)).get_content()  # type: ignore[union-attr]
        assert text.splitlines() == [
            "Here it is.",
            "",
            "⚠️ `all.txt` could not be sent: `552 5.3.4 Message size exceeds fixed limit`",
        ]
        assert not list(sent.iter_attachments())


async def test_an_uncertain_mail_is_sent_again_with_the_same_message_id(tmp_path: Path) -> None:
    """What remains where the provider files no copies: the server accepted it, and its response was lost."""
    async with running(tmp_path) as (_, platform, gateway):
        platform.fail("drop_after")
        platform.write("one")
        await until(lambda: len(platform.smtp.accepted) == 2)
        await settled(gateway)
        first, second = platform.smtp.accepted
        assert first == second
        assert len(platform.dovecot.mails("Sent")) == 1


async def test_a_large_mail_is_not_downloaded(tmp_path: Path) -> None:
    async with running(tmp_path, file_bytes=1000) as (made, platform, gateway):
        platform.dovecot.deliver(mail("look", files=[("big.txt", b"x" * 2_000_000)]))
        await until(lambda: len(made.models.requests) == 1)
        await settled(gateway)
    assert made.asked()[0].startswith("look\n\n[The mail has ")


async def test_without_notifications_it_polls(tmp_path: Path) -> None:
    async with OwnCopies() as platform:
        options = Options.model_validate({k: v for k, v in platform.settings().items() if k != "allow"})
        async with connected(options, 1_000_000) as imap:
            _, newest = await imap.select("INBOX")
            platform.write("one")
            await imap.poll()
            assert await imap.uids_after(newest) == [newest + 1]


async def test_a_wrong_password_is_reported(tmp_path: Path) -> None:
    class WrongPassword(OwnCopies):
        def settings(self) -> Mapping[str, Any]:
            return {**super().settings(), "password": "wrong"}

        async def connected(self, gateway: Gateway, url: str) -> None:
            await until(
                lambda: "the IMAP server refuses the login of bot@example.org" in gateway.health()["email"][1]
            )

    async with trial(WrongPassword(), tmp_path) as made, made.gateway() as gateway:
        assert not gateway.health()["email"][0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"address": "bot"},
        {"address": "a@b\r\nBcc: x@y"},
        {"tls": "off"},
        {"password": " "},
        {"folder": "a\r\nb"},
        {"aliases": ["help"]},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    right = {"address": "bot@example.org", "imap_host": "a", "smtp_host": "b", "password": "p"}
    Options.model_validate(right)
    with pytest.raises(ValueError):
        Options.model_validate({**right, **wrong})
