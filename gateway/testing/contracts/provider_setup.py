"""A provider and the fake server it is held against: what checks of the contract are about."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from msgspec import Struct

from gateway.contract.deltas import Delta
from gateway.contract.errors import ProviderError
from gateway.contract.provider import Provider, ProviderConfig
from gateway.testing.contracts.provider_calls import OPTIONS, connected, user
from gateway.testing.fake_models.dialect import Dialect
from gateway.testing.fake_models.server import FakeModels

KEY = "sk-very-secret-0123456789"


class ProviderSetup(Struct, frozen=True):
    """A provider to be held to the contract.

    ``settings`` are fields of its ProviderConfig; ``beside`` runs what else it needs, is told the address
    of the fake server, and yields more of them. ``keyed`` says that it shows a key as it is; ``reasons``
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
        """The fake server, and the provider connected to it."""
        async with (
            FakeModels(key=key, dialects=(self.dialect,)) as fake,
            self.connected_to(fake.at(self.dialect), **settings) as provider,
        ):
            yield fake, provider

    @asynccontextmanager
    async def connected_to(self, url: str, **settings: Any) -> AsyncGenerator[Provider]:
        """The provider, connected to a server of somebody else's."""
        async with AsyncExitStack() as stack:
            given = {"like": self.id, **({"api_key": KEY} if self.keyed else {}), **self.settings}
            if self.beside is not None:
                given |= await stack.enter_async_context(self.beside(url))
            yield await stack.enter_async_context(connected(self.create, url, **{**given, **settings}))


Check = Callable[[ProviderSetup], Awaitable[None]]


def named(value: Any) -> str:
    """A readable name for a check or a setup, for the list of tests."""
    return value.id if isinstance(value, ProviderSetup) else getattr(value, "__name__", "")


async def failure_of(provider: Provider, seen: list[Delta] | None = None) -> ProviderError:
    """What a call fails with; ``seen`` gets what came before."""

    async def listen() -> None:
        async for delta in provider.stream((user("Hi"),), OPTIONS):
            if seen is not None:
                seen.append(delta)

    return await raised_by(listen())


async def raised_by(call: Awaitable[Any]) -> ProviderError:
    """What a call raises, which it must."""
    try:
        await call
    except ProviderError as error:
        return error
    raise AssertionError("it should have failed")
