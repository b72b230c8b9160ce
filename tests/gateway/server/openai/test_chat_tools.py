"""Tools of clients, and how they want the model to be asked, through the API that clients of OpenAI speak."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from gateway import Plugin, Tool, tool_from
from gateway.testing.fake_models.script import Refusal, Reply, Say, Use, UseTogether
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import Served, serving
from tests.gateway.server.openai.test_chat import SMALL, ask, asked, client_of, logged, only_session, streamed

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
HERE, THERE = Use("weather", '{"city": "Rome"}', "call_a"), Use("weather", '{"city": "Oslo"}', "call_b")


class Clock(Plugin):
    """Plugin with a tool that a client's request must not offer."""

    name = "clock"

    def tools(self) -> list[Tool]:
        async def clock() -> str:
            """The time."""
            return "noon"

        return [tool_from(clock)]


@asynccontextmanager
async def retrying(tmp_path: Path) -> AsyncGenerator[Served]:
    """Run a gateway whose provider retries as often as by default."""
    async with FakeModels() as fake:
        providers = {"openai": {"base_url": fake.openai_url, "api_key": "k"}}
        async with serving(tmp_path, fake=fake, providers=providers) as served:
            yield served


async def test_the_tools_of_a_client_are_offered_in_place_of_our_own(tmp_path: Path) -> None:
    async with serving(tmp_path, Clock()) as served, client_of(served) as client:
        served.models.then(Reply((Say("Let me see."), UseTogether((HERE, THERE))), "tools"))
        answer = await ask(client, "How is it?", tools=[WEATHER])
        choice = answer.choices[0]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
        calls = choice.message.tool_calls or []
        assert [(call.id, call.type) for call in calls] == [("call_a", "function"), ("call_b", "function")]
        assert [call.function.name for call in calls if call.type == "function"] == ["weather"] * 2
        assert '"Rome"' in str(calls[0])
        assert [tool["function"]["name"] for tool in served.models.requests[0].body["tools"]] == ["weather"]
        assert (
            served.models.requests[0].body["tools"][0]["function"]["parameters"]
            == (WEATHER["function"]["parameters"])
        )
        assert len(served.models.requests) == 1, "the client runs its tools, not the gateway"


async def test_without_its_own_tools_a_client_gets_ours(tmp_path: Path) -> None:
    async with serving(tmp_path, Clock()) as served, client_of(served) as client:
        served.models.then(Reply((Use("clock"),), "tools"), Reply((Say("noon"),)))
        assert (await ask(client, "Time?")).choices[0].message.content == "noon"


async def test_calls_come_in_a_stream_too(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        served.models.then(Reply((Say("Let "), Say("me see."), HERE), "tools"))
        chunks = await streamed(client, "How is it?", tools=[WEATHER], stream_options={"include_usage": True})
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        assert "".join(delta.content or "" for delta in deltas) == "Let me see."
        [call] = [call for delta in deltas for call in delta.tool_calls or ()]
        assert (call.index, call.id, call.type) == (0, "call_a", "function")
        assert call.function is not None
        assert (call.function.name, call.function.arguments) == ("weather", '{"city":"Rome"}')
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "tool_calls"
        assert chunks[-1].usage is not None


@pytest.mark.parametrize("session", [None, "s"])
async def test_a_request_may_end_with_the_results_of_tools(tmp_path: Path, session: str | None) -> None:
    headers = {} if session is None else {"X-Session-Id": session}
    async with serving(tmp_path) as served, client_of(served) as client:
        served.models.then(Reply((UseTogether((HERE, THERE)),), "tools"), Reply((Say("Rome is warmer."),)))
        first = await ask(client, "Which is warmer?", tools=[WEATHER], extra_headers=headers)
        said = first.choices[0].message.model_dump(exclude_none=True)
        results = [
            {"role": "tool", "tool_call_id": "call_a", "content": "20"},
            {"role": "tool", "tool_call_id": "call_b", "content": "5"},
        ]
        second = await ask(client, "Which is warmer?", said, *results, tools=[WEATHER], extra_headers=headers)
        assert (second.choices[0].finish_reason, second.choices[0].message.content) == (
            "stop",
            "Rome is warmer.",
        )
        seen = asked(served)
        assert [(m["role"], m.get("tool_call_id"), m["content"]) for m in seen] == [
            ("user", None, "Which is warmer?"),
            ("assistant", None, ""),
            ("tool", "call_a", "20"),
            ("tool", "call_b", "5"),
        ]
        assert len(seen[1]["tool_calls"]) == 2


async def test_results_and_words_may_come_together_and_the_session_continues(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        served.models.then(Reply((HERE,), "tools"), Reply((Say("Warm."),)), Reply((Say("Yes."),)))
        headers = {"X-Session-Id": "s"}
        first = await ask(client, "Rome?", tools=[WEATHER], extra_headers=headers)
        said = first.choices[0].message.model_dump(exclude_none=True)
        result = {"role": "tool", "tool_call_id": "call_a", "content": "20"}
        await ask(client, "Rome?", said, result, "Be brief.", tools=[WEATHER], extra_headers=headers)
        await ask(client, "Sure?", extra_headers=headers)
        assert [(m["role"], m["content"]) for m in asked(served)] == [
            ("user", "Rome?"),
            ("assistant", ""),
            ("tool", "20"),
            ("user", "Be brief."),
            ("assistant", "Warm."),
            ("user", "Sure?"),
        ]


async def test_unanswered_calls_get_an_error_result(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        served.models.then(Reply((HERE,), "tools"))
        await ask(client, "Rome?", tools=[WEATHER], extra_headers={"X-Session-Id": "s"})
        await ask(client, "Never mind.", tools=[WEATHER], extra_headers={"X-Session-Id": "s"})
        assert [m["role"] for m in asked(served)] == ["user", "assistant", "tool", "user"]
        assert asked(served)[2]["content"].startswith("Aborted")


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", None),
        ("required", "required"),
        (
            {"type": "function", "function": {"name": "weather"}},
            {"type": "function", "function": {"name": "weather"}},
        ),
    ],
)
async def test_the_choice_of_a_tool_reaches_the_model(tmp_path: Path, choice: Any, sent: Any) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        await ask(client, "Hi", tools=[WEATHER], tool_choice=choice)
        assert served.models.requests[0].body.get("tool_choice") == sent


async def test_the_choice_of_no_tool_offers_none(tmp_path: Path) -> None:
    async with serving(tmp_path, Clock()) as served, client_of(served) as client:
        await ask(client, "Hi", tools=[WEATHER], tool_choice="none")
        assert "tools" not in served.models.requests[0].body


async def test_a_model_that_takes_no_tools_refuses_them(tmp_path: Path) -> None:
    blind = {"openai/fake-small": {"tools": False}}
    async with serving(tmp_path, models=blind) as served, client_of(served) as client:
        with pytest.raises(openai.BadRequestError) as raised:
            await ask(client, "Hi", tools=[WEATHER])
        assert (raised.value.code, "does not support tools" in str(raised.value)) == (
            "unsupported_by_model",
            True,
        )


async def test_how_the_model_is_asked_reaches_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        await ask(
            client,
            "Hi",
            temperature=0.5,
            top_p=0.9,
            seed=7,
            max_completion_tokens=99,
            stop=["END", "FIN"],
            response_format={"type": "json_object"},
            reasoning_effort="low",
        )
        body = served.models.requests[0].body
        assert {name: body.get(name) for name in ("temperature", "top_p", "seed", "stop")} == {
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 7,
            "stop": ["END", "FIN"],
        }
        assert body["max_tokens"] == 99
        assert body["response_format"] == {"type": "json_object"}
        assert body["reasoning_effort"] == "low"
        await ask(client, "Hi", stop="END")
        assert served.models.requests[1].body["stop"] == ["END"]


async def test_an_answer_may_have_to_meet_a_schema(tmp_path: Path) -> None:
    class Wish(BaseModel):
        answer: str

    async with serving(tmp_path) as served, client_of(served) as client:
        served.models.then(*[Reply((Say('{"answer": "noon"}'),))] * 2)
        said: list[Any] = [{"role": "user", "content": "Time?"}]
        parsed = await client.chat.completions.parse(model=SMALL, messages=said, response_format=Wish)
        assert parsed.choices[0].message.parsed == Wish(answer="noon")
        response = await client.responses.parse(model=SMALL, input="Time?", text_format=Wish)
        assert response.output_parsed == Wish(answer="noon")
        for request in served.models.requests:
            asked = request.body["response_format"]["json_schema"]
            assert (asked["name"], asked["strict"]) == ("Wish", True)
            assert [*asked["schema"]["properties"]] == ["answer"]


async def test_a_client_stays_within_the_bounds_of_the_agent(tmp_path: Path) -> None:
    bounds: dict[str, Any] = {"max_tokens": 100, "temperature": 0.2, "stop_sequences": ("STOP",)}
    clerk = {"agents": {"clerk": {"response_format": "json"}}}
    async with serving(tmp_path, **bounds, **clerk) as served, client_of(served) as client:
        await ask(client, "Hi", max_tokens=100_000)
        body = served.models.requests[0].body
        assert (body["max_tokens"], body["temperature"], body["stop"]) == (100, 0.2, ["STOP"])
        await ask(client, "Hi", model="clerk", response_format={"type": "text"})
        assert served.models.requests[1].body["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("n", 2),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -1),
        ("logit_bias", {"50256": -100}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x"}}),
        ("response_format", {"type": "grammar"}),
        ("functions", [{"name": "old"}]),
        ("function_call", {"name": "old"}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy", "format": "wav"}),
        ("web_search_options", {}),
        ("reasoning_effort", "much"),
        ("temperature", 3),
        ("top_p", -1),
        ("max_tokens", 0),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "nothing"}}),
        ("tools", [WEATHER, WEATHER]),
        ("tools", [{"type": "web_search"}]),
    ],
)
async def test_what_would_change_the_answer_is_refused_by_name(
    tmp_path: Path, param: str, value: object
) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        with pytest.raises(openai.BadRequestError) as raised:
            await ask(client, "Hi", extra_body={param: value})
        assert (raised.value.status_code, raised.value.param) == (400, param)
        assert param in str(raised.value)
        assert served.models.requests == []


async def test_defaults_and_what_only_informs_are_accepted(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        answer = await ask(
            client,
            "Hi",
            extra_body={
                "n": 1,
                "logprobs": False,
                "top_logprobs": 0,
                "presence_penalty": 0,
                "frequency_penalty": 0.0,
                "logit_bias": {},
                "functions": [],
                "function_call": "auto",
                "modalities": ["text"],
                "tools": [],
                "tool_choice": "auto",
                "parallel_tool_calls": False,
                "response_format": {"type": "text"},
                "store": True,
                "user": "somebody",
                "metadata": {"job": "1"},
                "service_tier": "auto",
                "stream_options": None,
            },
        )
        assert answer.choices[0].message.content == "You said: Hi"


async def test_an_account_without_credit_is_not_retried(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        served.models.then(Refusal(429, "You exceeded your current quota", code="insufficient_quota"))
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=2) as client:
            with pytest.raises(openai.APIStatusError) as raised:
                await ask(client, "Hi")
        assert (raised.value.status_code, raised.value.code) == (402, "insufficient_quota")
        assert len(served.models.requests) == 1


async def test_the_calls_of_a_client_are_kept_in_the_session(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        served.models.then(Reply((HERE,), "tools"))
        await ask(client, "Rome?", tools=[WEATHER], model=SMALL)
        assert await logged(served, await only_session(served)) == [
            ("user", "Rome?"),
            ("assistant", "tool_call"),
        ]


@pytest.mark.parametrize(("headers", "told"), [({"retry-after-ms": "50"}, "1"), ({"retry-after": "1"}, "1")])
async def test_a_backend_out_of_service_is_tried_once_more(
    tmp_path: Path, headers: dict[str, str], told: str
) -> None:
    async with retrying(tmp_path) as served, client_of(served) as client:
        served.models.then(*[Refusal(503, "out of service", headers)] * 4)
        with pytest.raises(openai.InternalServerError) as raised:
            await ask(client, "Hi")
        assert (raised.value.status_code, len(served.models.requests)) == (503, 2)
        assert raised.value.response.headers["Retry-After"] == told
        assert "x-should-retry" not in raised.value.response.headers


async def test_a_backend_that_comes_back_answers(tmp_path: Path) -> None:
    async with retrying(tmp_path) as served, client_of(served) as client:
        served.models.then(Refusal(503, "out of service", {"retry-after-ms": "10"}), Reply((Say("Hello."),)))
        assert (await ask(client, "Hi")).choices[0].message.content == "Hello."
