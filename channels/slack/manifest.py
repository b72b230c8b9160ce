"""Manifest of the app for api.slack.com: scopes, events and commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from channels.slack.parse import ASK, ASK_COMMAND
from gateway import SlashCommand

SCOPES = (
    "app_mentions:read",
    "assistant:write",
    "channels:history",
    "channels:read",
    "chat:write",
    "commands",
    "files:read",
    "files:write",
    "groups:history",
    "groups:read",
    "im:history",
    "im:read",
    "im:write",
    "mpim:history",
    "mpim:read",
    "reactions:write",
    "usergroups:read",
    "users:read",
)
EVENTS = (
    "agent_session_stopped",
    "app_home_opened",
    "app_mention",
    "app_uninstalled",
    "channel_rename",
    "group_rename",
    "message.channels",
    "message.groups",
    "message.im",
    "message.mpim",
    "subteam_created",
    "subteam_members_changed",
    "subteam_updated",
    "tokens_revoked",
    "user_change",
)
BUILT_IN = frozenset(
    (
        *("active", "apps", "archive", "away", "call", "collapse", "dm", "dnd", "expand", "feed", "feedback"),
        *(
            "help",
            "invite",
            "join",
            "leave",
            "me",
            "msg",
            "mute",
            "open",
            "part",
            "prefs",
            "remind",
            "remove",
        ),
        *("rename", "search", "shortcuts", "shrug", "star", "status", "topic", "unarchive", "who"),
    )
)
"""Names of Slack's own commands. A command with such a name is registered as ``/bot-…``."""
_LONGEST_DESCRIPTION = 100


def manifest(
    commands: Sequence[SlashCommand], settings: Mapping[str, Any], url: str | None = None
) -> dict[str, Any]:
    """Build the app's manifest from the channel's settings.

    ``url`` is the public URL of the gateway for HTTP mode; without it, the app uses Socket Mode.
    """
    name = str(settings.get("name") or "Trunkline")
    address = None if url is None else url.rstrip("/") + str(settings.get("path") or "/slack/events")
    prefix = str(settings.get("command_prefix") or "")
    events: dict[str, Any] = {"bot_events": list(EVENTS)}
    interactivity: dict[str, Any] = {"is_enabled": True}
    if address is not None:
        events["request_url"] = interactivity["request_url"] = address
    return {
        "display_information": {"name": name, "description": "Answers where it is asked"},
        "features": {
            "bot_user": {"display_name": name.lower(), "always_online": True},
            "app_home": {
                "home_tab_enabled": True,
                "messages_tab_enabled": True,
                "messages_tab_read_only_enabled": False,
            },
            "agent_view": {"agent_description": "Answers where it is asked"},
            "shortcuts": [
                {
                    "name": "Ask about this",
                    "type": "message",
                    "callback_id": ASK,
                    "description": "Answers this message in its thread",
                }
            ],
            "slash_commands": [_command(*one, prefix, address) for one in offered(commands)],
        },
        "oauth_config": {"scopes": {"bot": list(SCOPES)}, **_installing(settings)},
        "settings": {
            "event_subscriptions": events,
            "interactivity": interactivity,
            "org_deploy_enabled": False,
            "socket_mode_enabled": address is None,
            "token_rotation_enabled": False,
        },
    }


def _installing(settings: Mapping[str, Any]) -> dict[str, Any]:
    address = settings.get("redirect_url")
    return {"redirect_urls": [str(address)]} if address else {}


def command_name(name: str, prefix: str) -> str:
    """Return the name under which a command is registered, without the slash."""
    return f"bot-{name}" if f"{prefix}{name}" in BUILT_IN else f"{prefix}{name}"


def offered(commands: Sequence[SlashCommand]) -> list[tuple[str, str]]:
    """Return the names and descriptions of the commands on Slack, sorted by name."""
    found = {ASK_COMMAND: "Ask a question; without a text, opens a form for it"}
    return sorted({**found, **{one.name: one.description for one in commands}}.items())


def _command(name: str, description: str, prefix: str, address: str | None) -> dict[str, Any]:
    registration: dict[str, Any] = {
        "command": f"/{command_name(name, prefix)}",
        "description": description[:_LONGEST_DESCRIPTION],
        "should_escape": False,
    }
    return registration if address is None else {**registration, "url": address}
