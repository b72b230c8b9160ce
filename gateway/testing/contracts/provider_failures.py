"""The part of the contract of providers that is about failing: by name, in time, without a secret."""

from __future__ import annotations

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
from gateway.testing.contracts.provider_calls import deltas_of, text_of
from gateway.testing.contracts.provider_setup import KEY, Check, ProviderSetup, failure_of, raised_by
from gateway.testing.fake_models.script import Bytes, Cut, Refusal, Reply, Say, Stall

AT_ONCE = {"retry-after-ms": "1"}


async def every_refusal_has_a_name(setup: ProviderSetup) -> None:
    """By its status, whatever the words; the error names the provider and the status."""
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
                # Whoever shows tokens that expire asks once more when one is refused.
                fake.then(*[Refusal(status, "no such luck", body=body)] * (2 if status == 401 else 1))
                failure = await failure_of(provider)
                fake.forget()
                assert type(failure) is name, (status, body, failure)
                assert (failure.provider, failure.upstream_status) == ("fake", status)


async def the_vendors_own_words_are_understood(setup: ProviderSetup) -> None:
    """A conversation that is too long, a filter, a model that is not there, a server with too much to do."""
    names = {
        "too_long": ContextLengthError,
        "filtered": ContentFilterError,
        "no_model": ModelNotFoundError,
        "overloaded": ServerFailedError,
        "no_key": AuthFailedError,
    }
    async with setup.running(max_retries=0) as (fake, provider):
        for trouble, refusal in setup.dialect.troubles.items():
            fake.then(refusal)
            failure = await failure_of(provider)
            assert type(failure) is names[trouble], (trouble, failure)


async def a_wait_is_waited_and_told(setup: ProviderSetup) -> None:
    """Retry-After in seconds and as a date; what is longer than the time left fails at once."""
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


async def what_fails_before_the_first_piece_is_tried_again(setup: ProviderSetup) -> None:
    """A connection that closes, before the head or after it, and a server that is busy."""
    async with setup.running() as (fake, provider):
        for first in (Refusal(0), Reply((Cut(),)), Refusal(503, "busy", AT_ONCE)):
            fake.then(first)
            assert text_of(await deltas_of(provider)) == "You said: Hi"
        assert len(fake.requests) == 6


async def retries_end(setup: ProviderSetup) -> None:
    """After as many as are set; and there are none where they cannot help."""
    async with setup.running(max_retries=2) as (fake, provider):
        fake.then(*[Refusal(500, "oops", AT_ONCE)] * 5)
        assert type(await failure_of(provider)) is ServerFailedError
        assert len(fake.requests) == 3
        fake.forget()
        fake.then(Refusal(400, "no"))
        await failure_of(provider)
        assert len(fake.requests) == 4


async def a_stream_that_breaks_keeps_what_came(setup: ProviderSetup) -> None:
    """Cut, garbled or failing in the middle: shown so far, named, and not tried again."""
    ends = {
        Cut(): StreamAbortedError,
        Bytes(b"data: {no json\n\n"): DeltaParseError,
        Bytes(setup.dialect.trouble): ServerFailedError,
    }
    async with setup.running() as (fake, provider):
        for end, name in ends.items():
            fake.requests.clear()
            fake.then(Reply((Say("Half"), end)))
            seen: list[Delta] = []
            failure = await failure_of(provider, seen)
            assert type(failure) is name, (end, failure)
            assert (text_of(seen), len(fake.requests)) == ("Half", 1), end


async def a_stream_that_falls_silent_keeps_what_came(setup: ProviderSetup) -> None:
    """A server that stops in the middle, and stays: shown so far, named, and not tried again."""
    async with setup.running(stream_timeout_ms=500) as (fake, provider):
        fake.then(Reply((Say("Half"), Stall())))
        seen: list[Delta] = []
        assert type(await failure_of(provider, seen)) is StreamTimeoutError
        assert (text_of(seen), len(fake.requests)) == ("Half", 1)


async def silence_before_the_first_piece_is_noticed(setup: ProviderSetup) -> None:
    """A server that takes the call and says nothing."""
    async with setup.running(stream_timeout_ms=300, max_retries=0) as (fake, provider):
        fake.then(Reply((Stall(),)))
        assert type(await failure_of(provider)) is StreamTimeoutError


async def a_server_that_is_gone_is_unavailable(setup: ProviderSetup) -> None:
    """Nobody listens there."""
    async with setup.running(max_retries=0) as (fake, provider):
        await deltas_of(provider)
        await fake.close()
        assert type(await failure_of(provider)) in (ProviderUnavailableError, StreamAbortedError)
        assert type(await failure_of(provider)) is ProviderUnavailableError


async def no_error_shows_the_key(setup: ProviderSetup) -> None:
    """A key that is refused is not quoted, though the server quotes it; it is refused without a call, too."""
    if not setup.keyed:
        return
    async with setup.running(key="another", max_retries=0) as (_, provider):
        for call in (deltas_of(provider), _key_tried(provider)):
            failure = await raised_by(call)
            assert type(failure) is AuthFailedError
            assert KEY not in str(failure)


async def _key_tried(provider: Provider) -> None:
    """What tells whether a key is right before anything is asked of a model."""
    if isinstance(provider, TriesKey):
        await provider.try_key()
    await provider.list_models()


FAILURES: tuple[Check, ...] = (
    every_refusal_has_a_name,
    the_vendors_own_words_are_understood,
    a_wait_is_waited_and_told,
    what_fails_before_the_first_piece_is_tried_again,
    retries_end,
    a_stream_that_breaks_keeps_what_came,
    a_stream_that_falls_silent_keeps_what_came,
    silence_before_the_first_piece_is_noticed,
    a_server_that_is_gone_is_unavailable,
    no_error_shows_the_key,
)
"""The checks here, in order."""
