"""A provider with the fake server that it is tested against."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from msgspec import Struct

from gateway.contract.provider import Provider, ProviderConfig
from gateway.testing.contracts.provider_calls import connected
from gateway.testing.fake_models.dialect import Dialect
from gateway.testing.fake_models.server import FakeModels

KEY = "sk-very-secret-0123456789"


class ProviderSetup(Struct, frozen=True):
    """A provider under test, and its fake server.

    ``settings`` are fields of its ProviderConfig; ``beside`` starts other services for the address of the
    fake server and yields more fields. ``keyed`` means that the provider sends its key unchanged, ``reasons``
    that its protocol has reasoning, ``caches`` that it counts cached tokens.
    """

    id: str
    create: Callable[[ProviderConfig], Provider]
    dialect: Dialect
    settings: Mapping[str, Any] = {}
    beside: Callable[[str], AbstractAsyncContextManager[Mapping[str, Any]]] | None = None
    keyed: bool = True
    reasons: bool = True
    caches: bool = True

    @asynccontextmanager
    async def running(
        self, *, key: str | None = None, **settings: Any
    ) -> AsyncGenerator[tuple[FakeModels, Provider]]:
        """Yield the fake server, and the provider connected to it."""
        async with (
            FakeModels(key=key, dialects=(self.dialect,)) as fake,
            self.connected_to(fake.at(self.dialect), **settings) as provider,
        ):
            yield fake, provider

    @asynccontextmanager
    async def connected_to(self, url: str, **settings: Any) -> AsyncGenerator[Provider]:
        """Yield the provider, connected to another server."""
        async with AsyncExitStack() as stack:
            given = {"like": self.id, **({"api_key": KEY} if self.keyed else {}), **self.settings}
            if self.beside is not None:
                given |= await stack.enter_async_context(self.beside(url))
            yield await stack.enter_async_context(connected(self.create, url, **{**given, **settings}))


Check = Callable[[ProviderSetup], Awaitable[None]]


def named(value: Any) -> str:
    """Return a readable name of a check or setup, for test ids."""
    return value.id if isinstance(value, ProviderSetup) else getattr(value, "__name__", "")
