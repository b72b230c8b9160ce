"""Providers over HTTP, whatever the vendor: retries, failures, cancelling (here with OpenAI's adapter)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.contract.deltas import Delta, MetadataDelta, TextDelta
from gateway.contract.errors import (
    AuthFailedError,
    BadRequestError,
    ContentFilterError,
    ContextLengthError,
    DeltaParseError,
    ModelNotFoundError,
    ProviderError,
    ProviderUnavailableError,
    RateLimitError,
    ServerFailedError,
    SettingsError,
    StreamAbortedError,
    StreamTimeoutError,
)
from gateway.contract.provider import ApiKey, Capabilities, Credential, Provider, ProviderConfig
from gateway.provider_http.authorizer import BearerAuthorizer, Token
from gateway.provider_http.http_provider import create_provider
from gateway.testing.contracts import provider_calls
from gateway.testing.contracts.provider_calls import OPTIONS, deltas_of, text_of, user
from gateway.testing.fake_models.script import (
    Bytes,
    Cut,
    Forever,
    Gate,
    Refusal,
    Reply,
    Say,
    Stall,
    Tokens,
)
from gateway.testing.fake_models.server import FakeModels
from plugins.providers.openai import create
from plugins.providers.openai.adapter import CompletionsAdapter
from plugins.providers.openai.profiles import CUSTOM

SECRET = "sk-very-secret-0123456789"
AT_ONCE = {"retry-after-ms": "1"}
HI = b'data: {"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n'

CLIENT = {"http_client": "auto"}


@pytest.fixture(autouse=True, params=["httptools", "aiohttp"])
def http_client(request: pytest.FixtureRequest) -> None:
    """Run each test with both clients."""
    CLIENT["http_client"] = request.param


@asynccontextmanager
async def connected(
    create: Callable[[ProviderConfig], Provider], base_url: str, **settings: Any
) -> AsyncGenerator[Provider]:
    async with provider_calls.connected(create, base_url, **CLIENT, **settings) as provider:
        yield provider


async def test_pieces_that_come_apart_are_shown_apart_and_at_once() -> None:
    gate = asyncio.Event()
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        fake.then(Reply((Say("Hel"), Gate(gate), Say("lo"))))
        stream = provider.stream((user("Hi"),), OPTIONS)

        assert await anext(stream) == TextDelta("answer", 0, "Hel", 3)
        gate.set()
        assert await anext(stream) == TextDelta("answer", 0, "lo", 5)


@pytest.mark.parametrize(
    "settings",
    [
        {"base_url": "ftp://models.example/v1"},
        {"base_url": "no address"},
        {"api_key": "two\nlines"},
        {"custom_headers": {"X-Evil": "a\r\nX-Other: b"}},
        {"custom_headers": {"bad name": "a"}},
    ],
)
async def test_settings_that_can_never_be_sent_are_refused_without_being_quoted(
    settings: dict[str, object],
) -> None:
    config = ProviderConfig(id="fake", **settings)  # type: ignore[arg-type]
    with pytest.raises(SettingsError) as caught:
        await create(config).initialize(config)
    assert "two" not in str(caught.value)
    assert "X-Other" not in str(caught.value)


@pytest.mark.parametrize(
    ("refusal", "named"),
    [
        (Refusal(400, "bad"), BadRequestError),
        (Refusal(400, "too many", code="context_length_exceeded"), ContextLengthError),
        (Refusal(400, "This model's maximum context length is 8192 tokens"), ContextLengthError),
        (Refusal(400, "flagged", code="content_filter"), ContentFilterError),
        (Refusal(400, "unknown", code="model_not_found"), ModelNotFoundError),
        (Refusal(401, "no"), AuthFailedError),
        (Refusal(403, "no"), AuthFailedError),
        (Refusal(404, "The model `x` does not exist"), ModelNotFoundError),
        (Refusal(408, "slow"), StreamTimeoutError),
        (Refusal(413, "large"), ContextLengthError),
        (Refusal(429, "slow down"), RateLimitError),
        (Refusal(500, "oops"), ServerFailedError),
        (Refusal(529, "overloaded"), ServerFailedError),
        (Refusal(502, body=b"<html>gateway</html>"), ServerFailedError),
        (Refusal(418, body=b"\xff\xfe"), BadRequestError),
        (Refusal(200, body=b'{"error":{"message":"no","code":429}}'), RateLimitError),
        (Refusal(200, body=b'{"choices":[]}'), DeltaParseError),
        (Refusal(0), StreamAbortedError),
    ],
)
async def test_refusals_have_names(refusal: Refusal, named: type[ProviderError]) -> None:
    async with FakeModels() as fake, connected(create, fake.openai_url, max_retries=0) as provider:
        fake.then(refusal)
        with pytest.raises(ProviderError) as caught:
            await deltas_of(provider)
    assert type(caught.value) is named
    assert caught.value.provider == "fake"


async def test_no_error_shows_the_key() -> None:
    async with (
        FakeModels(key="another") as fake,
        connected(create, fake.openai_url, api_key=SECRET) as provider,
    ):
        for call in (deltas_of(provider), provider.list_models()):
            with pytest.raises(AuthFailedError) as caught:
                await call
            assert "Incorrect API key" in str(caught.value)
            assert SECRET not in str(caught.value)


async def test_004_40_a_server_that_is_not_there_is_unavailable() -> None:
    async with FakeModels() as fake:
        gone = fake.openai_url
    config = ProviderConfig(id="fake", base_url=gone, max_retries=0)
    provider = create(config)
    with pytest.raises(ProviderUnavailableError, match=r"cannot reach 127\.0\.0\.1"):
        await provider.chat((user("Hi"),), OPTIONS)
    await provider.close()


async def test_004_28_a_rate_limit_is_announced_waited_out_and_then_the_answer_comes() -> None:
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        fake.then(Refusal(429, "slow down", AT_ONCE), Refusal(429, "slow down", {"retry-after": "0"}))
        deltas = await deltas_of(provider)

    limits = [d.rate_limit for d in deltas if isinstance(d, MetadataDelta) and d.rate_limit is not None]
    assert [(limit.retry_after_ms, limit.provider) for limit in limits] == [(1, "fake"), (0, "fake")]
    assert text_of(deltas) == "You said: Hi"
    assert len(fake.requests) == 3


async def test_a_wait_longer_than_the_time_left_fails_at_once() -> None:
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        fake.then(Refusal(429, "slow down", {"retry-after": "Fri, 31 Dec 2099 23:59:59 GMT"}))
        with pytest.raises(RateLimitError) as caught:
            await deltas_of(provider)
    assert caught.value.retry_after is not None
    assert caught.value.retry_after > 1_000_000


@pytest.mark.parametrize("first", [Refusal(0), Refusal(503, "busy", AT_ONCE), Reply((Cut(),))])
async def test_what_failed_before_the_first_piece_is_tried_again(first: Refusal | Reply) -> None:
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        fake.then(first)
        assert text_of(await deltas_of(provider)) == "You said: Hi"


async def test_retries_end() -> None:
    async with FakeModels() as fake, connected(create, fake.openai_url, max_retries=2) as provider:
        fake.then(*[Refusal(500, "oops", AT_ONCE)] * 5)
        with pytest.raises(ServerFailedError):
            await deltas_of(provider)
        assert len(fake.requests) == 3


@pytest.mark.parametrize("refusal", [Refusal(400), Refusal(401), Refusal(429, code="insufficient_quota")])
async def test_what_cannot_get_better_is_not_tried_again(refusal: Refusal) -> None:
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        fake.then(refusal)
        with pytest.raises(ProviderError):
            await deltas_of(provider)
        assert len(fake.requests) == 1


async def collect(provider: Provider, seen: list[Delta]) -> None:
    async for delta in provider.stream((user("Hi"),), OPTIONS):
        seen.append(delta)


@pytest.mark.parametrize(
    ("end", "named"),
    [
        ((Cut(),), StreamAbortedError),
        ((Stall(),), StreamTimeoutError),
        ((Bytes(b"data: {no json\n\n"),), DeltaParseError),
        ((Bytes(b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n'),), DeltaParseError),
        ((Bytes(b"data: " + b"x" * 10_000_000),), DeltaParseError),
        ((Bytes(b'data: {"error":{"message":"busy","type":"server_error"}}\n\n'),), ServerFailedError),
        ((Forever(b"data: " + b"x" * 100_000, 0),), DeltaParseError),
    ],
)
async def test_004_25_a_stream_that_breaks_keeps_what_came_and_is_not_tried_again(
    end: tuple[Bytes, ...], named: type[ProviderError]
) -> None:
    seen: list[Delta] = []
    async with FakeModels() as fake, connected(create, fake.openai_url, stream_timeout_ms=3_000) as provider:
        fake.then(Reply((Say("Half"), *end)))
        with pytest.raises(named):
            await collect(provider, seen)
        assert len(fake.requests) == 1
    assert text_of(seen) == "Half"


async def test_an_answer_cut_off_after_its_stop_reason_is_whole() -> None:
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        fake.then(Reply((Bytes(HI), Cut())))
        assert text_of(await deltas_of(provider)) == "Hi"


async def test_a_server_that_accepts_and_says_nothing_times_out() -> None:
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with connected(create, f"http://127.0.0.1:{port}/v1", timeout=100, max_retries=0) as provider:
        with pytest.raises(StreamTimeoutError, match="did not answer"):
            await deltas_of(provider)
    server.close()


async def test_leaving_the_stream_ends_the_call() -> None:
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        fake.then(Reply((Say("Half"), Stall())))
        stream = provider.stream((user("Hi"),), OPTIONS)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        async with asyncio.timeout(60):
            await fake.left.wait()


@pytest.mark.parametrize("moment", [Stall(), Refusal(429, "wait", {"retry-after": "60"})])
async def test_cancelling_is_cancelling(moment: Stall | Refusal) -> None:
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        fake.then(Reply((Say("Half"), moment)) if isinstance(moment, Stall) else moment)
        started = asyncio.Event()

        async def listen() -> None:
            async for _ in provider.stream((user("Hi"),), OPTIONS):
                started.set()

        async with asyncio.TaskGroup() as group:
            task = group.create_task(listen())
            await started.wait()
            await asyncio.sleep(0)
            task.cancel()
        assert task.cancelled()


async def test_the_connection_is_used_again() -> None:
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        for _ in range(3):
            await deltas_of(provider)
        assert len({asked.peer for asked in fake.requests}) == 1


async def first_of(stream: AsyncIterator[Delta]) -> Delta:
    return await anext(stream)


async def test_300_answers_stream_at_once() -> None:
    gate = asyncio.Event()
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        fake.then(*[Reply((Say("a"), Gate(gate), Say("b")))] * 300)
        streams = [provider.stream((user("Hi"),), OPTIONS) for _ in range(300)]
        async with asyncio.TaskGroup() as group:
            firsts = [group.create_task(first_of(stream)) for stream in streams]
        gate.set()
        assert {task.result() for task in firsts} == {TextDelta("answer", 0, "a", 1)}
        for stream in streams:
            assert text_of([delta async for delta in stream]) == "b"


@pytest.mark.parametrize(
    "location", ["http://localhost:1/v1/chat/completions", "file:///etc/passwd", "//elsewhere.example/v1"]
)
async def test_a_redirect_to_another_server_is_refused(location: str) -> None:
    async with FakeModels() as fake, connected(create, fake.openai_url, api_key=SECRET) as provider:
        fake.then(Refusal(307, headers={"location": location}))
        with pytest.raises(BadRequestError, match="redirects to another server"):
            await deltas_of(provider)


async def test_a_redirect_within_the_server_is_followed_but_not_in_circles() -> None:
    back = Refusal(307, headers={"location": "/v1/chat/completions"})
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        fake.then(back, back)
        assert text_of(await deltas_of(provider)) == "You said: Hi"
        fake.then(back, back, back)
        with pytest.raises(BadRequestError, match="redirects more than 3 times"):
            await deltas_of(provider)


def limits_of(deltas: list[Delta]) -> list[int]:
    return [d.rate_limit.retry_after_ms for d in deltas if isinstance(d, MetadataDelta) and d.rate_limit]


def keys_shown(fake: FakeModels) -> list[str]:
    return [asked.headers["authorization"].removeprefix("Bearer ") for asked in fake.requests]


async def test_a_key_that_is_refused_makes_room_for_the_next_within_the_call() -> None:
    keys = {"api_key": "first-key", "api_keys": ("second-key", "third-key")}
    async with FakeModels() as fake, connected(create, fake.openai_url, max_retries=0, **keys) as provider:
        fake.then(Refusal(401), Refusal(429, "slow", {"retry-after": "60"}))
        deltas = await deltas_of(provider)
        assert (text_of(deltas), limits_of(deltas)) == ("You said: Hi", [])
        assert keys_shown(fake) == ["first-key", "second-key", "third-key"]
        await deltas_of(provider)
        await deltas_of(provider)
        assert keys_shown(fake)[3:] == ["third-key", "third-key"]


async def test_when_every_key_is_refused_the_call_fails_and_none_is_shown() -> None:
    keys = {"api_keys": ("sk-first-secret", "other-secret-2")}
    async with FakeModels(key="right") as fake, connected(create, fake.openai_url, **keys) as provider:
        for _ in range(2):
            with pytest.raises(AuthFailedError) as caught:
                await deltas_of(provider)
            assert "secret" not in str(caught.value)
        with pytest.raises(AuthFailedError) as caught:
            await provider.list_models()
        assert "secret" not in str(caught.value)


async def test_models_are_listed_with_the_first_key_that_is_good() -> None:
    keys = {"api_keys": ("stale", "right")}
    async with FakeModels(key="right") as fake, connected(create, fake.openai_url, **keys) as provider:
        assert len(await provider.list_models()) == 2


async def test_004_28_a_limit_that_is_used_up_is_waited_out_before_the_next_call() -> None:
    spent = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "150ms"}
    async with FakeModels() as fake, connected(create, fake.openai_url, max_retries=0) as provider:
        fake.then(Refusal(400, "no", spent))
        with pytest.raises(BadRequestError):
            await deltas_of(provider)
        deltas = await deltas_of(provider)
        assert text_of(deltas) == "You said: Hi"
        assert len(limits := limits_of(deltas)) == 1
        assert 0 < limits[0] <= 150
        assert limits_of(await deltas_of(provider)) == []


async def test_one_that_asked_for_a_rest_is_left_alone_by_all_calls() -> None:
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        fake.then(Refusal(429, "slow", {"retry-after-ms": "150"}))
        first = provider.stream((user("Hi"),), OPTIONS)
        assert len(limits_of([await anext(first)])) == 1
        second = await deltas_of(provider)
        assert len(limits_of(second)) == 1
        assert text_of([delta async for delta in first]) == "You said: Hi"
        assert len(fake.requests) == 3


async def test_waiting_for_a_turn_is_announced_and_can_be_cancelled() -> None:
    gate = asyncio.Event()
    async with FakeModels() as fake, connected(create, fake.openai_url, concurrency=1) as provider:
        fake.then(Reply((Say("a"), Gate(gate), Say("b"))))
        running = provider.stream((user("Hi"),), OPTIONS)
        await anext(running)
        waits = provider.stream((user("Hi"),), OPTIONS)
        assert limits_of([await anext(waits)]) == [0]
        await waits.aclose()
        cancelled = provider.stream((user("Hi"),), OPTIONS)
        await anext(cancelled)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(first_of(cancelled))
            await asyncio.sleep(0)
            task.cancel()
        assert len(fake.requests) == 1
        gate.set()
        assert text_of([delta async for delta in running]) == "b"
        assert text_of(await deltas_of(provider)) == "You said: Hi"


async def test_a_wait_that_is_too_long_is_a_rate_limit_that_falls_back() -> None:
    gate = asyncio.Event()
    settings = {"concurrency": 1, "timeout": 1500}
    async with FakeModels() as fake, connected(create, fake.openai_url, **settings) as provider:
        fake.then(Reply((Say("a"), Gate(gate), Say("b"))))
        running = provider.stream((user("Hi"),), OPTIONS)
        await anext(running)
        with pytest.raises(RateLimitError, match="the limits of fake"):
            await deltas_of(provider)
        gate.set()
        assert text_of([delta async for delta in running]) == "b"


@pytest.mark.parametrize("end", [Cut(), Refusal(400), Refusal(500, "oops", AT_ONCE)])
async def test_a_call_that_failed_has_its_slot_no_more(end: Cut | Refusal) -> None:
    async with FakeModels() as fake, connected(create, fake.openai_url, concurrency=1) as provider:
        fake.then(end if isinstance(end, Refusal) else Reply((Say("a"), end)))
        with contextlib.suppress(ProviderError):
            await deltas_of(provider)
        assert limits_of(await deltas_of(provider)) == []


async def test_tokens_are_counted_as_the_backend_says() -> None:
    limits = {"tokens_per_minute": 1000, "timeout": 1000}
    async with FakeModels() as fake, connected(create, fake.openai_url, **limits) as provider:
        fake.then(Reply((Say("a"),), tokens=Tokens(990, 10)))
        await deltas_of(provider)
        with pytest.raises(RateLimitError, match=r"the limits of fake leave no room for (59|60) s"):
            await deltas_of(provider)


async def test_an_endless_answer_is_aborted() -> None:
    endless = b'data: {"choices":[{"delta":{"content":"and so on "}}]}\n\n'
    async with FakeModels() as fake, connected(create, fake.openai_url, most_answer_bytes=100) as provider:
        fake.then(Reply((Forever(endless),)))
        async with asyncio.timeout(20):
            with pytest.raises(DeltaParseError, match=r"longer than limits\.provider_stream_bytes"):
                await deltas_of(provider)


def test_several_keys_are_refused_where_none_is_shown() -> None:
    config = ProviderConfig(
        id="azure", base_url="http://x", api_keys=("a", "b"), credentials={"client_id": "c"}
    )
    with pytest.raises(SettingsError, match=r"providers\.azure\.api_keys"):
        create_provider(
            CompletionsAdapter(CUSTOM, Capabilities()), config, None, lambda _: BearerAuthorizer(_no_token)
        )


async def _no_token(_: object) -> Token:
    return Token("", 0)


async def test_who_signs_in_meanwhile_needs_no_restart() -> None:
    found: list[Credential | None] = [None, ApiKey("stale"), ApiKey("right")]
    settings = {"api_key": "stale", "load_login": lambda: found.pop(0)}
    async with FakeModels(key="right") as fake, connected(create, fake.openai_url, **settings) as provider:
        for _ in range(2):
            with pytest.raises(AuthFailedError):
                await deltas_of(provider)
        assert text_of(await deltas_of(provider)) == "You said: Hi"
        assert text_of(await deltas_of(provider)) == "You said: Hi"
        assert found == []


async def test_a_login_that_cannot_be_read_is_a_failed_one() -> None:
    def broken() -> None:
        raise SettingsError("the file is broken")

    async with (
        FakeModels(key="right") as fake,
        connected(create, fake.openai_url, load_login=broken) as provider,
    ):
        with pytest.raises(AuthFailedError):
            await deltas_of(provider)
