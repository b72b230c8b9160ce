"""A mailbox for tests: Dovecot from Debian as the IMAP server, and an SMTP server of aiosmtpd."""

from __future__ import annotations

import getpass
import grp
import imaplib
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from gateway.testing.fake_platform import Fault

ADDRESS, PASSWORD, SERVER = "bot@example.org", "secret", "mx.example.org"
DOVECOT = shutil.which("dovecot", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def free_port() -> int:
    """Return a port that is free at the moment."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Dovecot:
    """IMAP server in its own process, with one mailbox in ``folder``."""

    def __init__(self, folder: Path, *, capabilities: str = "") -> None:
        self.folder = folder
        self.port = free_port()
        self._capabilities = capabilities

    def start(self) -> None:
        """Start the server and wait until it answers."""
        own = getpass.getuser()
        mail = pwd.getpwnam("dovecot" if own == "root" else own)
        for name in ("run", "state", "mail"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        if own == "root":
            os.chown(self.folder / "mail", mail.pw_uid, mail.pw_gid)
            for parent in (self.folder, *self.folder.parents[:-2]):
                parent.chmod(parent.stat().st_mode | 0o011)
        (self.folder / "dovecot.conf").write_text(
            f"""
protocols = imap
listen = 127.0.0.1
base_dir = {self.folder}/run
state_dir = {self.folder}/state
log_path = {self.folder}/log
ssl = no
disable_plaintext_auth = no
auth_mechanisms = plain
mail_location = maildir:{self.folder}/mail
first_valid_uid = 0
first_valid_gid = 0
mail_uid = {mail.pw_uid}
mail_gid = {mail.pw_gid}
default_internal_user = {mail.pw_name}
default_internal_group = {grp.getgrgid(mail.pw_gid).gr_name}
default_login_user = {"dovenull" if own == "root" else own}
{f"imap_capability = {self._capabilities}" if self._capabilities else ""}
passdb {{
  driver = static
  args = password={PASSWORD}
}}
userdb {{
  driver = static
  args = home={self.folder}/mail
}}
namespace inbox {{
  inbox = yes
  mailbox Sent {{
    auto = create
    special_use = \\Sent
  }}
}}
service imap-login {{
  {"chroot =" if own != "root" else ""}
  inet_listener imap {{
    port = {self.port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
service anvil {{
  {"chroot =" if own != "root" else ""}
}}
"""
        )
        assert DOVECOT is not None
        with (self.folder / "output").open("w") as output:
            self._process = subprocess.Popen(
                [DOVECOT, "-F", "-c", self.folder / "dovecot.conf"], stdout=output, stderr=output
            )
        deadline = time.monotonic() + 20
        while True:
            try:
                self.client().logout()
            except OSError:
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """Stop the server and wait until it has ended."""
        self._process.terminate()
        self._process.wait(20)

    def client(self) -> imaplib.IMAP4:
        """Return a connection that is logged in."""
        client = imaplib.IMAP4("127.0.0.1", self.port, timeout=20)
        client.login(ADDRESS, PASSWORD)
        return client

    def deliver(self, mail: bytes, folder: str = "INBOX") -> None:
        """Store a mail."""
        client = self.client()
        assert client.append(folder, None, None, mail)[0] == "OK"
        client.logout()

    def mails(self, folder: str) -> list[EmailMessage]:
        """Return the mails of a folder."""
        client = self.client()
        client.select(folder, readonly=True)
        numbers = client.search(None, "ALL")[1][0].split()
        raws = [client.fetch(number.decode(), "(RFC822)")[1][0][1] for number in numbers]  # type: ignore[index]
        client.logout()
        return [read(raw) for raw in raws]  # type: ignore[arg-type]


class Smtp:
    """SMTP server that keeps what it accepts. ``files`` is a mailbox in which it stores copies as sent, as
    the servers of some providers do."""

    def __init__(self, files: Dovecot | None = None) -> None:
        self.accepted: list[bytes] = []
        self.recipients: list[list[str]] = []
        self.faults: deque[Fault | str] = deque()
        self.files = files
        self.largest = 50_000_000
        self.controller = Controller(
            self, hostname="127.0.0.1", port=0, authenticator=_check, auth_require_tls=False
        )

    def start(self) -> None:
        """Start the server in its thread."""
        self.controller.port = free_port()
        self.controller.start()

    def stop(self) -> None:
        """Stop the server."""
        self.controller.stop(no_assert=True)

    @property
    def port(self) -> int:
        return int(self.controller.port)

    @property
    def mails(self) -> list[EmailMessage]:
        return [read(one) for one in [*self.accepted]]

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        if self.faults and self.faults[0] == "slow_down":
            self.faults.popleft()
            return "451 4.7.1 try again later"
        if address.startswith("gone"):
            return "550 5.1.1 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if len(envelope.original_content) > self.largest:
            return "552 5.3.4 Message size exceeds fixed limit"
        fault = self.faults.popleft() if self.faults else "none"
        if fault not in ("fail_before", "drop_before"):
            self.accepted.append(envelope.original_content)
            self.recipients.append(envelope.rcpt_tos)
            if self.files is not None:
                self.files.deliver(envelope.original_content, "Sent")
        if fault.startswith("drop"):
            server.transport.abort()
        return "451 4.3.0 local error" if fault.startswith("fail") else "250 OK"


def _check(server: Any, session: Any, envelope: Any, mechanism: str, given: Any) -> AuthResult:
    right = (given.login, given.password) == (ADDRESS.encode(), PASSWORD.encode())
    return AuthResult(success=right, handled=False)  # the server answers, also that it is wrong


def read(raw: bytes) -> EmailMessage:
    """Return a mail as an object."""
    return message_from_bytes(raw, policy=policy.default)


def mail(
    text: str = "",
    *,
    sender: str = "Ada <ada@example.com>",
    to: str = ADDRESS,
    verified: bool = True,
    number: str = "m1",
    after: Sequence[str] = (),
    files: Sequence[tuple[str, bytes]] = (),
    **headers: str,
) -> bytes:
    """Return a mail as the server would store it; ``after`` are the references."""
    made = EmailMessage(policy.SMTP)
    domain = sender.rpartition("@")[2].strip(">")
    if verified:
        made["Authentication-Results"] = f"{SERVER}; dmarc=pass (p=none) header.from={domain}"
    made["From"], made["To"], made["Message-ID"] = sender, to, f"<{number}@example.com>"
    if after:
        made["References"] = " ".join(f"<{one}@example.com>" for one in after)
    for name, value in headers.items():
        made[name.replace("_", "-")] = value
    made.set_content(text)
    for name, data in files:
        made.add_attachment(data, maintype="text", subtype="plain", filename=name)
    return made.as_bytes()
