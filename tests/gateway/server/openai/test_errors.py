"""Requests that the API for OpenAI clients refuses, and the errors that it returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from gateway.testing.fake_models.script import Reply, Say, Tokens
from gateway.testing.served import serving

SAID: list[Any] = [{"role": "user", "content": "Hi"}]
TOKEN = "a-token-that-is-long-enough-to-be-one"
CHAT = "/v1/chat/completions"


async def test_without_the_token_nothing_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path, server={"token": TOKEN}) as served:
        base = f"{served.url}/v1"
        async with AsyncOpenAI(base_url=base, api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError) as raised:
                await client.chat.completions.create(model="openai/fake-small", messages=SAID)
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        assert (raised.value.code, raised.value.type) == ("invalid_api_key", "authentication_error")
        assert served.models.requests == []
        async with AsyncOpenAI(base_url=base, api_key=TOKEN, max_retries=0) as client:
            answer = await client.chat.completions.create(model="openai/fake-small", messages=SAID)
        assert answer.choices[0].message.content == "You said: Hi"


async def test_a_foreign_page_and_a_foreign_name_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        for header, status in (({"Origin": "https://evil.example"}, 403), ({"Host": "evil.example"}, 421)):
            got, told = await served.ask("POST", CHAT, json={"messages": SAID}, headers=header)
            assert (got, told["error"]["type"]) == (status, "invalid_request_error")
        assert served.models.requests == []


@pytest.mark.parametrize("model", ["gpt-4oo", "nobody/gpt-4o", "openai/"])
async def test_an_unknown_model_is_named_so_before_anything_is_accepted(tmp_path: Path, model: str) -> None:
    async with serving(tmp_path) as served:
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            with pytest.raises(openai.NotFoundError) as raised:
                await client.chat.completions.create(model=model, messages=SAID)
        assert (raised.value.code, raised.value.param) == ("model_not_found", "model")
        _, listed = await served.ask("GET", "/api/sessions")
        assert listed["sessions"] == []


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("{no", "the body: "),
        ("", "the body is empty; send JSON"),
        ('"no"', "the body: "),
        ("{}", "messages"),
        ('{"messages": []}', "messages"),
        ('{"messages": [{"role": "pope", "content": "Hi"}]}', "role"),
        ('{"messages": [{"role": "user"}]}', "content"),
        ('{"messages": [{"role": "user", "content": " "}]}', "empty"),
        ('{"messages": [{"role": "system", "content": "Hi"}]}', "user message"),
        ('{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hi"}]}', "user"),
        (
            '{"messages": [{"role": "tool", "tool_call_id": "c", "content": "4"},'
            ' {"role": "user", "content": "Hi"}]}',
            "must follow its tool call",
        ),
        ('{"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}', "input_audio"),
        ('{"messages": [{"role": "user", "content": "Hi"}], "metadata": {"session": "a b"}}', "name"),
    ],
)
async def test_what_is_not_understood_is_refused(tmp_path: Path, body: str, told: str) -> None:
    async with serving(tmp_path) as served:
        status, refused = await served.ask("POST", CHAT, data=body.encode())
        error = refused["error"]
        assert (status, error["type"]) == (400, "invalid_request_error")
        assert error["param"] in (None, "messages")
        assert told in error["message"]
        assert served.models.requests == []


async def test_too_large_a_body_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, limits={"frame_bytes": 10_000}) as served:
        body = {"messages": [{"role": "user", "content": "x" * 20_000}]}
        status, refused = await served.ask("POST", CHAT, json=body)
        assert (status, refused["error"]["code"]) == (413, "request_too_large")


async def test_what_is_not_there_is_reported_in_the_same_words(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        for method, path, status in (("POST", "/v1/embeddings", 404), ("GET", CHAT, 405)):
            got, told = await served.ask(method, path)
            assert (got, told["error"]["type"]) == (status, "invalid_request_error")


async def whole(client: AsyncOpenAI) -> object:
    return await client.chat.completions.create(model="openai/fake-small", messages=SAID)


async def streamed(client: AsyncOpenAI) -> object:
    return await client.chat.completions.create(model="openai/fake-small", messages=SAID, stream=True)


async def responded(client: AsyncOpenAI) -> object:
    return await client.responses.create(model="openai/fake-small", input="Hi")


@pytest.mark.parametrize("attempt", [whole, streamed, responded])
async def test_a_budget_that_asks_first_refuses_at_once_and_is_not_retried(
    tmp_path: Path, attempt: Callable[[AsyncOpenAI], Awaitable[object]]
) -> None:
    held: dict[str, Any] = {
        "budgets": {"purse": {"per": "day", "ask": 1}},
        "models": {"openai/fake-small": {"input_price": 1, "output_price": 0}},
        "limits": {"approval_timeout_ms": 3_600_000},
    }
    async with (
        serving(tmp_path, **held) as served,
        AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=3) as client,
    ):
        served.models.then(Reply((Say("well"),), tokens=Tokens(1_000_000, 1)))
        await whole(client)
        with pytest.raises(openai.APIStatusError) as raised:
            await attempt(client)
        error = raised.value
        assert (error.status_code, error.code, error.type) == (
            402,
            "insufficient_quota",
            "insufficient_quota",
        )
        for told in ("the budget for today", "budgets.purse.ask", "resets on"):
            assert told in str(error)
        _, listed = await served.ask("GET", "/api/sessions")
        assert len(listed["sessions"]) == 2, "it is not tried again, for that cannot help"
        assert len(served.models.requests) == 1
        async with served.socket() as person:
            await person.say("Hi", session="s")
            asked = await person.until("approval_request")
            assert asked["tool_name"] == "spend-more"
            await person.send(type="approval", approval_id=asked["approval_id"], decision="once", session="s")
            await person.until("complete")
        await attempt(client)
