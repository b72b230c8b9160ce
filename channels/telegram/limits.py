"""Rate limits for the bot's calls, and the waits that the platform asked for.

Telegram publishes approximate limits only: about one message per second in a chat, with short bursts, 20 per
minute in a group, 30 per second in total. The limits here are slightly lower, because network delays can move
calls closer together.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

from channels.telegram.updates.chats import is_group
from gateway.channel import Clock, Limit, Pacer

_LIMITS: Mapping[str, Limit] = {
    "all": Limit(30, 1.03, burst=10),
    "chat": Limit(5, 5.5),
    "group": Limit(20, 66.0),
    "previews": Limit(10, 66.0),
    "drafts": Limit(4, 5.5),
}
"""Maximum calls in a number of seconds. Previews in groups and drafts in private chats have lower limits,
which leaves capacity for the answers."""


class RateLimiter:
    """Rate limiter for calls about chats. A hold applies to a chat, or to a method that concerns no chat.

    ``factor`` multiplies the platform's limits.
    """

    def __init__(self, factor: float = 1.0, clock: Clock | None = None) -> None:
        self._pacer = Pacer({kind: limit.times(factor) for kind, limit in _LIMITS.items()}, clock)

    def turn(self, chat: str, *, preview: bool = False) -> AbstractAsyncContextManager[None]:
        """Wait until a call about a chat may be made; a preview waits while another call waits."""
        return self._pacer.turn(*_keys(chat, preview=preview), urgent=not preview)

    def probe(self) -> AbstractAsyncContextManager[None]:
        """Wait until a call may be made that changes nothing visible in any chat."""
        return self._pacer.turn("all")

    def wait(self, chat: str) -> float:
        """Return the seconds until a preview may be sent."""
        return self._pacer.wait(*_keys(chat, preview=True))

    def hold(self, name: str, seconds: float) -> None:
        """Hold the calls about a chat or of a method for this many seconds."""
        self._pacer.hold(("chat", name), seconds)

    def held(self, name: str) -> float:
        """Return the remaining seconds of a hold."""
        return self._pacer.held(("chat", name))


def _keys(chat: str, *, preview: bool) -> list[str | tuple[str, ...]]:
    keys: list[str | tuple[str, ...]] = ["all", ("chat", chat)]
    if is_group(chat):
        keys.append(("group", chat))
    if preview:
        keys.append(("previews" if is_group(chat) else "drafts", chat))
    return keys
