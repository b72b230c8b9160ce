"""Which model of another provider comes nearest to one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.models.catalog import Catalog, ModelFacts, Rates, closest_model, name_key

SONNET = ModelFacts("claude-sonnet-4-20250514", "anthropic", context_window=200_000, rates=Rates(3, 15))


async def offered(provider: str, *ids: str) -> Sequence[ModelFacts]:
    """Models of a provider, with what is known of them; all that are known when none is named."""
    catalog = Catalog()
    if not ids:
        return list(catalog.models_of(provider))
    return [catalog.find(provider, model) or ModelFacts(model, provider) for model in ids]


@pytest.mark.parametrize(
    "name",
    [
        "anthropic/claude-sonnet-4",
        "anthropic.claude-sonnet-4-20250514-v1:0",
        "us.anthropic.claude-sonnet-4-20250514-v1:0",
        "claude-sonnet-4@20250514",
        "claude-4-sonnet",
        "claude-sonnet-4-0",
        "CLAUDE-SONNET-4",
    ],
)
def test_a_model_is_the_same_at_every_provider(name: str) -> None:
    assert name_key(name) == name_key("claude-sonnet-4-20250514")


@pytest.mark.parametrize("name", ["claude-sonnet-4-5", "claude-opus-4", "claude-3-5-sonnet", "gpt-4"])
def test_another_model_is_another_one(name: str) -> None:
    assert name_key(name) != name_key("claude-sonnet-4")


def test_numbers_keep_their_order() -> None:
    assert name_key("gpt-4.1") == name_key("gpt-4-1") != name_key("gpt-1.4")


@pytest.mark.parametrize(
    ("provider", "name"),
    [
        ("openrouter", "anthropic/claude-sonnet-4"),
        ("copilot", "claude-sonnet-4"),
    ],
)
async def test_004_36_the_same_model_answers_where_it_is_offered(provider: str, name: str) -> None:
    assert closest_model(SONNET, await offered(provider)) == name


async def test_004_36_else_one_that_costs_about_as_much_does() -> None:
    there = await offered("openai", "gpt-3.5-turbo", "gpt-4o-mini", "gpt-4", "gpt-4o", "o1")
    assert closest_model(SONNET, there) == "gpt-4o"
    assert closest_model(SONNET, list(reversed(there))) == "gpt-4o", "in whatever order they are offered"


async def test_004_36_and_the_newest_of_those() -> None:
    there = await offered("openai", "gpt-4o", "gpt-4o-2024-05-13", "gpt-5.4", "gpt-5.2")
    assert closest_model(SONNET, there) == "gpt-5.4"


async def test_004_36_a_small_model_stands_in_for_a_small_one() -> None:
    [haiku] = await offered("anthropic", "claude-haiku-4-5")
    there = await offered("openai", "gpt-4o", "gpt-5.4", "gpt-5.4-mini", "gpt-5-nano", "o4-mini")
    assert closest_model(haiku, there) == "gpt-5.4-mini"


def test_where_none_costs_as_much_the_nearest_price_decides() -> None:
    there = [ModelFacts("cheap", "p", rates=Rates(0.1, 0.1)), ModelFacts("dear", "p", rates=Rates(30, 90))]
    assert closest_model(SONNET, there) == "dear"


def test_a_conversation_should_fit_into_it() -> None:
    small = ModelFacts("big-4", "p", rates=Rates(3, 15), context_window=8_000)
    large = ModelFacts("huge-4", "p", rates=Rates(2.5, 14), context_window=400_000)
    assert closest_model(SONNET, [small, large]) == "huge-4"


def test_a_retired_or_non_chat_model_is_never_a_fallback() -> None:
    gone = ModelFacts("old-4", "p", rates=Rates(3, 15), deprecated=True)
    painter = ModelFacts("gpt-image-9", "p", rates=Rates(3, 15))
    assert closest_model(SONNET, [gone, painter]) is None


def test_where_no_price_is_known_nothing_comes_near() -> None:
    free = ModelFacts("free", "p", rates=Rates(0, 0))
    assert closest_model(SONNET, [ModelFacts("who-knows", "p"), free]) is None
    assert closest_model(ModelFacts("mine", "desk"), [ModelFacts("gpt-4o", "p", rates=Rates(2, 10))]) is None
    assert closest_model(SONNET, []) is None


@pytest.mark.parametrize(
    ("model", "newer"),
    [("mixtral-8x22b", "mistral-2"), ("llama-70b", "llama-2"), ("mistral-2512", "mistral-3.1")],
)
def test_sizes_and_dates_are_not_versions(model: str, newer: str) -> None:
    there = [ModelFacts(name, "p", rates=Rates(3, 15)) for name in (model, newer)]
    assert closest_model(SONNET, there) == newer
