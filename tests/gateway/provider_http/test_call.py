"""How long is waited before a call is made again, and when it is not."""

from __future__ import annotations

import pytest

from gateway.contract.errors import (
    BadRequestError,
    ProviderError,
    ProviderUnavailableError,
    RateLimitError,
    ServerFailedError,
    StreamAbortedError,
)
from gateway.contract.provider import ProviderConfig
from gateway.provider_http.call import RetryPolicy


def pauses(failure: ProviderError, retries: int, timeout: int = 10**9) -> list[float | None]:
    policy = RetryPolicy(ProviderConfig(id="x", max_retries=retries, timeout=timeout))
    return [policy.next_pause(failure, attempt) for attempt in range(1, retries + 2)]


@pytest.mark.parametrize("failure", [RateLimitError("slow"), ServerFailedError("oops")])
def test_004_T13_who_refuses_without_a_word_gets_a_longer_rest_each_time(failure: ProviderError) -> None:
    found = pauses(failure, 7)
    assert found.pop() is None
    for pause, least in zip(found, (2, 4, 8, 16, 30, 30, 30), strict=True):
        assert pause is not None
        assert least <= pause <= least * 1.25


@pytest.mark.parametrize("failure", [ProviderUnavailableError("gone"), StreamAbortedError("cut")])
def test_a_connection_that_failed_is_tried_again_soon(failure: ProviderError) -> None:
    found = pauses(failure, 9)
    for pause, least in zip(found, (0.25, 0.5, 1, 2, 4, 8, 16, 20, 20), strict=False):
        assert pause is not None
        assert least <= pause <= least * 1.25


def test_004_T13_what_was_asked_for_is_waited_exactly() -> None:
    assert pauses(RateLimitError("slow", retry_after=7.5), 2) == [7.5, 7.5, None]
    assert pauses(RateLimitError("slow", retry_after=0), 1) == [0, None]


def test_what_would_take_longer_than_there_is_time_is_not_waited() -> None:
    assert pauses(RateLimitError("slow", retry_after=61), 1, 60_000) == [None, None]
    assert pauses(ServerFailedError("oops"), 1, 1_000) == [None, None]


def test_what_cannot_get_better_is_not_tried_again_at_all() -> None:
    assert pauses(BadRequestError("no"), 1) == [None, None]
    spent = RateLimitError("quota", retry_after=1)
    spent.retryable = False
    assert pauses(spent, 1) == [None, None]
