"""The named errors: one tree, stable names, and a status and a hint for the client."""

from __future__ import annotations

import asyncio
import inspect
import re

import pytest

from gateway.contract import errors
from gateway.contract.errors import (
    CATCHABLE,
    ProviderError,
    ProviderResolutionError,
    RateLimitError,
    TrunklineError,
    is_cancellation_requested,
)

ALL = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, TrunklineError)]


def depth(kind: type) -> int:
    return len(kind.__mro__) - len(TrunklineError.__mro__)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_is_named_after_its_class_and_explained(kind: type[TrunklineError]):
    error = kind("it is so")
    assert (error.name, str(error)) == (kind.__name__, "it is so")
    assert kind.__name__.endswith("Error")
    assert inspect.getdoc(kind) != inspect.getdoc(kind.__mro__[1])
    assert 400 <= kind.status < 600


def test_the_tree_that_is_drawn_is_the_tree_there_is():
    drawn = re.findall(r"^( *[│├└─ ]*)(\w+Error)\b", inspect.getdoc(errors) or "", re.MULTILINE)
    assert {name: len(indent) // 4 - 1 for indent, name in drawn} == {
        kind.__name__: depth(kind) for kind in ALL
    }


def test_004_29_the_three_errors_of_streams_have_the_names_that_were_promised():
    names = {kind.__name__ for kind in ALL}
    assert {"StreamAbortedError", "DeltaParseError", "BackpressureError"} <= names


def test_what_may_go_away_by_itself_says_so():
    retryable = {kind.__name__ for kind in ALL if kind.retryable}
    assert {
        "OverloadedError",
        "RateLimitError",
        "StreamAbortedError",
        "ProviderUnavailableError",
    } <= retryable
    assert not retryable & {"SettingsError", "AuthFailedError", "NotFoundError", "PartValidationError"}


def test_an_error_of_a_provider_says_whose_it_is_and_how_long_to_wait():
    error = RateLimitError("slow down", provider="p", status=429, retry_after=2.5)
    assert (error.provider, error.upstream_status, error.retry_after) == ("p", 429, 2.5)
    assert ProviderError("x").provider == ""
    assert ProviderResolutionError("x", suggestions=["a/b"]).suggestions == ("a/b",)


async def test_only_a_requested_cancellation_ends_a_task():
    seen: list[bool] = []

    async def work(error: BaseException | None):
        try:
            if error is not None:
                raise error
            await asyncio.sleep(60)
        except CATCHABLE as failure:
            seen.append(is_cancellation_requested(failure))

    for error in (ValueError(), SystemExit(), asyncio.CancelledError()):
        await work(error)
    task = asyncio.ensure_future(work(None))
    await asyncio.sleep(0)
    task.cancel()
    await task
    assert seen == [False, False, False, True]
