"""Models that are named without a provider or by a short name, and unknown ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gateway import ModelInfo, ProviderConfig
from gateway.contract.errors import ProviderResolutionError
from gateway.extensions.backends import ProviderRegistry
from gateway.models import ConfiguredModels, Models
from gateway.settings import ModelSettings, Settings
from gateway.testing.chat import ScriptedModel, chatting
from gateway.testing.fake_models.server import FakeModels


class Made(ScriptedModel):
    """A provider that offers what its settings say."""

    def __init__(self, config: ProviderConfig) -> None:
        super().__init__()
        self.id = config.id
        self.config = config
        self.asked = 0

    async def list_models(self) -> Sequence[ModelInfo]:
        self.asked += 1
        return [ModelInfo(name, self.id) for name in self.config.models]


def models(
    keys: Sequence[str] = (),
    offers: Mapping[str, Sequence[str]] | None = None,
    known: ConfiguredModels | None = None,
) -> Models:
    """Anthropic, OpenAI, OpenRouter, Azure and Groq; some have a key, some offer their own models."""

    def configured(name: str) -> ProviderConfig:
        offered = tuple((offers or {}).get(name, ()))
        return ProviderConfig(id=name, api_key="k" if name in keys else None, models=offered)

    providers = ProviderRegistry(configured)
    for name in ("anthropic", "openai", "openrouter", "azure", "groq"):
        providers.add_factory(name, Made, first_model=f"{name}-first", optional=True)
    return Models(providers, known)


@pytest.mark.parametrize(
    ("name", "keys", "found"),
    [
        ("gpt-4o", ["openai", "anthropic"], "openai/gpt-4o"),
        ("claude-sonnet-4-20250514", ["openai", "anthropic"], "anthropic/claude-sonnet-4-20250514"),
        ("gpt-4o", ["azure", "openai"], "openai/gpt-4o"),
        ("gpt-4o", ["azure"], "azure/gpt-4o"),
        ("anthropic/claude-sonnet-4", ["openrouter"], "anthropic/claude-sonnet-4"),
        ("llama-3.3-70b-versatile", ["openai", "groq"], "groq/llama-3.3-70b-versatile"),
        (
            "meta-llama/llama-4-scout-17b-16e-instruct",
            ["groq"],
            "groq/meta-llama/llama-4-scout-17b-16e-instruct",
        ),
    ],
)
async def test_004_34_a_model_named_alone_is_looked_for_in_what_is_known(
    name: str, keys: Sequence[str], found: str
) -> None:
    assert (await models(keys).resolve(name)).name == found


async def test_004_34_then_in_what_the_providers_say_they_offer() -> None:
    offers = {"groq": ["someone/new-model"], "openai": ["New-Model-2"]}
    finding = models(["groq", "openai"], offers)
    assert (await finding.resolve("someone/new-model")).name == "groq/someone/new-model"
    assert (await finding.resolve("new-model")).name == "groq/someone/new-model"
    assert (await finding.resolve("new-model-2")).name == "openai/New-Model-2"


async def test_004_34_a_real_server_is_asked_what_it_offers(tmp_path: Path) -> None:
    async with FakeModels() as fake:
        providers = {"desk": {"base_url": fake.openai_url}}
        async with chatting(tmp_path, model="fake-large", providers=providers) as chat:
            answer = await chat.say("hi")
    assert (answer.metadata.provider, answer.metadata.model) == ("desk", "fake-large")


async def test_004_34_what_the_settings_say_counts_first() -> None:
    known = ConfiguredModels(models={"groq/gpt-4o": ModelSettings(tools=False)})
    assert (await models(["openai", "groq"], known=known).resolve("gpt-4o")).name == "groq/gpt-4o"
    offers = {"azure": ["gpt-4o"]}
    assert (await models(["openai", "azure"], offers).resolve("gpt-4o")).name == "azure/gpt-4o"


async def test_004_34_an_alias_is_resolved_before_anything_else() -> None:
    known = ConfiguredModels(aliases={"fast": "groq/llama", "gpt-4o": "anthropic/claude", "best": "gpt-5.4"})
    finding = models(["openai"], known=known)
    assert (await finding.resolve("fast")).name == "groq/llama"
    assert (await finding.resolve("gpt-4o")).name == "anthropic/claude"
    assert (await finding.resolve("best")).name == "openai/gpt-5.4"


async def test_a_provider_named_alone_means_the_model_it_begins_with() -> None:
    assert (await models().resolve("openai")).name == "openai/openai-first"
    assert (await models(offers={"openai": ["mine"]}).resolve("openai")).name == "openai/mine"


async def test_one_that_has_no_first_model_says_what_to_write() -> None:
    providers = ProviderRegistry(lambda name: ProviderConfig(id=name))
    providers.add_factory("bare", Made)
    with pytest.raises(ProviderResolutionError, match="use the form bare/model"):
        await Models(providers).resolve("bare")


@pytest.mark.parametrize(
    ("name", "keys", "told"),
    [
        (
            "gpt-4oo",
            ["openai"],
            "no configured provider .*did you mean openai/gpt-4o",
        ),
        ("gpt-4o", [], "'gpt-4o' is a model of openai, which has no key; set OPENAI_API_KEY"),
        ("fst", [], "did you mean fast"),
        ("antropic/claude", [], "no provider 'antropic', .*did you mean anthropic/claude"),
        ("anthropc", [], "did you mean anthropic"),
    ],
)
async def test_004_34_an_unknown_name_is_reported_with_the_nearest(
    name: str, keys: Sequence[str], told: str
) -> None:
    with pytest.raises(ProviderResolutionError, match=told) as caught:
        await models(keys, known=ConfiguredModels(aliases={"fast": "groq/llama"})).resolve(name)
    assert not ("did you mean" in told and not caught.value.suggestions)


async def test_an_unknown_name_asks_each_provider_once() -> None:
    finding = models(["groq"], {"groq": ["one"]})
    for _ in range(3):
        with pytest.raises(ProviderResolutionError):
            await finding.resolve("no-such-model")
    route = await finding.resolve("groq/one")
    assert route.provider.asked == 1  # type: ignore[attr-defined]


async def test_those_are_set_up_that_have_a_table_a_key_or_were_made() -> None:
    finding = models(["openai"], known=ConfiguredModels(providers=("desk",)))
    assert finding.available_providers() == ("desk", "openai")
    await finding.resolve("groq/llama")
    assert finding.available_providers() == ("desk", "openai", "groq")


async def test_a_project_or_credentials_are_as_good_as_a_key() -> None:
    providers = ProviderRegistry(
        lambda name: {
            "cloud": ProviderConfig(id=name, project_id="p"),
            "vault": ProviderConfig(id=name, credentials={"access_key_id": "a"}),
        }.get(name, ProviderConfig(id=name))
    )
    for name in ("cloud", "vault", "closed"):
        providers.add_factory(name, Made, optional=True)
    providers.add_factory("open", Made)
    assert Models(providers).available_providers() == ("cloud", "vault", "open")


async def test_any_number_of_names_takes_no_more_room() -> None:
    finding = models()
    for number in range(2500):
        await finding.window(await finding.resolve(f"openai/model-{number}"))
    assert max(len(finding._routes), len(finding._windows)) <= 1000


@pytest.mark.parametrize(
    ("aliases", "told"),
    [
        ({"a/b": "openai/x"}, "use a word without slash"),
        ({"default": "openai/x"}, 'other than "default"'),
        ({" ": "openai/x"}, "use a word"),
        ({"fast": ""}, "alias 'fast' has no target model"),
        ({"fast": "quick", "quick": "openai/x"}, "the target of alias 'fast' is the alias 'quick'"),
    ],
)
def test_aliases_that_mean_nothing_are_refused(aliases: Mapping[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Settings(aliases=aliases)


def test_what_is_said_of_a_model_names_its_provider() -> None:
    with pytest.raises(ValueError, match="must name a model with its provider"):
        Settings(models={"gpt-5": {}})
    with pytest.raises(ValueError, match="must name a model with its provider"):
        Settings(models={"openai/gpt-5": {"equivalents": ["claude"]}})
