"""The provider registry: created providers, and factories for those created on first use."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import structlog
from msgspec import Struct

from gateway.contract.errors import (
    CATCHABLE,
    AlreadyRegisteredError,
    ProviderResolutionError,
    SettingsError,
    TrunklineError,
    is_cancellation_requested,
)
from gateway.contract.provider import Provider, ProviderConfig, ReloadsCredentials
from gateway.contract.services import Unregister
from gateway.extensions.registry import Registry

log = structlog.get_logger("trunkline.backends")

CUSTOM = "custom"
"""The factory for configured providers that have a base URL but no factory of their own."""

ProviderFactory = Callable[[ProviderConfig], Provider]

Variables = Mapping[str, Sequence[str]]
"""Environment variables by field of ProviderConfig (``credentials.x`` for a single credential)."""


def key_variable(provider_id: str) -> str:
    """Return the environment variable that has the key of any provider."""
    return f"{provider_id.upper().replace('-', '_')}_API_KEY"


class ProviderEntry(Struct, frozen=True):
    """A provider factory and its description.

    ``first_model`` is the default model if the environment has a key and no model is configured. An
    ``optional`` provider is unusable until the settings, a login or a key configure it. ``load`` imports its
    code. ``stand_in`` is the id of the provider that answers instead if no fallback is configured. A provider
    with ``needs_key=False`` works without a credential, because a local program has its own; ``key_of`` is
    the id of the provider that supplies the stored key of such a program.
    """

    factory: ProviderFactory
    variables: Variables = {}
    first_model: str = ""
    optional: bool = False
    load: Callable[[], object] | None = None
    stand_in: str = ""
    needs_key: bool = True
    key_of: str = ""


class ProviderRegistry(Registry[Provider]):
    """Created providers, and factories for those created on first use."""

    kind = "provider"

    def __init__(self, configure: Callable[[str], ProviderConfig]) -> None:
        super().__init__()
        self._configure = configure
        self._factories: dict[str, ProviderEntry] = {}
        self._making: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._made_by: dict[str, ProviderEntry] = {}
        """The factory of each provider that one has created."""
        self._removed: list[Provider] = []
        """Providers to close at the end: a running turn may still use them."""

    def register(self, entry: Provider) -> Unregister:
        """Add a provider. Raises AlreadyRegisteredError if the id is taken; the result removes it."""
        unregister = super().register(entry)

        def remove() -> None:
            if self.get(entry.id) is entry:
                unregister()
                self._removed.append(entry)

        return remove

    def add_factory(
        self,
        provider_id: str,
        factory: ProviderFactory,
        *,
        variables: Variables | None = None,
        first_model: str = "",
        optional: bool = False,
        load: Callable[[], object] | None = None,
        stand_in: str = "",
        needs_key: bool = True,
        key_of: str = "",
    ) -> Unregister:
        """Register a provider without loading it. Raises AlreadyRegisteredError.

        ``variables`` are read besides ``<ID>_API_KEY``; ``load`` is called in a thread if the provider may be
        needed soon; see ``ProviderEntry``.
        """
        if provider_id in self._factories:
            raise AlreadyRegisteredError(f"provider {provider_id!r} is already registered")
        entry = self._factories[provider_id] = ProviderEntry(
            factory, variables or {}, first_model, optional, load, stand_in, needs_key, key_of
        )

        def remove() -> None:
            if self._factories.get(provider_id) is entry:
                del self._factories[provider_id]
                self._drop_made(entry)

        return remove

    def _drop_made(self, entry: ProviderEntry) -> None:
        """Remove the providers that a factory has created; the next call tries to create them again."""
        for made in [name for name, factory in self._made_by.items() if factory is entry]:
            del self._made_by[made]
            if (provider := self._entries.pop(made, None)) is not None:
                self._removed.append(provider)

    def known(self) -> tuple[str, ...]:
        """Return the ids of all created providers and factories."""
        return tuple(dict.fromkeys((*self._entries, *self._factories)))

    def factories(self) -> tuple[str, ...]:
        """Return the ids of all factories."""
        return tuple(self._factories)

    def set_up(self) -> tuple[str, ...]:
        """Return the ids of usable providers: created, configured with a key, or without need of one."""
        able = (
            name
            for name, entry in self._factories.items()
            if not entry.optional or _has_credentials(self._configure(name))
        )
        return tuple(dict.fromkeys((*able, *self._entries)))

    def serves(self, provider_id: str) -> bool:
        """Return whether ``ready`` accepts an id: a known one, or one with a base URL in the settings."""
        if provider_id in self._entries or provider_id in self._factories:
            return True
        config = self._configure(provider_id)
        return config.like is not None or config.base_url is not None

    def stand_in_of(self, provider_id: str) -> str | None:
        """Return the default stand-in for a provider, if it is registered and usable."""
        entry = self._factories.get(provider_id)
        other = None if entry is None else self._factories.get(entry.stand_in)
        if entry is None or other is None:
            return None
        return entry.stand_in if not other.needs_key or entry.stand_in in self.set_up() else None

    def key_owner(self, provider_id: str) -> str:
        """Return the id under which a provider's key is stored: its own, or the one set by ``key_of``.

        Raises SettingsError if a separate program keeps its login.
        """
        entry = self._entry(self._configure(provider_id))
        if entry is None or entry.needs_key:
            return provider_id
        if not entry.key_of:
            raise SettingsError(
                f"{provider_id} uses no key of the gateway: log in with its own program, or set the key "
                "in the settings of its plugin"
            )
        return entry.key_of

    def variables(self, provider_id: str) -> Variables:
        """Return a provider's environment variables by setting, in order of precedence."""
        own = key_variable(provider_id)
        entry = self._factories.get(provider_id)
        given: Variables = entry.variables if entry else {}
        return {**given, "api_key": tuple(dict.fromkeys((own, *given.get("api_key", ()))))}

    def first_models(self) -> Sequence[tuple[str, str]]:
        """Return the providers that have a default model, with it, in order of registration."""
        return [(name, entry.first_model) for name, entry in self._factories.items() if entry.first_model]

    def configured(self, provider_id: str) -> ProviderConfig:
        """Return a provider's configuration from the settings."""
        return self._configure(provider_id)

    async def ready(self, provider_id: str) -> Provider:
        """Return a provider; create and initialise it on first use. Raises ProviderResolutionError."""
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
                made = await _made(entry.factory, config)
                if self._entry(config) is not entry:
                    # Removed in the meantime: this call may use it, later ones may not.
                    self._removed.append(made)
                    return made
                self._entries[provider_id], self._made_by[provider_id] = made, entry
            return made

    async def make_apart(self, config: ProviderConfig) -> Provider:
        """Create a provider with its own configuration, for a trial. The caller closes it.

        Raises ProviderResolutionError, and the errors of the gateway that the provider's code raises.
        """
        entry = self._entry(config)
        if entry is None:
            raise ProviderResolutionError(f"no provider {config.id!r}", suggestions=self.known())
        return await _made(entry.factory, config)

    def reloads(self, provider_id: str) -> bool:
        """Return whether new credentials of a provider need no restart."""
        provider = self.get(provider_id)
        return provider is None or isinstance(provider, ReloadsCredentials)

    async def load(self, provider_id: str) -> None:
        """Import a provider's code in a thread, so that ``ready`` is fast later.

        Raises the errors of that code.
        """
        entry = self._entry(self._configure(provider_id))
        if entry is not None and entry.load is not None:
            await asyncio.to_thread(entry.load)

    def renew(self, provider_id: str) -> None:
        """Let a created provider use its current credentials. Raises SettingsError."""
        provider = self.get(provider_id)
        if isinstance(provider, ReloadsCredentials):
            provider.reload(self._configure(provider_id))
        elif provider is not None:
            log.warning("a provider needs a restart to use new credentials", provider=provider_id)

    async def close(self) -> None:
        """Close every created provider, also those that were removed."""
        for provider in (*self.list(), *self._removed):
            try:
                await provider.close()
            except Exception:
                log.exception("a provider failed to close", provider=provider.id)

    def _entry(self, config: ProviderConfig) -> ProviderEntry | None:
        entry = self._factories.get(config.like or config.id)
        if entry is None and config.like is None and config.base_url is not None:
            return self._factories.get(CUSTOM)
        return entry


def _has_credentials(config: ProviderConfig) -> bool:
    """Return whether credentials exist; a project id is enough for a machine identity."""
    return bool(config.api_key or config.credentials or config.project_id)


async def _made(factory: ProviderFactory, config: ProviderConfig) -> Provider:
    """Create a provider. Raises ProviderResolutionError for a failure of its code, so that others answer."""
    try:
        provider = factory(config)
        await provider.initialize(config)
    except CATCHABLE as error:
        if isinstance(error, TrunklineError) or is_cancellation_requested(error):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise ProviderResolutionError(f"provider {config.id!r} cannot be created: {reason}") from error
    return provider
