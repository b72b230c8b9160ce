"""Signing in to a provider: by the provider's own way, or with a key that is asked for and tried."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping

import typer
from pydantic import SecretStr

from gateway.backends import Variables
from gateway.cli.providing import gateway_of, say_who_is_left_out
from gateway.errors import AuthFailedError, ProviderError, SettingsError
from gateway.provider import ApiKey, Credential, Provider, SignsIn, TriesKey
from gateway.settings import ProviderSettings, Settings

_CHECK_SECONDS = 20.0


def signed_in(settings: Settings, provider_id: str, show: Callable[[str], None]) -> Credential | None:
    """What signing in gives; None if the provider takes a key instead.

    Raises SettingsError if it takes neither, and a ProviderError if there is no such provider or it refuses.
    """

    async def sign_in() -> Credential | None:
        async with gateway_of(settings, os.environ) as gateway:
            say_who_is_left_out(gateway)
            made = await gateway.providers.ready(provider_id)
            if isinstance(made, SignsIn):
                return await made.sign_in(show)
            _takes_a_key(made)
        return None

    return asyncio.run(sign_in())


def ask(settings: Settings, provider_id: str, *, from_stdin: bool) -> Credential:
    """The key that a person types unseen, or that stands in the first line of the input."""
    if from_stdin:
        key = sys.stdin.readline().strip()
    elif sys.stdin.isatty():
        key = typer.prompt(f"Key of {provider_id} (it is not shown)", hide_input=True).strip()
    else:
        raise SettingsError("nobody is there to type a key; --key-stdin reads it from the input")
    if not key:
        raise SettingsError(f"no key was given for {provider_id}")
    return ApiKey(key)


def checked(settings: Settings, provider_id: str, credential: Credential) -> str:
    """What the provider says of a credential. Raises AuthFailedError if it refuses it."""
    key = credential.key if isinstance(credential, ApiKey) else credential.access
    try:
        count = asyncio.run(_models(_with_key(settings, provider_id, key), provider_id))
    except AuthFailedError as error:
        raise AuthFailedError(
            f"{provider_id} does not take it, so it was not kept (--no-check keeps it): {error}"
        ) from None
    except ProviderError as error:
        return f"{provider_id} could not be asked about it ({error.name}: {error})"
    except TimeoutError:
        return f"{provider_id} could not be asked about it: no answer within {_CHECK_SECONDS:.0f} s"
    return f"{provider_id} took it, and lists {count} model{'' if count == 1 else 's'}"


async def known(settings: Settings) -> Mapping[str, Variables]:
    """The providers that can be made, with the variables that each reads."""
    async with gateway_of(settings, os.environ) as gateway:
        return {name: gateway.providers.variables(name) for name in gateway.providers.known()}


async def _models(settings: Settings, provider_id: str) -> int:
    async with gateway_of(settings, os.environ) as gateway, asyncio.timeout(_CHECK_SECONDS):
        made = await gateway.providers.ready(provider_id)
        if isinstance(made, TriesKey):
            await made.try_key()
        return len(await made.list_models())


def _with_key(settings: Settings, provider_id: str, key: str) -> Settings:
    """The settings with this very key, and without the models that they list: the provider is to be asked."""
    given = settings.providers.get(provider_id, ProviderSettings())
    given = given.model_copy(update={"api_key": SecretStr(key), "api_keys": (), "models": ()})
    return settings.model_copy(update={"providers": {**settings.providers, provider_id: given}})


def _takes_a_key(provider: Provider) -> None:
    if provider.id == "demo":
        raise SettingsError("the built-in demo needs no key")
    if provider.auth_method == "oauth":
        raise SettingsError(f"{provider.name} takes no key; see `credentials` in [providers.{provider.id}]")
