"""Settings of a Slack app: ``[channels.slack]``, or one of its accounts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, StringConstraints

from gateway import SettingsError
from gateway.channel import SharedOptions

Line = Annotated[str, StringConstraints(min_length=1, max_length=2_000, strip_whitespace=True)]

_API = "https://slack.com/api/"
_SIGNING_SECRET = re.compile("[0-9a-f]{32}")
_ID = re.compile(r"([A-Z0-9]+:)*[A-Z0-9]+")
_BOT = ("xoxb-", "xoxe.xoxb-")
_BEGINNINGS = {"bot_token": _BOT, "workspaces": _BOT, "app_token": ("xapp-",)}
"""Beginnings of tokens by setting; a token that Slack rotates has another one."""


class Options(SharedOptions):
    """Connection and behaviour of one Slack app."""

    mode: Literal["socket", "http"] = Field(
        default="socket",
        description="socket: connects to Slack; http: Slack sends to the public URL; default socket",
    )
    bot_token: SecretStr = Field(
        default=SecretStr(""), description="Bot token, xoxb-…; required unless client_id is set"
    )
    workspaces: tuple[SecretStr, ...] = Field(
        default=(), description="Bot tokens of further workspaces with the same app; default none"
    )
    app_token: SecretStr = Field(
        default=SecretStr(""), description="App token with connections:write, xapp-…; required by mode socket"
    )
    signing_secret: SecretStr = Field(
        default=SecretStr(""), description="Signing secret of the app; required by mode http"
    )
    client_id: str = Field(
        default="", description="Client id of the app; enables installation by other workspaces; default off"
    )
    client_secret: SecretStr = Field(
        default=SecretStr(""), description="Client secret of the app; required with client_id"
    )
    redirect_url: str | None = Field(
        default=None,
        description="Public URL that ends an installation; the one registered for the app if unset",
    )
    installations: Path = Field(
        default=Path("data/slack.json"),
        description="File with the tokens of workspaces that installed the app; default data/slack.json",
    )
    api_base_url: str = Field(default=_API, description="Base URL of the Web API; default Slack's public URL")
    path: str | None = Field(
        default=None,
        description="Path for deliveries in mode http; default /slack/events, or /slack/<account>/events",
    )
    thinking: str = Field(
        default="eyes",
        description="Emoji reaction on a message while it is answered; empty for none; default eyes",
    )
    command_prefix: str = Field(
        default="",
        pattern=r"^[a-z0-9_-]{0,16}$",
        description="Prefix of slash commands, at most 16 of a-z 0-9 _ -; default none",
    )
    file_bytes: int = Field(
        default=10_000_000,
        gt=0,
        description="Largest accepted file, in bytes; default 10000000",
    )
    feedback: bool = Field(default=True, description="Show feedback buttons under answers; default true")
    greeting: str = Field(
        default="What can I do for you?",
        max_length=200,
        description="Heading above the suggested prompts; default What can I do for you?",
    )
    prompts: Mapping[Line, Line] = Field(
        default={
            "What can you do?": "What can you do, and which tools do you have?",
            "Summarize a text": "Summarize a text for me. Ask me for it.",
            "Draft a message": "Help me to draft a message. Ask me what it is about and who reads it.",
        },
        max_length=4,
        description="Suggested prompts for users who open the app, at most 4: label and message; {} for none",
    )

    @staticmethod
    def questions(given: Mapping[str, str]) -> Mapping[str, str]:
        """Return the settings that ``trunkline setup`` asks for, with the place where Slack shows each."""
        asked = {
            "bot_token": "api.slack.com/apps, your app, OAuth & Permissions: Bot User OAuth Token, xoxb-…"
        }
        if given.get("mode", "socket") == "socket":
            asked |= {"app_token": "Basic Information, App-Level Tokens: one with connections:write, xapp-…"}
        else:
            asked |= {"signing_secret": "Basic Information, App Credentials: the Signing Secret"}
        return {key: how for key, how in asked.items() if key not in given}

    def check(self, table: str) -> None:
        """Raise SettingsError if a token or secret that ``mode`` needs is missing."""
        needed = {"client_secret": self.client_secret} if self.client_id else {"bot_token": self.bot_token}
        if self.mode == "socket":
            needed["app_token"] = self.app_token
        else:
            needed["signing_secret"] = self.signing_secret
        for name, secret in needed.items():
            if not secret.get_secret_value().strip():
                raise SettingsError(f"{table}.{name}: is missing; mode {self.mode!r} needs it")
        # Slack's pages show several tokens beside each other.
        for name, secret in (*(("workspaces", each) for each in self.workspaces), *needed.items()):
            begin = _BEGINNINGS.get(name)
            if begin and not secret.get_secret_value().strip().startswith(begin):
                raise SettingsError(
                    f"{table}.{name}: is a token of another kind; it must begin with {begin[0]}"
                )

        secret = self.signing_secret.get_secret_value().strip()
        # Other servers, such as those for tests, have their own secrets.
        if self.mode == "http" and self.api_base_url == _API and not _SIGNING_SECRET.fullmatch(secret):
            raise SettingsError(
                f"{table}.signing_secret: is not a signing secret, which has 32 hexadecimal digits; the page "
                "Basic Information of the app shows it (its tokens are others)"
            )
        if self.redirect_url is not None and not self.redirect_url.startswith("https://"):
            raise SettingsError(
                f"{table}.redirect_url: {self.redirect_url!r} must begin with https://, Slack takes no other"
            )

    def logins(self) -> Mapping[str, tuple[str, str]]:
        """Return the tokens. Slack divides the deliveries of an app among its connections."""
        tokens = {"bot_token": self.bot_token}
        if self.mode == "socket":
            tokens["app_token"] = self.app_token
        secrets = {key: token.get_secret_value().strip() for key, token in tokens.items()}
        return {
            key: (f"{self.api_base_url} {secret}", f"{secret[:8]}…")
            for key, secret in secrets.items()
            if secret
        }

    @staticmethod
    def check_id(given: str, *, room: bool) -> None:
        """Raise ValueError if this is not the id of a room, or of a user or a user group."""
        if room and not _ID.fullmatch(given):
            raise ValueError(
                "is not the id of a channel, such as C0123456789; the details of the channel end with it"
            )
        if not _ID.fullmatch(given.removeprefix("usergroup:")):
            raise ValueError(
                "is not the id of a user, such as U0123456789, or of a user group, such as "
                "usergroup:S0123456789; the profile of the user has Copy member ID in its menu"
            )

    def route(self, channel_id: str) -> str:
        """Return the path to which Slack sends deliveries."""
        return self.path or f"{_folder(channel_id)}/events"

    def posted_path(self, channel_id: str) -> str | None:
        """Return the path to which Slack posts, or None for an outgoing connection."""
        return self.route(channel_id) if self.mode == "http" else None

    def installing(self, channel_id: str) -> tuple[str, str]:
        """Return the paths where an installation begins and ends."""
        return f"{_folder(channel_id)}/install", f"{_folder(channel_id)}/oauth_redirect"


def _folder(channel_id: str) -> str:
    return f"/{channel_id.replace('.', '/')}"
