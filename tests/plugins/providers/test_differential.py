"""Our adapters and the vendors' own libraries, pointed at the same server, must read the same answer."""

from __future__ import annotations

import json

import openai
import pytest
from hypothesis import given

from gateway.contract.provider import ToolDefinition
from gateway.testing.contracts.provider_calls import OPTIONS, connected, user
from gateway.testing.fake_models.script import Reply, Say, Tokens, Use
from gateway.testing.fake_models.server import FakeModels
from plugins.providers import anthropic as our_anthropic
from plugins.providers import openai as our_openai
from tests.plugins.providers.reading import EXAMPLES, Read, ours, replies

pytestmark = pytest.mark.slow


async def by_openai(url: str) -> Read:
    reasoning = ""
    async with (
        openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client,
        client.chat.completions.stream(
            model="fake-small",
            messages=[{"role": "user", "content": "Hi"}],
            stream_options={"include_usage": True},
        ) as stream,
    ):
        async for event in stream:
            if event.type == "chunk":
                for choice in event.chunk.choices:
                    reasoning += (choice.delta.model_extra or {}).get("reasoning_content", "")
        try:
            whole = await stream.get_final_completion()
        except openai.LengthFinishReasonError as cut:
            whole = cut.completion
    choice, usage = whole.choices[0], whole.usage
    assert usage is not None
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0
    return Read(
        choice.message.content or "",
        reasoning,
        [
            (call.id, call.function.name, json.loads(call.function.arguments))
            for call in choice.message.tool_calls or ()
            if call.type == "function"
        ],
        Tokens(usage.prompt_tokens, usage.completion_tokens, cached or 0),
        {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[choice.finish_reason],
    )


async def by_anthropic(url: str) -> Read:
    # The library takes 1.4 s to import, which each worker would spend on collecting this file.
    import anthropic

    async with (
        anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client,
        client.messages.stream(
            model="fake-small", max_tokens=100, messages=[{"role": "user", "content": "Hi"}]
        ) as stream,
    ):
        whole = await stream.get_final_message()
    usage = whole.usage
    cached = usage.cache_read_input_tokens or 0
    assert whole.stop_reason is not None
    return Read(
        "".join(block.text for block in whole.content if block.type == "text"),
        "".join(block.thinking for block in whole.content if block.type == "thinking"),
        [(block.id, block.name, dict(block.input)) for block in whole.content if block.type == "tool_use"],
        Tokens(usage.input_tokens + cached, usage.output_tokens, cached),
        whole.stop_reason,
    )


@EXAMPLES
@given(reply=replies())
async def test_openai_and_its_own_library_read_the_same(reply: Reply) -> None:
    async with FakeModels(lambda _: reply) as fake, connected(our_openai.create, fake.openai_url) as provider:
        assert await ours(provider) == await by_openai(fake.openai_url)


@EXAMPLES
@given(reply=replies())
async def test_anthropic_and_its_own_library_read_the_same(reply: Reply) -> None:
    async with (
        FakeModels(lambda _: reply) as fake,
        connected(our_anthropic.create, fake.anthropic_url) as provider,
    ):
        assert await ours(provider) == await by_anthropic(fake.anthropic_url)


async def test_the_vendors_libraries_read_whole_answers_from_the_same_server() -> None:
    import anthropic

    reply = Reply((Say("Hello"), Use("clock", '{"a": 1}')), "tools", Tokens(9, 3, 2))
    async with FakeModels(lambda _: reply) as fake:
        async with openai.AsyncOpenAI(base_url=fake.openai_url, api_key="none") as one:
            completion = await one.chat.completions.create(
                model="fake-small", messages=[{"role": "user", "content": "Hi"}]
            )
            assert completion.choices[0].message.content == "Hello"
            assert [model.id async for model in one.models.list()] == ["fake-small", "fake-large"]
        async with anthropic.AsyncAnthropic(base_url=fake.anthropic_url, api_key="none") as two:
            message = await two.messages.create(
                model="fake-small", max_tokens=9, messages=[{"role": "user", "content": "Hi"}]
            )
            assert [block.type for block in message.content] == ["text", "tool_use"]


async def test_both_sides_accept_a_tool_as_the_vendors_describe_it() -> None:
    tool = ToolDefinition("clock", "Tells the time.", {"type": "object", "properties": {}})
    async with FakeModels() as fake:
        async with openai.AsyncOpenAI(base_url=fake.openai_url, api_key="none") as one:
            await one.chat.completions.create(
                model="fake-small",
                messages=[{"role": "user", "content": "Hi"}],
                tools=[
                    {
                        "type": "function",
                        "function": {"name": "clock", "description": "Tells the time.", "parameters": {}},
                    }
                ],
            )
        async with connected(our_openai.create, fake.openai_url) as provider:
            options = type(OPTIONS)(model="fake-small", tools=(tool,))
            await provider.chat((user("Hi"),), options)
        assert [asked.tools for asked in fake.requests] == [("clock",), ("clock",)]
