"""Which model answers when none is configured."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from gateway.backends import ProviderRegistry
from gateway.errors import ProviderError
from gateway.routing.reaching import LOCAL_URL


async def first_model(environ: Mapping[str, str], providers: ProviderRegistry) -> str:
    """The model to use when none is configured: by a key, by a local server, or the built-in demo."""
    for provider_id, model in providers.first_models():
        variables = providers.variables(provider_id)["api_key"]
        if any(map(environ.get, variables)) or providers.configured(provider_id).api_key:
            return f"{provider_id}/{model}"
    local = await _local_models(providers)
    return f"local/{local[0]}" if local else "demo/demo"


async def _local_models(providers: ProviderRegistry) -> Sequence[str]:
    """The models of an OpenAI-compatible server on this machine; none if there is no such server."""
    if not await _listens(providers.configured("local").base_url or LOCAL_URL):
        return ()
    try:
        provider = await providers.ready("local")
        return [model.id for model in await provider.list_models()]
    except ProviderError:
        return ()


async def _listens(url: str) -> bool:
    """Whether something accepts connections there; a quick look, so that starting stays quick."""
    address = urlsplit(url)
    try:
        async with asyncio.timeout(0.3):
            _, writer = await asyncio.open_connection(address.hostname, address.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
