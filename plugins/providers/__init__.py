"""The model providers, as one plugin: each is loaded when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from gateway import Plugin, PluginContext, Provider, ProviderConfig

MODULES = {
    "openai": "openai",
    "anthropic": "anthropic",
    "demo": "demo",
    "local": "openai",
    "custom": "openai",
}
"""Which module speaks for which provider: ``local`` is on this machine, ``custom`` any other address."""


class Providers(Plugin):
    """Makes the built-in providers known without loading them."""

    name = "providers"

    async def activate(self, ctx: PluginContext) -> None:
        """Add a factory for each provider."""
        if ctx.providers is None:
            return
        for provider_id, module in MODULES.items():
            ctx.providers.add_factory(provider_id, _lazily(module))


def _lazily(module: str) -> Callable[[ProviderConfig], Provider]:
    def create(config: ProviderConfig) -> Provider:
        # A provider's code is only wanted where its models are: hence the import here.
        return import_module(f"plugins.providers.{module}").create(config)

    return create


def create() -> Plugin:
    """The plugin."""
    return Providers()
