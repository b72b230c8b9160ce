"""The models that are known without asking anybody: data that is part of the installation.

It holds names, windows and prices. What a model can do it does not tell, except that one whose price for
sound is known can hear.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from gateway.routing.facts import ModelFacts, Rates, released

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, Provider, TieredPrices

_OTHER_TRADES = re.compile(
    r"audio|babbage|davinci|embed|guard|image|live|moderation|ocr|omni|orpheus|realtime|rerank|robotics|search"
    r"|sonic|speech|transcribe|tts|video|voice|voxtral|whisper"
)
"""What the ids of models are made of that are for something else than talking."""


class Catalog:
    """Models by provider. ``load`` comes first; until then nothing is known."""

    def __init__(self) -> None:
        self._providers: Mapping[str, Provider] | None = None
        self._found: dict[str, Provider | None] = {}

    async def load(self) -> None:
        """Read the data: 27 MB and 0.2 s, so only when somebody wants to know, and beside the event loop."""
        if self._providers is None:
            self._providers = await asyncio.to_thread(_providers)

    def find(self, provider: str, model: str) -> ModelFacts | None:
        """What is known of a model at a provider, under whatever name it goes there."""
        sells = self._sells(provider)
        if sells is None:
            return None
        found = sells.find_model(model, all_providers=list((self._providers or {}).values()))
        return None if found is None else _facts(provider, model, found)

    def sells(self, provider: str, model: str) -> bool:
        """Whether a model is one of the provider's own list, not of one that it stands in for."""
        sells = self._sells(provider)
        return sells is not None and sells.find_model(model) is not None

    def of(self, provider: str) -> Iterator[ModelFacts]:
        """All that is known of a provider's models, by the names they have here."""
        sells = self._sells(provider)
        for model in () if sells is None else sells.models:
            yield _facts(provider, model.id, model)

    def _sells(self, provider: str) -> Provider | None:
        if provider not in self._found and self._providers is not None:
            from genai_prices.data_snapshot import find_provider_by_id  # loaded by now

            self._found[provider] = find_provider_by_id(list(self._providers.values()), provider)
        return self._found.get(provider)


def converses(model: str) -> bool:
    """Whether a model is one to talk with, judged by the words of its id."""
    return _OTHER_TRADES.search(model.lower()) is None


def _providers() -> Mapping[str, Provider]:
    from genai_prices.data_snapshot import get_snapshot  # see Catalog.load

    return {provider.id: provider for provider in get_snapshot().providers}


def _facts(provider: str, model: str, found: ModelInfo) -> ModelFacts:
    prices = found.get_prices(datetime.now(UTC)) if found.prices else None
    hears = prices is not None and getattr(prices, "input_audio_mtok", None) is not None
    return ModelFacts(
        model,
        provider,
        name=found.name or "",
        description=(found.description or "").strip(),
        context_window=found.context_window,
        audio=True if hears else None,
        rates=None if prices is None else _rates(prices),
        deprecated=found.deprecated,
        released=released(model),
    )


def _rates(prices: ModelPrice) -> Rates | None:
    keys = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")
    given = [getattr(prices, key, None) for key in keys]
    if all(price is None for price in given):
        return None
    rising = any(price is not None and not isinstance(price, Decimal) for price in given)
    return Rates(*map(_dollars, given), rising=rising)


def _dollars(price: Decimal | TieredPrices | None) -> float | None:
    if price is None:
        return None
    return float(price if isinstance(price, Decimal) else price.base)
