"""OpenAI's chat completions, as spoken by OpenAI and by the many services that are compatible with it.

How these differ is data, in ``profiles.py``; there is one adapter, and one parser that reads them all.
"""

from __future__ import annotations

from functools import partial

import aiohttp

from gateway import Provider, ProviderConfig, create_provider
from plugins.providers.openai.access import authorizer_for
from plugins.providers.openai.adapter import CompletionsAdapter
from plugins.providers.openai.copilot import CopilotAuthorizer, CopilotProvider
from plugins.providers.openai.profiles import profile_of

__all__ = ["create"]


def create(config: ProviderConfig, session: aiohttp.ClientSession | None = None) -> Provider:
    """A provider for the service that ``config.like`` or ``config.id`` names, or any compatible one."""
    profile = profile_of(config)
    adapter = CompletionsAdapter(profile, config.capable(profile.capabilities))
    if profile.id == "copilot":
        return CopilotProvider(adapter, config, session, CopilotAuthorizer)
    return create_provider(adapter, config, session, partial(authorizer_for, profile))
