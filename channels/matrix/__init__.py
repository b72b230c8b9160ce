"""Matrix channel of one account, over the client-server API.

In: ``[channels.matrix]`` and events of the homeserver. Out: messages for the gateway, and its answers. The
gateway loads it by name; tests import its modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.channel import Channel, Host

if TYPE_CHECKING:
    from channels.matrix.options import Options

__all__ = ["Options", "create"]


def create(host: Host, channel_id: str, options: Options) -> Channel:
    """Return the channel of one account, ready to run."""
    from channels.matrix.channel import MatrixChannel

    return MatrixChannel(host, channel_id, options)


def __getattr__(name: str) -> Any:
    if name == "Options":
        from channels.matrix.options import Options

        return Options
    if name == "probe":
        from channels.matrix.channel import probe

        return probe
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
