"""The settings of one Discord bot, the table ``[channels.discord]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from gateway import SettingsError

Strategy = Literal["thread", "chat", "chat_user"]
When = Literal["mention", "reply", "command", "always"]
Threads = Literal["off", "open", "continue"]


def _web_address(url: str) -> str:
    if not url.startswith(("https://", "http://")):
        raise ValueError("must begin with https:// or http://")
    return url.rstrip("/")


def _socket_address(url: str | None) -> str | None:
    if url is not None and not url.startswith(("wss://", "ws://")):
        raise ValueError("must begin with wss:// or ws://")
    return url


class Options(BaseModel):
    """What an operator sets for a bot."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    token: SecretStr = Field(default=SecretStr(""), description="The bot's token, from its page Bot")
    api_base_url: Annotated[str, AfterValidator(_web_address)] = Field(
        default="https://discord.com/api/v10", description="Address of the REST API"
    )
    gateway_url: Annotated[str | None, AfterValidator(_socket_address)] = Field(
        default=None, description="Address of the gateway, when it is not the one that the API names"
    )
    session_strategy: Strategy = Field(
        default="thread",
        description="What is one conversation: a chat, a person in it, or a thread of it",
    )
    groups: When = Field(
        default="mention",
        description="What it answers where several read: what names it, replies, commands, or all",
    )
    threads: Threads = Field(
        default="off",
        description="open: answers in servers open a thread; continue: in threads it takes part in it "
        "needs no mention",
    )
    edits: Literal["rerun", "ignore"] = Field(
        default="rerun", description="Whether a message that its writer changes is answered anew"
    )
    streaming: bool = Field(default=True, description="Whether an answer is shown while it is made")
    pages: int = Field(
        default=6, gt=0, le=50, description="Messages of one answer; what is longer comes as a file"
    )
    file_bytes: int = Field(
        default=10_000_000, gt=0, description="Bytes of the largest file that is taken in"
    )
    pace: float = Field(
        default=1.0,
        gt=0,
        le=1000,
        description="How many times the published limits it may call, where more is granted",
    )
    tools: bool = Field(default=True, description="Whether answers tell which tools were used")

    def check(self, channel_id: str) -> None:
        """Raise SettingsError if the token cannot be one."""
        token = self.token.get_secret_value()
        if not token.strip():
            raise SettingsError(f"channels.{channel_id}.token: is missing; it is on the bot's page")
        if token.split() != [token] or not token.isascii() or not token.isprintable():
            raise SettingsError(f"channels.{channel_id}.token: is no token; it must not hold blanks")

    @staticmethod
    def questions(given: Mapping[str, str]) -> Mapping[str, str]:
        """The settings that a first setup asks for, each with where to find it."""
        asked = {
            "token": "discord.com/developers/applications, your application, Bot: Reset Token shows it once."
        }
        return {key: how for key, how in asked.items() if key not in given}
