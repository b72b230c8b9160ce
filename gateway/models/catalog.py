"""Model facts: context window, output limit, abilities, prices and dates of a model.

``Catalog`` reads ``model_data.json``, so most facts need no request. The data holds names, windows and prices
but no abilities, except that a model with an audio price accepts audio. It is generated from the library
genai-prices, which would take 60 ms and 7 MB to load.
``closest_model`` picks the model of another provider that is nearest to a given one.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from gateway.contract.provider import Capabilities, ModelInfo
from gateway.settings import ModelSettings

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
    input_limit: int | None = None
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
        values = {name: getattr(self, name, None) for name in Capabilities.__struct_fields__}
        known = {name: able for name, able in values.items() if able is not None}
        return msgspec.structs.replace(usual, **known) if known else usual


def facts_from_settings(provider: str, model: str, said: ModelSettings | None) -> ModelFacts:
    """Return the facts that the settings give for a model."""
    if said is None:
        return ModelFacts(model, provider)
    return ModelFacts(
        model,
        provider,
        context_window=said.context_window,
        input_limit=said.input_limit,
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


def facts_from_listing(listed: ModelInfo) -> ModelFacts:
    """Return the facts that a provider gave when it listed a model."""
    return ModelFacts(
        listed.id,
        listed.provider,
        name=listed.name,
        context_window=listed.context_window,
        output_limit=listed.output_limit,
        tools=listed.tools,
        images=listed.images,
        reasoning=listed.reasoning,
        released=release_date(listed.id),
    )


def release_date(model: str) -> str | None:
    """Return the release date in a model's id (``claude-sonnet-4-20250514``), or None without one."""
    found = _DATED.search(model)
    try:
        return None if found is None else date(*map(int, found.groups())).isoformat()
    except ValueError:
        return None


_UNKNOWN_WINDOW = 128_000
"""The context window of a model that neither the settings nor any list gives, in tokens."""
ANSWER_TOKENS = 16_384
"""Tokens that are kept free and paid in advance for an answer without ``max_tokens``."""
_MOST_RESERVED = 32_000
"""Tokens of the window that are kept free for an answer, at most."""
_FEWEST_CALIBRATED = 500
"""Tokens of a request from which the reported count says something about later requests."""
_LEAST_RATIO, _MOST_RATIO = 0.25, 6.0
_LEAST_WINDOW, _MOST_WINDOW = 256, 20_000_000
_WINDOWS = tuple(
    re.compile(f"{before}[ (]*([0-9,]{{3,12}}){after}", re.IGNORECASE)
    for before, after in (
        (r"(?:tokens|limit)[^>]{0,80}>", ""),
        ("maximum (?:context|prompt) (?:length|size) (?:is|of)", ""),
        ("maximum number of tokens allowed", ""),
        ("must be <=", ""),
        ("exceeds? the limit of", ""),
        ("supports? (?:only )?up to", ""),
        ("cannot exceed", ""),
        ("context (?:limit|size|window|length)(?: is| of|:)?", ""),
        ("", " maximum context length"),
        (r"\blimit:?", ""),
    )
)
"""The ways in which providers name a model's window in their errors, the surest first."""


class ContextWindow(Struct):
    """The room of a model in tokens: its known limits, a window learned from its errors, and the ratio of
    reported to estimated tokens.
    """

    total: int | None = None
    input: int | None = None
    output: int | None = None
    learned: int | None = None
    ratio: float = 1.0

    def limit(self, max_tokens: int | None, share: float = 1.0) -> int:
        """Return the largest estimate of a request that leaves room for an answer of ``max_tokens``.

        ``share`` is the part of the window that may be used.
        """
        total = min(filter(None, (self.total, self.learned)), default=_UNKNOWN_WINDOW)
        reserved = min(filter(None, (self.output, max_tokens)), default=0)
        # A window that is smaller than the longest answer must still hold a conversation.
        free = max(total - min(reserved, _MOST_RESERVED), total // 2)
        most = min(filter(None, (self.input, free, int(total * share))))
        return int(most / self.ratio)

    def calibrate(self, reported: int, estimate: int) -> None:
        """Adjust the ratio to the input tokens that a provider reported for a request."""
        if estimate >= _FEWEST_CALIBRATED and reported >= estimate * _LEAST_RATIO:
            # Up at once and down slowly: a request that is too long costs more than an early summary.
            seen = reported / estimate
            self._set_ratio(max(seen, (self.ratio + seen) / 2))

    def learn(self, error: str, estimate: int, max_tokens: int | None) -> None:
        """Adjust the window to an error that refused a request as too long."""
        found = window_in(error)
        if found is not None:
            self.learned = found
        elif self.total is None and self.learned is None:
            self.learned = max(_LEAST_WINDOW, int(estimate * self.ratio))
        # Smaller requests fit until then: this one has to count as too long from now on.
        excess = estimate / max(1, self.limit(max_tokens))
        if excess < 1:
            self._set_ratio(self.ratio / max(excess, 0.1))

    def _set_ratio(self, ratio: float) -> None:
        self.ratio = min(max(ratio, _LEAST_RATIO), _MOST_RATIO)


def window_in(error: str) -> int | None:
    """Return the context window that an error about a too long request names, or None."""
    for pattern in _WINDOWS:
        found = pattern.search(error)
        tokens = 0 if found is None else int(found[1].replace(",", "") or 0)
        if _LEAST_WINDOW <= tokens <= _MOST_WINDOW:
            return tokens
    return None


_NOT_CHAT = re.compile(
    r"audio|babbage|davinci|embed|guard|image|live|moderation|ocr|omni|orpheus|realtime|rerank|robotics|search"
    r"|sonic|speech|transcribe|tts|video|voice|voxtral|whisper"
)
"""Parts of the ids of models that are not for chat."""


_PLACEHOLDER = re.compile(r"^regional\.|^ft:|\.ft-|:extended$|-maas$")
_GOOGLE = ("google", "vertex")
_COMPACT_DATE = re.compile(r"-(20\d\d)(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(?=[-:]|$)")


Rate = tuple[Decimal, ...]
"""A price, then pairs: a number of input tokens above which another price holds for all tokens, and that."""


class ListedPrice(Struct, frozen=True):
    """US dollars per million tokens, and per thousand requests. Times are UTC."""

    since: date | None = None
    hours: tuple[time, time] | None = None
    input: Rate | None = None
    output: Rate | None = None
    cached: Rate | None = None
    written: Rate | None = None
    request: Rate | None = None
    audio: Rate | None = None

    def holds(self, now: datetime) -> bool:
        """Return whether this is a price at that time."""
        if self.hours is not None:
            begin, end = self.hours
            return begin <= now.time() < end if begin <= end else not end <= now.time() < begin
        return self.since is None or now.date() >= self.since


class ListedModel(Struct, frozen=True):
    """A model in the data. ``match`` is the rule for its names, if it has others than its id."""

    id: str
    match: Any = None
    name: str = ""
    description: str = ""
    window: int | None = None
    deprecated: bool | None = None
    prices: tuple[ListedPrice, ...] = ()

    @property
    def price(self) -> ListedPrice | None:
        """The current price: the last one that holds, else the first."""
        now = datetime.now(UTC)
        return next((p for p in reversed(self.prices) if p.holds(now)), next(iter(self.prices), None))

    def is_called(self, name: str) -> bool:
        """Return whether a name in lower case is one of its names."""
        return name == self.id.lower() if self.match is None else _matches(self.match, name)


class _Provider(Struct, frozen=True):
    match: Any = None
    fallback: tuple[str, ...] = ()


class _Data(Struct, frozen=True):
    providers: dict[str, _Provider]
    models: dict[str, msgspec.Raw]


class Catalog:
    """The offline data of models, by provider; that of a provider is decoded when it is needed."""

    def __init__(self) -> None:
        # The file is read at the start: neither a turn nor a fallback may wait for the disk.
        content = Path(__file__).with_name("model_data.json").read_bytes()
        data = msgspec.json.decode(content, type=_Data)
        self._providers = data.providers
        # Packed, because a gateway needs few of them, and all together take 400 KiB.
        self._packed = {seller: zlib.compress(memoryview(raw), 1) for seller, raw in data.models.items()}
        self._models: dict[str, tuple[ListedModel, ...]] = {}

    def find(self, provider: str, model: str) -> ModelFacts | None:
        """Return the facts of a model at a provider, under any name that the data knows it by."""
        found = self.listed(provider, model)
        return None if found is None else _facts(provider, model, found)

    def lists_own(self, provider: str, model: str) -> bool:
        """Return whether a model is in the provider's own list, not in that of a vendor it resells."""
        return self.listed(provider, model, resold=False) is not None

    def listed(self, provider: str, model: str, *, resold: bool = True) -> ListedModel | None:
        """Return the entry of a model at a provider; with ``resold`` also at a vendor that it resells."""
        seller = self._seller(provider)
        if seller is None:
            return None
        vendors = (seller, *(self._providers[seller].fallback if resold else ()))
        # Routers write dates such as 20251211, and the data 2025-12-11.
        names = dict.fromkeys((model.lower(), _COMPACT_DATE.sub(r"-\1-\2-\3", model.lower())))
        return next(
            (
                each
                for name in names
                for vendor in vendors
                for each in self._models_of(vendor)
                if each.is_called(name)
            ),
            None,
        )

    def models_of(self, provider: str) -> Iterator[ModelFacts]:
        """Yield the facts of a provider's models, by the provider's ids.

        Ids that cannot be requested are left out: placeholders of the price data, and models of other vendors
        in Google's cloud, where they use another protocol.
        """
        seller = self._seller(provider)
        for model in () if seller is None else self._models_of(seller):
            if not _PLACEHOLDER.search(model.id) and not (provider in _GOOGLE and "claude" in model.id):
                yield _facts(provider, model.id, model)

    def _seller(self, provider: str) -> str | None:
        """Return the id by which the data knows a provider."""
        providers, name = self._providers, provider.lower().strip()
        if name in providers:
            return name
        return next(
            (key for key, each in providers.items() if each.match and _matches(each.match, name)), None
        )

    def _models_of(self, seller: str) -> tuple[ListedModel, ...]:
        if seller not in self._models:
            data = zlib.decompress(self._packed[seller])
            self._models[seller] = msgspec.json.decode(data, type=tuple[ListedModel, ...])
        return self._models[seller]


_TESTS: Mapping[str, Callable[[str, str], object]] = {
    "=": str.__eq__,
    "^": str.startswith,
    "$": str.endswith,
    "*": str.__contains__,
    "~": lambda name, pattern: re.search(pattern, name),
}
"""Tests of a name by their mark."""


def _matches(rule: Any, name: str) -> bool:
    """Return whether a name meets a rule: a mark and a text, any rule of a list, or ``all`` rules of one."""
    if isinstance(rule, list):
        return any(_matches(each, name) for each in cast("list[Any]", rule))
    if isinstance(rule, dict):
        return all(_matches(each, name) for each in cast("dict[str, list[Any]]", rule)["all"])
    text: str = rule
    return bool(_TESTS[text[0]](name, text[1:]))


def is_chat_model(model: str) -> bool:
    """Return whether a model is for chat, judged by its id."""
    return _NOT_CHAT.search(model.lower()) is None


def _facts(provider: str, model: str, found: ListedModel) -> ModelFacts:
    price = found.price
    return ModelFacts(
        model,
        provider,
        name=found.name,
        description=found.description,
        context_window=found.window,
        audio=True if price is not None and price.audio is not None else None,
        rates=None if price is None else _rates(price),
        deprecated=found.deprecated,
        released=release_date(model),
    )


def _rates(price: ListedPrice) -> Rates | None:
    given = (price.input, price.output, price.cached, price.written)
    if all(rate is None for rate in given):
        return None
    rising = any(rate is not None and len(rate) > 1 for rate in given)
    return Rates(*(None if rate is None else float(rate[0]) for rate in given), rising=rising)


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
