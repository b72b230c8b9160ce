"""The built-in model providers as one plugin.

In: the settings of a provider. Out: a ``Provider`` from the vendor's module, which is imported at its first
use. Tests and benches may import it; other plugins may not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module

from msgspec import Struct
from pydantic import BaseModel

from gateway import Plugin, PluginContext, Provider, ProviderConfig
from gateway.provider_http import ProviderService


class ProviderEntry(Struct, frozen=True):
    """A built-in provider: its module, its default model, and its environment variables.

    ``variables`` are names besides ``<ID>_API_KEY``, by the setting that they fill.
    """

    module: str
    first_model: str = ""
    variables: Mapping[str, Sequence[str]] = {}
    stand_in: str = ""
    """The id of the provider that answers instead if no fallback is configured."""
    keyless: bool = False
    """It may work without a key: on this machine, or with the machine's identity in a cloud."""
    own_names: bool = False
    """Its models have names that the operator gave them, such as those of deployments."""


PROVIDERS = {
    "anthropic": ProviderEntry("anthropic", "claude-sonnet-5-5"),
    "openai": ProviderEntry("openai", "gpt-5.4-mini"),
    "google": ProviderEntry(
        "google", "gemini-3.8-flash", {"api_key": ("GEMINI_API_KEY",)}, stand_in="gemini"
    ),
    "mistral": ProviderEntry("openai", "mistral-medium-latest"),
    "groq": ProviderEntry("openai", "openai/gpt-oss-120b"),
    "xai": ProviderEntry("openai", "grok-4.7"),
    "deepinfra": ProviderEntry(
        "openai", "openai/gpt-oss-120b", {"api_key": ("DEEPINFRA_API_TOKEN", "DEEPINFRA_TOKEN")}
    ),
    "cerebras": ProviderEntry("openai", "gpt-oss-120b"),
    "cohere": ProviderEntry("cohere", "command-a-03-2025", {"api_key": ("CO_API_KEY",)}),
    "openrouter": ProviderEntry("openai", "openrouter/auto"),
    "together": ProviderEntry("openai", "openai/gpt-oss-120b"),
    "azure": ProviderEntry(
        "openai",
        own_names=True,
        variables={
            "api_key": ("AZURE_OPENAI_API_KEY",),
            "base_url": ("AZURE_OPENAI_ENDPOINT",),
            "api_version": ("OPENAI_API_VERSION",),
        },
    ),
    "vertex": ProviderEntry(
        "google",
        keyless=True,
        variables={
            "project_id": ("GOOGLE_CLOUD_PROJECT",),
            "region": ("GOOGLE_CLOUD_LOCATION", "GOOGLE_CLOUD_REGION"),
        },
    ),
    "bedrock": ProviderEntry(
        "bedrock",
        keyless=True,
        variables={
            "api_key": ("AWS_BEARER_TOKEN_BEDROCK",),
            "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
            "credentials.access_key_id": ("AWS_ACCESS_KEY_ID",),
            "credentials.secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
            "credentials.session_token": ("AWS_SESSION_TOKEN",),
        },
    ),
    "copilot": ProviderEntry(
        "openai", variables={"api_key": ("GITHUB_COPILOT_TOKEN", "COPILOT_GITHUB_TOKEN")}
    ),
    "demo": ProviderEntry("demo", keyless=True),
    "local": ProviderEntry("openai", keyless=True),
    "custom": ProviderEntry("openai"),
}
"""The built-in providers. ``local`` is a server on this machine, ``custom`` any OpenAI-compatible address."""


PROTOCOLS = {
    "anthropic": "Messages",
    "bedrock": "Converse",
    "cohere": "Chat v2",
    "demo": "none",
    "google": "generateContent",
    "openai": "Chat Completions",
}
"""The protocol of each module, as its vendor names it."""


class ProvidersSettings(BaseModel):
    """The plugin has no settings."""


class Providers(Plugin):
    """Registers the built-in providers without importing their modules."""

    name = "providers"
    settings_model = ProvidersSettings

    async def activate(self, ctx: PluginContext) -> None:
        """Add a factory for each provider."""
        if ctx.providers is not None:
            register_factories(ctx.providers)


def register_factories(registry: ProviderService) -> None:
    """Add a factory for each provider to a registry."""
    for provider_id, known in PROVIDERS.items():
        registry.add_factory(
            provider_id,
            lazy_factory(known.module),
            load=partial(import_module, f"plugins.providers.{known.module}"),
            variables=known.variables,
            first_model=known.first_model,
            optional=True,
            stand_in=known.stand_in,
        )


def lazy_factory(module: str) -> Callable[[ProviderConfig], Provider]:
    """Make a factory that imports ``module`` when it makes the first provider."""

    def create(config: ProviderConfig) -> Provider:
        # Importing all vendors would cost start time and memory for providers that are not used.
        return import_module(f"plugins.providers.{module}").create(config)

    return create


def create() -> Plugin:
    """Make the plugin."""
    return Providers()
