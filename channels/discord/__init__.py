"""Discord channel for servers, threads and direct messages.

In: ``[channels.discord]`` and events of the Discord gateway. Out: messages for the gateway, and its answers.
The gateway loads it by name; tests import its modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.channel import Channel, Host

if TYPE_CHECKING:
    from channels.discord.options import Options

__all__ = ["Options", "create"]


def __getattr__(name: str) -> Any:
    # Importing the package is cheap: pydantic's models and discord.py are loaded when the channel is used.
    if name == "Options":
        from channels.discord.options import Options

        return Options
    if name == "probe":
        from channels.discord.channel import probe

        return probe
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def create(host: Host, channel_id: str, options: Options) -> Channel:
    """Return the channel of one bot, ready to run."""
    from channels.discord.channel import DiscordChannel

    return DiscordChannel(host, channel_id, options)
