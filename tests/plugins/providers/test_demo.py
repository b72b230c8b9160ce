"""The built-in demo: honest, deterministic, and able to show tools."""

from __future__ import annotations

import re

import pytest

from gateway.contract.deltas import Complete, Delta, MetadataDelta, TextDelta
from gateway.contract.messages import Message, ToolCallPart, ToolResultPart
from gateway.contract.provider import ChatOptions, Provider, ProviderConfig, ToolDefinition
from gateway.testing.contracts.provider_calls import assistant, deltas_of, text_of, user
from plugins.providers.demo import DemoProvider, create

NAMES = ("utc_time", "calculator", "slow_count")
TOOLS = tuple(ToolDefinition(name, name, {"type": "object"}) for name in NAMES)
OPTIONS = ChatOptions(model="demo", message_id="answer", tools=TOOLS)


def demo() -> Provider:
    return DemoProvider(ProviderConfig(id="demo"), pause=0)


async def calls_for(
    text: str, tools: tuple[ToolDefinition, ...] = TOOLS
) -> list[tuple[str, dict[str, object]]]:
    options = ChatOptions(model="demo", tools=tools)
    message = await demo().chat((user(text),), options)
    return [(part.tool_name, part.arguments) for part in message.parts if isinstance(part, ToolCallPart)]


async def test_it_says_what_it_is_and_how_to_connect_a_real_model_in_markdown() -> None:
    text = (await demo().chat((user("Hello"),), OPTIONS)).text

    assert "built-in demo; no model is connected" in text
    (line,) = [line for line in text.splitlines() if "OPENAI_API_KEY" in line]
    assert "ANTHROPIC_API_KEY" in line
    assert "trunkline setup" in line
    assert "```python\n" in text
    assert text.count("\n- ") == 3
    assert text.startswith("> Hello\n")


async def test_it_streams_word_by_word_and_says_the_same_again() -> None:
    first, second = [await deltas_of(demo(), user("Hello"), options=OPTIONS) for _ in range(2)]

    pieces = [delta for delta in first if isinstance(delta, TextDelta)]
    assert len(pieces) > 40
    assert all(len(re.findall(r"\S+", piece.content)) == 1 for piece in pieces)
    assert text_of(first) == text_of(second)


async def test_it_reports_usage_and_an_end() -> None:
    deltas = await deltas_of(demo(), user("Hello there"), options=OPTIONS)

    usage, end = deltas[-2:]
    assert isinstance(usage, MetadataDelta)
    assert isinstance(end, Complete)
    assert usage.input_tokens == 2
    assert end.final_metadata.provider == "demo"
    assert end.stop_reason == "end_turn"


ASKED: list[tuple[str, list[tuple[str, dict[str, object]]]]] = [
    ("What time is it?", [("utc_time", {})]),
    ("what time is it in Europe/Oslo?", [("utc_time", {"zone": "Europe/Oslo"})]),
    ("What is 12 * (3 + 4)?", [("calculator", {"expression": "12 * (3 + 4)"})]),
    ("2^10 please", [("calculator", {"expression": "2**10"})]),
    ("Count slowly to 3", [("slow_count", {"n": 3})]),
    ("something slow", [("slow_count", {"n": 5})]),
    ("The time, and 1+1", [("utc_time", {}), ("calculator", {"expression": "1+1"})]),
    ("I was born in 1984, version 3.11", []),
    ("Hello", []),
]


@pytest.mark.parametrize(("text", "calls"), ASKED)
async def test_it_calls_the_tool_that_is_asked_for(
    text: str, calls: list[tuple[str, dict[str, object]]]
) -> None:
    assert await calls_for(text) == calls


async def test_it_calls_no_tool_that_is_not_offered() -> None:
    assert await calls_for("What time is it?", ()) == []


async def test_it_answers_from_the_results() -> None:
    history: list[Message] = [
        user("What is 6 * 7?"),
        assistant(ToolCallPart("a", "calculator", {}), ToolResultPart("a", "42")),
    ]
    deltas: list[Delta] = await deltas_of(demo(), *history, options=OPTIONS)

    assert "**42**" in text_of(deltas)
    assert isinstance(deltas[-1], Complete)
    assert deltas[-1].stop_reason == "end_turn"


async def test_calling_tools_stops_for_tools() -> None:
    last = (await deltas_of(demo(), user("1+1"), options=OPTIONS))[-1]

    assert isinstance(last, Complete)
    assert last.stop_reason == "tool_use"


async def test_004_30_the_contract_is_whole() -> None:
    provider = create(ProviderConfig(id="demo"))
    await provider.initialize(ProviderConfig(id="demo"))

    assert isinstance(provider, Provider)
    assert [model.id for model in await provider.list_models()] == ["demo"]
    await provider.close()
