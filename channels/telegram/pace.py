"""How fast the bot may write: so many calls in so many seconds, and what the platform asked it to wait.

The platform publishes round figures only: about one message a second in a room with short bursts, twenty a
minute in a group, thirty a second altogether. Here it is a little less: calls travel.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

from channels.telegram.parse import is_group
from gateway import Clock, Limit, Pacer

_LIMITS: Mapping[str, Limit] = {
    "all": Limit(30, 1.03, burst=10),
    "room": Limit(5, 5.5),
    "group": Limit(20, 66.0),
    "previews": Limit(10, 66.0),
    "drafts": Limit(4, 5.5),
}
"""Previews in groups, and drafts in private chats, leave room for the answers themselves."""


class Pace:
    """Gives turns to calls about rooms; holds are for a room, or for a method that is about none.

    ``pace`` is how many times the platform's figures are allowed.
    """

    def __init__(self, pace: float = 1.0, clock: Clock | None = None) -> None:
        self._pacer = Pacer({kind: limit.times(pace) for kind, limit in _LIMITS.items()}, clock)

    def turn(self, chat: str, *, preview: bool = False) -> AbstractAsyncContextManager[None]:
        """Wait until a call about a room may be made; what is no preview goes first."""
        return self._pacer.turn(*_keys(chat, preview=preview), urgent=not preview)

    def probe(self) -> AbstractAsyncContextManager[None]:
        """Wait until the platform may be asked something that shows nothing in any room."""
        return self._pacer.turn("all")

    def wait(self, chat: str) -> float:
        """Seconds until there is room for a preview."""
        return self._pacer.wait(*_keys(chat, preview=True))

    def hold(self, name: str, seconds: float) -> None:
        """The platform wants no more of this for so long."""
        self._pacer.hold(("room", name), seconds)

    def held(self, name: str) -> float:
        """Seconds until it wants more, as it said."""
        return self._pacer.held(("room", name))


def _keys(chat: str, *, preview: bool) -> list[str | tuple[str, ...]]:
    keys: list[str | tuple[str, ...]] = ["all", ("room", chat)]
    if is_group(chat):
        keys.append(("group", chat))
    if preview:
        keys.append(("previews" if is_group(chat) else "drafts", chat))
    return keys
