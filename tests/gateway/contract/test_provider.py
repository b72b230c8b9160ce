"""The provider contract's values."""

from __future__ import annotations

from gateway import Provider, ProviderConfig
from gateway.testing.chat import ScriptedModel


def test_004_31_the_defaults_are_two_minutes_and_three_retries() -> None:
    config = ProviderConfig(id="x")
    assert (config.timeout, config.max_retries, config.stream_timeout_ms) == (120_000, 3, 60_000)


def test_settings_of_a_provider_do_not_show_their_secrets() -> None:
    config = ProviderConfig(
        id="x", api_key="sk-secret", custom_headers={"x-key": "hidden"}, base_url="http://h/"
    )
    assert repr(config) == f"{config}" == "ProviderConfig(id='x', base_url='http://h/')"


def test_004_30_an_object_with_the_members_is_a_provider() -> None:
    assert isinstance(ScriptedModel(), Provider)
    assert not isinstance(object(), Provider)
