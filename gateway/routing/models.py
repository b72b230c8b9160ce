"""From the name of a model, ``provider/name``, to the provider that serves it."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from msgspec import Struct

from gateway.errors import ProviderError, ProviderResolutionError
from gateway.provider import Provider
from gateway.registry import ProviderRegistry
from gateway.routing.reaching import LOCAL_URL


class Route(Struct, frozen=True):
    """A model and the provider that serves it."""

    provider: Provider
    model: str


class Models:
    """Finds the provider of a model."""

    def __init__(self, providers: ProviderRegistry) -> None:
        self._providers = providers
        self._routes: dict[str, Route] = {}

    def named(self, name: str) -> str:
        """A model's full name: that of a provider alone means the model it begins with."""
        if "/" in name:
            return name
        configured = self._providers.configured(name).models
        return f"{name}/{configured[0] if configured else dict(self._providers.first_models()).get(name, '')}"

    async def resolve(self, name: str) -> Route:
        """The route of ``provider/model``. Raises ProviderResolutionError with the nearest names."""
        route = self._routes.get(name)
        if route is not None:
            return route
        provider_id, slash, model = name.partition("/")
        if not slash or not model:
            raise ProviderResolutionError(
                f"model {name!r} names no provider; write it as provider/model, such as openai/{name}"
            )
        try:
            provider = await self._providers.ready(provider_id)
        except ProviderResolutionError as error:
            near = difflib.get_close_matches(provider_id, self._providers.known(), n=3, cutoff=0.4)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ProviderResolutionError(f"{error}{hint}", suggestions=near) from None
        route = self._routes[name] = Route(provider, model)
        return route


async def first_model(environ: Mapping[str, str], providers: ProviderRegistry) -> str:
    """The model to use when none is configured: by a key, by a local server, or the built-in demo."""
    for provider_id, model in providers.first_models():
        if any(environ.get(name) for name in providers.variables(provider_id)["api_key"]):
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
