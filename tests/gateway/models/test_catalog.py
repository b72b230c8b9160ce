"""What is known of models without asking anybody."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from genai_prices.data_snapshot import find_provider_by_id, get_snapshot

from gateway import Capabilities, ModelInfo
from gateway.models.catalog import (
    Catalog,
    ModelFacts,
    Rates,
    configured_rates,
    facts_from_listing,
    facts_from_settings,
    is_chat_model,
    release_date,
)
from gateway.settings import ModelSettings

ROOT = Path(__file__).parents[3]
TOOL = ROOT / "tests" / "tools" / "model_data.py"
DATA = ROOT / "gateway" / "models" / "model_data.json"


@pytest.fixture
def catalog() -> Catalog:
    """The data that is part of the gateway."""
    return Catalog()


async def test_004_T11_models_are_known_offline(catalog: Catalog) -> None:
    known = catalog.find("openai", "gpt-4o")
    assert known is not None
    assert (known.full_name, known.context_window) == ("openai/gpt-4o", 128_000)
    assert known.rates == Rates(input=2.5, output=10.0, cached=1.25)
    assert (known.tools, known.images, known.output_limit) == (None, None, None), "the data does not say"


async def test_a_model_is_known_by_every_name_it_has(catalog: Catalog) -> None:
    dated = catalog.find("anthropic", "claude-sonnet-4-20250514")
    assert dated is not None
    assert (dated.id, dated.released) == ("claude-sonnet-4-20250514", "2025-05-14")
    assert dated.rates == Rates(input=3.0, output=15.0, cached=0.3, cache_write=3.75)
    for provider, name in [
        ("bedrock", "us.anthropic.claude-sonnet-4-20250514-v1:0"),
        ("openrouter", "anthropic/claude-sonnet-4"),
        ("vertex", "claude-sonnet-4@20250514"),
    ]:
        there = catalog.find(provider, name)
        assert there is not None
        assert there.rates is not None
        assert (there.rates.input, there.rates.output) == (3.0, 15.0)


async def test_a_provider_knows_its_own_models_from_those_it_passes_on(catalog: Catalog) -> None:
    assert catalog.find("azure", "gpt-4o") is not None
    assert not catalog.lists_own("azure", "gpt-4o")
    assert catalog.lists_own("openai", "gpt-4o")


async def test_nothing_is_made_up(catalog: Catalog) -> None:
    assert catalog.find("openai", "gpt-4o-of-my-dreams") is None
    assert catalog.find("desk", "gpt-4o") is None
    assert list(catalog.models_of("desk")) == []


async def test_every_fact_of_every_provider_can_be_shown(catalog: Catalog) -> None:
    for provider in ("openai", "anthropic", "google", "bedrock", "openrouter", "xai", "copilot", "cohere"):
        facts = list(catalog.models_of(provider))
        assert len(facts) > 5, provider
        assert all(model.context_window is None or model.context_window > 0 for model in facts)
        assert all(model.rates is None or (model.rates.input or 0) >= 0 for model in facts)


async def test_a_price_that_rises_with_the_length_says_so(catalog: Catalog) -> None:
    model = catalog.find("openai", "gpt-5.4")
    assert model is not None
    assert model.rates == Rates(input=2.5, output=15.0, cached=0.25, rising=True)


async def test_one_whose_price_for_sound_is_known_can_hear(catalog: Catalog) -> None:
    hears, silent = catalog.find("google", "gemini-2.5-flash"), catalog.find("anthropic", "claude-haiku-4-5")
    assert hears is not None
    assert silent is not None
    assert (hears.audio, silent.audio) == (True, None)


def test_the_data_is_that_of_the_library() -> None:
    told = "tests/tools/model_data.py does not print gateway/models/model_data.json: run `make model-data`"
    made = subprocess.run(
        [sys.executable, TOOL], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    assert DATA.read_text() == made, told


def test_every_name_means_what_it_means_to_the_library(catalog: Catalog) -> None:
    known = get_snapshot()
    names = {model.id for provider in known.providers for model in provider.models}
    names |= {name.upper() for name in names} | {name.replace("-20", "-x20") for name in names}
    names |= {re.sub(r"-(20\d\d)-(\d\d)-(\d\d)", r"-\1\2\3", name) for name in names}
    for seller in [provider.id for provider in known.providers] + [
        "bedrock",
        "vertex",
        "xai",
        "copilot",
        "desk",
    ]:
        provider = find_provider_by_id(known.providers, seller)
        for name in names if seller in ("openai", "azure", "bedrock", "vertex") else sorted(names)[::50]:
            theirs = provider and provider.find_model(name, all_providers=known.providers)
            ours = catalog.listed(seller, name)
            assert (ours and ours.id) == (theirs and theirs.id), (seller, name)


@pytest.mark.parametrize(
    ("model", "talks"),
    [
        ("gpt-4o", True),
        ("claude-3-haiku", True),
        ("text-embedding-3-small", False),
        ("gpt-4o-realtime-preview", False),
        ("meta-llama/llama-guard-4-12b", False),
        ("whisper-large-v3", False),
    ],
)
def test_models_for_other_things_than_talking_are_recognised_by_their_names(model: str, talks: bool) -> None:
    assert is_chat_model(model) is talks


@pytest.mark.parametrize(
    ("model", "day"),
    [
        ("claude-sonnet-4-20250514", "2025-05-14"),
        ("gpt-4o-2024-05-13", "2024-05-13"),
        ("claude-sonnet-4@20250514", "2025-05-14"),
        ("anthropic.claude-sonnet-4-20250514-v1:0", "2025-05-14"),
        ("gpt-4o", None),
        ("model-20259999", None),
        ("mistral-large-2512", None),
    ],
)
def test_the_day_a_model_came_out_is_read_from_its_id(model: str, day: str | None) -> None:
    assert release_date(model) == day


def test_the_settings_count_before_the_provider_and_that_before_the_data() -> None:
    data = ModelFacts("m", "p", name="M", context_window=1, output_limit=1, rates=Rates(1, 1))
    listed = facts_from_listing(ModelInfo("m", "p", context_window=2, output_limit=2))
    own = facts_from_settings("p", "m", ModelSettings(context_window=3, tools=False))
    both = own.filled_from(listed.filled_from(data))
    assert (both.context_window, both.output_limit, both.name) == (3, 2, "M")
    assert (both.tools, both.images, both.rates) == (False, None, Rates(1, 1))


def test_facts_change_what_is_usual_at_a_provider() -> None:
    usual = Capabilities(images=False, reasoning=True)
    said = ModelFacts("m", "p", images=True, tools=False)
    assert said.capabilities(usual) == Capabilities(images=True, tools=False, reasoning=True)
    assert ModelFacts("m", "p").capabilities(usual) is usual


def test_prices_of_the_settings_are_reported_only_where_there_are_some() -> None:
    assert configured_rates(ModelSettings(tools=True)) is None
    assert configured_rates(ModelSettings(input_price=1.0)) == Rates(input=1.0)
