"""Settings of a mailbox: ``[channels.email]``, or one of its accounts."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

ADDRESS = re.compile(r"[a-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@(?=.{1,253}$)[a-z0-9-]+(\.[a-z0-9-]+)*")
"""A mail address in lower case, without the forms that programs read differently."""
LOGIN_ADVICE = (
    "check username and password; many providers, such as Gmail, accept only an app password, which their "
    "account settings make"
)
_LOCAL = ("127.0.0.1", "::1", "localhost")


class Options(BaseModel):
    """Servers and behaviour of one mailbox."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    address: str = Field(description="Mail address of the bot; required")
    imap_host: str = Field(description="IMAP server; required")
    imap_port: int = Field(
        default=993, ge=1, le=65_535, description="Port of the IMAP server, with TLS; default 993"
    )
    smtp_host: str = Field(description="SMTP server for outgoing mail; required")
    smtp_port: int = Field(
        default=465,
        ge=1,
        le=65_535,
        description="Port of the SMTP server: 465 with TLS, others with STARTTLS; default 465",
    )
    tls: Literal["required", "off"] = Field(
        default="required",
        description="required: encrypt both connections; off: servers on 127.0.0.1; default required",
    )
    aliases: tuple[str, ...] = Field(
        default=(),
        description="Further addresses of this mailbox: mail to them is for the bot alone; those with a tag, "
        "such as bot+news@, are known; default none",
    )
    username: str = Field(default="", description="User name at both servers; default the address")
    password: SecretStr = Field(description="Password at both servers; required")
    authserv_id: str = Field(
        default="",
        description="Name with which your mail server begins its Authentication-Results header; without it, "
        "all senders are unknown; default empty",
    )
    folder: str = Field(default="INBOX", min_length=1, description="Folder to read; default INBOX")
    sent_folder: str = Field(
        default="", description="Folder for sent mail; the one that the server marks as Sent if empty"
    )
    file_bytes: int = Field(
        default=10_000_000,
        ge=0,
        le=20_000_000,
        description="Largest accepted file, in bytes; default 10000000",
    )

    @staticmethod
    def questions(given: Mapping[str, str]) -> Mapping[str, str]:
        """Return the required settings that are not given, each with a hint where to find its value."""
        asked = {
            "address": "The mail address of the bot, of a mailbox that only the bot uses.",
            "imap_host": "The IMAP server of the mailbox, such as imap.example.org.",
            "smtp_host": "The SMTP server of the mailbox, such as smtp.example.org.",
            "password": "The password of the mailbox; many providers want one that is made for this program.",
            "authserv_id": "The first word of the header Authentication-Results in a mail that you received.",
        }
        return {key: how for key, how in asked.items() if key not in given}

    @staticmethod
    def check_id(given: str, *, room: bool) -> None:
        """Raise ValueError if this is not the address of a user, or the id of a room, which has several."""
        people = given.split(",") if room else [given]
        if given != given.lower() and all(ADDRESS.fullmatch(one.lower()) for one in people):
            raise ValueError(f"has to be in lower case: {given.lower()!r}")
        if not all(map(ADDRESS.fullmatch, people)):
            raise ValueError(
                "is not the id of a room, which is the list of its addresses; `trunkline channels rooms` "
                "lists those that were seen"
                if room
                else "is not the mail address of a user, such as ada@example.com"
            )
        if people != sorted(set(people)):
            raise ValueError(f"has to be in order: {','.join(sorted(set(people)))!r}")

    @field_validator("aliases")
    @classmethod
    def _check_aliases(cls, aliases: tuple[str, ...]) -> tuple[str, ...]:
        for one in aliases:
            if not ADDRESS.fullmatch(one.lower()):
                raise ValueError(f"{one!r} is not a mail address, like help@example.org")
        return tuple(one.lower() for one in aliases)

    @field_validator("address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        if not ADDRESS.fullmatch(address.lower()):
            raise ValueError("must be a mail address, like bot@example.org")
        return address.lower()

    @field_validator("folder", "sent_folder", "username", "authserv_id")
    @classmethod
    def _check_line(cls, text: str) -> str:
        if not text.isprintable() or not text.isascii():
            raise ValueError("must be printable ASCII")
        return text

    @field_validator("password")
    @classmethod
    def _check_password(cls, password: SecretStr) -> SecretStr:
        if not password.get_secret_value().strip():
            raise ValueError("must not be blank")
        return password

    @model_validator(mode="after")
    def _is_encrypted(self) -> Self:
        if self.tls == "off" and not {self.imap_host, self.smtp_host} <= {*_LOCAL}:
            raise ValueError('tls = "off" is only for servers on 127.0.0.1')
        return self

    def logins(self) -> Mapping[str, tuple[str, str]]:
        """Return the folder that is read."""
        folder = f"{self.imap_host.lower()} {self.login[0].lower()} {self.folder}"
        return {"folder": (folder, f"{self.folder!r} of {self.login[0]} at {self.imap_host}")}

    @property
    def login(self) -> tuple[str, str]:
        """The user name and the password."""
        return self.username or self.address, self.password.get_secret_value()


def unencrypted(error: ssl.SSLError, host: str, kind: Literal["imap", "smtp"], port: int) -> str:
    """Return why no encrypted connection was made, with the settings to correct."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = f"the certificate is not valid for {host}: {error.verify_message}"
        return f"{reason}; set {kind}_host to a name in the certificate, or renew it"
    usual = "993 is" if kind == "imap" else "465 and 587 are"
    return f"no TLS on port {port} of {host} ({error.reason or error}); correct {kind}_port, {usual} usual"
