"""Every provider, held to the same contract against a server that speaks its protocol and its quirks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.testing.backend import Backend, Check, named
from gateway.testing.dialects import DIALECTS
from gateway.testing.provider_contract import CHECKS
from gateway.testing.tokens import RIGHT, FakeTokens
from plugins.providers import anthropic, bedrock, cohere, google, openai
from tests.plugins.providers.service_account import with_account


@asynccontextmanager
async def signed_in(_: str) -> AsyncGenerator[Mapping[str, Any]]:
    """Copilot's settings after a login, and the service that exchanges its token."""
    async with FakeTokens() as tokens:
        yield {"api_key": RIGHT, "credentials": {"api_url": tokens.url}}


BACKENDS = (
    Backend("openai", openai.create, DIALECTS["openai"]),
    Backend("anthropic", anthropic.create, DIALECTS["anthropic"]),
    Backend("mistral", openai.create, DIALECTS["mistral"]),
    Backend("groq", openai.create, DIALECTS["groq"]),
    Backend("xai", openai.create, DIALECTS["xai"]),
    Backend("deepinfra", openai.create, DIALECTS["deepinfra"]),
    Backend("cerebras", openai.create, DIALECTS["cerebras"]),
    Backend("openrouter", openai.create, DIALECTS["openrouter"]),
    Backend("together", openai.create, DIALECTS["together"]),
    Backend("azure", openai.create, DIALECTS["azure"]),
    Backend("google", google.create, DIALECTS["google"]),
    Backend("vertex", google.create, DIALECTS["vertex"], beside=with_account, keyed=False),
    Backend("cohere", cohere.create, DIALECTS["cohere"]),
    Backend(
        "bedrock",
        bedrock.create,
        DIALECTS["bedrock"],
        settings={
            "region": "eu-west-1",
            "credentials": {"access_key_id": "AKIAFAKE", "secret_access_key": "very-secret"},
        },
        keyed=False,
    ),
    Backend("bedrock", bedrock.create, DIALECTS["bedrock"], settings={"region": "eu-west-1"}),
    Backend("copilot", openai.create, DIALECTS["copilot"], beside=signed_in, keyed=False),
    Backend("custom", openai.create, DIALECTS["openai"]),
)


@pytest.mark.parametrize("backend", BACKENDS, ids=named)
@pytest.mark.parametrize("check", CHECKS, ids=named)
async def test_004_33_the_contract_holds(backend: Backend, check: Check) -> None:
    await check(backend)
