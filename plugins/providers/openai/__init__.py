"""OpenAI's Chat Completions and Responses protocols, for OpenAI and for compatible services.

The services differ in data (``profiles.py``); they share one adapter and one parser.
In: a ``ProviderConfig``. Out: a ``Provider`` from ``create``. Only ``plugins.providers`` and tests import it.
"""

from __future__ import annotations

from functools import partial

from gateway import Provider, ProviderConfig
from gateway.provider_http import HttpClient, create_provider
from plugins.providers.openai.adapter import CompletionsAdapter
from plugins.providers.openai.copilot import CopilotAuthorizer, CopilotProvider
from plugins.providers.openai.oauth import authorizer_for
from plugins.providers.openai.profiles import profile_of

__all__ = ["create"]


def create(config: ProviderConfig, client: HttpClient | None = None) -> Provider:
    """Make a provider for the service named by ``config.like`` or ``config.id``, or any compatible one."""
    profile = profile_of(config)
    adapter = CompletionsAdapter(profile, config.capabilities_or(profile.capabilities))
    if profile.id == "copilot":
        return CopilotProvider(adapter, config, client, CopilotAuthorizer)
    return create_provider(adapter, config, client, partial(authorizer_for, profile))
