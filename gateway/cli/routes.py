"""The doctor's look at who answers: plugins, providers, and where aliases, agents and chains lead."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping

from gateway.app import Gateway
from gateway.cli import reaching
from gateway.cli.finding import Finding, fail, ok, warn
from gateway.cli.providing import gateway_of
from gateway.errors import ProviderError, ProviderResolutionError, SettingsError
from gateway.routing import MAIN, Profile, Route, first_model
from gateway.settings import Settings
from gateway.settings.masking import without_passwords

_SECONDS = 15.0
_ADVICE = "correct the name, unless a plugin brings it; `trunkline models list` shows those there are"


def routes(settings: Settings, environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Who is there, and where each name leads. No model is asked; providers may be asked what they offer."""
    return asyncio.run(_routes(settings, environ))


async def _routes(settings: Settings, environ: Mapping[str, str]) -> list[Finding]:
    async with gateway_of(settings, environ) as gateway:
        gateway.model = settings.model or await first_model(environ, gateway.providers)
        told = [*reaching.plugins(gateway), *_channels(gateway)]
        told += [finding async for finding in reaching.providers(gateway)]
        told.append(await reaching.model(gateway))
        return [*told, *[finding async for finding in _found(gateway)]]


def _channels(gateway: Gateway) -> Iterator[Finding]:
    for complaint in gateway.settings.unknown_agents(gateway.profiles.all):
        yield fail("agents of channels", complaint, "correct the name; `trunkline agents list` shows all")


async def _found(gateway: Gateway) -> AsyncGenerator[Finding]:
    models = gateway.models
    for alias in models.known.aliases:
        finding, _ = await _led(f"alias {alias}", models.resolve(alias))
        yield finding
    for profile in gateway.profiles.all.values():
        finding, route = await _led(f"agent {profile.name}", models.resolve(profile.model or gateway.model))
        if profile.name != MAIN:
            yield finding
        if route is not None:
            async for each in _chain(gateway, profile, route):
                yield each


async def _chain(gateway: Gateway, profile: Profile, first: Route) -> AsyncGenerator[Finding]:
    """Who stands in, for the gateway and for each agent that has a chain or a model of its own."""
    whose = "fallback" if profile.name == MAIN else f"fallback of {profile.name}"
    for name in profile.fallback.chain:
        finding, _ = await _led(f"{whose} {name}", gateway.models.stand_in(first, name))
        yield finding


async def _led(name: str, finding: Awaitable[Route]) -> tuple[Finding, Route | None]:
    try:
        async with asyncio.timeout(_SECONDS):
            route = await finding
    except ProviderResolutionError as error:
        return warn(name, str(error), _ADVICE), None
    except TimeoutError:
        return warn(name, f"not found within {_SECONDS:.0f} s", "name the provider too: provider/model"), None
    except (ProviderError, SettingsError) as error:
        return warn(name, without_passwords(str(error)), "see [providers.…] in the settings"), None
    return ok(name, route.name), route
