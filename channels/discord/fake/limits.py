"""Limits on the rate of calls: buckets, the global one, and the ban for too many invalid calls."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Literal

from channels.discord.fake.calls import ApiCall
from channels.discord.fake.clock import Clock
from channels.discord.fake.errors import ApiError
from channels.discord.fake.figures import BUCKETS, ELSEWHERE, UNLIMITED_CALLS, Figures

Scope = Literal["user", "shared", "global"]

_IN_FLIGHT: Final = 0.05
"""Seconds in which a call may still arrive that left before its sender knew that it has to wait."""
_GLOBAL: Final = "global"


class RateLimited(ApiError):
    """A call that came too early, or that a script refuses."""

    def __init__(self, seconds: float, scope: Scope, headers: Mapping[str, str], problem: str | None) -> None:
        resource = "The resource is" if scope == "shared" else "You are"
        kind = (429, 0, f"{resource} being rate limited.")
        super().__init__(kind, problem, {"retry_after": round(seconds, 3), "global": scope == "global"})
        self.headers = {
            **headers,
            "Retry-After": str(math.ceil(seconds)),
            "X-RateLimit-Scope": scope,
            **({"X-RateLimit-Global": "true"} if scope == "global" else {}),
        }
        self.scope = scope

    def body(self) -> dict[str, Any]:
        """The platform's answer, which has no code."""
        return {"message": self.message, **self.detail}


class _Window:
    def __init__(self, opened: float) -> None:
        self.opened = opened
        self.used = 0


class RateLimits:
    """Counts calls. ``impatient`` are those that came before the wait was over that they were told of."""

    def __init__(self, clock: Clock, figures: Figures) -> None:
        self.impatient = 0
        self._clock = clock
        self._figures = figures
        self._windows: dict[str, _Window] = {}
        self._told: dict[str, tuple[float, float]] = {}
        self._scripted: dict[str, deque[tuple[float, Scope]]] = {}
        self._invalid: deque[float] = deque()
        self._banned_until = 0.0

    def script(self, call: str, seconds: float, scope: Scope) -> None:
        """Refuse the next call of a name with a 429."""
        self._scripted.setdefault(call, deque()).append((seconds, scope))

    def take(self, call: ApiCall) -> Mapping[str, str]:
        """Count a call. Returns the headers of its answer. Raises RateLimited."""
        interaction = call.name in UNLIMITED_CALLS or "{webhook_token}" in call.name
        keys = (self._key(call), *(() if interaction else (_GLOBAL,)))
        self._check_patience(keys)
        headers: Mapping[str, str] = {}
        if call.name not in UNLIMITED_CALLS:
            headers = self._count(call)
        if self._scripted.get(call.name):
            seconds, scope = self._scripted[call.name].popleft()
            raise self.refusal(call, seconds, scope)
        if not interaction and self._figures.limits:
            self._count_global()
        return headers

    def refusal(self, call: ApiCall, seconds: float, scope: Scope = "user") -> RateLimited:
        """A 429 for a call; from now on the fake expects the bot to wait."""
        if scope == "global":
            return self._refuse(_GLOBAL, seconds, scope, {})
        return self._refuse(self._key(call), seconds, scope, self._headers(call, self._window(call), 1))

    def note(self, status: int, *, shared: bool = False) -> None:
        """An answer leaves. Too many that say no, and the address is banned."""
        if status not in (401, 403, 429) or shared:
            return
        now = self._clock.now()
        self._invalid.append(now)
        while self._invalid[0] < now - self._figures.invalid_window:
            self._invalid.popleft()
        if len(self._invalid) >= self._figures.invalid_calls:
            self._banned_until = now + self._figures.invalid_window

    @property
    def invalid(self) -> int:
        """How many calls of the last ten minutes were answered 401, 403 or 429."""
        return len(self._invalid)

    @property
    def banned(self) -> float:
        """For how many more seconds the address is banned."""
        return max(0.0, self._banned_until - self._clock.now())

    def _key(self, call: ApiCall) -> str:
        return f"{call.name} {call.major()}"

    def _window(self, call: ApiCall) -> _Window:
        now, key = self._clock.now(), self._key(call)
        window = self._windows.get(key)
        if window is None or now >= window.opened + BUCKETS.get(call.name, ELSEWHERE)[1]:
            window = self._windows[key] = _Window(now)
        return window

    def _count(self, call: ApiCall) -> Mapping[str, str]:
        window = self._window(call)
        most, seconds = BUCKETS.get(call.name, ELSEWHERE)
        if not self._figures.limits:
            return self._headers(call, window, 1)
        if window.used >= most:
            left = window.opened + seconds - self._clock.now()
            raise self._refuse(self._key(call), left, "user", self._headers(call, window, 0))
        window.used += 1
        return self._headers(call, window, most - window.used)

    def _count_global(self) -> None:
        now = self._clock.now()
        window = self._windows.get(_GLOBAL)
        if window is None or now >= window.opened + 1:
            window = self._windows[_GLOBAL] = _Window(now)
        if window.used >= self._figures.calls_a_second:
            raise self._refuse(_GLOBAL, window.opened + 1 - now, "global", {})
        window.used += 1

    def _refuse(self, key: str, seconds: float, scope: Scope, headers: Mapping[str, str]) -> RateLimited:
        now = self._clock.now()
        self._told[key] = (now, now + seconds)
        return RateLimited(seconds, scope, headers, None)

    def _check_patience(self, keys: tuple[str, ...]) -> None:
        now = self._clock.now()
        for key in keys:
            told, until = self._told.get(key, (0.0, 0.0))
            if now >= until - 0.002:
                continue
            problem = None
            if now > told + _IN_FLIGHT:
                self.impatient += 1
                problem = f"called {until - now:.2f} s before the wait was over"
            raise RateLimited(until - now, "global" if key == _GLOBAL else "user", {}, problem)

    def _headers(self, call: ApiCall, window: _Window, remaining: int) -> Mapping[str, str]:
        most, seconds = BUCKETS.get(call.name, ELSEWHERE)
        reset = window.opened + seconds
        return {
            "X-RateLimit-Limit": str(most),
            "X-RateLimit-Remaining": str(remaining),
            "X-RateLimit-Reset": _rounded_up(reset),
            "X-RateLimit-Reset-After": _rounded_up(max(0.0, reset - self._clock.now())),
            "X-RateLimit-Bucket": hashlib.sha256(call.name.encode()).hexdigest()[:32],
        }


def _rounded_up(seconds: float) -> str:
    """With milliseconds; who waits so long does not come too early."""
    return f"{math.ceil(seconds * 1000) / 1000:.3f}"
