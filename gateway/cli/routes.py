"""The doctor's look at who answers: the models that aliases, agents and fallback chains lead to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Mapping

from gateway.app import Gateway
from gateway.cli.finding import Finding, ok, warn
from gateway.cli.providing import gateway_of
from gateway.cli.quiet import quiet
from gateway.errors import ProviderError, ProviderResolutionError, SettingsError
from gateway.routing import MAIN, Profile, Route, first_model
from gateway.settings import Settings
from gateway.settings.masking import without_passwords

_SECONDS = 15.0
_ADVICE = "correct the name, unless a plugin brings it; `trunkline models list` shows those there are"


def routes(settings: Settings, environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Where each name leads. Nothing is asked of a model; providers may be asked what they offer."""
    with quiet():
        return asyncio.run(_routes(settings, environ))


async def _routes(settings: Settings, environ: Mapping[str, str]) -> list[Finding]:
    async with gateway_of(settings, environ) as gateway:
        gateway.model = settings.model or await first_model(environ, gateway.providers)
        return [finding async for finding in _found(gateway)]


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
