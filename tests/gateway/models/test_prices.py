"""What calls cost, by data that is part of the installation."""

from __future__ import annotations

from decimal import Decimal

import pytest

from gateway.contract.deltas import Tokens
from gateway.models import Prices, Tariff
from gateway.models.catalog import Catalog
from gateway.provider_http import MetadataDelta


def call(sent: int, got: int, cached: int = 0, written: int = 0) -> Tokens:
    """The tokens of one call, as a backend reports them."""
    return Tokens.of(MetadataDelta("m", sent, got, 0.0, cached, None, written))


def test_004_08_a_call_costs_what_its_tokens_cost() -> None:
    prices = Prices(Catalog())
    once, twice = (
        prices.cost("openai", "gpt-4o", call(1000, 100)),
        prices.cost("openai", "gpt-4o", call(2000, 200)),
    )
    assert once is not None
    assert once > 0
    assert twice == 2 * once


def test_002_19_cached_tokens_cost_less_and_are_never_more_than_were_sent() -> None:
    prices = Prices(Catalog())
    full, cached = (
        prices.cost("openai", "gpt-4o", call(1000, 0)),
        prices.cost("openai", "gpt-4o", call(1000, 0, 1000)),
    )
    assert full is not None
    assert cached is not None
    assert cached < full
    assert prices.cost("openai", "gpt-4o", call(1000, 0, 10**9)) == cached


@pytest.mark.parametrize(("provider", "model"), [("openai", "no-such-model"), ("no-such-provider", "gpt-4o")])
def test_what_has_no_price_costs_nothing_that_is_known(provider: str, model: str) -> None:
    prices = Prices(Catalog())
    assert [prices.cost(provider, model, call(10, 10)) for _ in range(2)] == [None, None]


def test_a_call_through_a_router_costs_what_the_vendor_takes() -> None:
    prices, took = Prices(Catalog()), call(1000, 500)
    assert prices.cost("litellm", "openai/gpt-4o", took) == prices.cost("openai", "gpt-4o", took) is not None


def test_a_call_without_tokens_has_no_cost() -> None:
    assert Prices(Catalog()).cost("openai", "gpt-4o", call(0, 0)) is None


def test_a_cost_is_decimal_and_exact() -> None:
    rates = Tariff(Decimal(3), Decimal(15), Decimal("0.3"), Decimal("3.75"))
    prices = Prices(Catalog(), lambda _provider, model: rates if model == "mine" else None)
    assert prices.cost("any", "mine", call(1000, 500, 100, 50)) == Decimal("0.0102675")
    assert prices.cost("demo", "mine", call(1, 0)) == Decimal("0.000003")
    assert prices.cost("demo", "other", call(1, 0)) == 0
    assert prices.cost("local", "llama3", call(1, 0)) == 0


def test_004_T12_what_is_written_to_a_cache_has_its_own_price() -> None:
    prices, model = Prices(Catalog()), "claude-sonnet-4-20250514"
    plain = prices.cost("anthropic", model, call(1000, 0))
    written = prices.cost("anthropic", model, call(1000, 0, 0, 1000))
    assert plain == Decimal("0.003")
    assert written == Decimal("0.00375")


def test_004_T12_long_inputs_cost_by_the_tier_they_are_in() -> None:
    short, long = (
        Prices(Catalog()).cost("google", "gemini-2.5-pro", call(tokens, 0)) for tokens in (100_000, 300_000)
    )
    assert short is not None
    assert long is not None
    assert long > 3 * short


def test_every_model_costs_what_the_data_says() -> None:
    from genai_prices import Usage, calc_price
    from genai_prices.data_snapshot import get_snapshot

    usage, took = (
        Usage(input_tokens=1000, output_tokens=500, cache_read_tokens=100, cache_write_tokens=50),
        call(1000, 500, 100, 50),
    )
    prices, compared = Prices(Catalog()), 0
    for provider in get_snapshot().providers:
        for model in provider.models:
            ours = prices.cost(provider.id, model.id, took)
            if ours is not None:
                theirs = calc_price(usage, model_ref=model.id, provider_id=provider.id).total_price
                assert ours == theirs, f"{provider.id}/{model.id}"
                compared += 1
    assert compared > 2000


def test_any_number_of_names_takes_no_more_room() -> None:
    prices = Prices(Catalog(), lambda _provider, _model: Tariff(Decimal(1), Decimal(1)))
    for number in range(2_500):
        assert prices.cost("p", f"m{number}", call(1_000_000, 0)) == 1
    assert len(prices._costs) <= 1_000


def test_prices_are_looked_up_again_after_a_while() -> None:
    now, rates = [0.0], [Tariff(Decimal(1), Decimal(1))]
    prices = Prices(Catalog(), lambda _provider, _model: rates[0], lambda: now[0])
    assert prices.cost("p", "m", call(1_000_000, 0)) == 1
    rates[0] = Tariff(Decimal(2), Decimal(1))
    assert prices.cost("p", "m", call(1_000_000, 0)) == 1
    now[0] = 61.0
    assert prices.cost("p", "m", call(1_000_000, 0)) == 2
