"""Logins while the gateway runs: that somebody signed in or out with ``trunkline auth`` is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from gateway.backends import ProviderRegistry
from gateway.errors import SettingsError
from gateway.routing.keys import KeptKeys
from gateway.routing.models import Models

log = structlog.get_logger("trunkline.keys")

_EVERY = 1.0
"""Seconds between two looks at the file of keys."""


class Logins:
    """Tells providers of other credentials; ``noticed`` comes after that."""

    def __init__(
        self,
        kept: KeptKeys,
        providers: ProviderRegistry,
        models: Models,
        noticed: Callable[[], Awaitable[None]],
    ) -> None:
        self._kept = kept
        self._providers = providers
        self._models = models
        self._noticed = noticed

    async def run(self) -> None:
        """Look once a second until cancelled."""
        while True:
            await asyncio.sleep(_EVERY)
            try:
                changed = await asyncio.to_thread(self._kept.changed)
            except SettingsError as error:
                log.error("what logins left cannot be read", reason=str(error))
                continue
            for provider_id in changed:
                self._renew(provider_id)
            if changed:
                await self._noticed()

    def _renew(self, provider_id: str) -> None:
        try:
            self._providers.renew(provider_id)
        except SettingsError as error:
            log.error("a login cannot be used", provider=provider_id, reason=str(error))
        else:
            log.info("somebody signed in or out", provider=provider_id)
        self._models.forget(provider_id)
