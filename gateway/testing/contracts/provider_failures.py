"""The checks of a provider's failures: named errors, time limits, retries, and no key in an error."""

from __future__ import annotations

import asyncio

from gateway.contract.deltas import Delta, MetadataDelta
from gateway.contract.errors import (
    AuthFailedError,
    BadRequestError,
    ContentFilterError,
    ContextLengthError,
    DeltaParseError,
    ModelNotFoundError,
    ProviderUnavailableError,
    RateLimitError,
    ServerFailedError,
    StreamAbortedError,
    StreamTimeoutError,
)
from gateway.contract.provider import Provider, TriesKey
from gateway.testing.contracts.provider_calls import deltas_of, failure_of, raised_by, text_of
from gateway.testing.contracts.provider_setup import KEY, Check, ProviderSetup
from gateway.testing.fake_models.script import Bytes, Cut, Refusal, Reply, Say, Stall

AT_ONCE = {"retry-after-ms": "1"}


async def every_http_error_has_a_named_error(setup: ProviderSetup) -> None:
    """Check that each status has its error class for any body, with the provider and the status."""
    names = {
        400: BadRequestError,
        401: AuthFailedError,
        403: AuthFailedError,
        404: ModelNotFoundError,
        408: StreamTimeoutError,
        413: ContextLengthError,
        429: RateLimitError,
        500: ServerFailedError,
        502: ServerFailedError,
        503: ServerFailedError,
        529: ServerFailedError,
    }
    async with setup.running(max_retries=0) as (fake, provider):
        for status, name in names.items():
            bodies = (None, b"<html>no</html>", b"", b"\xff{")
            for body in bodies:
                # A provider with expiring tokens gets a new one and repeats the request.
                fake.then(*[Refusal(status, "refused by the test", body=body)] * (2 if status == 401 else 1))
                failure = await failure_of(provider)
                fake.forget()
                assert type(failure) is name, (status, body, failure)
                assert (failure.provider, failure.upstream_status) == ("fake", status)


async def the_vendors_error_messages_are_recognized(setup: ProviderSetup) -> None:
    """Check the vendor's messages for long input, filters, unknown models and overload."""
    names = {
        "too_long": ContextLengthError,
        "filtered": ContentFilterError,
        "no_model": ModelNotFoundError,
        "overloaded": ServerFailedError,
        "no_key": AuthFailedError,
    }
    async with setup.running(max_retries=0) as (fake, provider):
        for stream_error, refusal in setup.dialect.refusals.items():
            fake.then(refusal)
            failure = await failure_of(provider)
            assert type(failure) is names[stream_error], (stream_error, failure)


async def retry_after_is_respected_and_reported(setup: ProviderSetup) -> None:
    """Check Retry-After in seconds and as a date; a wait beyond the time limit fails at once."""
    async with setup.running() as (fake, provider):
        for wait in ({"retry-after": "0"}, {"retry-after": "Sat, 01 Jan 2000 00:00:00 GMT"}, AT_ONCE):
            fake.then(Refusal(429, "slow down", wait))
            deltas = await deltas_of(provider)
            limits = [delta.rate_limit for delta in deltas if isinstance(delta, MetadataDelta)]
            assert limits[0] is not None
            assert (limits[0].provider, limits[0].retry_after_ms <= 1) == ("fake", True)
            assert text_of(deltas) == "You said: Hi"
        for wait in ({"retry-after": "86400"}, {"retry-after": "Fri, 31 Dec 2199 23:59:59 GMT"}):
            fake.then(Refusal(429, "slow down", wait))
            failure = await failure_of(provider)
            assert type(failure) is RateLimitError
            assert (failure.retry_after or 0) >= 86_000


async def failures_before_the_first_piece_are_retried(setup: ProviderSetup) -> None:
    """Check that a closed connection, before or after the head, and a busy server are retried."""
    async with setup.running() as (fake, provider):
        fake.then(Refusal(0), Reply((Cut(),)), Refusal(503, "busy", AT_ONCE))
        async with asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(deltas_of(provider)) for _ in range(3)]
        assert [text_of(call.result()) for call in calls] == ["You said: Hi"] * 3
        assert len(fake.requests) == 6


async def retries_are_limited(setup: ProviderSetup) -> None:
    """Check the limit of retries, and that a bad request is not retried."""
    async with setup.running(max_retries=2) as (fake, provider):
        fake.then(*[Refusal(500, "oops", AT_ONCE)] * 5)
        assert type(await failure_of(provider)) is ServerFailedError
        assert len(fake.requests) == 3
        fake.forget()
        fake.then(Refusal(400, "no"))
        await failure_of(provider)
        assert len(fake.requests) == 4


async def a_broken_stream_keeps_its_text(setup: ProviderSetup) -> None:
    """Check that a cut, invalid or failed stream keeps its text, raises a named error, and is not retried."""
    ends = {
        Cut(): StreamAbortedError,
        Bytes(b"data: {no json\n\n"): DeltaParseError,
        Bytes(setup.dialect.stream_error): ServerFailedError,
    }
    async with setup.running() as (fake, provider):
        for end, name in ends.items():
            fake.requests.clear()
            fake.then(Reply((Say("Half"), end)))
            seen: list[Delta] = []
            failure = await failure_of(provider, seen)
            assert type(failure) is name, (end, failure)
            assert (text_of(seen), len(fake.requests)) == ("Half", 1), end


async def a_stalled_stream_keeps_its_text(setup: ProviderSetup) -> None:
    """Check that a stalled stream keeps its text, raises a named error, and is not retried."""
    # The text comes together with the head, so that it is in time although the limit is short.
    async with setup.running(stream_timeout_ms=300) as (fake, provider):
        fake.then(Reply((Say("Half"), Stall())))
        seen: list[Delta] = []
        assert type(await failure_of(provider, seen)) is StreamTimeoutError
        assert (text_of(seen), len(fake.requests)) == ("Half", 1)


async def a_stall_before_the_first_piece_is_an_error(setup: ProviderSetup) -> None:
    """Check that a server without any response is an error."""
    async with setup.running(stream_timeout_ms=300, max_retries=0) as (fake, provider):
        fake.then(Reply((Stall(),)))
        assert type(await failure_of(provider)) is StreamTimeoutError


async def a_stopped_server_is_unavailable(setup: ProviderSetup) -> None:
    """Check that a server that does not listen is an error."""
    async with setup.running(max_retries=0) as (fake, provider):
        await deltas_of(provider)
        await fake.close()
        assert type(await failure_of(provider)) in (ProviderUnavailableError, StreamAbortedError)
        assert type(await failure_of(provider)) is ProviderUnavailableError


async def no_error_shows_the_key(setup: ProviderSetup) -> None:
    """Check that a refused key is in no error, although the server quotes it."""
    if not setup.keyed:
        return
    async with setup.running(key="another", max_retries=0) as (_, provider):
        for call in (deltas_of(provider), _try_key(provider)):
            failure = await raised_by(call)
            assert type(failure) is AuthFailedError
            assert KEY not in str(failure)


async def _try_key(provider: Provider) -> None:
    """Call the methods that check a key without a model call."""
    if isinstance(provider, TriesKey):
        await provider.try_key()
    await provider.list_models()


FAILURES: tuple[Check, ...] = (
    every_http_error_has_a_named_error,
    the_vendors_error_messages_are_recognized,
    retry_after_is_respected_and_reported,
    failures_before_the_first_piece_are_retried,
    retries_are_limited,
    a_broken_stream_keeps_its_text,
    a_stalled_stream_keeps_its_text,
    a_stall_before_the_first_piece_is_an_error,
    a_stopped_server_is_unavailable,
    no_error_shows_the_key,
)
"""The checks of failures, in order."""
