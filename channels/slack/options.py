"""The settings of a Slack app, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from gateway import SettingsError


class Options(BaseModel):
    """What stands in ``[channels.slack]``, and in ``[channels.slack.accounts.<name>]`` of each account."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["socket", "http"] = Field(
        default="socket", description="Whether we call Slack, or Slack calls us under our public address"
    )
    bot_token: SecretStr = Field(default=SecretStr(""), description="The bot's token, xoxb-…")
    workspaces: tuple[SecretStr, ...] = Field(
        default=(), description="The bot's tokens in further workspaces that have the same app"
    )
    app_token: SecretStr = Field(
        default=SecretStr(""), description="The app's token with connections:write, xapp-…; for sockets"
    )
    signing_secret: SecretStr = Field(
        default=SecretStr(""), description="What Slack signs its requests with; for http"
    )
    client_id: str = Field(
        default="", description="The app's client id, for workspaces that install it themselves"
    )
    client_secret: SecretStr = Field(default=SecretStr(""), description="The app's client secret")
    redirect_url: str | None = Field(
        default=None, description="Public address of the end of an installation, when the app has several"
    )
    installations: Path = Field(
        default=Path("data/slack.json"), description="File that keeps the tokens of those workspaces"
    )
    api_base_url: str = Field(default="https://slack.com/api/", description="Address of the Web API")
    path: str | None = Field(
        default=None, description="Where Slack sends to; /slack/events, or /slack/<account>/events"
    )
    groups: Literal["mention", "reply", "command", "always"] = Field(
        default="mention",
        description="What it answers where several read: what names it, replies, commands, or all",
    )
    session_strategy: Literal["chat", "chat_user", "thread"] = Field(
        default="thread", description="What is one conversation: a chat, a person in it, or a thread of it"
    )
    streaming: bool = Field(default=True, description="Whether an answer is shown while it is made")
    edits: Literal["rerun", "ignore"] = Field(
        default="rerun", description="Whether a message that its writer changes is answered anew"
    )
    thinking: str = Field(default="eyes", description="Emoji that marks a message while it is being answered")
    command_prefix: str = Field(
        default="", pattern=r"^[a-z0-9_-]{0,16}$", description="What the names of slash commands begin with"
    )
    file_bytes: int = Field(
        default=10_000_000, gt=0, description="Bytes of the largest file that is taken in"
    )
    pages: int = Field(
        default=6,
        ge=1,
        le=50,
        description="Messages of one answer; what is longer comes as a file",
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
        """The settings that a first setup asks for, each with where to find it."""
        asked = {
            "bot_token": "api.slack.com/apps, your app, OAuth & Permissions: Bot User OAuth Token, xoxb-…"
        }
        if given.get("mode", "socket") == "socket":
            asked |= {"app_token": "Basic Information, App-Level Tokens: one with connections:write, xapp-…"}
        else:
            asked |= {"signing_secret": "Basic Information, App Credentials: the Signing Secret"}
        return {key: how for key, how in asked.items() if key not in given}

    def check(self, channel_id: str) -> None:
        """Raises SettingsError that names what is missing."""
        needed = {"client_secret": self.client_secret} if self.client_id else {"bot_token": self.bot_token}
        if self.mode == "socket":
            needed["app_token"] = self.app_token
        else:
            needed["signing_secret"] = self.signing_secret
        for name, secret in needed.items():
            if not secret.get_secret_value().strip():
                raise SettingsError(f"channels.{channel_id}.{name}: is missing; mode {self.mode!r} needs it")

    def route(self, channel_id: str) -> str:
        """Where Slack sends to."""
        return self.path or f"{_folder(channel_id)}/events"

    def installing(self, channel_id: str) -> tuple[str, str]:
        """Where an installation begins and where it ends."""
        return f"{_folder(channel_id)}/install", f"{_folder(channel_id)}/oauth_redirect"


def _folder(channel_id: str) -> str:
    return f"/{channel_id.replace('.', '/')}"
