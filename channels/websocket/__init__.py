"""The websocket channel and the web page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway import Channel, Host


def create(host: Host, channel_id: str, options: Mapping[str, Any]) -> Channel:
    """The channel, ready to run. It has no settings of its own."""
    from channels.websocket.channel import WebsocketChannel

    if options:
        from gateway import SettingsError

        raise SettingsError(f"channels.{channel_id}: unknown setting {', '.join(sorted(options))}")
    return WebsocketChannel(host, channel_id)
