"""Retirement dates of models."""

from __future__ import annotations

from datetime import date

import pytest

from gateway import ProviderConfig
from gateway.extensions.backends import ProviderRegistry
from gateway.models import ConfiguredModels, Models, retirement


@pytest.mark.parametrize(
    ("provider", "model", "day"),
    [
        ("anthropic", "claude-sonnet-4-5", date(2026, 11, 30)),
        ("anthropic", "claude-sonnet-4-5-20250929", date(2026, 11, 30)),
        ("anthropic", "claude-3-opus-latest", date(2026, 1, 5)),
        ("anthropic", "claude-2.1", date(2025, 7, 21)),
        ("anthropic", "claude-sonnet-4-6", None),
        ("anthropic", "claude-sonnet-5-5", None),
        ("openai", "gpt-5-mini", date(2026, 12, 11)),
        ("openai", "gpt-4o", date(2027, 1, 14)),
        ("openai", "gpt-4o-2024-05-13", date(2026, 10, 23)),
        ("openai", "gpt-5.4-mini", None),
        ("google", "gemini-2.5-flash", date(2026, 12, 1)),
        ("google", "gemini-2.5-flash-lite", None),
        ("bedrock", "anthropic.claude-sonnet-4-5-20250929-v1:0", date(2027, 4, 8)),
        ("bedrock", "us.anthropic.claude-3-haiku-20240307-v1:0", date(2026, 11, 22)),
        ("bedrock", "global.anthropic.claude-opus-4-6-v1:0", None),
        ("mistral", "mistral-medium-2312", date(2025, 6, 16)),
        ("mistral", "mistral-medium-latest", None),
        ("mistral", "mistral-large-2512", None),
        ("mistral", "ministral-8b-2512", None),
        ("groq", "openai/gpt-oss-120b", None),
        ("groq", "llama3-70b-8192", date(2026, 11, 22)),
        ("together", "meta-llama/Llama-2-70b-chat-hf", date(2026, 11, 22)),
        ("together", "openai/gpt-oss-120b", None),
        ("cohere", "command-r-plus-04-2024", date(2025, 9, 15)),
        ("cohere", "command-a-03-2025", None),
        ("nobody", "claude-2", None),
    ],
)
def test_dates_are_known_by_provider_and_model(provider: str, model: str, day: date | None) -> None:
    assert retirement(provider, model) == day


async def test_the_facts_of_a_model_have_its_date_at_a_provider_of_its_kind() -> None:
    providers = ProviderRegistry(lambda name: ProviderConfig(id=name, like="anthropic"))
    models = Models(providers, ConfiguredModels())
    facts = await models.facts("work", "claude-sonnet-4-5")
    assert facts.retires == "2026-11-30"
    known = {facts.id: facts.retires for facts in await models.offline_models("work")}
    assert (known["claude-2"], known["claude-sonnet-5-5"]) == ("2025-07-21", None)
