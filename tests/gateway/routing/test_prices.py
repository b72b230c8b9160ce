"""What calls cost, by data that is part of the installation."""

from __future__ import annotations

import pytest

from gateway import MetadataDelta
from gateway.routing import Prices


def call(sent: int, got: int, cached: int = 0) -> MetadataDelta:
    """The tokens of one call."""
    return MetadataDelta("m", sent, got, 0.0, cached)


def test_004_08_a_call_costs_what_its_tokens_cost() -> None:
    prices = Prices()
    once, twice = (
        prices.cost("openai", "gpt-4o", call(1000, 100)),
        prices.cost("openai", "gpt-4o", call(2000, 200)),
    )
    assert once is not None
    assert once > 0
    assert twice == pytest.approx(2 * once)


def test_002_19_cached_tokens_cost_less_and_are_never_more_than_were_sent() -> None:
    prices = Prices()
    full, cached = (
        prices.cost("openai", "gpt-4o", call(1000, 0)),
        prices.cost("openai", "gpt-4o", call(1000, 0, 1000)),
    )
    assert full is not None
    assert cached is not None
    assert cached < full
    assert prices.cost("openai", "gpt-4o", call(1000, 0, 10**9)) == cached


@pytest.mark.parametrize(
    ("provider", "model"), [("demo", "demo"), ("openai", "no-such-model"), ("no-such-provider", "gpt-4o")]
)
def test_what_has_no_price_costs_nothing_that_is_known(provider: str, model: str) -> None:
    prices = Prices()
    assert [prices.cost(provider, model, call(10, 10)) for _ in range(2)] == [None, None]


def test_a_call_without_tokens_has_no_cost() -> None:
    assert Prices().cost("openai", "gpt-4o", call(0, 0)) is None
