"""Amazon Bedrock's Converse protocol: signed requests, and answers as a stream of binary events.

In: a ``ProviderConfig``. Out: a ``Provider`` from ``create``. Only ``plugins.providers`` and tests import it.
"""

from __future__ import annotations

from gateway import Provider, ProviderConfig
from gateway.provider_http import HttpClient, create_provider
from plugins.providers.bedrock.adapter import CAPABILITIES, BedrockAdapter
from plugins.providers.bedrock.signer import signer_for

__all__ = ["create"]


def create(config: ProviderConfig, client: HttpClient | None = None) -> Provider:
    """Make a provider for Bedrock that sends ``api_key``, or signs requests with AWS credentials."""
    adapter = BedrockAdapter(config.capabilities_or(CAPABILITIES))
    return create_provider(adapter, config, client, signer_for)
