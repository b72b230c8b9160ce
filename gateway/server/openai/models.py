"""The models that requests may name: aliases, agents, and the models of configured providers."""

from __future__ import annotations

from calendar import timegm
from collections.abc import Iterable
from datetime import date
from difflib import get_close_matches
from typing import Literal

from msgspec import Struct

from gateway.contract.errors import ProviderResolutionError
from gateway.contract.provider import Capability
from gateway.models import MAIN, Agents, ModelFacts, Models, Route

_GATEWAY = "trunkline"


class ListedModel(Struct, frozen=True):
    """A model, by the name that requests use. ``created`` is in seconds since the epoch, 0 if unknown."""

    id: str
    owned_by: str
    created: int = 0
    object: Literal["model"] = "model"


class ModelDetails(ListedModel, frozen=True):
    """A model with its facts. ``model`` is its full name; its context window and output limit are in tokens.

    Prices are in US dollars per million tokens.
    """

    model: str = ""
    context_window: int | None = None
    output_limit: int | None = None
    capabilities: tuple[Capability, ...] = ()
    input_price: float | None = None
    output_price: float | None = None


class ModelList(Struct, frozen=True):
    """All models, the configured one first."""

    data: list[ListedModel]
    object: Literal["list"] = "list"


class ModelListing:
    """The models that requests may name, as a list and one by one."""

    def __init__(self, models: Models, agents: Agents) -> None:
        self._models = models
        self._agents = agents

    async def list(self, default: str) -> ModelList:
        """List all models. The providers are queried at once.

        A provider that fails or is slow contributes the models in the settings.
        """
        models = self._models
        default_provider = (default.partition("/")[0],) if "/" in default else ()
        listed = await models.lists.get_all((*default_provider, *models.available_providers()))
        offered = (
            ListedModel(f"{name}/{m.id}", name) for name, found in listed.items() for m in found.models
        )
        aliases = (ListedModel(alias, _owner(model)) for alias, model in models.configured.aliases.items())
        own = (name for name in self._agents.all if name != MAIN and name not in self._agents.built_in)
        agents = (ListedModel(name, _GATEWAY) for name in own)
        return ModelList(
            _without_duplicates((ListedModel(default, _owner(default)), *aliases, *agents, *offered))
        )

    async def get(self, name: str, default: str) -> ModelDetails:
        """Return the details of a model, by its name, alias or agent. Raises ProviderResolutionError."""
        agent = self._agents.all.get(name)
        route = await self._models.resolve(name if agent is None else agent.model or default)
        provider_id, model = route.provider.id, route.model
        facts = await self._models.facts(provider_id, model)
        listed = await self._models.lists.get(provider_id)
        offered = [each.id for each in listed.models]
        if (
            offered
            and model not in offered
            and facts == ModelFacts(model, provider_id, released=facts.released)
        ):
            near = [f"{provider_id}/{other}" for other in get_close_matches(model, offered, n=3)]
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ProviderResolutionError(f"{provider_id} has no model {model!r}{hint}", suggestions=near)
        return _details(name, route, facts)


def _details(name: str, route: Route, facts: ModelFacts) -> ModelDetails:
    capabilities = route.capabilities
    rates = facts.rates
    return ModelDetails(
        id=name,
        owned_by=route.provider.id,
        created=timegm(date.fromisoformat(facts.released).timetuple()) if facts.released else 0,
        model=route.name,
        context_window=facts.context_window,
        output_limit=facts.output_limit,
        capabilities=tuple(each for each in capabilities.__struct_fields__ if getattr(capabilities, each)),  # pyright: ignore[reportArgumentType]
        input_price=None if rates is None else rates.input,
        output_price=None if rates is None else rates.output,
    )


def _owner(name: str) -> str:
    """Return the provider in a model name, or the gateway for names without one."""
    return name.partition("/")[0] if "/" in name else _GATEWAY


def _without_duplicates(models: Iterable[ListedModel]) -> list[ListedModel]:
    first: dict[str, ListedModel] = {}
    for model in models:
        first.setdefault(model.id, model)
    return [*first.values()]
