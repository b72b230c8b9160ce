"""The models there are, as far as their providers tell."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Literal

import structlog
from msgspec import Struct

from gateway.errors import ProviderError
from gateway.registry import ProviderRegistry

log = structlog.get_logger("trunkline.openai")

_SECONDS = 10.0
"""How long a provider may take to list its models."""


class ListedModel(Struct, frozen=True):
    """A model, by the name that requests use. When it was made is not known here."""

    id: str
    owned_by: str
    created: int = 0
    object: Literal["model"] = "model"


class ModelList(Struct, frozen=True):
    """All models, the configured one first."""

    data: list[ListedModel]
    object: Literal["list"] = "list"


class Shelf:
    """Asks the providers that are set up which models they have."""

    def __init__(self, providers: ProviderRegistry, configured: Collection[str]) -> None:
        self._providers = providers
        self._configured = configured

    async def list(self, default: str) -> ModelList:
        """What all of them say at once; one that fails or is slow adds what the settings say of it."""
        ids = self._set_up(default)
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(self._models(provider_id)) for provider_id in ids]
        names = dict.fromkeys((default, *(name for task in asked for name in task.result())))
        return ModelList([ListedModel(name, name.partition("/")[0]) for name in names])

    def _set_up(self, default: str) -> list[str]:
        keyed = (p for p in self._providers.known() if self._providers.configured(p).api_key)
        made = (provider.id for provider in self._providers.list())
        return list(dict.fromkeys((default.partition("/")[0], *self._configured, *made, *keyed)))

    async def _models(self, provider_id: str) -> list[str]:
        try:
            async with asyncio.timeout(_SECONDS):
                provider = await self._providers.ready(provider_id)
                return [f"{provider_id}/{model.id}" for model in await provider.list_models()]
        except (ProviderError, TimeoutError) as error:
            log.warning(
                "a provider did not list its models", provider=provider_id, error=type(error).__name__
            )
            return [f"{provider_id}/{model}" for model in self._providers.configured(provider_id).models]
