"""What is known of a model: how much it reads and writes, what it can do, and what it costs."""

from __future__ import annotations

import re
from datetime import date

import msgspec
from msgspec import Struct

from gateway.provider import Capabilities, ModelInfo
from gateway.settings import ModelSettings

_DATED = re.compile(r"(20\d\d)-?(\d\d)-?(\d\d)(?=$|[-:@])")


class Rates(Struct, frozen=True, omit_defaults=True):
    """Prices in US dollars per million tokens. ``rising`` says that long requests cost more than this."""

    input: float | None = None
    output: float | None = None
    cached: float | None = None
    cache_write: float | None = None
    rising: bool = False


class ModelFacts(Struct, frozen=True, omit_defaults=True):
    """A model. None means that nobody says; ``released`` is a date, such as ``2025-05-14``."""

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

    @property
    def full_name(self) -> str:
        """The name that settings and people use."""
        return f"{self.provider}/{self.id}"

    def over(self, below: ModelFacts) -> ModelFacts:
        """These facts, and of the others what these are silent about."""
        silent = [field for field in self.__struct_fields__ if getattr(self, field) in (None, "")]
        return msgspec.structs.replace(self, **{field: getattr(below, field) for field in silent})

    def capable(self, usual: Capabilities) -> Capabilities:
        """What the model can do, where ``usual`` is what its provider's models can."""
        told = {name: getattr(self, name, None) for name in Capabilities.__struct_fields__}
        said = {name: able for name, able in told.items() if able is not None}
        return msgspec.structs.replace(usual, **said) if said else usual


def from_settings(provider: str, model: str, said: ModelSettings | None) -> ModelFacts:
    """What the settings say of a model."""
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
        rates=rates_of(said),
    )


def rates_of(said: ModelSettings) -> Rates | None:
    """The prices that the settings give, if they give any."""
    rates = Rates(said.input_price, said.output_price, said.cached_price, said.cache_write_price)
    return None if rates == Rates() else rates


def from_list(told: ModelInfo) -> ModelFacts:
    """What a provider said of a model when it listed it."""
    return ModelFacts(
        told.id,
        told.provider,
        name=told.name,
        context_window=told.context_window,
        output_limit=told.output_limit,
        tools=told.tools,
        images=told.images,
        reasoning=told.reasoning,
        released=released(told.id),
    )


def released(model: str) -> str | None:
    """The day a model came out, if its id tells, as that of ``claude-sonnet-4-20250514`` does."""
    found = _DATED.search(model)
    try:
        return None if found is None else date(*map(int, found.groups())).isoformat()
    except ValueError:
        return None
