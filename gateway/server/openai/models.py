"""The models that requests may name: aliases, agents, and what the providers that are set up offer."""

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

_US = "trunkline"


class ListedModel(Struct, frozen=True):
    """A model, by the name that requests use. ``created`` is 0 where it is not known."""

    id: str
    owned_by: str
    created: int = 0
    object: Literal["model"] = "model"


class KnownModel(ListedModel, frozen=True):
    """A model with what is known of it: tokens it reads and writes at most, and what it can do.

    ``model`` is the name it goes by in full. Prices are US dollars per million tokens.
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


class Shelf:
    """Tells of the models."""

    def __init__(self, models: Models, agents: Agents) -> None:
        self._models = models
        self._agents = agents

    async def list(self, default: str) -> ModelList:
        """The configured one, aliases and agents, and what all providers say they offer, asked at once.

        One that fails or is slow adds what the settings say of it.
        """
        models = self._models
        default_provider = (default.partition("/")[0],) if "/" in default else ()
        listed = await models.lists.get_all((*default_provider, *models.available_providers()))
        offered = (ListedModel(f"{name}/{m.id}", name) for name, told in listed.items() for m in told.models)
        aliases = (ListedModel(alias, _owner(model)) for alias, model in models.configured.aliases.items())
        agents = (ListedModel(name, _US) for name in self._agents.all if name != MAIN)
        return ModelList(_each_once((ListedModel(default, _owner(default)), *aliases, *agents, *offered)))

    async def tell(self, name: str, default: str) -> KnownModel:
        """One model, by its names or an agent's. Raises ProviderResolutionError if there is none."""
        agent = self._agents.all.get(name)
        route = await self._models.resolve(name if agent is None else agent.model or default)
        provider_id, model = route.provider.id, route.model
        facts = await self._models.facts(provider_id, model)
        listed = await self._models.lists.get(provider_id)
        offered = [told.id for told in listed.models]
        if (
            offered
            and model not in offered
            and facts == ModelFacts(model, provider_id, released=facts.released)
        ):
            near = [f"{provider_id}/{other}" for other in get_close_matches(model, offered, n=3)]
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ProviderResolutionError(f"{provider_id} offers no model {model!r}{hint}", suggestions=near)
        return _known(name, route, facts)


def _known(name: str, route: Route, facts: ModelFacts) -> KnownModel:
    able = route.capabilities
    rates = facts.rates
    return KnownModel(
        id=name,
        owned_by=route.provider.id,
        created=timegm(date.fromisoformat(facts.released).timetuple()) if facts.released else 0,
        model=route.name,
        context_window=facts.context_window,
        output_limit=facts.output_limit,
        capabilities=tuple(each for each in able.__struct_fields__ if getattr(able, each)),  # pyright: ignore[reportArgumentType]
        input_price=None if rates is None else rates.input,
        output_price=None if rates is None else rates.output,
    )


def _owner(name: str) -> str:
    """The provider in a name, or the gateway where only it knows who that is."""
    return name.partition("/")[0] if "/" in name else _US


def _each_once(models: Iterable[ListedModel]) -> list[ListedModel]:
    first: dict[str, ListedModel] = {}
    for model in models:
        first.setdefault(model.id, model)
    return [*first.values()]
