"""How often each method may be called, and whether the app waits as long as it was told to."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import ceil

from channels.slack.fake.asking import Asked
from channels.slack.fake.checking import schema

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
    """The windows of one app."""

    def __init__(self) -> None:
        self._calls: dict[Key, deque[float]] = {}
        self._blocked: dict[Key, tuple[float, float]] = {}

    def check(self, asked: Asked) -> int | None:
        """Real seconds to wait, or None when the call may pass, which is then counted."""
        keys = self._keys(asked)
        waits = [wait for key, most in keys if (wait := self._wait(asked, key, most)) is not None]
        if waits:
            return max(1, ceil(max(waits) / asked.state.clock.pace))
        for key, _ in keys:
            self._calls.setdefault(key, deque()).append(asked.state.clock.now())
        return None

    def refused(self, asked: Asked, seconds: int) -> None:
        """Remember that the app was told to wait."""
        clock = asked.state.clock
        now = clock.now()
        self._blocked[_key(asked)] = (now + _IN_FLIGHT * clock.pace, now + seconds * clock.pace)

    def impatient(self, asked: Asked) -> int | None:
        """Seconds that the app should still have waited, if it did not."""
        known, until = self._blocked.get(_key(asked), (0.0, 0.0))
        clock = asked.state.clock
        now = clock.now()
        return max(1, ceil((until - now) / clock.pace)) if known < now < until else None

    def _keys(self, asked: Asked) -> list[tuple[Key, int]]:
        scarce = asked.state.switches.scarce_history and asked.method in SCARCE
        if not asked.state.switches.limited and not scarce:
            return []
        tier = schema().methods[asked.method].tier
        most = 1 if scarce else SPECIAL.get(asked.method) or PER_MINUTE[tier]
        keys = [(_key(asked), most)]
        if asked.method == "chat.postMessage":
            keys.append(((asked.method, asked.grant.team, "*"), POSTS_PER_WORKSPACE))
        return keys

    def _wait(self, asked: Asked, key: Key, most: int) -> float | None:
        now = asked.state.clock.now()
        calls = self._calls.setdefault(key, deque())
        while calls and calls[0] <= now - WINDOW:
            calls.popleft()
        return calls[0] + WINDOW - now if len(calls) >= most else None


def _key(asked: Asked) -> Key:
    """What shares a window: a method's calls for one workspace, a special one's for one room."""
    room = ""
    if asked.method in SPECIAL:
        room = str(asked.arguments.get("channel") or asked.arguments.get("channel_id") or "")
    return asked.method, asked.grant.team, room
