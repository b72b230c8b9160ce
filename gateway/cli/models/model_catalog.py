"""The models of all providers, and the details of one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase

from msgspec import Struct

from gateway.app import Gateway
from gateway.cli.models.provider_info import idle_gateway, warn_of_failed_plugins
from gateway.contract.errors import ProviderError, ProviderResolutionError, SettingsError
from gateway.contract.provider import Capabilities
from gateway.models import ModelFacts, Route, default_model, is_chat_model, provider_capabilities
from gateway.models.resolve import ModelList
from gateway.settings import Settings
from gateway.settings.secrets import without_passwords


class CatalogModel(Struct, frozen=True, kw_only=True):
    """A model. ``listed`` means that its provider lists it; ``can`` is None if the provider is unknown."""

    model: str
    facts: ModelFacts
    listed: bool = False
    can: tuple[str, ...] | None = None
    aliases: tuple[str, ...] = ()


class Catalog(Struct, frozen=True):
    """The models found, the error of each unreachable provider, the number of hidden non-chat models."""

    models: Sequence[CatalogModel]
    missing: Mapping[str, str] = {}
    hidden: int = 0


class ModelDetails(Struct, frozen=True, kw_only=True):
    """One model. ``endpoint`` is its URL, ``problem`` what prevents its use, ``stand_ins`` its fallbacks."""

    model: CatalogModel
    endpoint: str = ""
    problem: str = ""
    stand_ins: Sequence[str] = ()


async def list_models(
    settings: Settings,
    environ: Mapping[str, str],
    pattern: str = "",
    provider: str | None = None,
    *,
    everything: bool = False,
) -> Catalog:
    """Return the models of the configured providers, of all, or of one.

    Asks configured providers for their lists; for the others, and those that do not respond, uses offline
    data. Raises ProviderResolutionError for an unknown provider.
    """
    async with _gateway(settings, environ) as gateway:
        ready = await _configured(gateway)
        others = gateway.providers.known() if everything else ()
        ids = [_existing_provider(gateway, provider)] if provider else list(dict.fromkeys((*ready, *others)))
        listed = await gateway.models.lists.get_all(name for name in ids if name in ready)
        found = [
            entry
            for name in ids
            for entry in await _models_of(gateway, name, listed.get(name), everything=everything)
            if _matches(entry, pattern)
        ]
        kept = [each for each in found if everything or is_chat_model(each.facts.id)]
        missing = {
            name: without_passwords(answer.failure) for name, answer in listed.items() if answer.failure
        }
        return Catalog(kept, missing, len(found) - len(kept))


async def describe_model(settings: Settings, environ: Mapping[str, str], name: str) -> ModelDetails:
    """Return the details of a model by any of its names. Raises ProviderResolutionError."""
    async with _gateway(settings, environ) as gateway:
        models = gateway.models
        try:
            route = await models.resolve(name)
        except ProviderResolutionError as error:
            full_name, problem = await _unconfigured_name(gateway, name, error), str(error)
        except (ProviderError, SettingsError) as error:
            full_name, problem = models.configured.aliases.get(name, name), str(error)
        else:
            return await _details_of(gateway, settings, route)
        provider, _, model = full_name.partition("/")
        await _try_to_create(gateway, provider)
        facts = await models.facts(provider, model)
        return ModelDetails(model=_catalog_model(gateway, facts), problem=without_passwords(problem))


@asynccontextmanager
async def _gateway(settings: Settings, environ: Mapping[str, str]) -> AsyncGenerator[Gateway]:
    async with idle_gateway(settings, environ) as gateway:
        warn_of_failed_plugins(gateway)
        gateway.model = settings.model or await default_model(environ, gateway.providers)
        yield gateway


async def _configured(gateway: Gateway) -> Sequence[str]:
    """Return the configured providers, that of the default model first."""
    first = gateway.model.partition("/")[0] if "/" in gateway.model else ""
    names = dict.fromkeys((*filter(None, (first,)), *gateway.models.available_providers()))
    return [name for name in names if gateway.providers.serves(name)]


def _existing_provider(gateway: Gateway, provider: str) -> str:
    if gateway.providers.serves(provider):
        return provider
    known = gateway.providers.known()
    near = get_close_matches(provider, known, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(known)}"
    raise ProviderResolutionError(f"no provider {provider!r}; {hint}", suggestions=near)


async def _models_of(
    gateway: Gateway, name: str, listed: ModelList | None, *, everything: bool
) -> Iterable[CatalogModel]:
    """Return the models that a provider lists, and the known ones if it lists none or all are wanted."""
    await _try_to_create(gateway, name)
    offered = [model.id for model in listed.models] if listed else []
    by_name = {model: await gateway.models.facts(name, model) for model in offered}
    if everything or not offered:
        by_name = {facts.id: facts for facts in await gateway.models.offline_models(name)} | by_name
    said = listed is not None and not listed.failure
    return [
        _catalog_model(gateway, facts, listed=said and model in offered) for model, facts in by_name.items()
    ]


async def _try_to_create(gateway: Gateway, name: str) -> None:
    """Create a provider, if possible: it knows the abilities of its models."""
    with contextlib.suppress(ProviderError, SettingsError):
        await gateway.providers.ready(name)


def _catalog_model(gateway: Gateway, facts: ModelFacts, *, listed: bool = False) -> CatalogModel:
    aliases = gateway.models.configured.aliases.items()
    made = gateway.providers.get(facts.provider)
    return CatalogModel(
        model=facts.full_name,
        facts=facts,
        listed=listed,
        can=None if made is None else _names(facts.capabilities(provider_capabilities(made, facts.id))),
        aliases=tuple(alias for alias, model in aliases if model == facts.full_name),
    )


async def _details_of(gateway: Gateway, settings: Settings, route: Route) -> ModelDetails:
    models = gateway.models
    listed = await models.lists.get(route.provider.id)
    named = not listed.failure and any(model.id == route.model for model in listed.models)
    problem = f"{route.provider.id} did not list its models: {listed.failure}" if listed.failure else ""
    if not (named or listed.failure):
        near = get_close_matches(route.model, [model.id for model in listed.models], n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        problem = f"{route.provider.id} does not list it{hint}"
    return ModelDetails(
        model=_catalog_model(gateway, await models.facts(route.provider.id, route.model), listed=named),
        endpoint=without_passwords(route.provider.api_endpoint),
        problem=without_passwords(problem),
        stand_ins=[await _fallback_name(gateway, route, name) for name in settings.fallback],
    )


async def _fallback_name(gateway: Gateway, route: Route, name: str) -> str:
    try:
        return (await gateway.models.substitute(route, name)).name
    except (ProviderError, SettingsError) as error:
        return f"{name}: {without_passwords(str(error))}"


async def _unconfigured_name(gateway: Gateway, name: str, error: ProviderResolutionError) -> str:
    """Return the full name of a model at an unconfigured provider. Raises the error if no provider has it."""
    sellers = (p for p in gateway.providers.factories() if gateway.models.catalog.lists_own(p, name))
    found = next(sellers, None)
    if found is None:
        raise error
    return f"{found}/{name}"


def _matches(entry: CatalogModel, pattern: str) -> bool:
    """Return whether a model matches: a part of its name or alias, or a glob for one of these."""
    wanted = pattern.lower()
    names = [name.lower() for name in (entry.model, entry.facts.id, *entry.aliases)]
    if any(sign in wanted for sign in "*?["):
        return any(fnmatchcase(name, wanted) for name in names)
    return any(wanted in name for name in names)


def _names(capabilities: Capabilities) -> tuple[str, ...]:
    return tuple(name for name in capabilities.__struct_fields__ if getattr(capabilities, name))
