"""Settings of a Telegram bot: ``[channels.telegram]``, or one of its accounts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

_TOKEN = re.compile(r"[0-9]+:[\x21-\x7e]+")
_SECRET = re.compile(r"[A-Za-z0-9_-]{1,256}")

Groups = Literal["mention", "reply", "command", "always"]
Strategy = Literal["chat", "chat_user", "thread"]


class Options(BaseModel):
    """Connection and behaviour of one Telegram bot."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: SecretStr = Field(description="Token of the bot, from @BotFather")
    api_base_url: str = Field(
        default="https://api.telegram.org", description="Address of the Bot API, when it is your own server"
    )
    mode: Literal["polling", "webhook"] = Field(
        default="polling", description="Whether updates are fetched, or Telegram delivers them"
    )
    webhook_url: str | None = Field(
        default=None, description="Where Telegram delivers: an https address that leads to this gateway"
    )
    webhook_secret: SecretStr | None = Field(
        default=None, description="What Telegram proves with that it is Telegram: A-Z a-z 0-9 _ -"
    )
    groups: Groups = Field(
        default="mention",
        description="What it answers where several read: what names it, replies, commands, or all",
    )
    session_strategy: Strategy = Field(
        default="thread", description="What is one conversation: a chat, a person in it, or a thread of it"
    )
    streaming: bool = Field(default=True, description="Whether an answer is shown while it is made")
    edits: Literal["rerun", "ignore"] = Field(
        default="rerun", description="Whether a message that its writer changes is answered anew"
    )
    thinking: str = Field(default="", description="Emoji that marks a message while it is being answered")
    file_bytes: int = Field(
        default=10_000_000, ge=0, le=20_000_000, description="Bytes of the largest file that is taken in"
    )
    pages: int = Field(
        default=6, ge=1, le=50, description="Messages of one answer; what is longer comes as a file"
    )

    tools: bool = Field(default=True, description="Whether answers tell which tools were used")
    pace: float = Field(
        default=1.0,
        gt=0,
        le=1000,
        description="How many times the published limits it may call, where more is granted",
    )

    @staticmethod
    def questions(given: Mapping[str, str]) -> Mapping[str, str]:
        """Return the settings that the first setup asks for, each with a hint where to find the value."""
        asked = {"token": "Write /newbot to @BotFather on Telegram; it answers with the bot's token."}
        return {key: how for key, how in asked.items() if key not in given}

    @field_validator("token")
    @classmethod
    def _is_token(cls, token: SecretStr) -> SecretStr:
        if not token.get_secret_value().strip():
            raise ValueError("must not be blank")
        if not _TOKEN.fullmatch(token.get_secret_value()):
            raise ValueError("must be a bot's token, like 123456789:AA…")
        return token

    @field_validator("api_base_url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ValueError("must be an address that begins with http:// or https://")
        return url.rstrip("/").removesuffix("/bot")

    @model_validator(mode="after")
    def _can_be_delivered_to(self) -> Self:
        if self.mode == "polling":
            return self
        if not self.webhook_url or not urlsplit(self.webhook_url).hostname:
            raise ValueError("mode webhook needs webhook_url, the address that Telegram delivers to")
        secret = self.webhook_secret.get_secret_value() if self.webhook_secret else ""
        if not _SECRET.fullmatch(secret):
            raise ValueError("mode webhook needs webhook_secret: 1 to 256 of the characters A-Z a-z 0-9 _ -")
        return self
