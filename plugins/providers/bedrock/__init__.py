"""Amazon Bedrock's Converse: signed requests, answers as a stream of binary events."""

from __future__ import annotations

import aiohttp

from gateway import Provider, ProviderConfig, create_provider
from plugins.providers.bedrock.adapter import CAPABILITIES, BedrockAdapter
from plugins.providers.bedrock.signing import signer_for

__all__ = ["create"]


def create(config: ProviderConfig, session: aiohttp.ClientSession | None = None) -> Provider:
    """A provider for Bedrock: with ``api_key`` by that, else signed with credentials of AWS."""
    adapter = BedrockAdapter(config.capable(CAPABILITIES))
    return create_provider(adapter, config, session, signer_for)
