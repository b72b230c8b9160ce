"""Google's Gemini, by its own API (``google``) and by Google Cloud (``vertex``)."""

from __future__ import annotations

import aiohttp

from gateway import Provider, ProviderConfig, create_provider
from plugins.providers.google.adapter import CAPABILITIES, GeminiAdapter
from plugins.providers.google.cloud import VertexAdapter, google_credentials

__all__ = ["create"]


def create(config: ProviderConfig, session: aiohttp.ClientSession | None = None) -> Provider:
    """A provider for Gemini; through Google Cloud if ``config.like`` or ``config.id`` is ``vertex``."""
    capabilities = config.capable(CAPABILITIES)
    if (config.like or config.id) == "vertex":
        return create_provider(VertexAdapter(capabilities), config, session, google_credentials)
    return create_provider(GeminiAdapter(capabilities), config, session)
