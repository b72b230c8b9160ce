"""Figures: plain counts, and how times spread."""

from __future__ import annotations

from gateway import Metadata
from gateway.figures import Figures, Spread


def test_values_are_counted_at_their_bounds_and_above_the_last() -> None:
    spread = Spread((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        spread.add(value)
    assert (spread.counts, spread.total) == ([2, 2, 1], 14.0)


def test_a_turn_is_counted_with_what_it_took() -> None:
    figures = Figures()
    figures.turn("end_turn", Metadata(input_tokens=10, output_tokens=5, cost=0.5), 0.02)
    figures.turn("aborted", Metadata(), None)
    assert figures.turns == {"end_turn": 1, "aborted": 1}
    assert (figures.input_tokens, figures.output_tokens, figures.cost) == (10, 5, 0.5)
    assert sum(figures.first_text.counts) == 1
    assert figures.uptime >= 0
