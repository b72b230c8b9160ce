"""Telegram channel for private chats, groups and forums, using the Bot API.

In: ``[channels.telegram]`` and updates of the Bot API. Out: messages for the gateway, and its answers. The
gateway loads it by name; tests import its modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.channel import Channel, Host

if TYPE_CHECKING:
    from channels.telegram.options import Options

__all__ = ["Options", "create"]


def create(host: Host, channel_id: str, options: Options) -> Channel:
    """Return the channel of one bot, ready to run. Raises SettingsError if the settings contradict each
    other."""
    from channels.telegram.channel import TelegramChannel

    return TelegramChannel(host, channel_id, options)


def __getattr__(name: str) -> Any:
    if name == "Options":
        from channels.telegram.options import Options

        return Options
    if name == "probe":
        from channels.telegram.health import probe

        return probe
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
