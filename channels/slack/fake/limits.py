"""Rate limits of each method, and calls that ignore a wait."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from channels.slack.fake.calls import Asked
from channels.slack.fake.validation import methods
from gateway.testing.fake_platform import Clock, Patience, Window

WINDOW = 60
PER_MINUTE: Mapping[int, int] = {1: 1, 2: 20, 3: 50, 4: 100}
"""Calls a minute by tier, for each method and workspace."""

SPECIAL: Mapping[str, int] = {
    "assistant.threads.setStatus": 60,
    "auth.test": 600,
    "chat.getPermalink": 600,
    "chat.postMessage": 60,
    "oauth.v2.access": 100,
}
"""Calls a minute of methods with figures of their own, for each room where they name one."""

POSTS_PER_WORKSPACE = 300
"""Messages a minute in a workspace, in whatever rooms."""

SCARCE = frozenset({"conversations.history", "conversations.replies"})
_IN_FLIGHT = 0.1
"""Real seconds in which a call may have been on its way before the refusal of another was read."""

Key = tuple[str, str, str]


class Limits:
    """The rate limits of one app."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._patience = Patience(clock, _IN_FLIGHT)
        self._windows: dict[Key, Window] = {}

    def check(self, asked: Asked) -> int | None:
        """Count a call. Returns the real seconds to wait if it may not pass."""
        windows: list[Window] = []
        for key, most in _keys(asked):
            windows.append(self._windows.setdefault(key, Window(self._clock, most, WINDOW)))
            windows[-1].most = most  # a switch may have changed it
        wait = max((window.wait() for window in windows), default=0)
        if wait > 0:
            return max(1, ceil(wait / self._clock.pace))
        for window in windows:
            window.count()
        return None

    def refused(self, asked: Asked, seconds: int) -> None:
        """Remember that the app was asked to wait so many real seconds."""
        self._patience.ask(_key(asked), seconds)

    def impatient(self, asked: Asked) -> int | None:
        """Return the seconds that the app should still have waited, if it did not."""
        key = _key(asked)
        return max(1, ceil(self._patience.left(key))) if self._patience.is_impatient(key) else None


def _keys(asked: Asked) -> list[tuple[Key, int]]:
    """Return the windows of a call, and the most calls that each takes."""
    scarce = asked.state.switches.scarce_history and asked.method in SCARCE
    if not asked.state.switches.limited and not scarce:
        return []
    tier = methods()[asked.method].tier
    keys = [(_key(asked), 1 if scarce else SPECIAL.get(asked.method) or PER_MINUTE[tier])]
    if asked.method == "chat.postMessage":
        keys.append(((asked.method, asked.grant.team, "*"), POSTS_PER_WORKSPACE))
    return keys


def _key(asked: Asked) -> Key:
    """Return the key of a limit: a method in a workspace; of a special method, in a chat."""
    room = ""
    if asked.method in SPECIAL:
        room = str(asked.arguments.get("channel") or asked.arguments.get("channel_id") or "")
    return asked.method, asked.grant.team, room
