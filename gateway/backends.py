"""The model backends: those that are ready, and how the others are made when they are first asked for."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import structlog
from msgspec import Struct

from gateway.errors import AlreadyRegisteredError, ProviderResolutionError
from gateway.plugin import Unregister
from gateway.provider import Adopts, Provider, ProviderConfig
from gateway.registry import Registry

log = structlog.get_logger("trunkline.backends")

CUSTOM = "custom"
"""The factory that serves every provider of the settings which has an address but no factory of its own."""

ProviderFactory = Callable[[ProviderConfig], Provider]

Variables = Mapping[str, Sequence[str]]
"""Which environment variables stand for a field of ProviderConfig (``credentials.x`` for one of those)."""


class ProviderEntry(Struct, frozen=True):
    """What is known of a provider before it is made.

    ``first_model`` is what a key in the environment stands for while no model is configured. One that is
    ``optional`` is of no use until the settings, a login or a key say so. ``load`` brings its code to memory.
    """

    factory: ProviderFactory
    variables: Variables = {}
    first_model: str = ""
    optional: bool = False
    load: Callable[[], object] | None = None


class ProviderRegistry(Registry[Provider]):
    """Providers that are ready, and factories of those that can be made when first asked for."""

    kind = "provider"

    def __init__(self, configure: Callable[[str], ProviderConfig]) -> None:
        super().__init__()
        self._configure = configure
        self._factories: dict[str, ProviderEntry] = {}
        self._making: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def add_factory(
        self,
        provider_id: str,
        factory: ProviderFactory,
        *,
        variables: Variables | None = None,
        first_model: str = "",
        optional: bool = False,
        load: Callable[[], object] | None = None,
    ) -> Unregister:
        """Make the provider known without loading it. Raises AlreadyRegisteredError.

        ``variables`` are those it reads besides ``<ID>_API_KEY``; ``load`` is called in a thread, if the
        provider may be needed soon; see ``ProviderEntry``.
        """
        if provider_id in self._factories:
            raise AlreadyRegisteredError(f"provider {provider_id!r} is already registered")
        self._factories[provider_id] = ProviderEntry(factory, variables or {}, first_model, optional, load)

        def remove() -> None:
            self._factories.pop(provider_id, None)

        return remove

    def known(self) -> tuple[str, ...]:
        """The ids that ``ready`` accepts."""
        return tuple(dict.fromkeys((*self._entries, *self._factories)))

    def factories(self) -> tuple[str, ...]:
        """The ids of those that can be made when they are asked for."""
        return tuple(self._factories)

    def set_up(self) -> tuple[str, ...]:
        """The ids of those that can be used: they want no key, or there is one, or they were made."""
        able = (
            name
            for name, entry in self._factories.items()
            if not entry.optional or _lets_us_in(self._configure(name))
        )
        return tuple(dict.fromkeys((*able, *self._entries)))

    def serves(self, provider_id: str) -> bool:
        """Whether ``ready`` accepts an id: one that is known, or whose settings say how to reach it."""
        if provider_id in self._entries or provider_id in self._factories:
            return True
        config = self._configure(provider_id)
        return config.like is not None or config.base_url is not None

    def variables(self, provider_id: str) -> Variables:
        """Which environment variables stand for which setting of a provider, the first choice first."""
        own = f"{provider_id.upper().replace('-', '_')}_API_KEY"
        entry = self._factories.get(provider_id)
        given: Variables = entry.variables if entry else {}
        return {**given, "api_key": tuple(dict.fromkeys((own, *given.get("api_key", ()))))}

    def first_models(self) -> Sequence[tuple[str, str]]:
        """Providers and the model that each begins with, in the order in which they became known."""
        return [(name, entry.first_model) for name, entry in self._factories.items() if entry.first_model]

    def configured(self, provider_id: str) -> ProviderConfig:
        """How the settings say that a provider is reached."""
        return self._configure(provider_id)

    async def ready(self, provider_id: str) -> Provider:
        """The provider, made and initialised on first use. Raises ProviderResolutionError."""
        provider = self.get(provider_id)
        if provider is not None:
            return provider
        config = self._configure(provider_id)
        entry = self._entry(config)
        if entry is None:
            raise ProviderResolutionError(
                f"no provider {config.like or provider_id!r}; known are {', '.join(self.known()) or 'none'}",
                suggestions=self.known(),
            )
        async with self._making[provider_id]:
            made = self.get(provider_id)
            if made is None:
                made = self._entries[provider_id] = await _made(entry.factory, config)
            return made

    async def load(self, provider_id: str) -> None:
        """Have a provider's code in memory, beside the event loop, so that ``ready`` is quick when it counts.

        Raises what its code raises.
        """
        entry = self._entry(self._configure(provider_id))
        if entry is not None and entry.load is not None:
            await asyncio.to_thread(entry.load)

    def renew(self, provider_id: str) -> None:
        """Let a provider that was made go on with the credentials it has by now. Raises SettingsError."""
        provider = self.get(provider_id)
        if isinstance(provider, Adopts):
            provider.adopt(self._configure(provider_id))
        elif provider is not None:
            log.warning("a provider needs a restart to take other credentials", provider=provider_id)

    async def close(self) -> None:
        """Close every provider that was made."""
        for provider in self.list():
            try:
                await provider.close()
            except Exception:
                log.exception("a provider failed to close", provider=provider.id)

    def _entry(self, config: ProviderConfig) -> ProviderEntry | None:
        entry = self._factories.get(config.like or config.id)
        if entry is None and config.like is None and config.base_url is not None:
            return self._factories.get(CUSTOM)
        return entry


def _lets_us_in(config: ProviderConfig) -> bool:
    """Whether it is known who we are there; a project is enough where the machine itself is known."""
    return bool(config.api_key or config.credentials or config.project_id)


async def _made(factory: ProviderFactory, config: ProviderConfig) -> Provider:
    provider = factory(config)
    await provider.initialize(config)
    return provider
