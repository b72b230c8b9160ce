"""How often Slack may be called: by method and workspace, and once a second in each room."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic

from gateway.channel import Limit, Pacer

_MINUTE = 60.5
"""Seconds; a little more than Slack counts, as calls travel."""
_TIER_2, _TIER_3, _TIER_4 = Limit(20, _MINUTE), Limit(50, _MINUTE), Limit(100, _MINUTE)
_SPREAD = Limit(50, _MINUTE, burst=20)
"""Where many calls come at once, so that an urgent one soon has its turn."""
_PER_METHOD: Mapping[str, Limit] = {
    "agents.sessions.setStatus": _TIER_3,
    "assistant.threads.setStatus": Limit(60, _MINUTE),
    "auth.test": _TIER_4,
    "chat.appendStream": _TIER_4,
    "chat.delete": _TIER_3,
    "chat.postEphemeral": _TIER_4,
    "chat.postMessage": Limit(300, _MINUTE),
    "chat.startStream": _TIER_2,
    "chat.stopStream": _TIER_2,
    "chat.update": _TIER_3,
    "conversations.history": _SPREAD,
    "conversations.replies": _SPREAD,
    "files.completeUploadExternal": _TIER_4,
    "files.delete": _TIER_3,
    "files.getUploadURLExternal": _TIER_4,
    "files.info": _TIER_4,
    "oauth.v2.access": Limit(100, _MINUTE),
    "reactions.add": _TIER_3,
    "reactions.remove": _TIER_2,
    "users.conversations": _TIER_3,
}
_PLACING = frozenset({"chat.postMessage", "chat.startStream", "files.completeUploadExternal"})
_ROOM = "room"
_PER_ROOM = Limit(60, _MINUTE, burst=3)
"""Messages that are placed in one room."""


class Pace:
    """The windows of one app in one workspace. ``clock`` tells seconds.

    ``pace`` is how many times Slack's figures are allowed.
    """

    def __init__(self, pace: float = 1.0, clock: Callable[[], float] = monotonic) -> None:
        self._limits = {method: limit.times(pace) for method, limit in _PER_METHOD.items()}
        self._pacer = Pacer({**self._limits, _ROOM: _PER_ROOM.times(pace)})
        self._clock = clock
        self._calls: dict[str, deque[float]] = {}

    async def turn(self, method: str, room: str = "", *, urgent: bool = True) -> None:
        """Wait until a method may be called; what is urgent goes first."""
        keys = [method, (_ROOM, room)] if method in _PLACING else [method]
        async with self._pacer.turn(*keys, urgent=urgent):
            if (limit := self._limits.get(method)) is not None:
                self._calls.setdefault(method, deque(maxlen=limit.count)).append(self._clock())

    def has_room(self, method: str, share: float, owed: int = 0) -> bool:
        """Whether less than a share (0 to 1) of what a method takes is used up: for what may be left out.

        ``owed`` calls are still to come whatever happens.
        """
        limit, calls = self._limits[method], self._calls.get(method, deque())
        while calls and calls[0] < self._clock() - limit.seconds:
            calls.popleft()
        return len(calls) + owed < limit.count * share and self._pacer.held(method) <= 0

    async def spare(self, *methods: str) -> bool:
        """Take a turn of each of these methods if nobody has to wait for that; for what can be left out."""
        if any(self._pacer.wait(method) > 0 for method in methods):
            return False
        for method in methods:
            await self.turn(method, urgent=False)
        return True

    def hold(self, method: str, seconds: float) -> None:
        """The platform asked to wait: nobody calls this method before."""
        self._pacer.hold(method, seconds)
