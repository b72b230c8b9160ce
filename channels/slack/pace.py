"""How often Slack may be called: by method and workspace, and once a second in each room."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic

from gateway import Limit, Pacer

_TIER_2, _TIER_3, _TIER_4 = Limit(20, 60), Limit(50, 60), Limit(100, 60)
_SPREAD = Limit(50, 60, burst=20)
"""Where many calls come at once, so that an urgent one soon has its turn."""
_PER_METHOD: Mapping[str, Limit] = {
    "agents.sessions.setStatus": _TIER_3,
    "assistant.threads.setStatus": Limit(60, 60),
    "auth.test": _TIER_4,
    "chat.appendStream": _TIER_4,
    "chat.delete": _TIER_3,
    "chat.postEphemeral": _TIER_4,
    "chat.postMessage": Limit(300, 60),
    "chat.startStream": _TIER_2,
    "chat.stopStream": _TIER_2,
    "chat.update": _TIER_3,
    "conversations.history": _SPREAD,
    "conversations.replies": _SPREAD,
    "files.completeUploadExternal": _TIER_4,
    "files.delete": _TIER_3,
    "files.getUploadURLExternal": _TIER_4,
    "files.info": _TIER_4,
    "oauth.v2.access": Limit(100, 60),
    "reactions.add": _TIER_3,
    "reactions.remove": _TIER_2,
    "users.conversations": _TIER_3,
}
_PLACING = frozenset({"chat.postMessage", "chat.startStream", "files.completeUploadExternal"})
_MOST_CALLS = max(limit.count for limit in _PER_METHOD.values())
_ROOM = "room"
_PER_ROOM = Limit(60, 60, burst=3)
"""Messages that are placed in one room."""


class Pace:
    """The windows of one app in one workspace. ``clock`` tells seconds."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._pacer = Pacer({**_PER_METHOD, _ROOM: _PER_ROOM})
        self._clock = clock
        self._calls: dict[str, deque[float]] = {}

    async def turn(self, method: str, room: str = "", *, urgent: bool = True) -> None:
        """Wait until a method may be called; what is urgent goes first."""
        keys = [method, (_ROOM, room)] if method in _PLACING else [method]
        async with self._pacer.turn(*keys, urgent=urgent):
            self._calls.setdefault(method, deque(maxlen=_MOST_CALLS)).append(self._clock())

    def has_room(self, method: str, share: float) -> bool:
        """Whether less than a share (0 to 1) of what a method takes is used up: for what may be left out."""
        limit, calls = _PER_METHOD[method], self._calls.get(method, deque())
        while calls and calls[0] < self._clock() - limit.seconds:
            calls.popleft()
        return len(calls) < limit.count * share and self._pacer.held(method) <= 0

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
