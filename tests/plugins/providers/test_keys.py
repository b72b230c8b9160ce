"""Several keys: whatever the protocol, a key that is refused makes room for the next one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway import ProviderConfig
from gateway.contract.deltas import MetadataDelta
from gateway.contract.errors import AuthFailedError
from gateway.contract.provider import ReloadsCredentials
from gateway.testing.contracts.provider_calls import OPTIONS, deltas_of, failure_of, text_of, user
from gateway.testing.contracts.provider_setup import ProviderSetup, named
from gateway.testing.fake_models.script import Gate, Reply, Say
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.fake_models.tokens import FakeTokens
from plugins.providers.openai import create
from tests.plugins.providers.test_contract import PROVIDER_SETUPS

KEYED = [setup for setup in PROVIDER_SETUPS if setup.keyed]


@pytest.mark.parametrize("setup", KEYED, ids=named)
async def test_every_protocol_shows_the_next_key_when_one_is_refused(setup: ProviderSetup) -> None:
    keys = {"api_key": "stale-key-1", "api_keys": ("stale-key-2", "right")}
    async with setup.running(key="right", max_retries=0, **keys) as (fake, provider):
        assert text_of(await deltas_of(provider)) == "You said: Hi"
        assert len(await provider.list_models()) == 2
        assert len(fake.requests) == 1


@pytest.mark.parametrize("setup", KEYED, ids=named)
async def test_no_key_of_several_is_shown_in_an_error(setup: ProviderSetup) -> None:
    keys = {"api_key": "stale-key-1", "api_keys": ("stale-key-2",)}
    async with setup.running(key="right", **keys) as (_, provider):
        failure = await failure_of(provider)
        assert type(failure) is AuthFailedError
        assert "stale-key" not in str(failure)


async def test_a_waiting_call_uses_the_current_key() -> None:
    async with FakeModels() as fake:
        limits: dict[str, Any] = {"base_url": fake.openai_url, "concurrency": 1, "max_retries": 0}
        provider = create(ProviderConfig(id="openai", api_key="old", **limits))
        assert isinstance(provider, ReloadsCredentials)
        gate = asyncio.Event()
        fake.then(Reply((Say("One"), Gate(gate))))
        first = asyncio.create_task(deltas_of(provider))
        second = provider.stream((user("Ho"),), OPTIONS)
        while not fake.requests:
            await asyncio.sleep(0)
        told = await anext(second)
        assert isinstance(told, MetadataDelta)
        assert told.rate_limit is not None
        provider.reload(ProviderConfig(id="openai", api_key="new", **limits))
        gate.set()
        assert text_of([delta async for delta in second]) == "You said: Ho"
        assert text_of(await first) == "One"
        await provider.close()
    assert [asked.headers["authorization"] for asked in fake.requests] == ["Bearer old", "Bearer new"]


async def test_where_a_key_is_removed_what_the_settings_have_besides_is_shown_again() -> None:
    async with FakeModels() as fake, FakeTokens() as tokens:
        secrets = {"client_id": "me", "client_secret": "right", "token_url": tokens.token_url}
        given: dict[str, Any] = {"like": "azure", "base_url": fake.at("azure"), "credentials": secrets}
        provider = create(ProviderConfig(id="office", api_key="of-a-login", **given))
        assert isinstance(provider, ReloadsCredentials)
        await deltas_of(provider)
        provider.reload(ProviderConfig(id="office", **given))
        await deltas_of(provider)
        await provider.close()
    shown = [asked.headers.get("api-key") or asked.headers["authorization"] for asked in fake.requests]
    assert shown == ["of-a-login", "Bearer token-1"]
