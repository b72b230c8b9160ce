"""The models there are to choose from, and all that is known of one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase

from msgspec import Struct

from gateway.app import Gateway
from gateway.cli.providing import gateway_of, say_who_is_left_out
from gateway.errors import ProviderError, ProviderResolutionError, SettingsError
from gateway.provider import Capabilities
from gateway.routing import ModelFacts, Route, converses, first_model, usual
from gateway.routing.lists import Listed
from gateway.settings import Settings
from gateway.settings.masking import without_passwords


class Stocked(Struct, frozen=True, kw_only=True):
    """A model. ``listed`` says that its provider itself named it; ``can`` is None where nobody knows."""

    model: str
    facts: ModelFacts
    listed: bool = False
    can: tuple[str, ...] | None = None
    aliases: tuple[str, ...] = ()


class Stock(Struct, frozen=True):
    """What was found, who could not be asked and why, and how many were left out that do not talk."""

    models: Sequence[Stocked]
    missing: Mapping[str, str] = {}
    left_out: int = 0


class About(Struct, frozen=True, kw_only=True):
    """One model. ``endpoint`` is where it is reached, ``problem`` what stands in the way.

    ``stand_ins`` are the models that answer when it does not.
    """

    model: Stocked
    endpoint: str = ""
    problem: str = ""
    stand_ins: Sequence[str] = ()


async def stock(
    settings: Settings,
    environ: Mapping[str, str],
    pattern: str = "",
    provider: str | None = None,
    *,
    everything: bool = False,
) -> Stock:
    """The models of the providers that are set up, or of all there are, or of one.

    Those that are set up are asked what they offer; of the others, and of those that do not say, it is what
    is known offline. Raises ProviderResolutionError for a provider that there is not.
    """
    async with _gateway(settings, environ) as gateway:
        ready = await _set_up(gateway)
        others = gateway.providers.known() if everything else ()
        ids = [_checked(gateway, provider)] if provider else list(dict.fromkeys((*ready, *others)))
        listed = await gateway.models.lists.all(name for name in ids if name in ready)
        found = [
            stocked
            for name in ids
            for stocked in await _of(gateway, name, listed.get(name), everything=everything)
            if _fits(stocked, pattern)
        ]
        kept = [each for each in found if everything or converses(each.facts.id)]
        missing = {name: without_passwords(told.missing) for name, told in listed.items() if told.missing}
        return Stock(kept, missing, len(found) - len(kept))


async def about(settings: Settings, environ: Mapping[str, str], name: str) -> About:
    """All that is known of a model, by any of its names. Raises ProviderResolutionError."""
    async with _gateway(settings, environ) as gateway:
        models = gateway.models
        try:
            route = await models.resolve(name)
        except ProviderResolutionError as error:
            full_name, problem = await _elsewhere(gateway, name, error), str(error)
        except (ProviderError, SettingsError) as error:
            full_name, problem = models.known.aliases.get(name, name), str(error)
        else:
            return await _reached(gateway, settings, route)
        provider, _, model = full_name.partition("/")
        await _made(gateway, provider)
        facts = await models.facts(provider, model)
        return About(model=_stocked(gateway, facts), problem=without_passwords(problem))


@asynccontextmanager
async def _gateway(settings: Settings, environ: Mapping[str, str]) -> AsyncGenerator[Gateway]:
    async with gateway_of(settings, environ) as gateway:
        say_who_is_left_out(gateway)
        gateway.model = settings.model or await first_model(environ, gateway.providers)
        yield gateway


async def _set_up(gateway: Gateway) -> Sequence[str]:
    """The providers that can be asked, that of the default model first."""
    first = gateway.model.partition("/")[0] if "/" in gateway.model else ""
    names = dict.fromkeys((*filter(None, (first,)), *gateway.models.set_up()))
    return [name for name in names if gateway.providers.serves(name)]


def _checked(gateway: Gateway, provider: str) -> str:
    if gateway.providers.serves(provider):
        return provider
    known = gateway.providers.known()
    near = get_close_matches(provider, known, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(known)}"
    raise ProviderResolutionError(f"no provider {provider!r}; {hint}", suggestions=near)


async def _of(gateway: Gateway, name: str, listed: Listed | None, *, everything: bool) -> Iterable[Stocked]:
    """The models of one provider: those it lists, and where it does not, or all are wanted, those known."""
    await _made(gateway, name)
    offered = [model.id for model in listed.models] if listed else []
    by_name = {model: await gateway.models.facts(name, model) for model in offered}
    if everything or not offered:
        by_name = {facts.id: facts for facts in await gateway.models.known_offline(name)} | by_name
    said = listed is not None and not listed.missing
    return [_stocked(gateway, facts, listed=said and model in offered) for model, facts in by_name.items()]


async def _made(gateway: Gateway, name: str) -> None:
    """Make a provider, if that can be done: it knows what its models can do."""
    with contextlib.suppress(ProviderError, SettingsError):
        await gateway.providers.ready(name)


def _stocked(gateway: Gateway, facts: ModelFacts, *, listed: bool = False) -> Stocked:
    aliases = gateway.models.known.aliases.items()
    made = gateway.providers.get(facts.provider)
    return Stocked(
        model=facts.full_name,
        facts=facts,
        listed=listed,
        can=None if made is None else _names(facts.capable(usual(made, facts.id))),
        aliases=tuple(alias for alias, model in aliases if model == facts.full_name),
    )


async def _reached(gateway: Gateway, settings: Settings, route: Route) -> About:
    models = gateway.models
    listed = await models.lists.of(route.provider.id)
    named = not listed.missing and any(model.id == route.model for model in listed.models)
    problem = f"{route.provider.id} did not say what it offers: {listed.missing}" if listed.missing else ""
    if not (named or listed.missing):
        near = get_close_matches(route.model, [model.id for model in listed.models], n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        problem = f"{route.provider.id} does not list it{hint}"
    return About(
        model=_stocked(gateway, await models.facts(route.provider.id, route.model), listed=named),
        endpoint=without_passwords(route.provider.api_endpoint),
        problem=without_passwords(problem),
        stand_ins=[await _stand_in(gateway, route, name) for name in settings.fallback],
    )


async def _stand_in(gateway: Gateway, route: Route, name: str) -> str:
    try:
        return (await gateway.models.stand_in(route, name)).name
    except (ProviderError, SettingsError) as error:
        return f"{name}: {without_passwords(str(error))}"


async def _elsewhere(gateway: Gateway, name: str, error: ProviderResolutionError) -> str:
    """The full name of a model at a provider that is not set up. Raises the error if nobody knows it."""
    await gateway.models.catalog.load()
    sellers = (p for p in gateway.providers.factories() if gateway.models.catalog.sells(p, name))
    found = next(sellers, None)
    if found is None:
        raise error
    return f"{found}/{name}"


def _fits(stocked: Stocked, pattern: str) -> bool:
    """Whether a model is meant: by a part of its name or of an alias, or by a glob for one of its names."""
    wanted = pattern.lower()
    names = [name.lower() for name in (stocked.model, stocked.facts.id, *stocked.aliases)]
    if any(sign in wanted for sign in "*?["):
        return any(fnmatchcase(name, wanted) for name in names)
    return any(wanted in name for name in names)


def _names(capabilities: Capabilities) -> tuple[str, ...]:
    return tuple(name for name in capabilities.__struct_fields__ if getattr(capabilities, name))
