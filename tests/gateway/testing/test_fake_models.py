"""The fake model server: strict, repeatable, and usable alone."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import aiohttp
import pytest

from gateway.contract.messages import ToolResultPart
from gateway.contract.provider import ChatOptions, ToolDefinition
from gateway.testing.contracts.provider_calls import assistant, connected, deltas_of, text_of, user
from gateway.testing.fake_models.coding_wire import CodexDialect
from gateway.testing.fake_models.script import Faults, ModelRequest, Refusal, Reply, Say, echo, words
from gateway.testing.fake_models.server import FakeModels
from plugins.providers.openai import create

CLOCK = ToolDefinition("clock", "Tells the time.", {"type": "object", "properties": {}})


@pytest.mark.parametrize(("count", "tokens"), [(0, 3), (2, 2), (3, 3), (40, 40)])
def test_a_text_is_cut_into_as_many_tokens_as_wanted(count: int, tokens: int) -> None:
    cut = words("one two three", count)

    assert len(cut) == tokens
    assert "".join(cut).startswith("one two three")


async def test_alone_it_prints_its_address_and_repeats_what_it_gets() -> None:
    command = ("-m", "gateway.testing.fake_models.server", "--port", "0", "--tokens", "40", "--delay-ms", "1")
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().strip()
        async with connected(create, f"{url}/v1") as provider:
            deltas = await deltas_of(provider, user("Where is the key?"))
        assert "Where is the key?" in text_of(deltas)
    finally:
        process.terminate()
        await process.wait()


async def test_it_calls_a_tool_on_request_and_repeats_the_result() -> None:
    options = ChatOptions(model="fake-small", tools=(CLOCK,))
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        asked = user('Please tool:clock {"zone": "UTC"}')
        answer = await provider.chat((asked,), options)
        (call,) = answer.parts
        result = ToolResultPart(call.tool_call_id, "noon")  # type: ignore[union-attr]
        after = await provider.chat((asked, assistant(call, result)), options)

    assert after.text == "The tool said: noon"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": "m", "messages": []}),
        ("/v1/chat/completions", {"model": "m", "messages": [{"role": "tool", "tool_call_id": "x"}]}),
        ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "a"}], "max": 1}),
        ("/anthropic/v1/messages", {"model": "m", "messages": [{"role": "user", "content": "a"}]}),
    ],
)
async def test_it_refuses_what_the_real_services_refuse(path: str, body: dict[str, Any]) -> None:
    async with (
        FakeModels() as fake,
        aiohttp.ClientSession() as session,
        session.post(fake.url + path, json=body) as response,
    ):
        assert response.status == 400
        assert (await response.json())["error"]["message"]


def test_the_same_seed_spoils_the_same_answers() -> None:
    faults = Faults(cut=0.2, stall=0.1, refuse=0.2, garble=0.1)
    asked = ModelRequest("/", {}, {"messages": []}, "Hi there")
    one, two = [[faults.spoil(echo(4), 7)(asked) for _ in range(1)] for _ in range(2)]
    spoilt = faults.spoil(echo(4), 7)
    many = [spoilt(asked) for _ in range(300)]

    assert one == two
    assert 30 < sum(isinstance(reply, Refusal) for reply in many) < 90
    whole = Reply(tuple(map(Say, words("You said: Hi there", 4))))
    assert 60 < sum(isinstance(reply, Reply) and reply.moves == whole.moves for reply in many) < 180


async def test_codex_learns_at_once_that_there_are_no_websockets() -> None:
    """With another status than 426 it tries five times, for seven seconds."""
    async with (
        FakeModels(dialects=(CodexDialect(),)) as fake,
        aiohttp.ClientSession() as client,
        client.get(f"{fake.url}/codex/v1/responses") as answer,
    ):
        assert answer.status == 426
