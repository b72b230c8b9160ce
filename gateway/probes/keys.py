"""Tests of keys: a provider apart from those that run lists its models with the key."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from gateway.contract.errors import AuthFailedError, ProviderError
from gateway.contract.provider import TriesKey
from gateway.extensions.backends import ProviderRegistry

_CHECK_SECONDS = 20.0


async def check_key(providers: ProviderRegistry, provider_id: str, key: str) -> str:
    """Test a key at its provider; return a sentence. Raises AuthFailedError if it is rejected."""
    try:
        count = await _count_models(providers, provider_id, key)
    except AuthFailedError as error:
        # It is not a configured key, so the provider's redaction does not mask it.
        raise AuthFailedError(str(error).replace(key, "(the key)")) from None
    except ProviderError as error:
        text = str(error).replace(key, "(the key)")
        return f"Cannot test it at {provider_id} ({error.name}: {text})"
    except TimeoutError:
        return f"Cannot test it at {provider_id}: no response within {_CHECK_SECONDS:.0f} s"
    return f"{provider_id} accepted it and lists {count} model{'' if count == 1 else 's'}"


async def _count_models(providers: ProviderRegistry, provider_id: str, key: str) -> int:
    # Without a list of models, so that the provider is asked.
    config = replace(
        providers.configured(provider_id),
        api_key=key,
        api_keys=(),
        models=(),
        oauth=None,
        signed_in=False,
        save_login=None,
        load_login=None,
    )
    async with asyncio.timeout(_CHECK_SECONDS):
        made = await providers.make_apart(config)
        try:
            if isinstance(made, TriesKey):
                await made.try_key()
            return len(await made.list_models())
        finally:
            await made.close()
