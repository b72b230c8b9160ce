"""The providers that were called: circuits, keys and limits, and keys that their backends reject.

Circuits and limits are those of fallback and of the leases. That a key is rejected is concluded from the
counters: a failed authorization after the last answer. A provider with one key keeps no state of it.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from gateway.app import Gateway
from gateway.contract.errors import AuthFailedError
from gateway.models.fallback import FAILURES_TO_OPEN
from gateway.provider_http import HttpProvider
from gateway.provider_http.leases import LimitState
from gateway.server.now.shapes import ProviderNow

Circuit = Literal["closed", "failing", "open", "testing", "rejected"]
_JITTER_MS = 1_500
_REJECTED = AuthFailedError.__name__


class _Seen:
    """Counts of a provider at the last look, and the time since which it is in its state."""

    def __init__(self, now: int) -> None:
        self.calls = 0
        self.rejections = 0
        self.rejected_since: int | None = None
        self.rejected_calls = 0
        self.state = ""
        self.until: int | None = None
        self.since = now


class ProviderWatch:
    """The providers. ``look`` is called about once a second, and before they are listed."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._seen: dict[str, _Seen] = {}
        self._states: dict[str, ProviderNow] = {}

    def look(self, now: int) -> None:
        """Look at the providers."""
        calls, rejections = Counter[str](), Counter[str]()
        for (provider, _), count in self._gateway.parts.spending.ledger.calls.items():
            calls[provider] += count
        counters = self._gateway.counters
        for counted in (counters.failures, counters.retries):
            for (provider, _, error), count in counted.items():
                rejections[provider] += count if error == _REJECTED else 0
        circuits = self._gateway.profiles.all["main"].fallback.circuits
        for name in sorted(calls.keys() | rejections.keys() | circuits.keys()):
            seen = self._seen.setdefault(name, _Seen(now))
            _note(seen, calls[name], rejections[name], now)
            self._states[name] = self._state(name, seen, circuits.get(name, (0, 0.0)), now)

    def states(self) -> list[ProviderNow]:
        """Return the providers as they were at the last look."""
        return [self._states[name] for name in sorted(self._states)]

    def rejected(self) -> list[tuple[ProviderNow, int]]:
        """Return the providers that reject a key, with the number of refused calls."""
        return [
            (state, self._seen[name].rejected_calls)
            for name, state in self._states.items()
            if state.circuit == "rejected" or state.refused_keys
        ]

    def forget_rejections(self, name: str) -> None:
        """Forget that a provider rejected its key, because that was replaced."""
        if (seen := self._seen.get(name)) is not None:
            seen.rejected_since, seen.rejected_calls = None, 0

    @property
    def calls_in_line(self) -> int:
        """The number of calls that wait for a key."""
        return sum(state.waiting for state in self._states.values())

    def _state(self, name: str, seen: _Seen, circuit: tuple[int, float], now: int) -> ProviderNow:
        provider = self._gateway.providers.get(name)
        limits = (provider.limits if isinstance(provider, HttpProvider) else None) or LimitState(1)
        failures, seconds = circuit
        state, text = _describe(seen, limits, failures, seconds)
        if state != seen.state:
            seen.state, seen.since = state, seen.rejected_since or now
        return ProviderNow(
            id=name,
            name=title_of(self._gateway, name),
            circuit=state,
            text=text,
            failures=failures,
            until=_ends(seen, max(seconds, limits.held_seconds), now),
            since=seen.since,
            keys=limits.keys,
            refused_keys=len(limits.refused),
            held_keys=limits.held,
            running=limits.running,
            waiting=limits.waiting,
            concurrency=limits.concurrency,
            requests=limits.requests,
            requests_per_minute=limits.requests_per_minute,
            tokens=limits.tokens,
            tokens_per_minute=limits.tokens_per_minute,
        )


def title_of(gateway: Gateway, name: str) -> str:
    """Return the display name of a provider, with its id if another one has the same name."""
    provider = gateway.providers.get(name)
    if provider is None:
        return name
    same = sum(each.name == provider.name for each in gateway.providers.list())
    return provider.name if same == 1 else f"{provider.name} ({name})"


def _note(seen: _Seen, calls: int, rejections: int, now: int) -> None:
    if rejections > seen.rejections:
        seen.rejected_since = seen.rejected_since or now
        seen.rejected_calls += rejections - seen.rejections
    elif calls > seen.calls:
        seen.rejected_since, seen.rejected_calls = None, 0
    seen.calls, seen.rejections = calls, rejections


def _ends(seen: _Seen, seconds: float, now: int) -> int | None:
    """Return the end of the pause, in milliseconds. It stays the same from look to look within the jitter."""
    ends = now + round(seconds * 1000) if seconds > 0 else None
    if ends is None or seen.until is None or abs(ends - seen.until) > _JITTER_MS:
        seen.until = ends
    return seen.until


def _describe(seen: _Seen, limits: LimitState, failures: int, seconds: float) -> tuple[Circuit, str]:
    if seen.rejected_since is not None and len(limits.refused) in (0, limits.keys):
        return "rejected", "rejects the key" if limits.keys == 1 else "rejects all keys"
    if seconds > 0:
        return "open", f"skipped for a while after {failures} failures in a row"
    # As many failures as open a circuit, and the time of that is over: the next call tries it.
    if failures >= FAILURES_TO_OPEN:
        return "testing", f"{failures} failures; the next call tries it again"
    if failures:
        return "failing", "failed once" if failures == 1 else f"failed {failures} times in a row"
    if limits.refused:
        return "closed", f"works; {len(limits.refused)} of {limits.keys} keys are rejected"
    if limits.held == limits.keys:
        return "closed", "waits for its rate limit"
    return "closed", "works"
