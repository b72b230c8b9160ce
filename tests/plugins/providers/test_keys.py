"""Several keys: whatever the protocol, a key that is refused makes room for the next one."""

from __future__ import annotations

import pytest

from gateway.errors import AuthFailedError
from gateway.testing.backend import Backend, failure_of, named
from gateway.testing.talk import deltas_of, text_of
from tests.plugins.providers.test_contract import BACKENDS

KEYED = [backend for backend in BACKENDS if backend.keyed]


@pytest.mark.parametrize("backend", KEYED, ids=named)
async def test_every_protocol_shows_the_next_key_when_one_is_refused(backend: Backend) -> None:
    keys = {"api_key": "stale-key-1", "api_keys": ("stale-key-2", "right")}
    async with backend.running(key="right", max_retries=0, **keys) as (fake, provider):
        assert text_of(await deltas_of(provider)) == "You said: Hi"
        assert len(await provider.list_models()) == 2
        assert len(fake.requests) == 1


@pytest.mark.parametrize("backend", KEYED, ids=named)
async def test_no_key_of_several_is_shown_in_an_error(backend: Backend) -> None:
    keys = {"api_key": "stale-key-1", "api_keys": ("stale-key-2",)}
    async with backend.running(key="right", **keys) as (_, provider):
        failure = await failure_of(provider)
        assert type(failure) is AuthFailedError
        assert "stale-key" not in str(failure)
