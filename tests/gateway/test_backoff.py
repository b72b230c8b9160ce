"""Backoff doubles the pause after each failure, up to its limit."""

from __future__ import annotations

import pytest

from gateway.backoff import Backoff


def test_the_pause_doubles_up_to_its_limit() -> None:
    backoff = Backoff(0.25, 60)
    assert [backoff.pause(failures) for failures in (1, 2, 3, 4)] == [0.25, 0.5, 1, 2]
    assert [backoff.pause(failures) for failures in (9, 10, 10_000)] == [60, 60, 60]


@pytest.mark.parametrize("failures", [0, -1])
def test_without_a_failure_there_is_no_pause(failures: int) -> None:
    assert Backoff(1, 60, 0.25).pause(failures) == 0


@pytest.mark.parametrize(("jitter", "least", "most"), [(0.25, 2, 2.5), (-0.5, 1, 2)])
def test_jitter_changes_the_pause_by_its_fraction_at_most(jitter: float, least: float, most: float) -> None:
    pauses = {Backoff(1, 60, jitter).pause(2) for _ in range(200)}
    assert len(pauses) > 1
    assert least <= min(pauses) <= max(pauses) <= most
