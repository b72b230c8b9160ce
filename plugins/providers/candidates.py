"""The built-in providers with the fake servers for their contract trials."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from gateway.testing.contracts.provider_setup import ProviderSetup
from gateway.testing.contracts.trial import Candidate, candidate
from gateway.testing.fake_models.tokens import RIGHT, FakeTokens, with_account
from gateway.testing.fake_models.vendors import DIALECTS
from plugins.providers import PROTOCOLS, PROVIDERS, lazy_factory

_AWS = {"access_key_id": "AKIAFAKE", "secret_access_key": "very-secret"}


@asynccontextmanager
async def signed_in(_: str) -> AsyncGenerator[Mapping[str, Any]]:
    """Yield Copilot's settings after a login, with a fake token service."""
    async with FakeTokens() as tokens:
        yield {"api_key": RIGHT, "credentials": {"api_url": tokens.url}}


def _backend(name: str, **more: Any) -> ProviderSetup:
    return ProviderSetup(name, lazy_factory(PROVIDERS[name].module), DIALECTS[name], **more)


PROVIDER_SETUPS = (
    _backend("openai"),
    _backend("anthropic"),
    _backend("google"),
    _backend("mistral"),
    _backend("groq"),
    _backend("xai"),
    _backend("deepinfra"),
    _backend("cerebras"),
    _backend("cohere"),
    _backend("azure"),
    _backend("vertex", beside=with_account, keyed=False),
    _backend("bedrock", settings={"region": "eu-west-1", "credentials": _AWS}, keyed=False),
    _backend("copilot", beside=signed_in, keyed=False),
    _backend("openrouter"),
    _backend("together"),
    _backend("custom"),
)
"""The sixteen backends under trial."""

BEDROCK_WITH_A_KEY = _backend("bedrock", settings={"region": "eu-west-1"})


def candidates(environ: Mapping[str, str]) -> Sequence[Candidate]:
    """Return the candidates; ``environ`` is not used."""
    return [candidate(setup, PROTOCOLS[PROVIDERS[setup.id].module]) for setup in PROVIDER_SETUPS]
