"""Settings of a Discord bot: the table ``[channels.discord]``."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, SecretStr

from gateway import SettingsError
from gateway.channel import SharedOptions

Threads = Literal["off", "open"]

_ID = re.compile(r"[0-9]{1,20}", re.ASCII)
_TOKEN = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)
_COPY = "with the Developer Mode of Discord's settings, the menu has"


def _web_address(url: str) -> str:
    if not url.startswith(("https://", "http://")):
        raise ValueError("must begin with https:// or http://")
    return url.rstrip("/")


def _socket_address(url: str | None) -> str | None:
    if url is not None and not url.startswith(("wss://", "ws://")):
        raise ValueError("must begin with wss:// or ws://")
    return url


def _public_key(key: str) -> str:
    if key and not re.fullmatch("[0-9a-fA-F]{64}", key):
        raise ValueError("must have 64 hexadecimal digits")
    return key


def _emoji(emoji: str) -> str:
    # Keyboards add this mark to some emoji.
    emoji = emoji.replace("\ufe0f", "")
    if any(character.isascii() or character.isalnum() for character in emoji) or len(emoji) > 10:
        raise ValueError("must be an emoji, and not one of a server")
    return emoji


def _path(path: str | None) -> str | None:
    if path is not None and not re.fullmatch(r"(/[\w.~-]+)+", path, re.ASCII):
        raise ValueError("must be a path like /discord/interactions")
    return path


class Options(SharedOptions):
    """Connection and behaviour of one bot."""

    model_config = ConfigDict(hide_input_in_errors=True)

    token: SecretStr = Field(
        default=SecretStr(""), description="Bot token, from the application's page Bot; required"
    )
    api_base_url: Annotated[str, AfterValidator(_web_address)] = Field(
        default="https://discord.com/api/v10",
        description="Base URL of the REST API; default https://discord.com/api/v10",
    )
    gateway_url: Annotated[str | None, AfterValidator(_socket_address)] = Field(
        default=None, description="WebSocket URL of Discord's gateway; the one that the API returns if unset"
    )
    shards: Literal["auto"] | Annotated[int, Field(gt=0, le=1000)] = Field(
        default="auto",
        description="Number of gateway connections, which share the servers; auto: the number that Discord "
        "recommends, which is 1 for most bots; 1 to 1000; default auto",
    )
    public_key: Annotated[str, AfterValidator(_public_key)] = Field(
        default="",
        description="Public key from the application's page General Information, to receive commands and "
        "buttons by HTTP; default off",
    )
    interactions_path: Annotated[str | None, AfterValidator(_path)] = Field(
        default=None,
        description="Path to which Discord posts these; default /discord/interactions, or "
        "/discord/<account>/interactions",
    )
    threads: Threads = Field(
        default="off",
        description="open: an answer in a server's channel starts a thread; off: it is a reply; default off",
    )
    stop_reaction: Annotated[str, AfterValidator(_emoji)] = Field(
        default="🛑",
        description="Emoji reaction that stops an answer while it is generated, set by a user on one of its "
        "messages; none if empty; default 🛑",
    )
    file_bytes: int = Field(
        default=10_000_000,
        gt=0,
        description="Largest accepted file, in bytes; default 10000000",
    )

    def check(self, table: str) -> None:
        """Raise SettingsError if the token is missing or malformed, or a library is not installed."""
        token = self.token.get_secret_value()
        if not token.strip():
            raise SettingsError(f"{table}.token: is missing; the page Bot of the application shows it")
        if re.match(r"bot\s", token, re.IGNORECASE):
            raise SettingsError(f"{table}.token: must be the token alone, without the word Bot before it")
        if token.split() != [token] or not token.isascii() or not token.isprintable():
            raise SettingsError(f"{table}.token: must not contain blanks or non-ASCII characters")
        # Other servers, such as those for tests, have their own tokens.
        if self.api_base_url.startswith("https://discord.com/") and not _TOKEN.fullmatch(token):
            raise SettingsError(
                f"{table}.token: must be a bot's token, three parts with dots between them; "
                "the page Bot of the application shows it (its ids, keys and client secret are others)"
            )
        if self.public_key and importlib.util.find_spec("cryptography") is None:
            raise SettingsError(
                f"{table}.public_key: needs the extra interactions: pip install 'trunkline[interactions]'"
            )

    @staticmethod
    def check_id(given: str, *, room: bool) -> None:
        """Raise ValueError if this is not the id of a room, or of a user or a role."""
        if room and not _ID.fullmatch(given):
            raise ValueError(f"is not the id of a channel, which has digits only; {_COPY} Copy Channel ID")
        if not _ID.fullmatch(given.removeprefix("role:")):
            raise ValueError(
                "is not the id of a user, which has digits only, or of a role, such as role:123456789; "
                f"{_COPY} Copy User ID"
            )

    def route(self, channel_id: str) -> str:
        """Return the path to which Discord posts interactions."""
        return self.interactions_path or f"/{channel_id.replace('.', '/')}/interactions"

    def logins(self) -> Mapping[str, tuple[str, str]]:
        """Return the bot's id, which is the beginning of its token and no secret."""
        bot = self.token.get_secret_value().partition(".")[0]
        return {"token": (f"{self.api_base_url} {bot}", f"{bot}.…")}

    def posted_path(self, channel_id: str) -> str | None:
        """Return the path to which Discord posts interactions, or None if they come over the gateway."""
        return self.route(channel_id) if self.public_key else None

    @staticmethod
    def questions(given: Mapping[str, str]) -> Mapping[str, str]:
        """Return the settings that the first setup asks for, each with a hint where to find the value."""
        asked = {
            "token": "discord.com/developers/applications, your application, Bot: Reset Token shows it once."
        }
        return {key: how for key, how in asked.items() if key not in given}
