"""How much a model reasons: one setting, in the words of each vendor, left out where a model refuses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from gateway.contract.messages import TextPart, ToolResultPart
from gateway.contract.provider import ChatOptions, Effort
from gateway.testing.contracts.provider_calls import assistant, deltas_of, text_of, user
from gateway.testing.contracts.provider_setup import ProviderSetup
from gateway.testing.fake_models.script import Refusal, Reply, Think, Use
from tests.plugins.providers.test_contract import PROVIDER_SETUPS

SETUPS = {setup.id: setup for setup in PROVIDER_SETUPS}
HIDDEN = {"summary": "auto"}


def options_of(model: str, effort: Effort | None) -> ChatOptions:
    return ChatOptions(model=model, message_id="answer", effort=effort)


def quiet(setup: ProviderSetup) -> Any:
    return setup.running(max_retries=0)


@pytest.mark.parametrize(
    ("vendor", "model", "effort", "sent"),
    [
        ("openai", "gpt-5.4-mini", "low", {"reasoning_effort": "low"}),
        ("openai", "gpt-6-sol", "max", {"reasoning": {"effort": "max", **HIDDEN}}),
        ("openai", "gpt-6-sol", None, {"reasoning": HIDDEN}),
        ("xai", "grok-4.7", "high", {"reasoning": {"effort": "high"}}),
        ("xai", "grok-4.7", None, {"reasoning": None}),
        ("groq", "openai/gpt-oss-120b", "medium", {"reasoning_effort": "medium"}),
        ("mistral", "mistral-medium-3-5", "none", {"reasoning_effort": "none"}),
        ("openrouter", "openrouter/auto", "xhigh", {"reasoning_effort": "xhigh"}),
        ("custom", "qwen3", "none", {"reasoning_effort": "none"}),
        ("custom", "qwen3", None, {"reasoning_effort": None}),
        ("anthropic", "claude-opus-5-5", "max", {"output_config": {"effort": "max"}}),
        ("anthropic", "claude-haiku-5-5", "minimal", {"output_config": {"effort": "low"}}),
        (
            "anthropic",
            "claude-opus-4-6",
            "high",
            {"output_config": {"effort": "high"}, "thinking": {"type": "adaptive"}},
        ),
        ("anthropic", "claude-opus-4-1", "none", {"output_config": None, "thinking": None}),
        ("google", "gemini-3.8-flash", "low", {"thinkingLevel": "low", "includeThoughts": True}),
        ("google", "gemini-3.8-flash", "max", {"thinkingLevel": "high"}),
        ("google", "gemini-2.5-flash", "none", {"thinkingBudget": 0}),
        ("google", "gemini-2.5-flash", "high", {"thinkingBudget": 24_576}),
        ("google", "gemini-2.0-flash", "high", {"thinkingBudget": None}),
        ("vertex", "gemini-3.8-flash", "medium", {"thinkingLevel": "medium"}),
        ("cohere", "command-a-reasoning-08-2025", "none", {"thinking": {"type": "disabled"}}),
        ("cohere", "command-a-reasoning-08-2025", "high", {"thinking": None}),
        ("bedrock", "anthropic.claude-opus-5", "low", {"output_config": {"effort": "low"}}),
        ("bedrock", "amazon.nova-pro-v1:0", "low", {"additionalModelRequestFields": None}),
    ],
)
async def test_004_32_the_effort_is_sent_in_the_words_of_each_vendor(
    vendor: str, model: str, effort: Effort | None, sent: Mapping[str, Any]
) -> None:
    async with quiet(SETUPS[vendor]) as (fake, provider):
        await deltas_of(provider, options=options_of(model, effort))
        body: dict[str, Any] = dict(fake.requests[0].body)
    inner: dict[str, Any] = body.get("generationConfig", {}).get("thinkingConfig", {})
    found: dict[str, Any] = body | inner | body.get("additionalModelRequestFields", {})
    assert {name: found.get(name) for name in sent} == sent


@pytest.mark.parametrize(
    "words",
    [
        '"gemma3" does not support thinking',
        "This model does not support the effort parameter.",
        "Model grok-build-0.1 does not support parameter reasoningEffort.",
        "Unsupported value: 'xhigh' is not supported with the 'gpt-5.1' model. Param: reasoning_effort",
    ],
)
async def test_004_32_a_model_that_refuses_the_effort_is_asked_without_it_from_then_on(words: str) -> None:
    async with quiet(SETUPS["custom"]) as (fake, provider):
        fake.then(Refusal(400, words))
        for effort in ("xhigh", "xhigh", "low"):
            assert text_of(await deltas_of(provider, options=options_of("m", effort))) == "You said: Hi"
        sent = [request.body.get("reasoning_effort") for request in fake.requests]
    assert sent == ["xhigh", None, None, "low"]


async def test_an_account_that_may_not_see_summaries_is_asked_without_one_from_then_on() -> None:
    async with quiet(SETUPS["openai"]) as (fake, provider):
        fake.then(Refusal(400, "Your organization must be verified to generate reasoning summaries."))
        for _ in range(2):
            assert text_of(await deltas_of(provider, options=options_of("gpt-6", "low")))
        sent = [request.body["reasoning"] for request in fake.requests]
    assert sent == [{"effort": "low", **HIDDEN}, {"effort": "low"}, {"effort": "low"}]


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("messages.1.reasoning_content: Extra inputs are not permitted", [True, False, False]),
        ("The reasoning cannot be read.", [True, False, True]),
    ],
)
async def test_a_server_without_a_field_for_reasoning_gets_it_once(words: str, asked: list[bool]) -> None:
    options = msgspec.structs.replace(options_of("m", None), first_part=0)
    async with quiet(SETUPS["custom"]) as (fake, provider):
        fake.then(Reply((Think("Hm."), Use("clock", "{}", "call_a")), "tools"))
        answer = await provider.chat((user("Time?"),), options)
        stored = assistant(*answer.parts, ToolResultPart("call_a", "noon"), TextPart("Noon."))
        fake.then(Refusal(400, words))
        for _ in range(2):
            await deltas_of(provider, user("Time?"), stored, user("Thanks"), options=options)
        sent = ["reasoning_content" in str(request.body) for request in fake.requests[1:]]
    assert sent == asked
