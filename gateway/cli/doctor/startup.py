"""The checks whose findings a gateway prints when it has started.

``trunkline run`` imports them, so they import nothing that only prints tables or calls a running gateway.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator

import msgspec

from gateway.app import Gateway
from gateway.cli.doctor.finding import Finding, fail, ok, warn
from gateway.contract.errors import ProviderError, SettingsError
from gateway.contract.provider import TriesKey
from gateway.settings import Settings
from gateway.settings.secrets import MASK, secrets_in, without_passwords

_PROVIDER_SECONDS = 5.0
_DEMO = "set ANTHROPIC_API_KEY or OPENAI_API_KEY, or `model` and [providers.…] in the settings"


async def check_model(gateway: Gateway) -> Finding:
    """Check that the provider of the model responds and lists the model."""
    model = gateway.model
    try:
        if model.startswith("demo/"):
            return warn("model", "demo/demo: the built-in demo answers; no model is configured", _DEMO)
        async with asyncio.timeout(_PROVIDER_SECONDS):
            route = await gateway.models.resolve(model)
            if isinstance(route.provider, TriesKey):
                await route.provider.try_key()
            known = [info.id for info in await route.provider.list_models()]
    except TimeoutError:
        return fail(
            "model", f"no response within {_PROVIDER_SECONDS:.0f} s", "check the network and base_url"
        )
    except (ProviderError, SettingsError) as error:
        return fail("model", str(error), "check `model`, [providers.…] and the key")
    if known and route.model not in known:
        return warn(
            "model", f"{model} is not one of the {len(known)} models of its provider", "check the name"
        )
    return ok("model", f"{model} at {route.provider.api_endpoint}")


def mask_secrets(findings: Iterable[Finding], settings: Settings) -> Iterator[Finding]:
    """Mask every secret of the settings in findings: an error may quote its input."""
    # A secret of up to three characters would mask parts of ordinary words.
    found = {secret for secret in settings.secrets() if len(secret) > 3}
    found |= {secret for secret in secrets_in(os.environ) if len(secret) > 7}
    secrets = sorted(found, key=len, reverse=True)

    def masked(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, MASK)
        return without_passwords(text)

    for each in findings:
        yield msgspec.structs.replace(each, detail=masked(each.detail), advice=masked(each.advice))
