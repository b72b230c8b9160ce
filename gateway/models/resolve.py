"""Model resolution: from the name of a model to the provider that serves it and to its facts.

A name is an alias, ``provider/model``, a provider alone, or a model alone. A model alone is looked up first
in the offline data of the available providers, then in the lists that these providers return.
"""

from __future__ import annotations

import asyncio
import difflib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date

import msgspec
import structlog
from msgspec import Struct

from gateway.contract.errors import (
    CATCHABLE,
    ProviderResolutionError,
    TrunklineError,
    is_cancellation_requested,
)
from gateway.contract.provider import Capabilities, KnowsModels, ModelInfo, Provider
from gateway.extensions.backends import ProviderRegistry
from gateway.models.catalog import (
    Catalog,
    ContextWindow,
    ModelFacts,
    Rates,
    closest_model,
    configured_rates,
    facts_from_listing,
    facts_from_settings,
    is_chat_model,
)
from gateway.models.retirements import retirement
from gateway.settings import ModelSettings, Settings

log = structlog.get_logger("trunkline.models")

LIST_TIMEOUT = 10.0
"""Seconds to wait for a provider's list of models."""

_LIST_SECONDS, _FAILURE_SECONDS = 3600.0, 60.0


class ModelList(Struct, frozen=True):
    """The models that a provider offers. After a ``failure`` these are the configured ones."""

    models: tuple[ModelInfo, ...]
    failure: str = ""


class ModelLists:
    """The model lists of all providers, cached for an hour. ``clock`` returns seconds."""

    def __init__(self, providers: ProviderRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._providers = providers
        self._clock = clock
        self.received = 0
        """Number of lists received so far."""
        self._cache: dict[str, tuple[float, ModelList]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def cached(self, provider_id: str) -> tuple[ModelInfo, ...]:
        """Return the models of a provider that are known without a request."""
        kept = self._cache.get(provider_id)
        return kept[1].models if kept else self._configured(provider_id)

    async def get_all(self, ids: Iterable[str], seconds: float = LIST_TIMEOUT) -> Mapping[str, ModelList]:
        """Return the lists of several providers, requested concurrently."""
        async with asyncio.TaskGroup() as tasks:
            asked = {name: tasks.create_task(self.get(name, seconds)) for name in dict.fromkeys(ids)}
        return {name: task.result() for name, task in asked.items()}

    async def get(self, provider_id: str, seconds: float = LIST_TIMEOUT) -> ModelList:
        """Return the list of one provider."""
        async with self._locks[provider_id]:
            kept = self._cache.get(provider_id)
            if kept is None or self._clock() >= kept[0]:
                listed = await self._fetch(provider_id, seconds)
                keep = _FAILURE_SECONDS if listed.failure else _LIST_SECONDS
                kept = self._cache[provider_id] = (self._clock() + keep, listed)
        return kept[1]

    def forget(self, provider_id: str) -> None:
        """Drop a provider's list, so that the next call requests it again."""
        self._cache.pop(provider_id, None)

    async def _fetch(self, provider_id: str, seconds: float) -> ModelList:
        try:
            async with asyncio.timeout(seconds):
                provider = await self._providers.ready(provider_id)
                listed = ModelList(tuple(await provider.list_models()))
                self.received += 1
                return listed
        except CATCHABLE as error:
            if is_cancellation_requested(error):
                raise
            reason = _reason(error, seconds)
            log.warning("cannot list the models of a provider", provider=provider_id, reason=reason)
            return ModelList(self._configured(provider_id), reason)

    def _configured(self, provider_id: str) -> tuple[ModelInfo, ...]:
        return tuple(ModelInfo(name, provider_id) for name in self._providers.configured(provider_id).models)


def _reason(error: BaseException, seconds: float) -> str:
    """Return the reason of a failed list; a plugin's provider may raise any exception."""
    if isinstance(error, TimeoutError):
        return f"no answer within {seconds:g} seconds"
    return str(error) if isinstance(error, TrunklineError) else f"{type(error).__name__}: {error}"


_NEAREST = 3


class ModelFinder:
    """Finds the provider of a model named alone: first offline, then in the providers' lists."""

    def __init__(
        self,
        providers: ProviderRegistry,
        models: Mapping[str, ModelSettings],
        lists: ModelLists,
        catalog: Catalog,
    ) -> None:
        self._providers = providers
        self._models = models
        self._lists = lists
        self._catalog = catalog

    async def find(self, name: str, providers: Sequence[str], aliases: Sequence[str]) -> str:
        """Return the full name of a model at the first of these providers that has it.

        Raises ProviderResolutionError with the closest names.
        """
        if not name.strip("/ "):
            raise ProviderResolutionError("the model name is empty; use the form provider/model")
        found = self._find_offline(name, providers) or await self._find_listed(name, providers)
        if found is None:
            raise self._unknown(name, providers, aliases)
        return found

    def _find_offline(self, name: str, providers: Sequence[str]) -> str | None:
        """Return the configured model; else that of its own vendor; else that of a reseller."""
        for provider_id in providers:
            if f"{provider_id}/{name}" in self._models or name in self._configured(provider_id):
                return f"{provider_id}/{name}"
        own = (p for p in providers if self._catalog.lists_own(self._catalog_id(p), name))
        passed_on = (p for p in providers if self._catalog.find(self._catalog_id(p), name))
        return next((f"{provider_id}/{name}" for ids in (own, passed_on) for provider_id in ids), None)

    async def _find_listed(self, name: str, providers: Sequence[str]) -> str | None:
        """Return the listed model of that id; else one that ends in it, as in ``vendor/model``."""
        listed = await self._lists.get_all(providers)
        offered = [
            (model.id, provider_id) for provider_id in providers for model in listed[provider_id].models
        ]
        wanted = name.lower()
        same = [pair for pair in offered if pair[0].lower() == wanted]
        ending = [pair for pair in offered if pair[0].lower().rpartition("/")[2] == wanted]
        return next((f"{provider_id}/{model}" for model, provider_id in (*same, *ending)), None)

    def _unknown(
        self, name: str, providers: Sequence[str], aliases: Sequence[str]
    ) -> ProviderResolutionError:
        provider_id, slash, model = name.partition("/")
        without_key = [p for p in self._providers.factories() if self._catalog.lists_own(p, name)]
        if without_key and not slash:
            variable = self._providers.variables(without_key[0])["api_key"][0]
            reason = f"{name!r} is a model of {without_key[0]}, which has no key; set {variable}"
            return ProviderResolutionError(reason, suggestions=[f"{without_key[0]}/{name}"])
        near = self._suggestions(name, providers, aliases)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        reason = f"no configured provider offers a model {name!r}; use the form provider/model"
        if slash and model:
            reason = f"no provider {provider_id!r}, and no configured provider offers a model {name!r}"
        return ProviderResolutionError(f"{reason}{hint}", suggestions=near)

    def _suggestions(self, name: str, providers: Sequence[str], aliases: Sequence[str]) -> list[str]:
        """Return the closest names: of providers and aliases if a part matches, and of models.

        If no available provider has a list, models of all providers are suggested.
        """
        provider_id, slash, model = name.partition("/")
        words = {word: word for word in (*aliases, *self._providers.known())}
        if slash:
            near = [words[word] for word in _close(provider_id, words)]
            return [f"{p}/{model}" for p in near] if near and model else near
        near = _nearest(name, words, self._names(providers))
        if near or any(self._lists.cached(provider_id) for provider_id in providers):
            return near
        return _nearest(name, words, self._names(self._providers.factories()))

    def _names(self, providers: Iterable[str]) -> Iterable[tuple[str, str]]:
        """Yield short and full name of every model to suggest: configured, then listed or offline ones."""
        for full_name in self._models:
            yield full_name.partition("/")[2], full_name
        for provider_id in providers:
            listed = [model.id for model in self._lists.cached(provider_id)]
            known = listed or [facts.id for facts in self._catalog.models_of(self._catalog_id(provider_id))]
            yield from ((model, f"{provider_id}/{model}") for model in known)

    def _configured(self, provider_id: str) -> Sequence[str]:
        return self._providers.configured(provider_id).models

    def _catalog_id(self, provider_id: str) -> str:
        return self._providers.configured(provider_id).like or provider_id


def _nearest(name: str, words: Mapping[str, str], models: Iterable[tuple[str, str]]) -> list[str]:
    """Return the closest words and full model names; if a short name occurs twice, the first one counts."""
    known = dict(words)
    for short, full in models:
        known.setdefault(short.lower(), full)
    return [known[word] for word in _close(name.lower(), known)]


def _close(name: str, names: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name, list(names), n=_NEAREST, cutoff=0.5)


_TURN_LIST_TIMEOUT = 3.0
"""Seconds to wait for a list of models while a turn waits for it."""

_MAX_ROUTES = 1000
"""Largest number of cached names: clients may send any number of them."""


class Route(Struct, frozen=True):
    """A model and the provider that serves it, with the model's own capabilities.

    ``output_limit`` is the largest number of tokens in an answer; None if unknown.
    """

    provider: Provider
    model: str
    capabilities: Capabilities
    output_limit: int | None = None

    @property
    def name(self) -> str:
        """The model's full name, ``provider/model``."""
        return f"{self.provider.id}/{self.model}"


class ConfiguredModels(Struct, frozen=True):
    """The settings of models. ``providers`` are those with a table in the settings."""

    aliases: Mapping[str, str] = {}
    models: Mapping[str, ModelSettings] = {}
    providers: Sequence[str] = ()

    @classmethod
    def of(cls, settings: Settings) -> ConfiguredModels:
        """Return the part of these settings that concerns models."""
        return cls(settings.aliases, settings.models, tuple(settings.providers))


def provider_capabilities(provider: Provider, model: str) -> Capabilities:
    """Return a model's capabilities as its provider knows them without a request."""
    return provider.capabilities_of(model) if isinstance(provider, KnowsModels) else provider.capabilities


class Models:
    """Finds the route and the facts of a model."""

    def __init__(self, providers: ProviderRegistry, known: ConfiguredModels | None = None) -> None:
        self.configured = known or ConfiguredModels()
        self.lists = ModelLists(providers)
        self.catalog = Catalog()
        self._providers = providers
        self._finder = ModelFinder(providers, self.configured.models, self.lists, self.catalog)
        self._closest: dict[tuple[str, str, str], str] = {}
        self._routes: dict[str, Route] = {}
        self._windows: dict[str, ContextWindow] = {}
        self._lists_seen = 0

    def available_providers(self) -> Sequence[str]:
        """Return the usable providers: those with a table in the settings, and those that need none."""
        return tuple(dict.fromkeys((*self.configured.providers, *self._providers.set_up())))

    def default_model(self, provider_id: str) -> str:
        """Return the full name of a provider's first model. Raises ProviderResolutionError."""
        configured = self._providers.configured(provider_id).models
        first = configured[0] if configured else dict(self._providers.first_models()).get(provider_id)
        if not first:
            raise ProviderResolutionError(
                f"{provider_id!r} is a provider without a default model; use the form {provider_id}/model"
            )
        return f"{provider_id}/{first}"

    async def resolve(self, name: str) -> Route:
        """Return the route of a model by any of its names. Raises ProviderResolutionError with the closest
        names.
        """
        self._drop_stale_routes()
        route = self._routes.get(name)
        if route is not None:
            return route
        full_name = await self._full_name(self.configured.aliases.get(name, name))
        route = self._routes[name] = await self._route(full_name)
        return route

    def declared_facts(self, provider_id: str, model: str) -> ModelFacts:
        """Return the facts given by settings and provider so far, without a request."""
        given = facts_from_settings(provider_id, model, self.configured.models.get(f"{provider_id}/{model}"))
        listed = next((info for info in self.lists.cached(provider_id) if info.id == model), None)
        return given if listed is None else given.filled_from(facts_from_listing(listed))

    async def facts(self, provider_id: str, model: str) -> ModelFacts:
        """Return all facts of a model: from settings, provider and offline data, in this order."""
        declared = self.declared_facts(provider_id, model)
        known = self.catalog.find(self.catalog_id(provider_id), model)
        return self._with_retirement(declared if known is None else declared.filled_from(known))

    async def window(self, route: Route) -> ContextWindow:
        """Return the context window of a route, the same object for the same model."""
        window = self._windows.get(route.name)
        if window is None:
            facts = await self.facts(route.provider.id, route.model)
            window = ContextWindow(facts.context_window, facts.input_limit, facts.output_limit)
            window = self._windows.setdefault(route.name, window)
        return window

    async def offline_models(self, provider_id: str) -> Sequence[ModelFacts]:
        """Return the facts of a provider's models in the offline data."""
        known = self.catalog.models_of(self.catalog_id(provider_id))
        return [
            self._with_retirement(self.declared_facts(provider_id, facts.id).filled_from(facts))
            for facts in known
        ]

    def retirement(self, provider_id: str, model: str) -> date | None:
        """Return the day on which a provider stops serving a model; None if none is announced."""
        return retirement(self.catalog_id(provider_id), model)

    def rates(self, provider_id: str, model: str) -> Rates | None:
        """Return the prices that the settings give for a model, or None."""
        configured = self.configured.models.get(f"{provider_id}/{model}")
        return None if configured is None else configured_rates(configured)

    async def substitute(self, first: Route, name: str) -> Route:
        """Return the route that replaces a model: for a provider named alone, its closest model."""
        name = self.configured.aliases.get(name, name)
        if "/" in name or not self._providers.serves(name):
            return await self.resolve(name)
        if name == first.provider.id:
            return first
        self._drop_stale_routes()
        key = (first.provider.id, first.model, name)
        if key not in self._closest:
            self._closest[key] = await self._closest_model(first, name)
        return await self.resolve(f"{name}/{self._closest[key]}")

    def default_substitute(self, provider_id: str) -> str | None:
        """Return the provider that replaces this one where no fallback is configured, or None."""
        return self._providers.stand_in_of(provider_id)

    def forget(self, provider_id: str) -> None:
        """Drop a provider's list and all routes, because its credentials changed."""
        self.lists.forget(provider_id)
        self._routes.clear()
        self._closest.clear()

    def _drop_stale_routes(self) -> None:
        """Drop all routes if a list arrived since the last call, which may change them, or if there are too
        many."""
        if self._lists_seen != self.lists.received or len(self._routes) >= _MAX_ROUTES:
            self._lists_seen = self.lists.received
            # A new list may have other context windows. Those learned from errors stay.
            self._windows = {name: window for name, window in self._windows.items() if window.learned}
            self._routes.clear()
            self._closest.clear()

    async def _closest_model(self, first: Route, provider_id: str) -> str:
        equivalent = self._configured_equivalent(first.name, provider_id)
        if equivalent:
            return equivalent
        offered = await self._offered(provider_id)
        wanted = await self.facts(first.provider.id, first.model)
        known = [await self.facts(provider_id, model) for model in offered]
        current = [facts for facts in known if not facts.retired] or known
        return closest_model(wanted, current) or self._first_choice(
            provider_id, [facts.id for facts in current]
        )

    def _first_choice(self, provider_id: str, offered: Sequence[str]) -> str:
        """Return the provider's default model, or the first offered one if it does not offer that."""
        if not offered:
            return self.default_model(provider_id).partition("/")[2]
        if self._providers.configured(provider_id).models:
            return offered[0]
        usual = dict(self._providers.first_models()).get(provider_id, "")
        return usual if usual in offered else next(filter(is_chat_model, offered), offered[0])

    async def _offered(self, provider_id: str) -> Sequence[str]:
        """Return a provider's models: configured, else listed, else offline."""
        configured = self._providers.configured(provider_id).models
        if configured:
            return configured
        listed = await self.lists.get(provider_id, _TURN_LIST_TIMEOUT)
        known = (facts.id for facts in self.catalog.models_of(self.catalog_id(provider_id)))
        return [model.id for model in listed.models] or list(known)

    def _configured_equivalent(self, name: str, provider_id: str) -> str | None:
        """Return the configured equivalent at a provider; an equivalence holds in both directions."""
        models = self.configured.models
        own = models[name].equivalents if name in models else ()
        others = (other for other, settings in models.items() if name in settings.equivalents)
        here = (equal.partition("/") for equal in (*own, *others))
        return next((model for provider, _, model in here if provider == provider_id), None)

    async def _full_name(self, name: str) -> str:
        provider_id, slash, model = name.partition("/")
        if provider_id and model and self._providers.serves(provider_id):
            return name
        if provider_id and not slash and self._providers.serves(provider_id):
            return self.default_model(provider_id)
        return await self._finder.find(name, self.available_providers(), tuple(self.configured.aliases))

    async def _route(self, full_name: str) -> Route:
        provider_id, _, model = full_name.partition("/")
        provider = await self._providers.ready(provider_id)
        declared = self.declared_facts(provider_id, model)
        capabilities = declared.capabilities(provider_capabilities(provider, model))
        return Route(provider, model, capabilities, declared.output_limit)

    def _with_retirement(self, facts: ModelFacts) -> ModelFacts:
        """Add the model's retirement date, which neither settings nor price data hold."""
        day = self.retirement(facts.provider, facts.id)
        return facts if day is None else msgspec.structs.replace(facts, retires=day.isoformat())

    def catalog_id(self, provider_id: str) -> str:
        """Return the provider id by which the offline data knows a provider."""
        return self._providers.configured(provider_id).like or provider_id
