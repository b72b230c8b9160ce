"""Settings of a Matrix account: ``[channels.matrix]``, or one of its accounts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from gateway.channel import SharedOptions

_ROOM = re.compile(r"![^\s:]+(:\S+)?")
_MOST_EMOJI = 10
_USER = re.compile(r"@[^\s:]*:\S+")


class Options(SharedOptions):
    """Connection and behaviour of one Matrix account."""

    homeserver: str = Field(description="Base URL of the homeserver's client-server API; required")
    access_token: SecretStr = Field(description="Access token of the bot's account; required")
    stop_reaction: str = Field(
        default="🛑",
        max_length=_MOST_EMOJI,
        description="Emoji reaction that stops an answer while it is generated, set by a user on one of its "
        "messages; none if empty; default 🛑",
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
            "homeserver": "The URL of the bot's homeserver, such as https://matrix.example.org.",
            "access_token": "Element shows it under All settings, Help & About, when the bot is signed in.",
        }
        return {key: how for key, how in asked.items() if key not in given}

    @staticmethod
    def check_id(given: str, *, room: bool) -> None:
        """Raise ValueError if this is not the id of a room or of a user."""
        if room and not _ROOM.fullmatch(given):
            raise ValueError(
                "is not the id of a room, such as !abc:example.org; `trunkline channels rooms` lists those "
                "that were seen, and Element shows it in the room's settings under Advanced"
            )
        if not room and not _USER.fullmatch(given):
            raise ValueError("is not the id of a user, such as @ada:example.org")

    def logins(self) -> Mapping[str, tuple[str, str]]:
        """Return the access token."""
        token = self.access_token.get_secret_value().strip()
        return {"access_token": (f"{self.homeserver} {token}", f"{token[:4]}…")}

    @field_validator("homeserver")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ValueError("must be a URL that begins with http:// or https://")
        return url.rstrip("/")

    @field_validator("access_token")
    @classmethod
    def _check_token(cls, token: SecretStr) -> SecretStr:
        if not token.get_secret_value().isascii() or not token.get_secret_value().strip().isprintable():
            raise ValueError("must be printable ASCII")
        if not token.get_secret_value().strip():
            raise ValueError("must not be blank")
        return token
