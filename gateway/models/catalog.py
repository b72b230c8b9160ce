"""Model facts: context window, output limit, abilities, prices and dates of a model.

``Catalog`` reads the price data that is installed with the gateway, so most facts need no request. The data
holds names, windows and prices but no abilities, except that a model with an audio price accepts audio.
``equivalent`` picks the model of another provider that is nearest to a given one.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from gateway.contract.provider import Capabilities, ModelInfo
from gateway.settings import ModelSettings

if TYPE_CHECKING:
    from genai_prices import types as genai


_DATED = re.compile(r"(20\d\d)-?(\d\d)-?(\d\d)(?=$|[-:@])")


class Rates(Struct, frozen=True, omit_defaults=True):
    """Prices in US dollars per million tokens. ``rising`` marks base prices that rise with the request's
    length.
    """

    input: float | None = None
    output: float | None = None
    cached: float | None = None
    cache_write: float | None = None
    rising: bool = False


class ModelFacts(Struct, frozen=True, omit_defaults=True):
    """The facts of a model; None is unknown.

    ``released`` and ``retires`` (the first day on which its provider no longer serves it) are dates such as
    ``2025-05-14``.
    """

    id: str
    provider: str
    name: str = ""
    description: str = ""
    context_window: int | None = None
    output_limit: int | None = None
    tools: bool | None = None
    images: bool | None = None
    audio: bool | None = None
    reasoning: bool | None = None
    json_mode: bool | None = None
    rates: Rates | None = None
    deprecated: bool | None = None
    released: str | None = None
    retires: str | None = None

    @property
    def retired(self) -> bool:
        """Return whether its provider no longer serves it."""
        return self.retires is not None and self.retires <= date.today().isoformat()

    @property
    def full_name(self) -> str:
        """The name ``provider/model``, as in the settings."""
        return f"{self.provider}/{self.id}"

    def filled_from(self, below: ModelFacts) -> ModelFacts:
        """Return these facts, with unknown ones taken from other facts."""
        silent = [field for field in self.__struct_fields__ if getattr(self, field) in (None, "")]
        return msgspec.structs.replace(self, **{field: getattr(below, field) for field in silent})

    def capabilities(self, usual: Capabilities) -> Capabilities:
        """Return the model's capabilities; ``usual`` are those of its provider, for what is unknown."""
        told = {name: getattr(self, name, None) for name in Capabilities.__struct_fields__}
        said = {name: able for name, able in told.items() if able is not None}
        return msgspec.structs.replace(usual, **said) if said else usual


def facts_from_settings(provider: str, model: str, said: ModelSettings | None) -> ModelFacts:
    """Return the facts that the settings give for a model."""
    if said is None:
        return ModelFacts(model, provider)
    return ModelFacts(
        model,
        provider,
        context_window=said.context_window,
        output_limit=said.output_limit,
        tools=said.tools,
        images=said.images,
        reasoning=said.reasoning,
        json_mode=said.json_mode,
        rates=configured_rates(said),
    )


def configured_rates(said: ModelSettings) -> Rates | None:
    """Return the prices that the settings give, or None without any."""
    rates = Rates(said.input_price, said.output_price, said.cached_price, said.cache_write_price)
    return None if rates == Rates() else rates


def facts_from_listing(told: ModelInfo) -> ModelFacts:
    """Return the facts that a provider gave when it listed a model."""
    return ModelFacts(
        told.id,
        told.provider,
        name=told.name,
        context_window=told.context_window,
        output_limit=told.output_limit,
        tools=told.tools,
        images=told.images,
        reasoning=told.reasoning,
        released=release_date(told.id),
    )


def release_date(model: str) -> str | None:
    """Return the release date in a model's id (``claude-sonnet-4-20250514``), or None without one."""
    found = _DATED.search(model)
    try:
        return None if found is None else date(*map(int, found.groups())).isoformat()
    except ValueError:
        return None


_NOT_CHAT = re.compile(
    r"audio|babbage|davinci|embed|guard|image|live|moderation|ocr|omni|orpheus|realtime|rerank|robotics|search"
    r"|sonic|speech|transcribe|tts|video|voice|voxtral|whisper"
)
"""Parts of the ids of models that are not for chat."""


_PLACEHOLDER = re.compile(r"^regional\.|^ft:|\.ft-|:extended$|-maas$")
_GOOGLE = ("google", "vertex")


class Catalog:
    """The offline data of models, by provider. Empty until ``load``."""

    def __init__(self) -> None:
        self._providers: Mapping[str, genai.Provider] | None = None
        self._found: dict[str, genai.Provider | None] = {}

    async def load(self) -> None:
        """Read the data in a thread. It takes 27 MB and 0.2 s, so call this only when facts are needed."""
        if self._providers is None:
            self._providers = await asyncio.to_thread(_providers)

    def find(self, provider: str, model: str) -> ModelFacts | None:
        """Return the facts of a model at a provider, under any name that the data knows it by."""
        sells = self._provider(provider)
        if sells is None:
            return None
        found = sells.find_model(model, all_providers=list((self._providers or {}).values()))
        return None if found is None else _facts(provider, model, found)

    def lists_own(self, provider: str, model: str) -> bool:
        """Return whether a model is in the provider's own list, not in that of a vendor it resells."""
        sells = self._provider(provider)
        return sells is not None and sells.find_model(model) is not None

    def models_of(self, provider: str) -> Iterator[ModelFacts]:
        """Yield the facts of a provider's models, by the provider's ids.

        Ids that cannot be requested are left out: placeholders of the price data, and models of other vendors
        in Google's cloud, where they use another protocol.
        """
        sells = self._provider(provider)
        for model in () if sells is None else sells.models:
            if not _PLACEHOLDER.search(model.id) and not (provider in _GOOGLE and "claude" in model.id):
                yield _facts(provider, model.id, model)

    def _provider(self, provider: str) -> genai.Provider | None:
        if provider not in self._found and self._providers is not None:
            from genai_prices.data_snapshot import find_provider_by_id  # loaded by now

            self._found[provider] = find_provider_by_id(list(self._providers.values()), provider)
        return self._found.get(provider)


def is_chat_model(model: str) -> bool:
    """Return whether a model is for chat, judged by its id."""
    return _NOT_CHAT.search(model.lower()) is None


def _providers() -> Mapping[str, genai.Provider]:
    from genai_prices.data_snapshot import get_snapshot  # see Catalog.load

    return {provider.id: provider for provider in get_snapshot().providers}


def _facts(provider: str, model: str, found: genai.ModelInfo) -> ModelFacts:
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
        released=release_date(model),
    )


def _rates(prices: genai.ModelPrice) -> Rates | None:
    keys = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")
    given = [getattr(prices, key, None) for key in keys]
    if all(price is None for price in given):
        return None
    rising = any(price is not None and not isinstance(price, Decimal) for price in given)
    return Rates(*map(_dollars, given), rising=rising)


def _dollars(price: Decimal | genai.TieredPrices | None) -> float | None:
    if price is None:
        return None
    return float(price if isinstance(price, Decimal) else price.base)


_SAME_TIER = math.log(1.5)
"""Largest difference between the logarithms of two prices of the same tier."""

_INPUT_PER_OUTPUT = 3
"""Input tokens per output token in a typical conversation."""

_VENDORS = re.compile(r"^([a-z]+\.)+")
_DATES = re.compile(r"[-@]20\d\d-?\d\d-?\d\d")
_REVISION = re.compile(r"-v\d+$|-latest$")
_NUMBER = re.compile(r"(?<!\d)\d{1,2}(?:[.-]\d{1,2}(?!\d|[a-z]))*(?![\dbkmx])")


def closest_model(wanted: ModelFacts, offered: Sequence[ModelFacts]) -> str | None:
    """Return the id of the offered model that is closest to the wanted one, or None.

    The same model under another id comes first (``claude-sonnet-4-20250514`` is ``anthropic/claude-sonnet-4``
    elsewhere). Next comes, of the models in the same price tier, the one with the highest version; then the
    one with the nearest price. Without a known price nothing is close. The caller leaves out retired models.
    The result does not depend on the order of the models.
    """
    ordered = sorted(offered, key=lambda facts: (len(facts.id), facts.id))
    same = next((facts.id for facts in ordered if name_key(facts.id) == name_key(wanted.id)), None)
    return same or _closest_by_price(
        wanted, [facts for facts in ordered if not facts.deprecated and is_chat_model(facts.id)]
    )


def name_key(model: str) -> tuple[str, ...]:
    """Return the words and numbers of a model's id without vendor, date and revision, words first."""
    bare = model.lower().rpartition("/")[2].partition(":")[0]
    bare = _REVISION.sub("", _DATES.sub("", _VENDORS.sub("", bare)))
    pieces = re.split(r"[-._]", bare)
    if pieces[-1] == "0":
        pieces.pop()
    return (*sorted(p for p in pieces if not p.isdigit()), *(p for p in pieces if p.isdigit()))


def _closest_by_price(wanted: ModelFacts, offered: Sequence[ModelFacts]) -> str | None:
    price = _price(wanted)
    if price is None:
        return None
    away = {facts.id: abs(math.log(other / price)) for facts in offered if (other := _price(facts))}
    if not away:
        return None
    near = [facts for facts in offered if away.get(facts.id, math.inf) <= _SAME_TIER]
    if not near:
        return min(away, key=lambda model: away[model])
    return max(near, key=lambda facts: (_version(facts.id), _fits_window(facts, wanted), -away[facts.id])).id


def _price(facts: ModelFacts) -> float | None:
    """Return the price of a million tokens of a typical conversation; None if it is unknown or zero."""
    rates = facts.rates
    if rates is None or rates.input is None or rates.output is None:
        return None
    return (_INPUT_PER_OUTPUT * rates.input + rates.output) / (_INPUT_PER_OUTPUT + 1) or None


def _version(model: str) -> tuple[int, ...]:
    """Return the version in a model's id: ``gpt-5.4-mini`` is (5, 4)."""
    found = _NUMBER.search(_DATES.sub("", _VENDORS.sub("", model.rpartition("/")[2])))
    return () if found is None else tuple(map(int, re.split(r"[.-]", found[0])))


def _fits_window(facts: ModelFacts, wanted: ModelFacts) -> bool:
    """Return whether the context window is at least as large as the wanted model's."""
    return (facts.context_window or 0) >= (wanted.context_window or 0)
