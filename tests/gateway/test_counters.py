"""Counters: plain counts, and how times histogram."""

from __future__ import annotations

from gateway import Metadata
from gateway.counters import Counters, Histogram, ModelLabels


def test_values_are_counted_at_their_bounds_and_above_the_last() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.add(value)
    assert (histogram.counts, histogram.total) == ([2, 2, 1], 14.0)


def test_a_turn_is_counted_with_what_it_took() -> None:
    counters = Counters()
    counters.count_turn("slack", "end_turn", Metadata(input_tokens=10, output_tokens=5, cost=0.5), 0.02)
    counters.count_turn("slack", "failed", Metadata(), None, "RateLimitError")
    assert counters.turns == {("slack", "end_turn", ""): 1, ("slack", "failed", "RateLimitError"): 1}
    assert (counters.input_tokens, counters.output_tokens, counters.cost) == (10, 5, 0.5)
    assert sum(counters.first_text.counts) == 1
    assert counters.uptime >= 0


def test_any_number_of_names_of_models_takes_no_more_room() -> None:
    labels = ModelLabels(2)
    assert [labels.of("p", name) for name in "aabca"] == [
        ("p", name) for name in ("a", "a", "b", "(other)", "a")
    ]
