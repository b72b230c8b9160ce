"""How a provider is reached: settings first, then the environment."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gateway import ProviderConfig
from gateway.contract.errors import ProviderResolutionError
from gateway.extensions.backends import ProviderRegistry, Variables
from gateway.models import default_model
from gateway.models.providers import LOCAL_URL, provider_config
from gateway.settings import ProviderSettings, Settings
from gateway.testing.chat import ScriptedModel
from plugins.providers import PROVIDERS, register_factories

VARIABLES: Variables = {
    "api_key": ("MINE_API_KEY", "MINE_TOKEN"),
    "base_url": ("MINE_URL",),
    "credentials.id": ("MINE_ID",),
    "credentials.secret": ("MINE_SECRET", "OLD_SECRET"),
}


def config(environ: Mapping[str, str], **given: object) -> ProviderConfig:
    settings = Settings(providers={"mine": given}) if given else Settings()  # type: ignore[arg-type]
    return provider_config(settings, environ, "mine", VARIABLES)


def test_without_settings_and_variables_there_are_the_defaults() -> None:
    assert config({}) == ProviderConfig(id="mine")


def test_004_31_every_setting_arrives() -> None:
    given = {
        "like": "azure",
        "name": "Ours",
        "api_key": "k",
        "credentials": {"id": "a"},
        "base_url": "http://x",
        "api_version": "v",
        "region": "r",
        "organization_id": "o",
        "project_id": "p",
        "custom_headers": {"X-A": "b"},
        "timeout": 7,
        "max_retries": 1,
        "models": ("m",),
        "capabilities": ("tools",),
        "api_keys": ("l", "m"),
        "concurrency": 2,
        "requests_per_minute": 3,
        "tokens_per_minute": 4,
    }
    made = config({"MINE_API_KEY": "other", "MINE_URL": "other", "MINE_SECRET": "other"}, **given)
    names = {"k": "key 1 (api_key)", "l": "key 2 (api_keys[0])", "m": "key 3 (api_keys[1])"}
    expected = ProviderConfig(id="mine", stream_timeout_ms=60_000, key_names=names, **given)  # type: ignore[arg-type]
    assert made == expected


def test_what_the_settings_do_not_say_the_first_variable_that_is_set_does() -> None:
    made = config({"MINE_API_KEY": "", "MINE_TOKEN": "t", "MINE_URL": "http://u"})
    assert (made.api_key, made.base_url, made.credentials) == ("t", "http://u", {})
    made = config({"MINE_ID": "i", "OLD_SECRET": "s"}, base_url="http://x")
    assert (made.base_url, made.credentials) == ("http://x", {"id": "i", "secret": "s"})


def test_credentials_of_the_settings_are_not_mixed_with_others() -> None:
    assert config({"MINE_SECRET": "s"}, credentials={"id": "a"}).credentials == {"id": "a"}


def test_keys_of_a_list_are_enough_and_not_mixed_with_others() -> None:
    made = config({"MINE_API_KEY": "other"}, api_keys=("a", "b"))
    assert (made.api_key, made.keys) == ("a", ("a", "b"))
    assert config({}, api_key="x", api_keys=("a", "x")).keys == ("x", "a")


def test_the_local_server_has_its_own_address() -> None:
    assert provider_config(Settings(), {}, "local", {}).base_url == LOCAL_URL


def known() -> ProviderRegistry:
    """All built-in providers, none of them loaded."""
    registry = ProviderRegistry(lambda name: ProviderConfig(id=name))
    register_factories(registry)
    return registry


def test_every_provider_looks_at_a_variable_named_after_it_first() -> None:
    registry = known()
    for provider_id in PROVIDERS:
        assert registry.variables(provider_id)["api_key"][0] == f"{provider_id.upper()}_API_KEY"
    assert registry.variables("my-own") == {"api_key": ("MY_OWN_API_KEY",)}
    assert registry.variables("azure")["base_url"] == ("AZURE_OPENAI_ENDPOINT",)


def test_variables_name_settings_that_exist() -> None:
    fields = set(ProviderConfig.__struct_fields__)
    for provider in PROVIDERS.values():
        named = {field for field in provider.variables if not field.startswith("credentials.")}
        assert named <= fields


@pytest.mark.parametrize(
    ("variables", "model"),
    [
        (("GROQ_API_KEY",), "groq/openai/gpt-oss-120b"),
        (("GEMINI_API_KEY",), "google/gemini-3.8-flash"),
        (("CO_API_KEY", "XAI_API_KEY", "OPENAI_API_KEY"), "openai/gpt-5.4-mini"),
    ],
)
async def test_a_key_of_any_provider_decides_on_the_first_model(
    variables: tuple[str, ...], model: str
) -> None:
    assert await default_model(dict.fromkeys(variables, "k"), known()) == model


async def test_a_key_of_the_settings_or_of_a_login_decides_as_well() -> None:
    registry = ProviderRegistry(lambda name: ProviderConfig(id=name, api_key="k" if name == "groq" else None))
    register_factories(registry)
    assert await default_model({}, registry) == "groq/openai/gpt-oss-120b"


async def test_cloud_and_local_providers_are_never_the_default() -> None:
    found = known().first_models()
    assert {name for name, _ in found} & {"azure", "bedrock", "vertex", "copilot", "custom", "local"} == set()
    assert all(model for _, model in found)


async def test_004_38_a_provider_may_be_like_another() -> None:
    made: list[str] = []

    def factory(name: str) -> ScriptedModel:
        made.append(name)
        return ScriptedModel()

    def configure(name: str) -> ProviderConfig:
        like = {"azure-eu": "azure", "mine": None, "typo": "azur"}[name]
        return ProviderConfig(id=name, like=like, base_url="http://x")

    registry = ProviderRegistry(configure)
    registry.add_factory("azure", lambda _: factory("azure"))
    registry.add_factory("custom", lambda _: factory("custom"))
    await registry.ready("azure-eu")
    await registry.ready("mine")
    assert made == ["azure", "custom"]
    with pytest.raises(ProviderResolutionError, match="no provider 'azur'"):
        await registry.ready("typo")


def test_004_38_function_calling_is_another_name_of_tools() -> None:
    given = ProviderSettings.model_validate({"capabilities": ["streaming", "function_calling"]})
    assert given.capabilities == ("streaming", "tools")
