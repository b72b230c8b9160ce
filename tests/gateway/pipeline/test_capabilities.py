"""What a model can do decides what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway import Capabilities, ErrorPart, ImagePart, ModelInfo, Plugin, PluginContext, Tool, tool_from
from gateway.contract.errors import FallbackExhaustedError
from gateway.models.catalog import ModelFacts, Rates
from gateway.models.resolve import Models
from gateway.provider_http import ServerFailedError
from gateway.testing.chat import ScriptedModel, chatting
from gateway.testing.fake_models.server import FakeModels

PICTURE = ImagePart("iVBORw0KGgo=", "image/png")
BLIND: dict[str, Any] = {"models": {"script/one": {"images": False}}}


async def clock() -> str:
    """What time it is."""
    return "noon"


class Telling(ScriptedModel):
    """Lists what it is told to."""

    offered: Sequence[ModelInfo] = ()

    async def list_models(self) -> Sequence[ModelInfo]:
        return self.offered


class Curious(Plugin):
    """Has a tool, a second provider, and asks what models can do."""

    name = "curious"

    def __init__(self) -> None:
        self.second = Telling()
        self.second.id = "second"
        self.models: Models | None = None

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.providers is not None
        ctx.providers.register(self.second)
        self.models = ctx.models

    def tools(self) -> Sequence[Tool]:
        return [tool_from(clock)]


async def test_004_39_a_model_without_tools_is_offered_none(tmp_path: Path) -> None:
    models = {"script/plain": {"tools": False}}
    async with chatting(tmp_path, Curious(), models=models) as chat:
        await chat.say("hi")
        await chat.say("/model script/plain")
        await chat.say("hi")
    with_tools, without = (call.options.tools for call in chat.model.calls)
    assert "clock" in {tool.name for tool in with_tools}
    assert without == ()


async def test_004_39_a_picture_for_a_model_that_cannot_see_is_refused(tmp_path: Path) -> None:
    async with chatting(tmp_path, **BLIND) as chat:
        [part] = (await chat.say("What is this?", parts=(PICTURE,))).parts
        assert isinstance(part, ErrorPart)
        assert part.error_name == "CapabilityError"
        assert part.message.startswith("script/one does not accept images. ")
        assert "/model" in part.message
        assert chat.model.calls == []
        assert (await chat.say("Never mind")).text == "You said: Never mind", "it does not stand in the way"
        await chat.say("/model script/two")
        assert (await chat.say("And this?", parts=(PICTURE,))).text == "You said: And this?"


async def test_004_39_who_stands_in_must_see_too(tmp_path: Path) -> None:
    curious = Curious()
    settings: dict[str, Any] = {
        "fallback": ["second/blind", "second/sees"],
        "models": {"second/blind": {"images": False}},
    }
    async with chatting(tmp_path, curious, **settings) as chat:
        chat.model.then(ServerFailedError("oh"), ServerFailedError("oh"))
        assert (await chat.say("Look", parts=(PICTURE,))).metadata.model == "sees"
        assert (await chat.say("Well?")).metadata.model == "blind"
        assert [call.options.model for call in curious.second.calls] == ["sees", "blind"]


async def test_a_picture_that_no_model_can_see_is_reported_with_the_failure(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "fallback": ["second/blind"],
        "models": {"second/blind": {"images": False}},
    }
    async with chatting(tmp_path, Curious(), **settings) as chat:
        chat.model.then(ServerFailedError("oh"))
        [part] = (await chat.say("Look", parts=(PICTURE,))).parts
    assert isinstance(part, ErrorPart)
    assert part.error_name == FallbackExhaustedError.__name__
    assert "second/blind does not accept images" in part.message


async def test_004_39_the_word_of_the_settings_reaches_the_server(tmp_path: Path) -> None:
    """A model of a provider whose models usually see, one that cannot; and the other way round."""
    async with FakeModels() as fake:
        settings: dict[str, Any] = {
            "providers": {
                "sees": {"base_url": fake.openai_url},
                "blind": {"base_url": fake.openai_url, "capabilities": ["streaming", "tools"]},
            },
            "models": {"sees/fake-small": {"images": False}, "blind/fake-large": {"images": True}},
            "model": "sees/fake-large",
        }
        async with chatting(tmp_path, **settings) as chat:
            await chat.say("Look", parts=(PICTURE,))
            for model in ("sees/fake-small", "blind/fake-large", "blind/fake-small"):
                await chat.say(f"/model {model}")
                await chat.say("And now?")
        shown = [PICTURE.data in str(asked.body) for asked in fake.requests]
    assert shown == [True, False, True, False]


async def test_004_39_what_a_provider_says_of_its_models_counts_once_it_was_asked(
    tmp_path: Path,
) -> None:
    curious = Curious()
    async with chatting(tmp_path, curious) as chat:
        models = chat.gateway.models
        assert (await models.resolve("second/plain")).capabilities.tools
        curious.second.offered = (ModelInfo("plain", "second", tools=False, output_limit=9),)
        await models.lists.get("second")
        route = await models.resolve("second/plain")
    assert (route.capabilities.tools, route.output_limit) == (False, 9)


async def test_004_39_a_provider_may_know_its_models_apart(tmp_path: Path) -> None:
    providers = {"cohere": {"api_key": "k", "base_url": "http://127.0.0.1:9"}}
    async with chatting(tmp_path, providers=providers, model="cohere/command-a-03-2025") as chat:
        [part] = (await chat.say("Look", parts=(PICTURE,))).parts
        assert isinstance(part, ErrorPart)
        assert part.message.startswith("cohere/command-a-03-2025 does not accept images. ")
        models = chat.gateway.models
        assert (await models.resolve("cohere/command-a-vision-07-2025")).capabilities.images


async def test_004_39_json_is_asked_for_in_the_way_that_a_model_knows(tmp_path: Path) -> None:
    async with FakeModels() as fake:
        settings: dict[str, Any] = {
            "providers": {"desk": {"base_url": fake.openai_url}},
            "models": {"desk/fake-small": {"json_mode": False}},
            "agents": {"clerk": {"response_format": "json"}},
            "model": "desk/fake-large",
        }
        async with chatting(tmp_path, **settings) as chat:
            await chat.say("hi")
            await chat.say("/agent clerk")
            await chat.say("A form, please")
            await chat.say("/model desk/fake-small")
            await chat.say("Another one")
        bodies = [asked.body for asked in fake.requests]
    assert [body.get("response_format") for body in bodies] == [None, {"type": "json_object"}, None]
    assert ["JSON" in str(body["messages"][0]) for body in bodies] == [False, False, True]


async def test_the_longest_answer_of_a_model_bounds_what_is_asked_of_it(tmp_path: Path) -> None:
    models = {"script/short": {"output_limit": 100}, "script/long": {"output_limit": 9_000}}
    async with chatting(tmp_path, models=models, max_tokens=4_096) as chat:
        for model in ("short", "long"):
            await chat.say(f"/model script/{model}")
            await chat.say("hi")
    assert [call.options.max_tokens for call in chat.model.calls] == [100, 4096]


async def test_004_39_plugins_may_ask_what_a_model_can_do(tmp_path: Path) -> None:
    curious = Curious()
    settings: dict[str, Any] = {
        "models": {"script/one": {"images": False, "context_window": 5, "input_price": 1.5}},
        "aliases": {"fast": "script/one"},
    }
    async with chatting(tmp_path, curious, **settings):
        assert curious.models is not None
        assert (await curious.models.resolve("fast")).capabilities == Capabilities(images=False)
        assert (await curious.models.resolve("script/two")).capabilities == Capabilities()
        known = await curious.models.facts("script", "one")
    assert known == ModelFacts("one", "script", context_window=5, images=False, rates=Rates(input=1.5))


@pytest.mark.parametrize(("provider", "known"), [("openai", 128_000), ("desk", None)])
async def test_what_is_known_offline_is_reported_too(
    tmp_path: Path, provider: str, known: int | None
) -> None:
    async with chatting(tmp_path) as chat:
        facts = await chat.gateway.models.facts(provider, "gpt-4o")
    assert facts.context_window == known


async def test_a_provider_of_another_name_is_known_as_what_it_is_like(tmp_path: Path) -> None:
    providers = {"azure-eu": {"like": "azure", "base_url": "http://127.0.0.1:9"}}
    async with chatting(tmp_path, providers=providers) as chat:
        assert (await chat.gateway.models.facts("azure-eu", "gpt-4o")).context_window == 128_000
