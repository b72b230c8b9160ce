"""Prices: the cost of a model call in US dollars, as decimals.

A price in the settings wins over the price data that is installed with the gateway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from gateway.contract.deltas import Tokens
from gateway.models.catalog import Rates

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice

_MILLION = Decimal(1_000_000)
_PRICE_SECONDS = 60.0
"""Seconds to cache a price: some prices change with the time of day."""

_DATA_NAMES: Final[Mapping[str, str]] = {"vertex": "google"}
"""Providers that the price data lists under another id."""
_FREE: Final = ("demo", "local")
"""Providers without a price."""
_UNITS: Final = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")
_REQUESTS: Final = "requests_kcount"


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
    """Costs by provider and model. The price data is loaded with the first call of a provider that has a
    price.

    ``configured`` returns the tariff that the settings give for provider and model; ``catalog_id`` the
    provider id in the price data.
    """

    def __init__(
        self,
        configured: Callable[[str, str], Tariff | None] = lambda _provider, _model: None,
        clock: Callable[[], float] = time.monotonic,
        catalog_id: Callable[[str], str] = lambda provider: provider,
    ) -> None:
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
            known = self._costs[provider, model] = (now + _PRICE_SECONDS, self._lookup(provider, model))
        return known[1]

    def _lookup(self, provider: str, model: str) -> Cost | None:
        tariff = self._configured(provider, model)
        if tariff is not None:
            return tariff.cost
        return _free if provider in _FREE else _data_cost(self._catalog_id(provider), model)


def _free(_tokens: Tokens) -> Decimal:
    return Decimal(0)


def _data_cost(provider: str, model: str) -> Cost | None:
    """Return the cost function of a model in the price data, or None if it is not listed."""
    from genai_prices.data_snapshot import get_snapshot  # 27 MB and 0.2 s: only when a model is used

    try:
        name = _DATA_NAMES.get(provider, provider)
        _, found = get_snapshot().find_provider_model(model, None, name, None)
    except (LookupError, ValueError):
        return None
    tariff = _tariff(found)
    return tariff.cost if tariff is not None else lambda tokens: _library_cost(found, tokens)


def _tariff(model: ModelInfo) -> Tariff | None:
    """Return a model's prices as a plain tariff, or None if they depend on more than token counts."""
    prices = _prices(model)
    given = [getattr(prices, unit, None) for unit in _UNITS]
    plain = all(price is None or isinstance(price, Decimal) for price in given)
    if not plain or getattr(prices, _REQUESTS, None) is not None:
        return None
    fresh, output, cached, written = given
    return Tariff(fresh or Decimal(0), output or Decimal(0), cached, written)


def _prices(model: ModelInfo) -> ModelPrice:
    from datetime import UTC, datetime

    return model.get_prices(datetime.now(UTC))


def _library_cost(model: ModelInfo, tokens: Tokens) -> Decimal:
    """Return the cost by the library's rules, for prices that depend on input length or on more."""
    from genai_prices import Usage

    usage = Usage(
        input_tokens=tokens.input,
        output_tokens=tokens.output,
        cache_read_tokens=tokens.cached or None,
        cache_write_tokens=tokens.cache_write or None,
    )
    return _prices(model).calc_price(usage)["total_price"]
