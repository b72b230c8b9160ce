"""Cohere against a server that speaks the real protocol and refuses what Cohere would."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import cohere
import httpx
import msgspec
import pytest
from hypothesis import given

from gateway import (
    ChatOptions,
    ImagePart,
    Message,
    ProviderConfig,
    ProviderError,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from gateway.contract.messages import Attachment
from gateway.provider_http import ContentFilterError, ServerFailedError, ToolDefinition
from gateway.testing.contracts.provider_calls import OPTIONS, assistant, connected, deltas_of, text_of, user
from gateway.testing.fake_models.script import Bytes, ModelRequest, Reply, Say, Tokens, Use
from gateway.testing.fake_models.server import FakeModels
from plugins.providers.cohere import CohereAdapter, create
from plugins.providers.protocol import EMPTY_OUTPUT
from tests.plugins.providers.reading import EXAMPLES, Read, ours, replies

TOOL = ToolDefinition("clock", "Tells the time.", {"type": "object", "properties": {}})


async def asked_with(*messages: Message, options: ChatOptions = OPTIONS, **settings: Any) -> ModelRequest:
    async with FakeModels() as fake, connected(create, fake.at("cohere"), **settings) as provider:
        await deltas_of(provider, *messages, options=options)
        return fake.requests[0]


def event(**fields: Any) -> Bytes:
    return Bytes(b"data: " + msgspec.json.encode(fields) + b"\n\n")


async def test_004_32_every_option_reaches_the_wire() -> None:
    options = ChatOptions(
        model="command-a",
        temperature=0.25,
        top_p=0.9,
        seed=7,
        max_tokens=99,
        system_prompt="Be brief.",
        stop_sequences=("END",),
        response_format="json",
    )
    asked = await asked_with(user("Hi"), options=options, api_key="key", custom_headers={"X-Team": "blue"})
    assert (asked.headers["authorization"], asked.headers["x-team"]) == ("Bearer key", "blue")
    assert asked.body == {
        "model": "command-a",
        "stream": True,
        "temperature": 0.25,
        "max_tokens": 99,
        "stop_sequences": ["END"],
        "p": 0.9,
        "seed": 7,
        "response_format": {"type": "json_object"},
        "messages": [
            {
                "role": "system",
                "content": "Be brief.\n\nAnswer with a single JSON object and nothing else.",
            },
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        ],
    }
    forced = ChatOptions(model="command-a", tools=(TOOL,), tool_choice="required")
    assert (await asked_with(user("Hi"), options=forced)).body["tool_choice"] == "REQUIRED"
    offered = await asked_with(user("Hi"), options=ChatOptions(model="command-a", tools=(TOOL,)))
    assert offered.body["tools"] == [{"type": "function", "function": msgspec.to_builtins(TOOL)}]


async def test_what_is_said_before_calls_is_a_plan_and_results_are_never_empty() -> None:
    said = assistant(
        TextPart("Let me see."), ToolCallPart("a", "clock", {}), ToolResultPart("a", ""), TextPart("Noon.")
    )
    asked = await asked_with(user("Time?"), said, user("Thanks"))
    call = {"id": "a", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    assert asked.body["messages"][1:4] == [
        {"role": "assistant", "tool_plan": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": EMPTY_OUTPUT},
        {"role": "assistant", "content": "Noon."},
    ]


async def test_002_38_images_reach_the_models_that_see() -> None:
    picture = user("Look", ImagePart("aGk=", "image/png"))
    chart = ToolResultPart("a", "drawn", attachments=(Attachment("image/png", "aGk="),))
    messages = (picture, assistant(ToolCallPart("a", "chart", {}), chart))
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    seen = await asked_with(*messages, options=ChatOptions(model="command-a-vision"))
    assert seen.body["messages"][0]["content"] == [{"type": "text", "text": "Look"}, shown]
    assert seen.body["messages"][3]["content"][1] == shown
    blind = await asked_with(*messages, options=ChatOptions(model="command-a"))
    assert blind.body["messages"][0]["content"][1] == {"type": "text", "text": "(image attached)"}
    assert len(blind.body["messages"]) == 3


async def test_a_plan_is_shown_and_citations_are_passed_over() -> None:
    plan = event(type="tool-plan-delta", delta={"message": {"tool_plan": "I will look."}})
    cited = event(type="citation-start", index=0, delta={"message": {"citations": {"text": "x"}}})
    async with FakeModels() as fake, connected(create, fake.at("cohere")) as provider:
        fake.then(Reply((plan, cited, Use("clock")), "tools"))
        message = await provider.chat((user("Hi"),), OPTIONS)
    assert message.parts == (TextPart("I will look."), ToolCallPart("call_1", "clock", {}))


@pytest.mark.parametrize(
    ("reason", "named"),
    [("ERROR_TOXIC", ContentFilterError), ("ERROR", ServerFailedError), ("TIMEOUT", ServerFailedError)],
)
async def test_an_answer_that_was_broken_off_is_an_error(reason: str, named: type[ProviderError]) -> None:
    end = event(type="message-end", delta={"finish_reason": reason})
    async with FakeModels() as fake, connected(create, fake.at("cohere"), max_retries=0) as provider:
        fake.then(Reply((Say("I"), end)))
        with pytest.raises(named):
            await deltas_of(provider)


async def test_tokens_that_are_not_billed_count_where_nothing_else_is_reported() -> None:
    used = {"tokens": {"input_tokens": 70.0, "output_tokens": 5.0}}
    end = event(type="message-end", delta={"finish_reason": "STOP_SEQUENCE", "usage": used})
    async with FakeModels() as fake, connected(create, fake.at("cohere")) as provider:
        fake.then(Reply((Say("Hi"), end)))
        message = await provider.chat((user("Hi"),), OPTIONS)
    assert message.metadata is not None
    assert (message.metadata.input_tokens, message.metadata.output_tokens) == (70, 5)


@pytest.mark.parametrize("base_url", ["http://x", "http://x/", "http://x/v2", "http://x/v1"])
def test_the_address_may_end_in_a_version(base_url: str) -> None:
    config = ProviderConfig(id="cohere", base_url=base_url)
    adapter = CohereAdapter()
    assert adapter.build_chat_request((user("Hi"),), OPTIONS, config).url == "http://x/v2/chat"
    assert adapter.build_models_request(config).url.startswith("http://x/v1/models?")
    assert adapter.endpoint(ProviderConfig(id="cohere")) == "https://api.cohere.com"


async def test_windows_of_models_are_reported() -> None:
    async with FakeModels() as fake, connected(create, fake.at("cohere")) as provider:
        assert [model.context_window for model in await provider.list_models()] == [128_000, 128_000]


@asynccontextmanager
async def library(url: str) -> AsyncGenerator[cohere.AsyncClientV2]:
    """Cohere's own client, which does not close what it opened itself."""
    async with httpx.AsyncClient() as http:
        yield cohere.AsyncClientV2(api_key="none", base_url=url, httpx_client=http)


async def by_cohere(url: str) -> Read:
    async with library(url) as client:
        return await read_by(client)


async def read_by(client: cohere.AsyncClientV2) -> Read:
    text = reasoning = ""
    calls: list[list[str]] = []
    tokens, stop = Tokens(0, 0), ""
    async for said in client.chat_stream(model="fake-small", messages=[{"role": "user", "content": "Hi"}]):
        delta: Any = getattr(said, "delta", None)
        if said.type == "content-delta":
            text += delta.message.content.text or ""
            reasoning += delta.message.content.thinking or ""
        elif said.type == "tool-call-start":
            call = delta.message.tool_calls
            calls.append([call.id, call.function.name, call.function.arguments])
        elif said.type == "tool-call-delta":
            calls[-1][2] += delta.message.tool_calls.function.arguments
        elif said.type == "message-end":
            stop = {"COMPLETE": "end_turn", "MAX_TOKENS": "max_tokens", "TOOL_CALL": "tool_use"}[
                delta.finish_reason
            ]
            billed = delta.usage.billed_units
            tokens = Tokens(
                int(billed.input_tokens), int(billed.output_tokens), int(delta.usage.cached_tokens)
            )
    return Read(text, reasoning, [(a, b, json.loads(c)) for a, b, c in calls], tokens, stop)


@EXAMPLES
@given(reply=replies())
async def test_cohere_and_its_own_library_read_the_same(reply: Reply) -> None:
    async with FakeModels(lambda _: reply) as fake, connected(create, fake.at("cohere")) as provider:
        assert await ours(provider) == await by_cohere(fake.at("cohere"))


async def test_its_own_library_reads_whole_answers_and_lists_at_the_same_server() -> None:
    async with FakeModels() as fake, library(fake.at("cohere")) as client:
        answer = await client.chat(model="fake-small", messages=[{"role": "user", "content": "Hi"}])
        assert answer.message.content is not None
        assert answer.message.content[0].text == "You said: Hi"  # type: ignore[union-attr]
        assert [model.name for model in (await client.models.list()).models] == ["fake-small", "fake-large"]
        async with connected(create, fake.at("cohere")) as provider:
            assert text_of(await deltas_of(provider)) == "You said: Hi"
