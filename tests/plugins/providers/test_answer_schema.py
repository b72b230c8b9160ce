"""The JSON schema of an answer, in the words of each vendor, or in the prompt."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from gateway.contract.errors import BadRequestError
from gateway.contract.provider import AnswerSchema, ChatOptions, ToolDefinition
from gateway.testing.contracts.provider_calls import deltas_of, user
from gateway.testing.fake_models.script import Refusal
from plugins.providers.anthropic import AnthropicAdapter, ProviderConfig
from tests.plugins.providers.test_effort import SETUPS, quiet

WISH = {"type": "object", "properties": {"answer": {"type": "string"}}, "additionalProperties": False}
CLOCK = ToolDefinition("clock", "Tells the time.", {"type": "object", "properties": {}})
WITHOUT = ["json_schema", "json_object", "json_object"]
TOLD = '{"answer":{"type":"string"}}'


def asking(model: str, **more: Any) -> ChatOptions:
    schema = AnswerSchema(WISH, "wish", strict=True)
    more = {"message_id": "answer", "response_format": "json", "answer_schema": schema, **more}
    return ChatOptions(model=model, **more)


@pytest.mark.parametrize(
    ("vendor", "model", "sent"),
    [
        (
            "openai",
            "gpt-5.4",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": WISH, "name": "wish", "strict": True},
                }
            },
        ),
        (
            "openai",
            "gpt-6",
            {"text": {"format": {"type": "json_schema", "schema": WISH, "name": "wish", "strict": True}}},
        ),
        ("cohere", "command-a", {"response_format": {"type": "json_object", "schema": WISH}}),
        ("google", "gemini-2.0-flash", {"responseJsonSchema": WISH}),
    ],
)
async def test_004_32_the_schema_is_sent_in_the_words_of_each_vendor(
    vendor: str, model: str, sent: Mapping[str, Any]
) -> None:
    async with quiet(SETUPS[vendor]) as (fake, provider):
        await deltas_of(provider, options=asking(model))
        body: dict[str, Any] = dict(fake.requests[0].body)
    found: dict[str, Any] = body | body.get("generationConfig", {})
    assert {name: found.get(name) for name in sent} == sent


@pytest.mark.parametrize("vendor", ["bedrock", "anthropic", "google", "cohere"])
async def test_a_schema_is_in_the_prompt_where_there_is_no_parameter(vendor: str) -> None:
    async with quiet(SETUPS[vendor]) as (fake, provider):
        await deltas_of(provider, options=asking("m", tools=(CLOCK,)))
    assert TOLD in str(fake.requests[0].body).replace("'", '"').replace('\\"', '"')


@pytest.mark.parametrize(
    ("words", "types"),
    [
        ("This response_format type is unavailable now", WITHOUT),
        ("This model does not support response format `json_schema`.", WITHOUT),
        ("body.response_format.type: Input should be 'text' or 'json_object'", WITHOUT),
        ("Invalid schema for response_format 'wish': 'required' is missing", ["json_schema", "json_schema"]),
    ],
)
async def test_a_model_that_takes_no_schema_gets_it_in_the_prompt_from_then_on(
    words: str, types: list[str]
) -> None:
    async with quiet(SETUPS["custom"]) as (fake, provider):
        fake.then(Refusal(400, words))
        for _ in range(2):
            with suppress(BadRequestError):  # a wrong schema is the client's mistake
                await deltas_of(provider, options=asking("m"))
        bodies = [request.body for request in fake.requests]
    assert [body["response_format"]["type"] for body in bodies] == types
    told = [TOLD in str(body["messages"]).replace("'", '"').replace('\\"', '"') for body in bodies]
    assert told == [kind == "json_object" for kind in types]


def test_claude_takes_a_strict_schema_beside_the_effort() -> None:
    config = ProviderConfig(id="anthropic", api_key="k")
    for strict in (True, False):
        schema = AnswerSchema(WISH, strict=strict)
        options = asking("claude-sonnet-5-5", answer_schema=schema, effort="low")
        request = AnthropicAdapter().build_chat_request((user("Hi"),), options, config)
        body = msgspec.json.decode(request.body or b"")
        wanted = {"format": {"type": "json_schema", "schema": WISH}} if strict else {}
        assert body["output_config"] == {"effort": "low", **wanted}
        assert (TOLD in str(body.get("system")).replace("'", '"')) is not strict
