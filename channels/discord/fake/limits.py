"""Rate limits of the fake: the figures, the buckets, the total limit, and the ban for invalid calls."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from channels.discord.fake.calls import ApiCall, ApiError
from gateway.testing.fake_platform import Clock, Patience, Window

_CHANNEL, _MESSAGE = "/channels/{channel_id}", "/channels/{channel_id}/messages/{message_id}"
_REACTION = _MESSAGE + "/reactions/{emoji_name}"
_REACTING: Final = (1, 0.25)

BUCKETS: Final[Mapping[str, tuple[int, float]]] = {
    f"POST {_CHANNEL}/messages": (5, 5),
    f"GET {_CHANNEL}/messages": (5, 5),
    f"PATCH {_MESSAGE}": (5, 5),
    f"DELETE {_MESSAGE}": (5, 1),
    f"POST {_CHANNEL}/messages/bulk-delete": (1, 1),
    f"PUT {_REACTION}/@me": _REACTING,
    f"DELETE {_REACTION}/@me": _REACTING,
    f"DELETE {_REACTION}/{{user_id}}": _REACTING,
    f"POST {_CHANNEL}/typing": (5, 5),
    f"PATCH {_CHANNEL}": (2, 600),
    f"POST {_MESSAGE}/threads": (50, 300),
    f"POST {_CHANNEL}/threads": (50, 300),
    "POST /webhooks/{webhook_id}/{webhook_token}": (5, 2),
    "PATCH /webhooks/{webhook_id}/{webhook_token}/messages/@original": (5, 5),
    "PATCH /webhooks/{webhook_id}/{webhook_token}/messages/{message_id}": (5, 5),
}
"""Calls per seconds, for each channel, guild or webhook: unpublished, taken from the headers of responses."""

ELSEWHERE: Final = (10, 10)
"""Bucket of all other calls."""

UNLIMITED_CALLS: Final = frozenset(
    {"POST /interactions/{interaction_id}/{interaction_token}/callback", "GET /gateway"}
)
"""Calls without a bucket."""


class Figures(Struct, frozen=True, kw_only=True):
    """Limits of the platform; the defaults are Discord's. ``limits`` switches the rate limits.

    ``reading`` are the seconds until the response of an endpoint has an effect.
    """

    limits: bool = True
    calls_a_second: int = 50
    invalid_calls: int = 10_000
    invalid_window: float = 600
    old_edits: int = 3
    old_edits_window: float = 20
    identifies: int = 1000
    identify_window: float = 86_400
    identify_interval: float = 5
    max_concurrency: int = 1
    gateway_events: int = 120
    gateway_window: float = 60
    gateway_bytes: int = 4096
    command_creates: int = 200
    heartbeat: float = 41.25
    resumable: float = 180
    nonces: float = 180
    first_response: float = 3
    reading: float = 0.05
    token_life: float = 900
    link_life: float = 86_400
    file_bytes: int = 10 * 1024 * 1024
    request_bytes: int = 25 * 1024 * 1024


def relaxed() -> Figures:
    """Return figures without rate limits and without a pause between two logins."""
    return Figures(limits=False, identify_interval=0)


Scope = Literal["user", "shared", "global"]

_IN_FLIGHT: Final = 0.05
"""Seconds in which a call may arrive that was sent before the bot read that it has to wait."""
_ROUNDED: Final = 0.002
"""Seconds by which a wait may be too short, because headers have milliseconds."""
_GLOBAL: Final = "global"


class RateLimited(ApiError):
    """Refusal of a call that came too early, or that a test has scripted."""

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
        """Return the body of the response, which has no error code."""
        return {"message": self.message, **self.detail}


class _Bucket:
    """Fixed window that begins with its first call."""

    def __init__(self, opened: float) -> None:
        self.opened = opened
        self.used = 0


class RateLimits:
    """Counters of calls. ``impatient`` is the number of calls that ignored a wait."""

    def __init__(self, clock: Clock, figures: Figures) -> None:
        self.impatient = 0
        self._clock = clock
        self._figures = figures
        self._patience = Patience(clock, _IN_FLIGHT)
        self._buckets: dict[str, _Bucket] = {}
        self._scripted: dict[str, deque[tuple[float, Scope]]] = {}
        self._invalid = Window(clock, figures.invalid_calls, figures.invalid_window)
        self._banned_until = 0.0

    def script(self, call: str, seconds: float, scope: Scope) -> None:
        """Refuse the next call with a name, with status 429."""
        self._scripted.setdefault(call, deque()).append((seconds, scope))

    def take(self, call: ApiCall) -> Mapping[str, str]:
        """Count a call and return the headers of its response. Raises RateLimited."""
        interaction = call.name in UNLIMITED_CALLS or "{webhook_token}" in call.name
        self._check_patience((self._key(call), *(() if interaction else (_GLOBAL,))))
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
        """Return the error 429 for a call, and make the bot wait from now on."""
        if scope == "global":
            return self._refuse(_GLOBAL, seconds, scope, {})
        headers = self._headers(call, self._bucket_of(call), 1)
        return self._refuse(self._key(call), seconds, scope, headers)

    def note(self, status: int, *, shared: bool = False) -> None:
        """Count the status of a response. Too many invalid calls ban the address."""
        if status not in (401, 403, 429) or shared:
            return
        self._invalid.count()
        if self._invalid.used >= self._invalid.most:
            self._banned_until = self._clock.now() + self._figures.invalid_window

    @property
    def invalid(self) -> int:
        """Return the number of calls in the last ten minutes that were answered 401, 403 or 429."""
        return self._invalid.used

    @property
    def banned(self) -> float:
        """Return the seconds for which the address is still banned; 0 if it is not."""
        return max(0.0, self._banned_until - self._clock.now())

    def _key(self, call: ApiCall) -> str:
        return f"{call.name} {call.major()}"

    def _bucket(self, key: str, seconds: float) -> _Bucket:
        now = self._clock.now()
        bucket = self._buckets.get(key)
        if bucket is None or now >= bucket.opened + seconds:
            bucket = self._buckets[key] = _Bucket(now)
        return bucket

    def _bucket_of(self, call: ApiCall) -> _Bucket:
        return self._bucket(self._key(call), BUCKETS.get(call.name, ELSEWHERE)[1])

    def _count(self, call: ApiCall) -> Mapping[str, str]:
        bucket = self._bucket_of(call)
        most, seconds = BUCKETS.get(call.name, ELSEWHERE)
        if not self._figures.limits:
            return self._headers(call, bucket, 1)
        if bucket.used >= most:
            left = bucket.opened + seconds - self._clock.now()
            raise self._refuse(self._key(call), left, "user", self._headers(call, bucket, 0))
        bucket.used += 1
        return self._headers(call, bucket, most - bucket.used)

    def _count_global(self) -> None:
        bucket = self._bucket(_GLOBAL, 1)
        if bucket.used >= self._figures.calls_a_second:
            raise self._refuse(_GLOBAL, bucket.opened + 1 - self._clock.now(), "global", {})
        bucket.used += 1

    def _refuse(self, key: str, seconds: float, scope: Scope, headers: Mapping[str, str]) -> RateLimited:
        self._patience.ask(key, seconds)
        return RateLimited(seconds, scope, headers, None)

    def _check_patience(self, keys: tuple[str, ...]) -> None:
        for key in keys:
            left = self._patience.left(key)
            if left <= _ROUNDED:
                continue
            problem = None
            if self._patience.is_impatient(key):
                self.impatient += 1
                problem = f"called {left:.2f} s before the end of the wait"
            raise RateLimited(left, "global" if key == _GLOBAL else "user", {}, problem)

    def _headers(self, call: ApiCall, bucket: _Bucket, remaining: int) -> Mapping[str, str]:
        most, seconds = BUCKETS.get(call.name, ELSEWHERE)
        reset = bucket.opened + seconds
        return {
            "X-RateLimit-Limit": str(most),
            "X-RateLimit-Remaining": str(remaining),
            "X-RateLimit-Reset": _rounded_up(reset),
            "X-RateLimit-Reset-After": _rounded_up(max(0.0, reset - self._clock.now())),
            "X-RateLimit-Bucket": hashlib.sha256(call.name.encode()).hexdigest()[:32],
        }


def _rounded_up(seconds: float) -> str:
    """Return seconds with three decimals, rounded up so that a call after that wait is not too early."""
    return f"{math.ceil(seconds * 1000) / 1000:.3f}"
