"""Prices: what a call of a model costs, in US dollars.

What the settings say of a model counts; else data that is part of the installation. Amounts are decimal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from gateway.routing.facts import Rates
from gateway.tokens import Tokens

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice

_MILLION = Decimal(1_000_000)
_GOOD_FOR = 60.0
"""Seconds that a price is good for: some change with the time of day."""

_THEIR_NAMES: Final[Mapping[str, str]] = {"vertex": "google"}
"""Providers that the data knows by another name than the one it would find."""
_FREE: Final = ("demo", "local")
"""Providers that nobody has to pay."""
_UNITS: Final = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")
_REQUESTS: Final = "requests_kcount"


class Tariff(Struct, frozen=True):
    """US dollars for a million tokens. What is cached, or written to a cache, costs as input unless said."""

    input: Decimal
    output: Decimal
    cached: Decimal | None = None
    cache_write: Decimal | None = None

    @classmethod
    def of(cls, rates: Rates | None) -> Tariff | None:
        """What the settings say; a price that they leave out is none."""
        if rates is None:
            return None
        return cls(
            _exactly(rates.input) or Decimal(0),
            _exactly(rates.output) or Decimal(0),
            _exactly(rates.cached),
            _exactly(rates.cache_write),
        )

    def cost(self, tokens: Tokens) -> Decimal:
        """What so many tokens cost."""
        fresh = tokens.input - tokens.cached - tokens.cache_write
        cached = self.input if self.cached is None else self.cached
        written = self.input if self.cache_write is None else self.cache_write
        total = fresh * self.input + tokens.output * self.output
        return (total + tokens.cached * cached + tokens.cache_write * written) / _MILLION


def _exactly(price: float | None) -> Decimal | None:
    return None if price is None else Decimal(str(price))


Cost = Callable[[Tokens], Decimal]


class Prices:
    """Costs by provider and model. The data is loaded with the first call whose provider is known.

    ``own`` tells the tariff of a model by its provider and name, where the settings do; ``kind`` the provider
    that one stands in for.
    """

    def __init__(
        self,
        own: Callable[[str, str], Tariff | None] = lambda _provider, _model: None,
        clock: Callable[[], float] = time.monotonic,
        kind: Callable[[str], str] = lambda provider: provider,
    ) -> None:
        self._own = own
        self._kind = kind
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[float, Cost | None]] = {}

    def cost(self, provider: str, model: str, tokens: Tokens) -> Decimal | None:
        """The cost of one call, or None where no price is known."""
        if not (tokens.input or tokens.output):
            return None
        cost = self._cost_of(provider, model)
        return None if cost is None else cost(tokens)

    def _cost_of(self, provider: str, model: str) -> Cost | None:
        known, now = self._known.get((provider, model)), self._clock()
        if known is None or known[0] <= now:
            known = self._known[provider, model] = (now + _GOOD_FOR, self._found(provider, model))
        return known[1]

    def _found(self, provider: str, model: str) -> Cost | None:
        tariff = self._own(provider, model)
        if tariff is not None:
            return tariff.cost
        return _nothing if provider in _FREE else _listed(self._kind(provider), model)


def _nothing(_tokens: Tokens) -> Decimal:
    return Decimal(0)


def _listed(provider: str, model: str) -> Cost | None:
    """How the data prices a model, if it knows it."""
    from genai_prices.data_snapshot import get_snapshot  # 27 MB and 0.2 s: only when a model is used

    try:
        name = _THEIR_NAMES.get(provider, provider)
        _, found = get_snapshot().find_provider_model(model, None, name, None)
    except (LookupError, ValueError):
        return None
    tariff = _tariff(found)
    return tariff.cost if tariff is not None else lambda tokens: _reckoned(found, tokens)


def _tariff(model: ModelInfo) -> Tariff | None:
    """A model's prices as a plain tariff: the library takes far longer. None if they depend on more."""
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


def _reckoned(model: ModelInfo, tokens: Tokens) -> Decimal:
    """The cost by the library's own rules, for prices that depend on the length of the input or on more."""
    from genai_prices import Usage

    usage = Usage(
        input_tokens=tokens.input,
        output_tokens=tokens.output,
        cache_read_tokens=tokens.cached or None,
        cache_write_tokens=tokens.cache_write or None,
    )
    return _prices(model).calc_price(usage)["total_price"]
