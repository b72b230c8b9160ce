"""Fallback: the order in which providers are called when a model fails.

A chain names further providers, or models of them; for a provider named alone, the model closest to the one
that failed is used. A provider that fails repeatedly is skipped for a while (its circuit is open), then tried
once. The first model of the chain is used again as soon as its provider works.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import structlog
from msgspec import Struct

from gateway.contract.errors import (
    AuthFailedError,
    BudgetExceededError,
    CapabilityError,
    DeltaParseError,
    EmptyAnswerError,
    FallbackExhaustedError,
    ProviderError,
    ProviderResolutionError,
    ProviderUnavailableError,
    RateLimitError,
    ServerFailedError,
    StreamAbortedError,
    StreamTimeoutError,
    sentence,
)
from gateway.contract.messages import ImagePart, Message
from gateway.contract.provider import ToolDefinition
from gateway.extensions.backends import ProviderRegistry
from gateway.models.resolve import Models, Route
from gateway.settings.models import Trigger
from gateway.trail.recorder import NO_PROVIDER, OPEN_CIRCUIT

log = structlog.get_logger("trunkline.fallback")

TRIGGERS: tuple[Trigger, ...] = ("rate_limit", "auth_failure", "server_error", "stall")

_TRIGGER_OF: Mapping[type[ProviderError], Trigger] = {
    RateLimitError: "rate_limit",
    AuthFailedError: "auth_failure",
    ServerFailedError: "server_error",
    ProviderUnavailableError: "server_error",
    StreamAbortedError: "server_error",
    DeltaParseError: "server_error",
    EmptyAnswerError: "server_error",
    StreamTimeoutError: "stall",
}

FAILURES_TO_OPEN = 3
_OPEN_SECONDS = 30.0


class Circuit(Struct):
    """Recent failures of a provider. While the circuit is open the provider is skipped; then one call may try
    it.
    """

    failures: int = 0
    open_until: float = 0.0

    def allows_call(self, now: float) -> bool:
        """Return whether the provider may be called."""
        return now >= self.open_until

    def record_failure(self, now: float) -> None:
        """Count a failure; several in a row open the circuit."""
        self.failures += 1
        if self.failures >= FAILURES_TO_OPEN:
            self.open_until = now + _OPEN_SECONDS

    def record_success(self) -> None:
        """Close the circuit."""
        self.failures, self.open_until = 0, 0.0


class Failure(Struct, frozen=True):
    """A failed attempt."""

    route: Route
    error: ProviderError | BudgetExceededError


class Fallback:
    """The fallback chain of the gateway or of an agent: entries ``provider`` or ``provider/model``.

    ``clock`` returns seconds. Without a chain, the provider's default substitute is used unless ``defaults``
    is off.
    """

    def __init__(
        self,
        models: Models,
        chain: Sequence[str] = (),
        triggers: Collection[Trigger] = TRIGGERS,
        clock: Callable[[], float] = time.monotonic,
        circuits: dict[str, Circuit] | None = None,
        *,
        defaults: bool = True,
    ) -> None:
        self._models = models
        self._chain = tuple(chain)
        self._triggers = frozenset(triggers)
        self._clock = clock
        self._circuits: dict[str, Circuit] = {} if circuits is None else circuits
        self._defaults = defaults

    @property
    def chain(self) -> tuple[str, ...]:
        """The entries of the chain, as written in the settings."""
        return self._chain

    def with_chain(self, chain: Sequence[str] | None, triggers: Collection[Trigger] | None) -> Fallback:
        """Return a fallback with another chain that shares the circuits of this one."""
        if chain is None and triggers is None:
            return self
        return Fallback(
            self._models,
            self._chain if chain is None else chain,
            self._triggers if triggers is None else triggers,
            self._clock,
            self._circuits,
            defaults=self._defaults if chain is None else False,
        )

    @property
    def circuits(self) -> Mapping[str, tuple[int, float]]:
        """The failures in a row of each provider, and the seconds for which it is still skipped."""
        now = self._clock()
        return {
            name: (circuit.failures, max(0.0, circuit.open_until - now))
            for name, circuit in self._circuits.items()
        }

    def try_again(self, provider: str) -> bool:
        """Let the next call ask a provider whose circuit is open. Returns whether it was open."""
        circuit = self._circuits.get(provider)
        if circuit is None or circuit.allows_call(self._clock()):
            return False
        circuit.open_until = 0.0
        return True

    def candidates(self, first: Route) -> Candidates:
        """Return the routes to try for a call that was meant for ``first``."""
        return Candidates(self, first)

    def allows_call(self, route: Route) -> bool:
        """Return whether the circuit of a route's provider is closed."""
        return self._circuit(route).allows_call(self._clock())

    async def substitute(self, first: Route, name: str) -> Route | None:
        """Return the route of an entry of the chain; None if it cannot be used."""
        try:
            return await self._models.substitute(first, name)
        except ProviderResolutionError as error:
            log.error("cannot use a provider of the fallback chain", name=name, reason=str(error))
            return None

    def record_failure(self, route: Route, error: ProviderError | BudgetExceededError) -> bool:
        """Record a failure of a route. Return whether another route may be tried after it."""
        if isinstance(error, BudgetExceededError):
            return error.elsewhere and bool(self.chain_of(route))
        trigger = next((_TRIGGER_OF[kind] for kind in type(error).__mro__ if kind in _TRIGGER_OF), None)
        if trigger is None or trigger not in self._triggers or not self.chain_of(route):
            return False
        self._circuit(route).record_failure(self._clock())
        log.warning(
            "a provider failed; trying the next one",
            provider=route.provider.id,
            model=route.model,
            trigger=trigger,
            error=error.name,
        )
        return True

    def record_success(self, route: Route) -> None:
        """Record an answer of a route."""
        self._circuit(route).record_success()

    def chain_of(self, route: Route) -> tuple[str, ...]:
        """Return the entries that may replace a route."""
        if self._chain or not self._defaults:
            return self._chain
        other = self._models.default_substitute(route.provider.id)
        return () if other is None else (other,)

    def _circuit(self, route: Route) -> Circuit:
        return self._circuits.setdefault(route.provider.id, Circuit())


class Candidates:
    """The routes to try for one call, in order. Those with an open circuit come last: they may work after
    all.
    """

    __slots__ = ("_asked", "_fallback", "_first", "_later", "_names", "_skipped")

    def __init__(self, fallback: Fallback, first: Route) -> None:
        self._fallback = fallback
        self._first = first
        self._names: Iterator[str] | None = None
        self._asked: set[tuple[str, str]] = set()
        self._later: list[Route] = []
        self._skipped: list[tuple[str, str]] = []

    def take_skipped(self) -> list[tuple[str, str]]:
        """Return the names that were passed over since the last call, each with the reason."""
        skipped, self._skipped = self._skipped, []
        return skipped

    def unasked(self) -> list[str]:
        """Return the names of the chain that were not reached."""
        return [] if self._names is None else list(self._names)

    async def next(self) -> Route | None:
        """Return the next route; None if all were tried."""
        # Not an async generator: nearly every call needs one route only.
        if self._names is None:
            self._names = iter(self._fallback.chain_of(self._first))
            if self._is_next(self._first):
                return self._first
        for name in self._names:
            route = await self._fallback.substitute(self._first, name)
            if route is not None and self._is_next(route):
                return route
            if route is None:
                self._skipped.append((name, NO_PROVIDER))
        return self._later.pop(0) if self._later else None

    def _is_next(self, route: Route) -> bool:
        """Return whether to try a route now; keep one with an open circuit for later."""
        key = (route.provider.id, route.model)
        if key in self._asked:
            return False
        self._asked.add(key)
        if self._fallback.allows_call(route):
            return True
        self._later.append(route)
        self._skipped.append((route.name, OPEN_CIRCUIT))
        return False


def exhausted_error(failures: Sequence[Failure]) -> ProviderError | BudgetExceededError:
    """Return the error of a chain without an answer: the only failure, or one error that lists all."""
    if len(failures) == 1:
        return failures[0].error
    said, shown = (
        "; ".join(f"{f.route.provider.id}/{f.route.model}: {text(f.error).rstrip('.')}" for f in failures)
        for text in (str, sentence)
    )
    attempts = [f"{f.route.provider.id}/{f.route.model}: {f.error.name}{_status(f.error)}" for f in failures]
    error = FallbackExhaustedError(f"no provider answered. {said}", attempts=attempts)
    error.shown = f"No provider answered. {shown}"
    return error


def _status(error: BaseException) -> str:
    status = error.upstream_status if isinstance(error, ProviderError) else None
    return f" ({status})" if status else ""


def missing_capability(
    route: Route, asked: Iterable[Message], tools: Collection[ToolDefinition] = ()
) -> CapabilityError | None:
    """Return the error for a request that the model cannot handle, or None.

    Pictures earlier in the conversation are accepted: a model without vision receives a note in their place.
    ``tools`` are those of the client; the gateway's own tools are left out for a model that cannot call
    tools.
    """
    if tools and not route.capabilities.tools:
        return CapabilityError(
            f"{route.name} does not support tools. Send the request without tools, or choose another model",
            provider=route.provider.id,
        )
    if route.capabilities.images or not any(isinstance(part, ImagePart) for m in asked for part in m.parts):
        return None
    return CapabilityError(
        f"{route.name} does not accept images. Describe the image, or choose another model with /model",
        provider=route.provider.id,
    )


def clamp_max_tokens(tokens: int | None, limit: int | None) -> int | None:
    """Return the requested answer length, at most the model's limit."""
    return tokens if tokens is None or limit is None else min(tokens, limit)


async def preload_providers(names: Collection[str], models: Models, providers: ProviderRegistry) -> None:
    """Load the code of the providers of models in a thread, before they are called.

    A provider that cannot be loaded is reported when it is used.
    """
    for name in names:
        provider_id = models.configured.aliases.get(name, name).partition("/")[0]
        try:
            await providers.load(provider_id)
        except Exception:
            log.exception("cannot load a provider", provider=provider_id)
