"""Tokens that expire: fetched once, kept, and replaced in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from gateway.http_client import open_client
from gateway.provider_http import (
    AuthFailedError,
    BearerAuthorizer,
    DeltaParseError,
    HttpClient,
    ProviderUnavailableError,
    RequestSpec,
    Token,
    TokenCache,
    client_credentials,
)
from gateway.testing.fake_models.tokens import FakeTokens
from gateway.testing.polling_platform import PollingPlatform

FORM = {"client_id": "me", "client_secret": "right", "scope": "all"}


@asynccontextmanager
async def opened() -> AsyncGenerator[HttpClient]:
    client = open_client()
    try:
        yield client
    finally:
        await client.close()


async def test_calls_at_the_same_time_share_one_token() -> None:
    async with FakeTokens() as tokens, opened() as client:
        keeper = TokenCache(client_credentials(tokens.token_url, FORM))
        got = await asyncio.gather(*(keeper.token(client) for _ in range(20)))
    assert ({token.value for token in got}, tokens.given) == ({"token-1"}, 1)
    assert tokens.asked == [{"grant_type": "client_credentials", **FORM}]
    assert got[0].expires_at > time.time() + 3000


async def test_a_token_about_to_end_is_replaced() -> None:
    async with FakeTokens(lifetime=30) as tokens, opened() as client:
        keeper = TokenCache(client_credentials(tokens.token_url, FORM))
        assert [(await keeper.token(client)).value for _ in range(2)] == ["token-1", "token-2"]


async def test_a_token_that_was_refused_is_forgotten_and_nothing_twice() -> None:
    async with FakeTokens() as tokens, opened() as client:
        keeper = TokenCache(client_credentials(tokens.token_url, FORM))
        assert not keeper.forget()
        await keeper.token(client)
        assert keeper.forget()
        assert (await keeper.token(client)).value == "token-2"


async def test_the_token_takes_the_place_of_the_key() -> None:
    async with FakeTokens() as tokens, opened() as client:
        authorizer = BearerAuthorizer(client_credentials(tokens.token_url, FORM), "api-key")
        request = RequestSpec("http://x", "GET", {"api-key": "none", "X-A": "b"})
        shown = await authorizer.authorize(request, client)
    assert shown.headers == {"X-A": "b", "Authorization": "Bearer token-1"}


async def test_rejected_credentials_and_an_unreachable_server_are_different_errors() -> None:
    async with FakeTokens() as tokens, opened() as client:
        fetch = client_credentials(tokens.token_url, {**FORM, "client_secret": "wrong"})
        with pytest.raises(AuthFailedError):
            await fetch(client)
    async with opened() as client:
        with pytest.raises(ProviderUnavailableError):
            await fetch(client)


async def test_what_is_not_a_token_cannot_be_read() -> None:
    async with PollingPlatform() as other, opened() as client:
        with pytest.raises(AuthFailedError, match="the token request was refused"):
            await client_credentials(f"{other.url}/nothing", FORM)(client)
    async with FakeTokens() as tokens, opened() as client:
        with pytest.raises(DeltaParseError):
            await client_credentials(f"{tokens.url}/login/device/code", FORM)(client)


def test_a_token_does_not_show_itself() -> None:
    assert "secret" not in repr(Token("secret", 1.0))
