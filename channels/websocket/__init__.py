"""Websocket channel and the web page.

In: ``[channels.websocket]`` and frames and requests of clients. Out: messages for the gateway, and its
answers. The gateway loads it by name; tests import its modules.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from gateway.channel import Channel, Host


class Options(BaseModel):
    """Settings of ``[channels.websocket]``: only the keys that all channels have."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def create(host: Host, channel_id: str, _options: Options) -> Channel:
    """Return the channel, ready to run."""
    from channels.websocket.channel import WebsocketChannel

    return WebsocketChannel(host, channel_id)
