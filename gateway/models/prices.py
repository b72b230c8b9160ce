"""Prices: the cost of a model call in US dollars, as decimals.

A price in the settings wins over the one in the catalog.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final

from msgspec import Struct

from gateway.contract.deltas import Tokens
from gateway.models.catalog import Catalog, ListedPrice, Rate, Rates

_MILLION = Decimal(1_000_000)
_PRICE_SECONDS = 60.0
"""Seconds to cache a price: some prices change with the time of day."""
_MAX_PRICES = 1_000
"""Largest number of cached prices: clients may send any number of names of models."""

_DATA_NAMES: Final[Mapping[str, str]] = {"vertex": "google"}
"""Providers that the price data lists under another id."""
_FREE: Final = ("demo", "local")
"""Providers without a price."""


class Tariff(Struct, frozen=True):
    """US dollars per million tokens. Cached and cache-write tokens cost as much as input if None."""

    input: Decimal
    output: Decimal
    cached: Decimal | None = None
    cache_write: Decimal | None = None

    @classmethod
    def of(cls, rates: Rates | None) -> Tariff | None:
        """Return the tariff of the settings; a price that they leave out is 0."""
        if rates is None:
            return None
        return cls(
            _decimal(rates.input) or Decimal(0),
            _decimal(rates.output) or Decimal(0),
            _decimal(rates.cached),
            _decimal(rates.cache_write),
        )

    def cost(self, tokens: Tokens) -> Decimal:
        """Return the cost of these tokens."""
        fresh = tokens.input - tokens.cached - tokens.cache_write
        cached = self.input if self.cached is None else self.cached
        written = self.input if self.cache_write is None else self.cache_write
        total = fresh * self.input + tokens.output * self.output
        return (total + tokens.cached * cached + tokens.cache_write * written) / _MILLION


def _decimal(price: float | None) -> Decimal | None:
    return None if price is None else Decimal(str(price))


Cost = Callable[[Tokens], Decimal]


class Prices:
    """Costs by provider and model.

    ``configured`` returns the tariff that the settings give for provider and model; ``catalog_id`` the
    provider id in ``catalog``.
    """

    def __init__(
        self,
        catalog: Catalog,
        configured: Callable[[str, str], Tariff | None] = lambda _provider, _model: None,
        clock: Callable[[], float] = time.monotonic,
        catalog_id: Callable[[str], str] = lambda provider: provider,
    ) -> None:
        self._catalog = catalog
        self._configured = configured
        self._catalog_id = catalog_id
        self._clock = clock
        self._costs: dict[tuple[str, str], tuple[float, Cost | None]] = {}

    def cost(self, provider: str, model: str, tokens: Tokens) -> Decimal | None:
        """Return the cost of one call, or None without a known price."""
        if not (tokens.input or tokens.output):
            return None
        cost = self._cost_of(provider, model)
        return None if cost is None else cost(tokens)

    def _cost_of(self, provider: str, model: str) -> Cost | None:
        known, now = self._costs.get((provider, model)), self._clock()
        if known is None or known[0] <= now:
            if len(self._costs) >= _MAX_PRICES:
                self._costs.clear()
            known = self._costs[provider, model] = (now + _PRICE_SECONDS, self._lookup(provider, model))
        return known[1]

    def _lookup(self, provider: str, model: str) -> Cost | None:
        tariff = self._configured(provider, model)
        if tariff is not None:
            return tariff.cost
        if provider in _FREE:
            return _free
        catalog_id = self._catalog_id(provider)
        if catalog_id == "litellm" and "/" in model:  # the data knows the vendor that it passes calls on to
            catalog_id, _, model = model.partition("/")
        listed = self._catalog.listed(_DATA_NAMES.get(catalog_id, catalog_id), model)
        price = None if listed is None else listed.price
        return None if price is None else lambda tokens: _listed_cost(price, tokens)


def _free(_tokens: Tokens) -> Decimal:
    return Decimal(0)


def _listed_cost(price: ListedPrice, tokens: Tokens) -> Decimal:
    tariff = Tariff(
        _rate_at(price.input, tokens) or Decimal(0),
        _rate_at(price.output, tokens) or Decimal(0),
        _rate_at(price.cached, tokens),
        _rate_at(price.written, tokens),
    )
    return tariff.cost(tokens) + (_rate_at(price.request, tokens) or Decimal(0)) / 1000


def _rate_at(rate: Rate | None, tokens: Tokens) -> Decimal | None:
    """Return the price that holds for requests of this length."""
    if rate is None:
        return None
    for tier in range(len(rate) - 2, 0, -2):
        if tokens.input > rate[tier]:
            return rate[tier + 1]
    return rate[0]
