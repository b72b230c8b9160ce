"""What the providers say they offer: asked when somebody wants to know, and remembered for a while."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import structlog
from msgspec import Struct

from gateway.backends import ProviderRegistry
from gateway.errors import FAILURES, TrunklineError, asked_for
from gateway.provider import ModelInfo

log = structlog.get_logger("trunkline.models")

PATIENCE = 10.0
"""Seconds that a provider may take to list its models."""

_KEPT, _KEPT_FAILURE = 3600.0, 60.0


class Listed(Struct, frozen=True):
    """What a provider offers. Where it did not say, what the settings say, and why: ``missing``."""

    models: tuple[ModelInfo, ...]
    missing: str = ""


class Lists:
    """The lists of all providers. ``clock`` tells seconds."""

    def __init__(self, providers: ProviderRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._providers = providers
        self._clock = clock
        self.heard = 0
        """How many lists have come so far."""
        self._kept: dict[str, tuple[float, Listed]] = {}
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def known(self, provider_id: str) -> tuple[ModelInfo, ...]:
        """What a provider offers as far as that is known without asking it."""
        kept = self._kept.get(provider_id)
        return kept[1].models if kept else self._of_settings(provider_id)

    async def all(self, ids: Iterable[str], patience: float = PATIENCE) -> Mapping[str, Listed]:
        """What several providers offer, all asked at once."""
        async with asyncio.TaskGroup() as tasks:
            asked = {name: tasks.create_task(self.of(name, patience)) for name in dict.fromkeys(ids)}
        return {name: task.result() for name, task in asked.items()}

    async def of(self, provider_id: str, patience: float = PATIENCE) -> Listed:
        """What one provider offers."""
        async with self._asking[provider_id]:
            kept = self._kept.get(provider_id)
            if kept is None or self._clock() >= kept[0]:
                listed = await self._ask(provider_id, patience)
                keep = _KEPT_FAILURE if listed.missing else _KEPT
                kept = self._kept[provider_id] = (self._clock() + keep, listed)
        return kept[1]

    def forget(self, provider_id: str) -> None:
        """Ask a provider anew when somebody wants to know."""
        self._kept.pop(provider_id, None)

    async def _ask(self, provider_id: str, patience: float) -> Listed:
        try:
            async with asyncio.timeout(patience):
                provider = await self._providers.ready(provider_id)
                listed = Listed(tuple(await provider.list_models()))
                self.heard += 1
                return listed
        except FAILURES as error:
            if asked_for(error):
                raise
            said = _reason(error, patience)
            log.warning("a provider did not list its models", provider=provider_id, reason=said)
            return Listed(self._of_settings(provider_id), said)

    def _of_settings(self, provider_id: str) -> tuple[ModelInfo, ...]:
        return tuple(ModelInfo(name, provider_id) for name in self._providers.configured(provider_id).models)


def _reason(error: BaseException, patience: float) -> str:
    """Why a list did not come; a plugin's provider may fail with anything."""
    if isinstance(error, TimeoutError):
        return f"it did not answer within {patience:g} seconds"
    return str(error) if isinstance(error, TrunklineError) else f"{type(error).__name__}: {error}"
