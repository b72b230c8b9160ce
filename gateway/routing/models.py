"""From the name of a model to the provider that serves it, and to what is known of it.

A name is an alias, ``provider/model``, a provider alone, or a model alone; then it is looked for in what is
known offline of the providers that are set up, and after that in what they say they offer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from gateway.backends import ProviderRegistry
from gateway.errors import ProviderResolutionError
from gateway.provider import Capabilities, KnowsModels, Provider
from gateway.routing.catalog import Catalog, converses
from gateway.routing.equivalents import equivalent
from gateway.routing.facts import ModelFacts, Rates, from_list, from_settings, rates_of
from gateway.routing.finding import Finder
from gateway.routing.lists import Lists
from gateway.settings import ModelSettings, Settings

_HURRY = 3.0
"""Seconds to wait for a list of models while somebody waits for an answer."""

_MOST_ROUTES = 1000
"""Names that are remembered; clients may send any number of them."""


class Route(Struct, frozen=True):
    """A model and the provider that serves it. ``capabilities`` are the model's own.

    ``output_limit`` is how many tokens an answer of it may have, where that is said.
    """

    provider: Provider
    model: str
    capabilities: Capabilities
    output_limit: int | None = None

    @property
    def name(self) -> str:
        """The model's full name."""
        return f"{self.provider.id}/{self.model}"


class Known(Struct, frozen=True):
    """What the settings say of models. ``providers`` are the backends that have a table."""

    aliases: Mapping[str, str] = {}
    models: Mapping[str, ModelSettings] = {}
    providers: Sequence[str] = ()

    @classmethod
    def of(cls, settings: Settings) -> Known:
        """What these settings say."""
        return cls(settings.aliases, settings.models, tuple(settings.providers))


def usual(provider: Provider, model: str) -> Capabilities:
    """What a model can do as far as its provider knows without being asked."""
    return provider.capabilities_of(model) if isinstance(provider, KnowsModels) else provider.capabilities


class Models:
    """Finds the provider of a model, and tells what is known of models."""

    def __init__(self, providers: ProviderRegistry, known: Known | None = None) -> None:
        self.known = known or Known()
        self.lists = Lists(providers)
        self.catalog = Catalog()
        self._providers = providers
        self._finder = Finder(providers, self.known.models, self.lists, self.catalog)
        self._equals: dict[tuple[str, str, str], str] = {}
        self._routes: dict[str, Route] = {}
        self._heard = 0

    def set_up(self) -> Sequence[str]:
        """The providers that can be used: those with a table in the settings, and those that need none."""
        return tuple(dict.fromkeys((*self.known.providers, *self._providers.set_up())))

    def first_of(self, provider_id: str) -> str:
        """The full name of the model that a provider begins with. Raises ProviderResolutionError."""
        configured = self._providers.configured(provider_id).models
        first = configured[0] if configured else dict(self._providers.first_models()).get(provider_id)
        if not first:
            raise ProviderResolutionError(
                f"{provider_id!r} is a provider; name one of its models too, as {provider_id}/model"
            )
        return f"{provider_id}/{first}"

    async def resolve(self, name: str) -> Route:
        """The route of a model, however it is named. Raises ProviderResolutionError with the nearest."""
        self._listen()
        route = self._routes.get(name)
        if route is not None:
            return route
        full_name = await self._full_name(self.known.aliases.get(name, name))
        if len(self._routes) >= _MOST_ROUTES:
            self._routes.clear()
        route = self._routes[name] = await self._route(full_name)
        return route

    def said(self, provider_id: str, model: str) -> ModelFacts:
        """What settings and provider said of a model so far; nobody is asked, and nothing is loaded."""
        given = from_settings(provider_id, model, self.known.models.get(f"{provider_id}/{model}"))
        listed = next((told for told in self.lists.known(provider_id) if told.id == model), None)
        return given if listed is None else given.over(from_list(listed))

    async def facts(self, provider_id: str, model: str) -> ModelFacts:
        """All that is known of a model: by the settings, its provider and the offline data, in this order."""
        await self.catalog.load()
        said = self.said(provider_id, model)
        known = self.catalog.find(self.kind(provider_id), model)
        return said if known is None else said.over(known)

    async def known_offline(self, provider_id: str) -> Sequence[ModelFacts]:
        """The models of a provider that the offline data know."""
        await self.catalog.load()
        known = self.catalog.of(self.kind(provider_id))
        return [self.said(provider_id, facts.id).over(facts) for facts in known]

    def rates(self, provider_id: str, model: str) -> Rates | None:
        """The prices that the settings give for a model, if they give any."""
        said = self.known.models.get(f"{provider_id}/{model}")
        return None if said is None else rates_of(said)

    async def stand_in(self, first: Route, name: str) -> Route:
        """Who answers in a model's place: of a provider named alone, the model that comes nearest to it."""
        name = self.known.aliases.get(name, name)
        if "/" in name or not self._providers.serves(name):
            return await self.resolve(name)
        if name == first.provider.id:
            return first
        self._listen()
        key = (first.provider.id, first.model, name)
        if key not in self._equals:
            self._equals[key] = await self._equal(first, name)
        return await self.resolve(f"{name}/{self._equals[key]}")

    def forget(self, provider_id: str) -> None:
        """Ask a provider anew what it offers, and look anew for all models: its credentials are others."""
        self.lists.forget(provider_id)
        self._routes.clear()
        self._equals.clear()

    def _listen(self) -> None:
        """Let what providers have told of their models since then count, too."""
        if self._heard != self.lists.heard:
            self._heard = self.lists.heard
            self._routes.clear()
            self._equals.clear()

    async def _equal(self, first: Route, provider_id: str) -> str:
        said = self._said_equal(first.name, provider_id)
        if said:
            return said
        await self.catalog.load()
        offered = await self._offered(provider_id)
        wanted = await self.facts(first.provider.id, first.model)
        found = equivalent(wanted, [await self.facts(provider_id, model) for model in offered])
        return found or self._begins_with(provider_id, offered)

    def _begins_with(self, provider_id: str, offered: Sequence[str]) -> str:
        """The model that a provider begins with, or if it does not offer that, the first that it does."""
        if not offered or self._providers.configured(provider_id).models:
            return self.first_of(provider_id).partition("/")[2]
        usual = dict(self._providers.first_models()).get(provider_id, "")
        return usual if usual in offered else next(filter(converses, offered), offered[0])

    async def _offered(self, provider_id: str) -> Sequence[str]:
        """The models of a provider: by the settings, or by its own word, or as far as they are known."""
        configured = self._providers.configured(provider_id).models
        if configured:
            return configured
        listed = await self.lists.of(provider_id, _HURRY)
        known = (facts.id for facts in self.catalog.of(self.kind(provider_id)))
        return [model.id for model in listed.models] or list(known)

    def _said_equal(self, name: str, provider_id: str) -> str | None:
        """What the settings say is as good; what is said of one model holds for the other, too."""
        models = self.known.models
        own = models[name].equivalents if name in models else ()
        others = (other for other, said in models.items() if name in said.equivalents)
        here = (equal.partition("/") for equal in (*own, *others))
        return next((model for provider, _, model in here if provider == provider_id), None)

    async def _full_name(self, name: str) -> str:
        provider_id, slash, model = name.partition("/")
        if provider_id and model and self._providers.serves(provider_id):
            return name
        if provider_id and not slash and self._providers.serves(provider_id):
            return self.first_of(provider_id)
        return await self._finder.find(name, self.set_up(), tuple(self.known.aliases))

    async def _route(self, full_name: str) -> Route:
        provider_id, _, model = full_name.partition("/")
        provider = await self._providers.ready(provider_id)
        said = self.said(provider_id, model)
        return Route(provider, model, said.capable(usual(provider, model)), said.output_limit)

    def kind(self, provider_id: str) -> str:
        """The provider that the offline data know it as."""
        return self._providers.configured(provider_id).like or provider_id
