"""Auth providers of confined plugins: tokens for model providers."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.contract.errors import PluginError
from gateway.plugin_services.confined import plugin_token
from gateway.testing.chat import chatting

from .conftest import Write

AUTH = """
from trunkline_plugin import plugin

@plugin
def f(ctx):
    calls = []
    async def login(config):
        calls.append(config.provider)
        if len(calls) > 2:
            raise ValueError("the login ended")
        return {"token": f"token-{len(calls)}", "expires_at": 2_000_000_000}
    return {"auth": {"providers": {"company": login}}}
"""


async def test_001_17_a_plugin_gives_the_tokens_of_a_model_provider(tmp_path: Path, write: Write) -> None:
    settings = {
        "providers": {"acme": {"like": "openai", "base_url": "http://[::1]:9", "auth": "plugin:guarded"}}
    }
    async with chatting(tmp_path, write(AUTH), **settings) as chat:
        config = chat.gateway.providers.configured("acme")
        assert config.fetch_token is not None
        assert await config.fetch_token() == ("token-1", 2_000_000_000)
        assert await config.fetch_token() == ("token-2", 2_000_000_000)
        with pytest.raises(PluginError, match="'guarded' got no token: ValueError: the login ended"):
            await config.fetch_token()
        with pytest.raises(PluginError, match=r"providers.acme.auth names the plugin 'other', which is not"):
            await plugin_token(chat.gateway.registry, "plugin:other", "acme")
