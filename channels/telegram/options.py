"""Settings of a Telegram bot: ``[channels.telegram]``, or one of its accounts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, Self, cast
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from gateway.channel import SharedOptions

_API = "https://api.telegram.org"
_PORTS = (None, 443, 80, 88, 8443)
_TOKEN = re.compile(r"[0-9]+:[\x21-\x7e]+")
_ID = re.compile(r"-?[0-9]+")
_ROOM = re.compile(r"(channel:|business:[^:]+:)?-?[0-9]+")
_SECRET = re.compile(r"[A-Za-z0-9_-]{1,256}")

_REACTIONS = (
    "👍 👎 ❤ 🔥 🥰 👏 😁 🤔 🤯 😱 🤬 😢 🎉 🤩 🤮 💩 🙏 👌 🕊 🤡 🥱 🥴 😍 🐳 ❤‍🔥 "
    "🌚 🌭 💯 🤣 ⚡ 🍌 🏆 💔 🤨 😐 🍓 🍾 💋 🖕 😈 😴 😭 🤓 👻 👨‍💻 👀 🎃 🙈 😇 😨 "
    "🤝 ✍ 🤗 🫡 🎅 🎄 ☃ 💅 🤪 🗿 🆒 💘 🙉 🦄 😘 💊 🙊 😎 👾 🤷‍♂ 🤷 🤷‍♀ 😡"
)
REACTIONS = frozenset(_REACTIONS.split())
"""Emoji that Telegram allows as reactions."""


class Options(SharedOptions):
    """Connection and behaviour of one Telegram bot."""

    token: SecretStr = Field(description="Bot token from @BotFather; required")
    api_base_url: str = Field(
        default=_API,
        description="Base URL of the Bot API, if you run your own server; default https://api.telegram.org",
    )
    mode: Literal["polling", "webhook"] = Field(
        default="polling",
        description="polling: fetch updates from Telegram; webhook: Telegram sends them to webhook_url; "
        "default polling",
    )
    webhook_url: str | None = Field(
        default=None,
        description="Public https URL that leads to this gateway, one per account; required for mode webhook",
    )
    webhook_secret: SecretStr | None = Field(
        default=None,
        description="Secret that Telegram sends with each update; 1 to 256 of A-Z a-z 0-9 _ -; required for "
        "mode webhook",
    )
    thinking: str = Field(
        default="",
        description="Emoji reaction on a message while it is being answered; none if empty; default empty",
    )
    stop_reaction: str = Field(
        default="🙊",
        description="Emoji reaction that stops an answer while it is generated, set by a user on one of its "
        "messages; none if empty; default 🙊",
    )
    business: tuple[str, ...] = Field(
        default=(),
        description="Ids of the users for whose business accounts the bot answers, in their private chats; "
        "none if empty; default empty",
    )
    channel_posts: bool = Field(
        default=False,
        description="Answer posts in Telegram channels where the bot is an administrator, if allow lists the "
        "id of the channel; default false",
    )
    inline: bool = Field(
        default=False,
        description="Answer allowed users who type a question after the bot's name in any chat, without "
        "tools and history; default false",
    )
    file_bytes: int = Field(
        default=10_000_000,
        ge=0,
        le=20_000_000,
        description="Largest accepted file, in bytes; default 10000000",
    )

    rich_messages: bool = Field(
        default=True,
        description="Send texts with headings or tables as rich messages, which old apps cannot show; false: "
        "as bold lines and monospaced grids; default true",
    )

    @staticmethod
    def questions(given: Mapping[str, str]) -> Mapping[str, str]:
        """Return the required settings that are not given, each with a hint where to find its value."""
        asked = {"token": "Send /newbot to @BotFather on Telegram; the reply has the token."}
        return {key: how for key, how in asked.items() if key not in given}

    @staticmethod
    def check_id(given: str, *, room: bool) -> None:
        """Raise ValueError if this is not the id of a room, or of a user or a channel."""
        if room and not _ROOM.fullmatch(given):
            raise ValueError(
                "is not the id of a chat; `trunkline channels rooms` lists those that it has seen"
            )
        if not room and not _ID.fullmatch(given):
            raise ValueError(
                "is not the id of a user, which is a number; without it, the bot replies to the user with a "
                "code for `trunkline pair approve`"
            )

    @field_validator("token")
    @classmethod
    def _check_token(cls, token: SecretStr) -> SecretStr:
        if not token.get_secret_value().strip():
            raise ValueError("must not be blank")
        if not _TOKEN.fullmatch(token.get_secret_value()):
            raise ValueError("must be a bot's token, like 123456789:AA…")
        return token

    @field_validator("business", mode="before")
    @classmethod
    def _read_ids(cls, ids: object) -> object:
        if isinstance(ids, list | tuple):
            return [str(one) if isinstance(one, int) else one for one in cast("Sequence[object]", ids)]
        return ids

    @field_validator("business")
    @classmethod
    def _check_ids(cls, ids: tuple[str, ...]) -> tuple[str, ...]:
        for one in ids:
            if not (one.isascii() and one.isdigit()):
                raise ValueError(f"{one!r} is not the id of a user; ids are numbers")
        return ids

    @field_validator("thinking", "stop_reaction")
    @classmethod
    def _check_reaction(cls, emoji: str) -> str:
        # Keyboards add this mark to some emoji; Telegram's reactions are without it.
        emoji = emoji.replace("\ufe0f", "")
        if emoji and emoji not in REACTIONS:
            raise ValueError(
                f"must be one of the emoji that Telegram allows as reactions: {' '.join(sorted(REACTIONS))}"
            )
        return emoji

    @field_validator("api_base_url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ValueError("must be a URL that begins with http:// or https://")
        return url.rstrip("/").removesuffix("/bot")

    def logins(self) -> Mapping[str, tuple[str, str]]:
        """Return the bot's id, which is the beginning of its token and no secret."""
        bot = self.token.get_secret_value().partition(":")[0]
        return {"token": (f"{self.api_base_url} {bot}", f"{bot}:…")}

    def posted_path(self, _channel_id: str) -> str | None:
        """Return the path to which Telegram posts updates, or None if they are fetched."""
        return None if self.mode == "polling" else urlsplit(self.webhook_url or "").path or "/"

    @model_validator(mode="after")
    def _has_webhook_settings(self) -> Self:
        if self.mode == "polling":
            return self
        if not self.webhook_url or not urlsplit(self.webhook_url).hostname:
            raise ValueError("mode webhook needs webhook_url, the URL that Telegram sends updates to")
        # A Bot API server of one's own accepts others.
        if self.api_base_url == _API and not _is_public(self.webhook_url):
            raise ValueError(
                f"webhook_url = {self.webhook_url!r}: Telegram sends updates to https only, and to the ports "
                "443, 80, 88 and 8443; docs/proxy.md describes a proxy with TLS"
            )
        secret = self.webhook_secret.get_secret_value() if self.webhook_secret else ""
        if not _SECRET.fullmatch(secret):
            raise ValueError("mode webhook needs webhook_secret: 1 to 256 of the characters A-Z a-z 0-9 _ -")
        return self


def _is_public(url: str) -> bool:
    """Return whether Telegram sends updates to a URL."""
    try:
        split = urlsplit(url)
        return split.scheme == "https" and split.port in _PORTS
    except ValueError:
        return False
