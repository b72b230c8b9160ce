"""Fallback: who answers when the provider that should does not.

A chain names further providers, or models of them; of a provider named alone the model answers that comes
nearest to the one that failed. One that fails again and again is left alone for a while
(its circuit is open), then tried once; the first in the chain is returned to as soon as it works.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from typing import Literal

import structlog
from msgspec import Struct

from gateway.errors import (
    AuthFailedError,
    BudgetExceededError,
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
)
from gateway.routing.models import Models, Route

log = structlog.get_logger("trunkline.fallback")

Trigger = Literal["rate_limit", "auth_failure", "server_error", "stall"]
TRIGGERS: tuple[Trigger, ...] = ("rate_limit", "auth_failure", "server_error", "stall")

_OF: Mapping[type[ProviderError], Trigger] = {
    RateLimitError: "rate_limit",
    AuthFailedError: "auth_failure",
    ServerFailedError: "server_error",
    ProviderUnavailableError: "server_error",
    StreamAbortedError: "server_error",
    DeltaParseError: "server_error",
    EmptyAnswerError: "server_error",
    StreamTimeoutError: "stall",
}

_FAILURES_TO_OPEN = 3
_OPEN_SECONDS = 30.0


class Circuit(Struct):
    """How a provider did of late. While it is open nobody asks it; then one may try."""

    failures: int = 0
    open_until: float = 0.0

    def closed(self, now: float) -> bool:
        """Whether it may be asked."""
        return now >= self.open_until

    def failed(self, now: float) -> None:
        """It failed; after several times in a row it is left alone."""
        self.failures += 1
        if self.failures >= _FAILURES_TO_OPEN:
            self.open_until = now + _OPEN_SECONDS

    def worked(self) -> None:
        """It answered."""
        self.failures, self.open_until = 0, 0.0


class Failure(Struct, frozen=True):
    """An attempt that failed."""

    route: Route
    error: ProviderError | BudgetExceededError


class Fallback:
    """A gateway's chain, or an agent's: ``provider`` or ``provider/model``. ``clock`` tells seconds."""

    def __init__(
        self,
        models: Models,
        chain: Sequence[str] = (),
        triggers: Collection[Trigger] = TRIGGERS,
        clock: Callable[[], float] = time.monotonic,
        circuits: dict[str, Circuit] | None = None,
    ) -> None:
        self._models = models
        self._chain = tuple(chain)
        self._triggers = frozenset(triggers)
        self._clock = clock
        self._circuits: dict[str, Circuit] = {} if circuits is None else circuits

    @property
    def chain(self) -> tuple[str, ...]:
        """Who answers when the model does not, as the settings name them."""
        return self._chain

    def instead(self, chain: Sequence[str] | None, triggers: Collection[Trigger] | None) -> Fallback:
        """Another chain beside this one, which knows what this one knows of providers that fail."""
        if chain is None and triggers is None:
            return self
        return Fallback(
            self._models,
            self._chain if chain is None else chain,
            self._triggers if triggers is None else triggers,
            self._clock,
            self._circuits,
        )

    async def routes(self, first: Route) -> AsyncGenerator[Route]:
        """Whom to ask, in order: those whose circuit is open come last, for they may work after all."""
        later: list[Route] = []
        async for route in self._all(first):
            if self._circuit(route).closed(self._clock()):
                yield route
            else:
                later.append(route)
        for route in later:
            yield route

    def failed(self, route: Route, error: ProviderError | BudgetExceededError) -> bool:
        """A route failed. Returns whether another may be asked for such a failure."""
        if isinstance(error, BudgetExceededError):
            return error.elsewhere and bool(self._chain)
        trigger = next((_OF[kind] for kind in type(error).__mro__ if kind in _OF), None)
        if trigger is None or trigger not in self._triggers or not self._chain:
            return False
        self._circuit(route).failed(self._clock())
        log.warning(
            "a provider failed; another one is asked",
            provider=route.provider.id,
            model=route.model,
            trigger=trigger,
            error=error.name,
        )
        return True

    def worked(self, route: Route) -> None:
        """A route answered."""
        self._circuit(route).worked()

    async def _all(self, first: Route) -> AsyncGenerator[Route]:
        asked = {(first.provider.id, first.model)}
        yield first
        for name in self._chain:
            try:
                route = await self._models.stand_in(first, name)
            except ProviderResolutionError as error:
                log.error("a provider of the fallback chain cannot be used", name=name, reason=str(error))
                continue
            if (route.provider.id, route.model) not in asked:
                asked.add((route.provider.id, route.model))
                yield route

    def _circuit(self, route: Route) -> Circuit:
        return self._circuits.setdefault(route.provider.id, Circuit())


def exhausted(failures: Sequence[Failure]) -> ProviderError | BudgetExceededError:
    """The error for a chain in which nobody answered: the only one there is, or one that lists them all."""
    if len(failures) == 1:
        return failures[0].error
    attempts = [f"{f.route.provider.id}/{f.route.model}: {f.error.name}: {f.error}" for f in failures]
    return FallbackExhaustedError(f"nobody answered. {'; '.join(attempts)}", attempts=attempts)
