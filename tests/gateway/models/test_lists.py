"""What providers say they offer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway import ModelInfo, ProviderConfig, SettingsError
from gateway.extensions.backends import ProviderRegistry
from gateway.models.resolve import ModelLists
from gateway.testing.chat import ScriptedModel
from gateway.testing.fake_models.server import MODELS, FakeModels
from plugins.providers import openai


class Offering(ScriptedModel):
    """Lists its models, or fails; counts how often it was asked."""

    def __init__(self, config: ProviderConfig) -> None:
        super().__init__()
        self.id = config.id
        self.asked = 0
        self.failure: Exception | None = None
        self.slow = False

    async def list_models(self) -> Sequence[ModelInfo]:
        self.asked += 1
        await asyncio.Event().wait() if self.slow else await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        return [ModelInfo("one", self.id), ModelInfo("two", self.id)]


def offering(**models: Sequence[str]) -> tuple[ModelLists, Offering, list[float]]:
    """A provider named ``script``, its list, and the time."""
    now = [0.0]
    providers = ProviderRegistry(lambda name: ProviderConfig(id=name, models=tuple(models.get(name, ()))))
    provider = Offering(ProviderConfig(id="script"))
    providers.register(provider)
    return ModelLists(providers, lambda: now[0]), provider, now


async def test_a_list_is_asked_for_once_an_hour_however_many_want_it() -> None:
    lists, provider, now = offering()
    told = await asyncio.gather(*(lists.get("script") for _ in range(5)))
    assert {tuple(model.id for model in listed.models) for listed in told} == {("one", "two")}
    now[0] = 3599.0
    await lists.get("script")
    assert provider.asked == 1
    now[0] = 3600.0
    await lists.get("script")
    assert provider.asked == 2


async def test_one_that_fails_is_asked_again_soon_and_meanwhile_the_settings_count() -> None:
    lists, provider, now = offering(script=["mine"])
    provider.failure = SettingsError("no key")
    listed = await lists.get("script")
    assert ([model.id for model in listed.models], listed.failure) == (["mine"], "no key")
    provider.failure = None
    assert (await lists.get("script")).failure == "no key"
    now[0] = 60.0
    assert (await lists.get("script")).failure == ""
    assert [model.id for model in lists.cached("script")] == ["one", "two"]


async def test_one_that_is_silent_is_waited_for_no_longer_than_said() -> None:
    lists, provider, _ = offering()
    provider.slow = True
    listed = await lists.get("script", 0.01)
    assert listed.failure == "no answer within 0.01 seconds"
    assert listed.models == ()


async def test_before_it_is_asked_the_settings_say_what_there_is() -> None:
    lists, provider, _ = offering(script=["mine"])
    assert [model.id for model in lists.cached("script")] == ["mine"]
    assert provider.asked == 0


async def test_all_are_asked_at_once() -> None:
    async with FakeModels() as fake, FakeModels(key="right") as locked:
        urls = {"mine": fake.openai_url, "locked": locked.openai_url}
        providers = ProviderRegistry(lambda name: ProviderConfig(id=name, base_url=urls[name]))
        providers.add_factory("custom", openai.create)
        listed = await ModelLists(providers).get_all(["mine", "locked", "mine"])
        await providers.close()
    assert [model.id for model in listed["mine"].models] == list(MODELS)
    assert listed["locked"].models == ()
    assert "401" in listed["locked"].failure
