"""The door: whether a message is heard, and as whose."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from gateway.access.people import THE_OWNER, Members, Who
from gateway.auth import OWNER
from gateway.channel import InboundMessage, SenderRole
from gateway.errors import SettingsError
from gateway.registry import ChannelRegistry
from gateway.settings import ChannelRules

Rules = Callable[[str], "ChannelRules | None"]
"""The rules of a channel by its id, if the settings have any."""

_CLOSED = ChannelRules()
_ROOM = 256


class Door:
    """Judges by ids alone. Whoever is not named by a channel's rules and no member there is a stranger.

    A message may bring its sender's role along: those of web clients do, who have shown the gateway's token,
    and those that plugins submit for themselves.
    """

    def __init__(self, rules: Rules, channels: ChannelRegistry, members: Members) -> None:
        self._rules = lru_cache(maxsize=_ROOM)(rules)
        self._channels = channels
        self._members = members

    def rules(self, channel: str) -> ChannelRules:
        """The rules of a channel; without any it is closed."""
        return self._rules(channel) or _CLOSED

    def who(self, channel: str, message: InboundMessage) -> Who:
        """The sender, as codes and persons know them."""
        owner = message.role == "admin" and message.sender.id == OWNER
        return THE_OWNER if owner else Who(channel, message.sender.id)

    def role(self, channel: str, message: InboundMessage) -> SenderRole | None:
        """What the sender may do; None for a stranger."""
        if message.role is not None:
            return message.role
        user, rules = message.sender.id, self.rules(channel)
        member = self._members.get(Who(channel, user))
        if user in rules.admins or (member is not None and member.role == "admin"):
            return "admin"
        if member is not None or rules.allow == "*" or user in rules.allow:
            return "user"
        return None

    def hears(self, channel: str, message: InboundMessage) -> bool:
        """Whether a message is answered at all: in groups strangers are not."""
        return not message.address.group or self.role(channel, message) is not None

    def check(self) -> None:
        """Raise SettingsError for rules on a channel that they would not guard."""
        for channel in self._channels.list():
            written = sorted(self.rules(channel.id).model_fields_set & {"allow", "admins"})
            if written and getattr(channel, "follows_session", False):
                raise SettingsError(
                    f"channels.{channel.id}.{written[0]}: "
                    "whoever has server.token may talk here; take this out"
                )
