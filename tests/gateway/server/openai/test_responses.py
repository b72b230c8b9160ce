"""The newer API of OpenAI's clients, asked by the official one over a real socket."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent

from gateway.testing.fake_models.script import Cut, Gate, Refusal, Reply, Say, Think, Tokens
from gateway.testing.served import Served, serving

SMALL = "openai/fake-small"
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n of a sort").decode()


@asynccontextmanager
async def client_of(served: Served) -> AsyncGenerator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def ask(client: AsyncOpenAI, said: Any, **how: Any) -> Response:
    create: Any = client.responses.create
    answer: Response = await create(model=SMALL, input=said, **how)
    return answer


async def streamed(client: AsyncOpenAI, said: str) -> list[ResponseStreamEvent]:
    return [event async for event in await client.responses.create(model=SMALL, input=said, stream=True)]


def shown(served: Served) -> list[tuple[str, Any]]:
    """Return the last messages that the model received."""
    return [(m["role"], m["content"]) for m in served.models.requests[-1].body["messages"]]


async def test_a_response_comes_whole_with_what_it_took(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        served.models.then(Reply((Think("hm"), Say("Hello "), Say("there.")), tokens=Tokens(12, 3, 4)))
        answer = await ask(client, "Hi", instructions="Be brief.")
        assert (answer.output_text, answer.status, answer.model) == ("Hello there.", "completed", SMALL)
        assert answer.usage is not None
        assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (
            12,
            3,
            15,
        )
        assert answer.usage.input_tokens_details.cached_tokens == 4
        assert shown(served) == [("system", "Be brief."), ("user", "Hi")]


async def test_a_response_is_streamed_while_it_is_made(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        opened = asyncio.Event()
        served.models.then(Reply((Say("Hel"), Gate(opened), Say("lo."))))
        events: list[ResponseStreamEvent] = []
        async for event in await client.responses.create(model=SMALL, input="Hi", stream=True):
            events.append(event)
            if event.type == "response.output_text.delta" and event.delta == "Hel":
                opened.set()
        assert [event.type for event in events] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        last = events[-1]
        assert last.type == "response.completed"
        assert (last.response.output_text, last.response.status) == ("Hello.", "completed")


async def test_a_response_that_was_cut_off_is_incomplete(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        served.models.then(Reply((Say("Hel"),), "length"), Reply((Say("Hel"),), "length"))
        answer = await ask(client, "Hi")
        assert answer.incomplete_details is not None
        assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert (await streamed(client, "Hi"))[-1].type == "response.incomplete"


async def test_a_response_can_be_continued(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        first = await ask(client, "One")
        second = await ask(client, "Two", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        assert shown(served) == [("user", "One"), ("assistant", "You said: One"), ("user", "Two")]
        gone = f"resp_nowhere.{'0' * 36}"
        for unknown in (gone, "resp_1", "chatcmpl-1"):
            with pytest.raises(openai.NotFoundError) as raised:
                await ask(client, "Three", previous_response_id=unknown)
            assert raised.value.code == "not_found"


async def test_items_of_every_kind_are_history(tmp_path: Path) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "clock", "arguments": "{}"}
    picture = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"}
    async with serving(tmp_path) as served, client_of(served) as client:
        await ask(
            client,
            [
                {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
                {"role": "user", "content": "What time is it?"},
                {"type": "reasoning", "id": "rs_1", "summary": []},
                call,
                {"type": "function_call_output", "call_id": "c1", "output": "noon"},
                {
                    "type": "message",
                    "id": "msg_1",
                    "status": "completed",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "Noon.", "annotations": []}],
                },
                {"role": "user", "content": [{"type": "input_text", "text": "And this?"}, picture]},
            ],
        )
        assert shown(served) == [
            ("system", "Be brief."),
            ("user", "What time is it?"),
            ("assistant", ""),
            ("tool", "noon"),
            ("assistant", "Noon."),
            (
                "user",
                [
                    {"type": "text", "text": "And this?"},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
                ],
            ),
        ]


async def test_a_failed_response_says_why(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        served.models.then(Refusal(429, "no"))
        with pytest.raises(openai.RateLimitError):
            await ask(client, "Hi")
        served.models.then(Reply((Say("Hel"), Cut())))
        last = (await streamed(client, "Hi"))[-1]
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert (last.response.output_text, last.response.error.code) == ("Hel", "StreamAbortedError")


async def test_options_reach_the_model(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        text = {"format": {"type": "json_object"}}
        effort = {"effort": "low", "summary": "auto"}
        given: dict[str, Any] = {"temperature": 0.25, "top_p": 0.5, "max_output_tokens": 99, "tools": []}
        await ask(client, "Hi", text=text, reasoning=effort, **given)
        body = served.models.requests[0].body
        assert (body["temperature"], body["top_p"]) == (0.25, 0.5)
        assert 99 in (body.get("max_tokens"), body.get("max_completion_tokens"))
        assert body["response_format"] == {"type": "json_object"}
        assert body["reasoning_effort"] == "low"


@pytest.mark.parametrize(
    "refused",
    [
        {"input": []},
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
        {
            "input": [
                {"role": "user", "content": [{"type": "input_image", "image_url": "http://127.0.0.1:1/"}]}
            ]
        },
        {"input": [{"role": "system", "content": [{"type": "input_image", "image_url": "data:"}]}]},
        {"input": "Hi", "background": True},
        {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "a"}}},
        {"input": "Hi", "tools": [{"type": "function", "name": "clock", "parameters": {}}]},
        {"input": "Hi", "conversation": "conv_1"},
    ],
)
async def test_what_cannot_be_done_is_refused(tmp_path: Path, refused: dict[str, Any]) -> None:
    async with serving(tmp_path) as served:
        status, told = await served.ask("POST", "/v1/responses", json=refused)
        assert (status, told["error"]["type"]) == (400, "invalid_request_error")
        assert len(refused) == 1 or told["error"]["param"] == [*refused][-1]
        assert served.models.requests == []
