"""Our reading of Gemini, and that of Google's own library, pointed at the same server."""

from __future__ import annotations

import pytest
from google import genai
from google.genai import types
from hypothesis import given

from gateway.testing.contracts.provider_calls import connected
from gateway.testing.fake_models.script import Reply, Say, Tokens, Use
from gateway.testing.fake_models.server import FakeModels
from plugins.providers import google as our_google
from tests.plugins.providers.reading import EXAMPLES, Read, ours, replies

# Google's library, not ours, does what aiohttp discourages.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")]


def client_of(url: str) -> genai.Client:
    return genai.Client(api_key="none", http_options=types.HttpOptions(base_url=url, api_version="v1beta"))


async def by_google(url: str) -> Read:
    text = reasoning = ""
    calls: list[types.FunctionCall] = []
    tokens, stop = Tokens(0, 0), ""
    async with client_of(url).aio as client:
        async for chunk in await client.models.generate_content_stream(model="fake-small", contents="Hi"):
            [candidate] = chunk.candidates or ()
            for part in (candidate.content and candidate.content.parts) or ():
                if part.function_call:
                    calls.append(part.function_call)
                elif part.thought:
                    reasoning += part.text or ""
                else:
                    text += part.text or ""
            if candidate.finish_reason:
                stop = {"STOP": "end_turn", "MAX_TOKENS": "max_tokens"}[candidate.finish_reason.value]
            used = chunk.usage_metadata
            assert used is not None
            output = (used.candidates_token_count or 0) + (used.thoughts_token_count or 0)
            tokens = Tokens(used.prompt_token_count or 0, output, used.cached_content_token_count or 0)
    told = [(call.id or "", call.name or "", dict(call.args or {})) for call in calls]
    return Read(text, reasoning, told, tokens, "tool_use" if told and stop == "end_turn" else stop)


@EXAMPLES
@given(reply=replies(comments=False))
async def test_gemini_and_googles_own_library_read_the_same(reply: Reply) -> None:
    async with (
        FakeModels(lambda _: reply) as fake,
        connected(our_google.create, fake.at("google")) as provider,
    ):
        assert await ours(provider) == await by_google(fake.at("google"))


async def test_googles_own_library_reads_whole_answers_lists_and_offers_tools_at_the_same_server() -> None:
    reply = Reply((Say("Hello"), Use("clock", '{"a": 1}')), "tools", Tokens(9, 3, 2))
    declared = types.FunctionDeclaration(
        name="clock", description="Tells the time.", parameters_json_schema={"type": "object"}
    )
    async with FakeModels(lambda _: reply) as fake, client_of(fake.at("google")).aio as client:
        answer = await client.models.generate_content(
            model="fake-small",
            contents="Hi",
            config=types.GenerateContentConfig(
                tools=[types.Tool(function_declarations=[declared])],
                system_instruction="Be brief.",
                max_output_tokens=9,
            ),
        )
        assert [call.name for call in answer.function_calls or ()] == ["clock"]
        names = [model.name async for model in await client.models.list()]
        assert names == ["models/fake-small", "models/fake-large", "models/fake-embedding"]
        assert fake.requests[0].tools == ("clock",)
