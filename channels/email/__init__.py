"""E-mail channel of one mailbox: receives by IMAP, answers by SMTP.

In: ``[channels.email]`` and mails of the mailbox. Out: messages for the gateway, and its answers. The gateway
loads it by name; tests import its modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.channel import Channel, Host

if TYPE_CHECKING:
    from channels.email.options import Options

__all__ = ["Options", "create"]


def create(host: Host, channel_id: str, options: Options) -> Channel:
    """Return the channel of one mailbox, ready to run."""
    from channels.email.channel import EmailChannel

    return EmailChannel(host, channel_id, options)


def __getattr__(name: str) -> Any:
    if name == "Options":
        from channels.email.options import Options

        return Options
    if name == "probe":
        from channels.email.channel import probe

        return probe
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
