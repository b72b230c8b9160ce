"""Settings of a Matrix account: ``[channels.matrix]``, or one of its accounts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

Strategy = Literal["chat", "chat_user", "thread"]


class Options(BaseModel):
    """Connection and behaviour of one Matrix account."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    homeserver: str = Field(description="Base URL of the homeserver's client-server API; required")
    access_token: SecretStr = Field(description="Access token of the bot's account; required")
    session_strategy: Strategy = Field(
        default="thread",
        description="Scope of a conversation: chat, chat_user (each user of a chat), or thread (each thread "
        "or topic of a chat); default thread",
    )
    streaming: bool = Field(default=True, description="Show answers while they are generated; default true")
    edits: Literal["rerun", "ignore"] = Field(
        default="rerun",
        description="rerun: answer an edited message again; ignore: ignore edits; default rerun",
    )
    file_bytes: int = Field(
        default=10_000_000,
        ge=0,
        le=20_000_000,
        description="Largest accepted file, in bytes; default 10000000",
    )
    pages: int = Field(
        default=6,
        ge=1,
        le=50,
        description="Most text messages per answer; a longer one is also sent as a file; 1 to 50; default 6",
    )
    tools: bool = Field(default=True, description="Show the used tools in answers; default true")
    pace: float = Field(
        default=1.0,
        gt=0,
        le=1000,
        description="Multiplier of the platform's published rate limits, if yours are higher; over 0, up to "
        "1000; default 1",
    )

    @staticmethod
    def questions(given: Mapping[str, str]) -> Mapping[str, str]:
        """Return the required settings that are not given, each with a hint where to find its value."""
        asked = {
            "homeserver": "The URL of the bot's homeserver, such as https://matrix.example.org.",
            "access_token": "Element shows it under All settings, Help & About, when the bot is signed in.",
        }
        return {key: how for key, how in asked.items() if key not in given}

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
