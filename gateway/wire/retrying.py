"""How often, how long and after what a call of a provider is tried again."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from gateway.errors import ProviderError, RateLimitError, ServerFailedError
from gateway.provider import ProviderConfig

if TYPE_CHECKING:
    import stamina

_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 20.0
_FIRST_REST = 2.0
_LONGEST_REST = 30.0


class RetryPolicy:
    """How often, how long and after what a call is tried again.

    What a backend asked us to wait is waited exactly; if that is longer than the time left, the call
    fails at once. One that refused without a word about it gets a rest of 2 s, then 4 s and so on up to 30 s;
    where the connection failed, the first pause is short. ``timeout`` bounds the time within which a new
    attempt may begin.
    """

    __slots__ = ("_deadline", "_pause", "_retries", "_seconds")

    def __init__(self, config: ProviderConfig) -> None:
        self._retries = config.max_retries
        self._seconds = config.timeout / 1000
        self._deadline = time.monotonic() + self._seconds
        self._pause: float | bool = False

    @property
    def left(self) -> float:
        """Seconds within which an attempt may begin."""
        return max(0.0, self._deadline - time.monotonic())

    def attempts(self) -> AsyncIterator[stamina.Attempt]:
        """The attempts, the first of which counts as made."""
        # Loaded at the first failure: a gateway that has none needs neither its time nor its memory.
        import stamina

        return aiter(
            stamina.retry_context(
                on=lambda _: self._pause,
                attempts=self._retries + 1,
                timeout=None,
                wait_initial=_FIRST_PAUSE,
                wait_jitter=_FIRST_PAUSE,
                wait_max=_LONGEST_PAUSE,
            )
        )

    def failed(self, failure: ProviderError, attempt: int) -> float | None:
        """Attempt ``attempt`` (from 1) failed: how long to wait for the next; None if there is none."""
        pause = self._wait(failure, attempt)
        if not failure.retryable or attempt > self._retries or pause >= self.left:
            self._pause = False
            return None
        self._pause = pause
        return pause

    def _wait(self, failure: ProviderError, attempt: int) -> float:
        if failure.retry_after is not None:
            return failure.retry_after
        refused = isinstance(failure, RateLimitError | ServerFailedError)
        first, longest = (_FIRST_REST, _LONGEST_REST) if refused else (_FIRST_PAUSE, _LONGEST_PAUSE)
        return min(longest, first * 2 ** (attempt - 1)) * (1 + secrets.randbelow(250) / 1000)
