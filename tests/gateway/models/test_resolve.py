"""From the name of a model to the provider that serves it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway import ErrorPart, ModelInfo, ProviderConfig, SettingsError
from gateway.app import Gateway
from gateway.contract.errors import AlreadyRegisteredError, ProviderResolutionError
from gateway.extensions.backends import ProviderRegistry
from gateway.extensions.loader import load_plugin
from gateway.models import Models, default_model
from gateway.settings import Settings
from gateway.testing.chat import ScriptedModel, chatting
from gateway.testing.fake_models.server import MODELS, FakeModels
from gateway.testing.polling_platform import PollingPlatform
from plugins.providers import PROVIDERS, openai


class Made(ScriptedModel):
    """A provider that knows its settings and how often it was made ready."""

    def __init__(self, config: ProviderConfig) -> None:
        super().__init__()
        self.id = config.id
        self.config = config
        self.initialized = 0

    async def initialize(self, config: ProviderConfig) -> None:
        self.initialized += 1


def registry(**base_urls: str) -> ProviderRegistry:
    """Providers of which some have an address in the settings."""
    return ProviderRegistry(lambda name: ProviderConfig(id=name, base_url=base_urls.get(name)))


async def test_004_34_a_model_is_named_with_its_provider() -> None:
    providers = registry()
    providers.add_factory("openai", Made)
    models = Models(providers)
    route = await models.resolve("openai/gpt-5.4-mini")
    assert (route.provider.id, route.model) == ("openai", "gpt-5.4-mini")
    assert (await models.resolve("openai/org/gpt")).model == "org/gpt", "what follows may hold slashes"
    assert (await models.resolve("openai/gpt-5.4-mini")).provider is route.provider
    assert route.provider.initialized == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["gpt-5", "openai/", "", "/"])
async def test_004_34_the_error_for_a_name_without_a_provider_shows_the_form(name: str) -> None:
    with pytest.raises(ProviderResolutionError):
        await Models(registry()).resolve(name)


async def test_004_34_an_unknown_provider_is_reported_with_the_nearest_ones() -> None:
    providers = registry()
    for name in ("openai", "openrouter", "anthropic"):
        providers.add_factory(name, Made)
    with pytest.raises(ProviderResolutionError, match="did you mean openai") as caught:
        await Models(providers).resolve("opnai/gpt")
    assert caught.value.suggestions[0] == "openai/gpt"
    with pytest.raises(ProviderResolutionError) as caught:
        await Models(providers).resolve("zzz/gpt")
    assert "did you mean" not in str(caught.value)


async def test_004_38_an_address_in_the_settings_is_enough() -> None:
    providers = registry(mine="http://127.0.0.1:9/v1")
    providers.add_factory("custom", Made)
    route = await Models(providers).resolve("mine/model")
    assert route.provider.config.base_url == "http://127.0.0.1:9/v1"  # type: ignore[attr-defined]
    with pytest.raises(ProviderResolutionError):
        await Models(providers).resolve("other/model")


async def test_a_provider_that_cannot_be_made_ready_is_tried_again() -> None:
    class Moody(Made):
        async def initialize(self, config: ProviderConfig) -> None:
            moods.append("tried")
            if len(moods) == 1:
                raise SettingsError("no key")

    moods: list[str] = []
    providers = registry()
    providers.add_factory("moody", Moody)
    models = Models(providers)
    with pytest.raises(SettingsError):
        await models.resolve("moody/one")
    assert (await models.resolve("moody/one")).model == "one"
    assert moods == ["tried", "tried"]


async def test_a_provider_is_made_once_however_many_ask_for_it_at_once() -> None:
    class Slow(Made):
        async def initialize(self, config: ProviderConfig) -> None:
            await asyncio.sleep(0)
            await super().initialize(config)

    providers = registry()
    providers.add_factory("slow", Slow)
    first, *others = await asyncio.gather(*(providers.ready("slow") for _ in range(5)))
    assert all(other is first for other in others)
    assert first.initialized == 1  # type: ignore[attr-defined]


async def test_a_provider_that_fails_to_close_keeps_no_other_open() -> None:
    class Stuck(Made):
        async def close(self) -> None:
            raise OSError("no")

    providers = registry()
    last = Made(ProviderConfig(id="last"))
    providers.register(Stuck(ProviderConfig(id="stuck")))
    providers.register(last)
    await providers.close()
    assert last.closed


async def test_names_of_providers_are_taken_once_and_all_are_closed() -> None:
    providers = registry()
    made = Made(ProviderConfig(id="own"))
    remove = providers.register(made)
    with pytest.raises(AlreadyRegisteredError):
        providers.register(Made(ProviderConfig(id="own")))
    forget = providers.add_factory("other", Made)
    with pytest.raises(AlreadyRegisteredError):
        providers.add_factory("other", Made)
    assert providers.known() == ("own", "other")
    await providers.close()
    assert made.closed
    remove()
    forget()
    assert providers.known() == ()


@pytest.mark.parametrize(
    ("environ", "model"),
    [
        ({"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"}, "anthropic/claude-sonnet-5-5"),
        ({"OPENAI_API_KEY": "k"}, "openai/gpt-5.4-mini"),
        ({"ANTHROPIC_API_KEY": "", "OPENAI_API_KEY": "k"}, "openai/gpt-5.4-mini"),
    ],
)
async def test_without_a_model_a_key_decides(environ: Mapping[str, str], model: str) -> None:
    gateway = Gateway(Settings(), environ=environ)
    await gateway.registry.register(load_plugin("providers"))
    assert await default_model(environ, gateway.providers) == model


async def test_without_a_key_a_server_on_this_machine_answers_or_else_the_demo() -> None:
    async with FakeModels() as fake:
        providers = registry(local=fake.openai_url)
        providers.add_factory("local", openai.create)
        assert await default_model({}, providers) == f"local/{MODELS[0]}"
        await providers.close()
    assert await default_model({}, providers) == "demo/demo", "it is gone"


async def test_another_server_on_this_machine_leaves_the_demo() -> None:
    async with PollingPlatform() as other:
        providers = registry(local=f"{other.url}/v1")
        providers.add_factory("local", openai.create)
        assert await default_model({}, providers) == "demo/demo"
        await providers.close()


async def test_a_wrong_model_is_a_readable_answer(tmp_path: Path) -> None:
    async with chatting(tmp_path, model="opnai/gpt") as chat:
        [part] = (await chat.say("hi")).parts
        assert isinstance(part, ErrorPart)
        assert part.error_name == "ProviderResolutionError"
        assert "did you mean openai" in part.message


async def test_004_38_a_server_of_ones_own_answers(tmp_path: Path) -> None:
    async with FakeModels() as fake:
        providers: Any = {"mine": {"base_url": fake.openai_url}}
        async with chatting(tmp_path, model="mine/fake-small", providers=providers) as chat:
            answer = await chat.say("hi")
            assert (answer.text, answer.metadata.provider) == ("You said: hi", "mine")


class Silent(Made):
    """A provider that lists nothing."""

    async def list_models(self) -> Sequence[ModelInfo]:
        return []


def offline(**fields: Any) -> ProviderRegistry:
    """The built-in providers, none of which lists its models."""
    providers = ProviderRegistry(lambda name: ProviderConfig(id=name, **fields))
    for name, known in PROVIDERS.items():
        providers.add_factory(name, Silent, first_model=known.first_model)
    return providers


@pytest.mark.parametrize(
    "wanted",
    [
        "openai/gpt-5.5",
        "openai/gpt-4o-mini",
        "anthropic/claude-sonnet-5-5",
        "anthropic/claude-opus-4-6",
        "google/gemini-2.5-flash",
    ],
)
async def test_004_36_offline_no_retired_model_stands_in_while_a_current_one_is_known(wanted: str) -> None:
    """The providers do not list their models here, so the choice is among all that the data know."""
    models = Models(offline())
    first = await models.resolve(wanted)
    for provider in PROVIDERS:
        if provider in ("demo", "local", "custom", wanted.partition("/")[0]):
            continue
        chosen = await models.facts(provider, (await models.substitute(first, provider)).model)
        assert not chosen.retired, chosen.full_name
        assert not chosen.deprecated, chosen.full_name
        assert provider not in ("google", "vertex") or "claude" not in chosen.id, chosen.full_name


async def test_004_36_a_retired_model_stands_in_where_nothing_else_is_known() -> None:
    models = Models(offline(models=("claude-2.1", "claude-3-opus-20240229")))
    chosen = await models.substitute(await models.resolve("openai/gpt-5.5"), "anthropic")
    assert (await models.facts("anthropic", chosen.model)).retired
