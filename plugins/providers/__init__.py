"""The model providers, as one plugin: each is loaded when it is first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module

from msgspec import Struct

from gateway import Plugin, PluginContext, Provider, ProviderConfig, ProviderRegistry


class Known(Struct, frozen=True):
    """A provider: the module that speaks for it, the model it begins with, what the environment says of it.

    ``<ID>_API_KEY`` is always looked at; ``variables`` are what its users have set besides.
    """

    module: str
    first_model: str = ""
    variables: Mapping[str, Sequence[str]] = {}


PROVIDERS = {
    "anthropic": Known("anthropic", "claude-sonnet-4-5"),
    "openai": Known("openai", "gpt-5-mini"),
    "google": Known("google", "gemini-3.8-flash", {"api_key": ("GEMINI_API_KEY",)}),
    "mistral": Known("openai", "mistral-medium-latest"),
    "groq": Known("openai", "openai/gpt-oss-120b"),
    "xai": Known("openai", "grok-4-1-fast-non-reasoning"),
    "deepinfra": Known(
        "openai", "openai/gpt-oss-120b", {"api_key": ("DEEPINFRA_API_TOKEN", "DEEPINFRA_TOKEN")}
    ),
    "cerebras": Known("openai", "gpt-oss-120b"),
    "cohere": Known("cohere", "command-a-03-2025", {"api_key": ("CO_API_KEY",)}),
    "openrouter": Known("openai", "openrouter/auto"),
    "together": Known("openai", "openai/gpt-oss-120b"),
    "azure": Known(
        "openai",
        variables={
            "api_key": ("AZURE_OPENAI_API_KEY",),
            "base_url": ("AZURE_OPENAI_ENDPOINT",),
            "api_version": ("OPENAI_API_VERSION",),
        },
    ),
    "vertex": Known(
        "google",
        variables={
            "project_id": ("GOOGLE_CLOUD_PROJECT",),
            "region": ("GOOGLE_CLOUD_LOCATION", "GOOGLE_CLOUD_REGION"),
        },
    ),
    "bedrock": Known(
        "bedrock",
        variables={
            "api_key": ("AWS_BEARER_TOKEN_BEDROCK",),
            "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
            "credentials.access_key_id": ("AWS_ACCESS_KEY_ID",),
            "credentials.secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
            "credentials.session_token": ("AWS_SESSION_TOKEN",),
        },
    ),
    "copilot": Known("openai", variables={"api_key": ("GITHUB_COPILOT_TOKEN", "COPILOT_GITHUB_TOKEN")}),
    "demo": Known("demo"),
    "local": Known("openai"),
    "custom": Known("openai"),
}
"""All of them: ``local`` is on this machine, ``custom`` any other address that is compatible with OpenAI."""


PROTOCOLS = {
    "anthropic": "Messages",
    "bedrock": "Converse",
    "cohere": "Chat v2",
    "demo": "none",
    "google": "generateContent",
    "openai": "Chat Completions",
}
"""What the modules speak, as the vendors call it."""


class Providers(Plugin):
    """Makes the built-in providers known without loading them."""

    name = "providers"

    async def activate(self, ctx: PluginContext) -> None:
        """Add a factory for each provider."""
        if ctx.providers is not None:
            make_known(ctx.providers)


def make_known(registry: ProviderRegistry) -> None:
    """Add a factory for each provider to a registry."""
    for provider_id, known in PROVIDERS.items():
        registry.add_factory(
            provider_id,
            lazily(known.module),
            load=partial(import_module, f"plugins.providers.{known.module}"),
            variables=known.variables,
            first_model=known.first_model,
            optional=True,
        )


def lazily(module: str) -> Callable[[ProviderConfig], Provider]:
    """What makes providers of a module, which it loads when the first is made."""

    def create(config: ProviderConfig) -> Provider:
        # A provider's code is only wanted where its models are: hence the import here.
        return import_module(f"plugins.providers.{module}").create(config)

    return create


def create() -> Plugin:
    """The plugin."""
    return Providers()
