"""Google's Gemini: its own API (``google``) and Google Cloud (``vertex``).

In: a ``ProviderConfig``. Out: a ``Provider`` from ``create``. Only ``plugins.providers`` and tests import it.
"""

from __future__ import annotations

from gateway import Provider, ProviderConfig
from gateway.provider_http import HttpClient, create_provider
from plugins.providers.google.adapter import CAPABILITIES, GeminiAdapter
from plugins.providers.google.vertex import VertexAdapter, google_credentials

__all__ = ["create"]


def create(config: ProviderConfig, client: HttpClient | None = None) -> Provider:
    """Make a provider for Gemini; through Google Cloud if ``config.like`` or ``config.id`` is ``vertex``."""
    capabilities = config.capabilities_or(CAPABILITIES)
    if (config.like or config.id) == "vertex":
        return create_provider(VertexAdapter(capabilities), config, client, google_credentials)
    return create_provider(GeminiAdapter(capabilities), config, client)
