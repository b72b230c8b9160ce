"""Slack channel: an app that connects by Socket Mode or HTTP, in one workspace or several.

In: ``[channels.slack]`` and deliveries of Slack. Out: messages for the gateway, and its answers. The gateway
loads it by name; tests import its modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.channel import Channel, Host

if TYPE_CHECKING:
    from channels.slack.options import Options


def create(host: Host, channel_id: str, options: Options) -> Channel:
    """Create the channel from its settings. Raises SettingsError if a required token is missing."""
    from channels.slack.channel import SlackChannel

    return SlackChannel(host, channel_id, options)


def __getattr__(name: str) -> Any:
    if name == "Options":
        from channels.slack.options import Options

        return Options
    if name == "probe":
        from channels.slack.workspace import probe

        return probe
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
