"""The contract suite for channels, with Dovecot and an SMTP server."""

from __future__ import annotations

import asyncio
import base64
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.testing.contracts.channel_contract import ChannelCheck, checks_for
from gateway.testing.contracts.channel_platform import Platform, until
from gateway.testing.fake_platform import Fault
from tests.channels.email.mail_servers import ADDRESS, PASSWORD, SERVER, Dovecot, Smtp, mail

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("dovecot_path")]

_MALFORMED = (
    b"\r\n",
    b"\x00\xff\xfe\r\n\r\n\x00",
    b"From: \r\n\r\nhello",
    b"From: a@example.com, b@example.com\r\nTo: bot@example.org\r\n\r\nhello",
    b"From: ada@example.com\r\nContent-Type: multipart/mixed\r\n\r\n--x\r\n",
    b"From: ada@example.com\r\nContent-Type: message/rfc822\r\nContent-Transfer-Encoding: base64\r\n\r\n!",
    b"From: ada@example.com\r\nMessage-ID: <\r\nDate: never\r\nReferences: <<<>>>\r\n\r\n?",
    b"From: ada@example.com\r\n" + b"Content-Type: text/plain\r\n" * 600 + b"\r\n?",
)


_ENCODED_FILE = base64.b64encode(b"minutes of the meeting")


class EmailPlatform(Platform):
    """Ada's thread with the bot, and one with her, Ben and the bot. The provider files what it sends."""

    name = "email"
    longest = 1_000_000
    lacks = {
        "edits": "a mail cannot be changed",
        "deletions": "a mail cannot be withdrawn",
        "reordering": "a mailbox numbers its mails in the order of their arrival",
    }

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._copies = 1
        self._downloads = 0

    async def __aenter__(self) -> EmailPlatform:
        self._folder = tempfile.TemporaryDirectory(prefix="mail")
        self.dovecot = Dovecot(Path(self._folder.name))
        self.dovecot.start()
        self.smtp = Smtp(self.dovecot)
        self.smtp.start()
        self._proxy = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *failure: Any) -> None:
        self._proxy.close()
        self.smtp.stop()
        self.dovecot.stop()
        self._folder.cleanup()

    def settings(self) -> Mapping[str, Any]:
        return {
            "address": ADDRESS,
            "password": PASSWORD,
            "imap_host": "127.0.0.1",
            "imap_port": self._proxy.sockets[0].getsockname()[1],
            "smtp_host": "127.0.0.1",
            "smtp_port": self.smtp.port,
            "tls": "off",
            "authserv_id": SERVER,
            "allow": ["ada@example.com", "ben@example.com"],
        }

    async def connected(self, gateway: Gateway, url: str) -> None:
        await until(lambda: gateway.health()["email"][0])

    def write(self, text: str) -> str:
        return self._write(text, "private")

    def shown(self) -> Sequence[str]:
        return self._shown("private")

    def check(self) -> None:
        for one in self.smtp.mails:
            assert one["Auto-Submitted"] == "auto-replied"
            assert one["In-Reply-To"] in one["References"]
        sent = [one["Message-ID"] for one in self.dovecot.mails("Sent")]
        assert len(sent) == len(set(sent)) == len(self.smtp.accepted)

    def fail(self, fault: Fault) -> None:
        self.smtp.faults.append(fault)

    def malformed(self) -> None:
        for raw in _MALFORMED:
            self.dovecot.deliver(raw)

    def repeat(self) -> None:
        self._copies = 2

    def write_in_room(self, text: str, *, addressed: bool, file: bytes | None = None) -> str:
        to, copy = (ADDRESS, "ben@example.com") if addressed else ("ben@example.com", ADDRESS)
        files = [("minutes.txt", file)] if file is not None else []
        return self._write(text, "room", to=to, files=files, Cc=copy)

    def shown_in_room(self) -> Sequence[str]:
        return self._shown("room")

    def downloads(self) -> int:
        return self._downloads

    def _write(self, text: str, thread: str, **more: Any) -> str:
        number = f"m{next(self._numbers)}"
        raw = mail(text, number=number, after=[thread], **more)
        for _ in range(self._copies):
            self.dovecot.deliver(raw)
        return number

    def _shown(self, thread: str) -> list[str]:
        found = [one for one in self.smtp.mails if one["References"].startswith(f"<{thread}@")]
        return [one.get_body(("plain",)).get_content().strip() for one in found]  # type: ignore[union-attr]

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a connection of the channel, and count the files that it fetches."""
        server, to_server = await asyncio.open_connection("127.0.0.1", self.dovecot.port)
        with closing(writer), closing(to_server):

            async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
                while data := await source.read(65_536):
                    self._downloads += data.count(_ENCODED_FILE)
                    target.write(data)
                    await target.drain()
                target.close()

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(pass_on(reader, to_server))
                tasks.create_task(pass_on(server, writer))


@pytest.mark.parametrize("check", checks_for(EmailPlatform), ids=str)
async def test_the_contract(check: ChannelCheck, tmp_path: Path) -> None:
    await check(EmailPlatform(), tmp_path)
