"""What a fallback will need is in memory before a provider fails, so that the next one is asked at once."""

from __future__ import annotations

from collections.abc import Collection

import structlog

from gateway.backends import ProviderRegistry
from gateway.routing.models import Models

log = structlog.get_logger("trunkline.fallback")


async def stand_by(chain: Collection[str], models: Models, providers: ProviderRegistry) -> None:
    """Load the code of a chain's providers, and what is known of models, beside the event loop.

    Who has no chain keeps the memory; whatever cannot be loaded is told of when it is needed.
    """
    for name in chain:
        provider_id = models.known.aliases.get(name, name).partition("/")[0]
        try:
            await providers.load(provider_id)
        except Exception:
            log.exception("a provider of the fallback chain cannot be loaded", provider=provider_id)
    if chain:
        await models.catalog.load()
