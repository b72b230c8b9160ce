"""The API that clients of OpenAI speak, asked by the official one over a real socket."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway import Intercept, Plugin, Tool, ToolOutput, TurnContext, UserInput, tool_from
from gateway.testing.fake_models.script import Cut, Gate, Refusal, Reply, Say, Think, Tokens, Use
from gateway.testing.served import Served, serving, until
from tests.gateway.test_fetching import site

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n of a sort").decode()
SMALL = "openai/fake-small"


@asynccontextmanager
async def client_of(served: Served, key: str = "none") -> AsyncGenerator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0) as client:
        yield client


async def ask(client: AsyncOpenAI, *said: Any, model: str = SMALL, **how: Any) -> ChatCompletion:
    """Return the answer to messages. A text is a user message."""
    messages: list[Any] = [{"role": "user", "content": m} if isinstance(m, str) else m for m in said]
    create: Any = client.chat.completions.create
    answer: ChatCompletion = await create(model=model, messages=messages, **how)
    return answer


async def streamed(client: AsyncOpenAI, *said: Any, **how: Any) -> list[ChatCompletionChunk]:
    messages: list[Any] = [{"role": "user", "content": m} if isinstance(m, str) else m for m in said]
    stream = await client.chat.completions.create(
        model=how.pop("model", SMALL), messages=messages, stream=True, **how
    )
    return [chunk async for chunk in stream]


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


async def logged(served: Served, session: str) -> list[tuple[str, str]]:
    """Return role and text of each message of a session."""
    _, said = await served.ask("GET", f"/api/sessions/{session}/messages")
    return [
        (m["message"]["role"], "|".join(p.get("content", p["type"]) for p in m["message"]["parts"]))
        for m in said["messages"]
    ]


async def only_session(served: Served) -> str:
    _, listed = await served.ask("GET", "/api/sessions")
    assert len(listed["sessions"]) == 1
    return listed["sessions"][0]["id"]


def asked(served: Served, nth: int = -1) -> list[Mapping[str, Any]]:
    """Return the messages that the model received, without the gateway's own prompt."""
    return served.models.requests[nth].body["messages"]


async def test_an_answer_comes_whole_with_what_it_took(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        served.models.then(Reply((Think("hm"), Say("Hello "), Say("there.")), tokens=Tokens(12, 3, 4)))
        answer = await ask(client, "Hi")
        choice, usage = answer.choices[0], answer.usage
        assert (choice.message.role, choice.message.content) == ("assistant", "Hello there.")
        assert (choice.finish_reason, answer.model, answer.object) == ("stop", SMALL, "chat.completion")
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (12, 3, 15)
        assert usage.prompt_tokens_details.cached_tokens == 4
        assert await logged(served, await only_session(served)) == [
            ("user", "Hi"),
            ("assistant", "hm|Hello there."),
        ]


async def test_a_limit_that_was_reached_is_reported(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        served.models.then(Reply((Say("Hel"),), "length"), Reply((Say("Hel"),), "length"))
        assert (await ask(client, "Hi")).choices[0].finish_reason == "length"
        assert (await streamed(client, "Hi"))[-1].choices[0].finish_reason == "length"


async def test_an_answer_is_streamed_while_it_is_made(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        opened = asyncio.Event()
        served.models.then(Reply((Think("hm"), Say("Hel"), Gate(opened), Say("lo."))))
        stream = await client.chat.completions.create(
            model=SMALL, messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        chunks: list[ChatCompletionChunk] = []
        async for chunk in stream:
            chunks.append(chunk)
            if text_of(chunks) == "Hel":
                opened.set()
        assert text_of(chunks) == "Hello."
        assert chunks[0].choices[0].delta.role == "assistant"
        assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["stop"]
        assert len({chunk.id for chunk in chunks}) == 1
        assert all(chunk.usage is None for chunk in chunks)


async def test_a_stream_tells_what_it_took_if_it_is_asked_to(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        served.models.then(Reply((Say("Hello."),), tokens=Tokens(12, 3)))
        chunks = await streamed(client, "Hi", stream_options={"include_usage": True})
        usage = chunks[-1].usage
        assert usage is not None
        assert (chunks[-1].choices, usage.prompt_tokens, usage.completion_tokens) == ([], 12, 3)
        assert all(chunk.usage is None for chunk in chunks[:-1])
        assert text_of(chunks) == "Hello."


async def test_the_history_of_a_client_begins_its_own_session(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}
    async with serving(tmp_path) as served, client_of(served) as client:
        await ask(
            client,
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
            "What time is it?",
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "noon"},
            {"role": "assistant", "content": "It is noon."},
            "And",
            "now?",
        )
        assert [(m["role"], m["content"]) for m in asked(served)] == [
            ("system", "Be brief."),
            ("system", "Be kind."),
            ("user", "What time is it?"),
            ("assistant", ""),
            ("tool", "noon"),
            ("assistant", "It is noon."),
            ("user", "And\n\nnow?"),
        ]
        assert asked(served)[3]["tool_calls"][0]["function"]["arguments"] == '{"zone":"UTC"}'
        said = await logged(served, await only_session(served))
        assert [role for role, _ in said] == ["system", "system", "user", "assistant", "user", "assistant"]


@pytest.mark.parametrize(
    "how",
    [
        {"extra_headers": {"X-Session-Id": "s"}},
        {"metadata": {"session": "s"}},
        {"user": "s"},
    ],
)
async def test_a_named_session_continues_from_what_it_knows(tmp_path: Path, how: dict[str, Any]) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        await ask(client, {"role": "system", "content": "Be brief."}, "One", **how)
        await ask(client, "One", {"role": "assistant", "content": "You said: One"}, "Two", **how)
        assert [(m["role"], m["content"]) for m in asked(served)] == [
            ("system", "Be brief."),
            ("user", "One"),
            ("assistant", "You said: One"),
            ("user", "Two"),
        ]
        assert await only_session(served) == "s"


async def test_a_user_may_be_called_anything(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        for text in ("One", "Two"):
            await ask(client, text, user="Zoë <zoe@example.com>")
        assert len(await logged(served, await only_session(served))) == 4


async def test_the_response_names_the_session_to_continue(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=SMALL, messages=[{"role": "user", "content": "One"}]
        )
        session = raw.headers["X-Session-Id"]
        await ask(client, "Two", extra_headers={"X-Session-Id": session})
        assert len(await logged(served, session)) == 4


async def test_pictures_come_as_data_urls(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        picture = {"type": "image_url", "image_url": {"url": f"data:image/jpg;base64,{PNG}"}}
        text = {"type": "text", "text": "What is this?"}
        await ask(client, {"role": "user", "content": [text, picture]})
        assert asked(served)[-1]["content"] == [
            text,
            {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{PNG}"}},
        ]
        for url in ("cat.png", "data:text/plain,cat", "ftp://example.org/cat.png"):
            far = {"type": "image_url", "image_url": {"url": url}}
            with pytest.raises(openai.BadRequestError, match="data URL"):
                await ask(client, {"role": "user", "content": [text, far]})


async def test_pictures_are_fetched_from_where_they_may_be(tmp_path: Path) -> None:
    picture = base64.b64decode(PNG)

    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=picture if request.path == "/cat" else b"<html>", content_type="text/html")

    allowed = {"allow": ["127.0.0.1/32"]}
    async with site(handler) as url, serving(tmp_path, fetch=allowed) as served, client_of(served) as client:
        cat = {"type": "image_url", "image_url": {"url": f" {url}/cat "}}
        text = {"type": "text", "text": "What is this?"}
        await ask(client, {"role": "user", "content": [text, cat, cat]})
        shown = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
        assert asked(served)[-1]["content"] == [text, shown, shown]
        dog = {"type": "image_url", "image_url": {"url": f"{url}/dog"}}
        with pytest.raises(openai.BadRequestError, match="not png"):
            await ask(client, {"role": "user", "content": [text, cat, dog]})
        many = [{"type": "image_url", "image_url": {"url": f"{url}/{n}"}} for n in range(11)]
        with pytest.raises(openai.BadRequestError, match="10 image URLs, not 11"):
            await ask(client, {"role": "user", "content": many})


async def test_no_client_makes_the_gateway_ask_its_own_network(tmp_path: Path) -> None:
    reached: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        reached.append(request.path)
        return web.Response(body=base64.b64decode(PNG))

    async with site(handler) as url, serving(tmp_path) as served, client_of(served) as client:
        for address in (url, served.url, url.replace("127.0.0.1", "localhost"), "http://169.254.169.254/"):
            named = {"type": "image_url", "image_url": {"url": f"{address}/x.png"}}
            with pytest.raises(openai.BadRequestError, match=r"not a public address|cannot be reached"):
                await ask(client, {"role": "user", "content": [named]})
        assert (reached, served.models.requests) == ([], [])


class Clock(Plugin):
    """A tool that tells the time."""

    name = "clock"

    def tools(self) -> Sequence[Tool]:
        return [tool_from(the_time)]


async def the_time() -> ToolOutput:
    """What time it is."""
    return ToolOutput("noon")


async def test_our_own_tools_run_here_and_only_the_text_is_sent(tmp_path: Path) -> None:
    async with serving(tmp_path, Clock()) as served, client_of(served) as client:
        served.models.then(Reply((Say("Let me see."), Use("the_time")), "tools"), Reply((Say("Noon."),)))
        answer = await ask(client, "What time is it?", tool_choice="auto")
        assert answer.choices[0].message.content == "Let me see.\n\nNoon."
        assert answer.choices[0].message.tool_calls is None
        served.models.then(Reply((Say("Let me see."), Use("the_time")), "tools"), Reply((Say("Noon."),)))
        assert text_of(await streamed(client, "What time is it?")) == "Let me see.\n\nNoon."


async def test_the_model_is_chosen_for_the_one_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        header = {"X-Session-Id": "s"}
        answer = await ask(client, "One", model="openai/fake-large", extra_headers=header)
        assert answer.model == "openai/fake-large"
        answer = await ask(client, "Two", model="", extra_headers=header)
        assert answer.model == SMALL
        assert [r.body["model"] for r in served.models.requests] == ["fake-large", "fake-small"]


async def test_a_command_is_answered_too(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        answer = await ask(client, "/nonsense")
        assert "Unknown command: /nonsense" in (answer.choices[0].message.content or "")
        assert "Unknown command: /nonsense" in text_of(await streamed(client, "/nonsense"))


class Silence(Plugin):
    """Plugin that answers nothing."""

    name = "silence"

    async def transform_user_input(self, text: str, ctx: TurnContext) -> UserInput:
        return Intercept("")


async def test_what_has_no_answer_is_answered_with_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, Silence()) as served, client_of(served) as client:
        named = {"Idempotency-Key": "k1"}
        for _ in range(2):
            choice = (await ask(client, "Hi", extra_headers=named)).choices[0]
            assert (choice.message.content, choice.finish_reason) == ("", "stop")
            chunks = await streamed(client, "Hi", extra_headers=named)
            assert (text_of(chunks), chunks[-1].choices[0].finish_reason) == ("", "stop")


async def test_the_models_are_listed_with_the_configured_one_first(tmp_path: Path) -> None:
    async with serving(tmp_path, model="openai/my-own") as served, client_of(served) as client:
        listed = (await client.models.list()).data
        assert [m.id for m in listed] == ["openai/my-own", SMALL, "openai/fake-large"]
        assert {m.owned_by for m in listed} == {"openai"}


async def test_a_provider_that_cannot_be_reached_does_not_hide_the_others(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        openai_settings = {"base_url": served.models.openai_url, "api_key": "k", "max_retries": 0}
        gone = {"base_url": "http://127.0.0.1:9/v1", "api_key": "k", "max_retries": 0, "like": "openai"}
        providers = {"openai": openai_settings, "gone": gone}
        async with (
            serving(tmp_path / "other", fake=served.models, providers=providers) as other,
            client_of(other) as client,
        ):
            listed = [m.id for m in (await client.models.list()).data]
    assert listed == [SMALL, "openai/fake-large"]


async def test_aliases_are_models_too(tmp_path: Path) -> None:
    settings = {"aliases": {"fast": "openai/fake-large", "any": "fake-small"}}
    async with serving(tmp_path, **settings) as served, client_of(served) as client:
        listed = [(m.id, m.owned_by) for m in (await client.models.list()).data]
        answer = await ask(client, "Hi", model="fast")
    assert listed[:3] == [(SMALL, "openai"), ("fast", "openai"), ("any", "trunkline")]
    assert answer.choices[0].message.content == "You said: Hi"
    assert served.models.requests[0].body["model"] == "fake-large"


async def test_004_39_a_model_is_recognised_by_any_of_its_names(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "aliases": {"fast": "openai/fake-large"},
        "models": {"openai/fake-large": {"images": False, "context_window": 1000, "input_price": 0.5}},
    }
    async with serving(tmp_path, **settings) as served, client_of(served) as client:
        for name in ("fast", "openai/fake-large", "fake-large"):
            told = await client.models.retrieve(name)
            assert told.model_dump(exclude={"shutdown_date"}) == {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": "openai",
                "model": "openai/fake-large",
                "context_window": 1000,
                "output_limit": None,
                "capabilities": ["streaming", "tools", "reasoning", "json_mode"],
                "input_price": 0.5,
                "output_price": None,
            }
        dated = await client.models.retrieve("openai/gpt-4o-2024-05-13")
        assert (dated.created, dated.model_dump()["context_window"]) == (1715558400, 128_000)


async def test_004_41_a_client_may_name_an_agent_for_a_model(tmp_path: Path) -> None:
    agents = {"clerk": {"model": "openai/fake-large", "system_prompt": "Fill in forms."}, "plain": {}}
    async with serving(tmp_path, agents=agents) as served, client_of(served) as client:
        listed = [(m.id, m.owned_by) for m in (await client.models.list()).data]
        told = (await client.models.retrieve("clerk")).model_dump()
        header = {"X-Session-Id": "s"}
        await ask(client, "/model openai/fake-small", extra_headers=header)
        answers = [await ask(client, "Hi", model=m, extra_headers=header) for m in ("clerk", "plain", SMALL)]
        assert [answer.model for answer in answers] == ["openai/fake-large", SMALL, SMALL]
        asked_of = [(r.body["model"], r.body["messages"][0]["content"][:5]) for r in served.models.requests]
    assert listed[:3] == [(SMALL, "openai"), ("clerk", "trunkline"), ("plain", "trunkline")]
    assert (told["id"], told["model"], told["owned_by"]) == ("clerk", "openai/fake-large", "openai")
    assert asked_of[0] == ("fake-large", "Fill ")
    assert [model for model, _ in asked_of] == ["fake-large", "fake-small", "fake-small"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("openai/fake-smal", "openai has no model 'fake-smal'; did you mean openai/fake-small?"),
        ("opnai/gpt", "did you mean openai/gpt"),
    ],
)
async def test_004_34_a_model_that_there_is_not_is_not_found(tmp_path: Path, name: str, told: str) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        with pytest.raises(openai.NotFoundError, match=told) as caught:
            await client.models.retrieve(name)
    assert caught.value.code == "model_not_found"


async def test_the_same_request_again_is_answered_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        named = {"Idempotency-Key": "k1"}
        history = ({"role": "system", "content": "Be brief."}, "Hi")
        first = await ask(client, *history, extra_headers=named)
        again = await ask(client, *history, extra_headers=named)
        assert (again.id, again.choices) == (first.id, first.choices)
        assert text_of(await streamed(client, *history, extra_headers=named)) == "You said: Hi"
        assert len(served.models.requests) == 1
        assert len(await logged(served, await only_session(served))) == 3


async def test_requests_of_one_session_are_answered_in_order(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        opened = asyncio.Event()
        served.models.then(Reply((Say("First."), Gate(opened))), Reply((Say("Second."),)))
        header = {"X-Session-Id": "s"}
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(ask(client, "One", extra_headers=header))
            await until(lambda: len(served.models.requests) == 1)
            second = tasks.create_task(streamed(client, "Two", extra_headers=header))
            await until(lambda: served.gateway.parts.dispatcher.waiting == 2)
            assert len(served.models.requests) == 1
            opened.set()
        assert (first.result().choices[0].message.content, text_of(second.result())) == ("First.", "Second.")
        assert [text for _, text in await logged(served, "s")] == ["One", "First.", "Two", "Second."]


async def test_a_request_that_was_refused_may_be_repeated_with_its_key(tmp_path: Path) -> None:
    limits = {"session_inbox": 1, "session_backlog": 1}
    async with serving(tmp_path, limits=limits) as served, client_of(served) as client:
        opened = asyncio.Event()
        served.models.then(Reply((Say("First."), Gate(opened))), Reply((Say("Second."),)))
        named = [{"X-Session-Id": "s", "Idempotency-Key": key} for key in ("k1", "k2", "k3")]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask(client, "One", extra_headers=named[0]))
            await until(lambda: len(served.models.requests) == 1)
            tasks.create_task(ask(client, "Two", extra_headers=named[1]))
            await until(lambda: served.gateway.parts.dispatcher.waiting == 2)
            for _ in range(3):
                refused = await _refused(client, extra_headers=named[2])
                assert (refused.status_code, refused.code) == (503, "overloaded")
            opened.set()
        answers = [await ask(client, "Three", extra_headers=named[2]) for _ in range(2)]
        assert [each.choices[0].message.content for each in answers] == ["You said: Three"] * 2
        assert answers[0].id == answers[1].id
        assert [text for _, text in await logged(served, "s")][-2:] == ["Three", "You said: Three"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_its_answer_and_is_not_an_error_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        served.models.then(Reply((Say("Hel"), Gate(asyncio.Event()))))
        header = {"X-Session-Id": "s"}
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(_first(client, header, stream=stream))
            await until(lambda: _saying(served, "Hel"))
            asking.cancel()
        await served.models.left.wait()
        await served.idle("s")
        assert await logged(served, "s") == [("user", "Hi"), ("assistant", "Hel")]
    assert [record.getMessage() for record in caplog.records if record.name.startswith("gateway")] == []


async def test_a_client_that_named_its_request_can_come_back_for_the_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        opened = asyncio.Event()
        served.models.then(Reply((Say("Hel"), Gate(opened), Say("lo."))))
        header = {"X-Session-Id": "s", "Idempotency-Key": "k1"}
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(_first(client, header, stream=True))
            await until(lambda: _saying(served, "Hel"))
            asking.cancel()
        await until(lambda: served.gateway.counters.clients["openai"] == 0)
        opened.set()
        assert (await ask(client, "Hi", extra_headers=header)).choices[0].message.content == "Hello."
        assert len(served.models.requests) == 1


async def _first(client: AsyncOpenAI, headers: dict[str, str], *, stream: bool) -> None:
    await (streamed if stream else ask)(client, "Hi", extra_headers=headers)


def _saying(served: Served, text: str) -> bool:
    session = served.gateway.parts.sessions.get("s")
    turn = None if session is None else session.turn
    return turn is not None and turn.assembler.message().text == text


async def test_what_fails_in_mid_stream_is_reported_there(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        served.models.then(Reply((Say("Hel"), Cut())))
        stream = await client.chat.completions.create(
            model=SMALL, messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        told: list[ChatCompletionChunk] = []
        with pytest.raises(openai.APIError) as raised:
            await _read(stream, told)
        assert (text_of(told), raised.value.code) == ("Hel", "StreamAbortedError")


async def _read(stream: openai.AsyncStream[ChatCompletionChunk], told: list[ChatCompletionChunk]) -> None:
    async for chunk in stream:
        told.append(chunk)


async def test_what_another_provider_says_follows_what_was_sent(tmp_path: Path) -> None:
    async with serving(tmp_path, fallback=["openai/fake-large"]) as served, client_of(served) as client:
        served.models.then(Reply((Say("Hel"), Cut())), Reply((Say("Hello."),)))
        text = text_of(await streamed(client, "Hi"))
        assert text == "Hel\n\nHello.", "what was sent stays; the notice is for people"
        served.models.then(Reply((Say("Hel"), Cut())), Reply((Say("Hello."),)))
        whole = (await ask(client, "Hi")).choices[0].message.content
        assert whole == "Hello."


async def test_when_no_provider_answers_what_was_sent_is_sent_once(tmp_path: Path) -> None:
    told = list[str]()

    async def listen(client: AsyncOpenAI) -> None:
        messages: list[Any] = [{"role": "user", "content": "Hi"}]
        stream = await client.chat.completions.create(model=SMALL, messages=messages, stream=True)
        async for chunk in stream:
            told.append(chunk.choices[0].delta.content or "")

    async with serving(tmp_path, fallback=["openai/fake-large"]) as served, client_of(served) as client:
        served.models.then(Reply((Say("Hel"), Cut())), Refusal(400, "no"))
        with pytest.raises(openai.APIError):
            await listen(client)
    assert "".join(told) == "Hel"


async def test_a_stop_of_the_gateway_lets_clients_go(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as tasks:
        async with serving(tmp_path, limits={"drain_seconds": 0}) as served:
            served.models.then(Reply((Gate(asyncio.Event()),)))
            client = AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
            asking = tasks.create_task(_refused(client))
            await until(lambda: len(served.models.requests) == 1)
        refused = await asking
        await client.close()
    assert (refused.status_code, refused.code) == (503, "overloaded")


async def test_004_T06_what_was_accepted_is_answered_after_a_restart_with_its_history_and_model(
    tmp_path: Path,
) -> None:
    async with asyncio.TaskGroup() as tasks:
        async with serving(tmp_path, limits={"drain_seconds": 0}) as served:
            served.models.then(Reply((Gate(asyncio.Event()),)))
            client = AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
            header = {"X-Session-Id": "s"}
            tasks.create_task(_refused(client, "openai/fake-large", extra_headers=header))
            await until(lambda: len(served.models.requests) == 1)
        await client.close()
    async with serving(tmp_path) as served:
        await until(lambda: len(served.models.requests) == 1)
        await served.idle("s")
        assert served.models.requests[0].body["model"] == "fake-large"
        assert [text for _, text in await logged(served, "s")] == ["Be brief.", "Hi", "You said: Hi"]


async def _refused(client: AsyncOpenAI, model: str = SMALL, **how: Any) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as raised:
        await ask(client, {"role": "system", "content": "Be brief."}, "Hi", model=model, **how)
    return raised.value


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (401, openai.InternalServerError, "AuthFailedError"),
        (404, openai.NotFoundError, "model_not_found"),
        (429, openai.RateLimitError, "rate_limit_exceeded"),
        (500, openai.InternalServerError, "ServerFailedError"),
    ],
)
async def test_a_providers_failure_is_reported_as_one(
    tmp_path: Path, status: int, kind: type[openai.APIStatusError], code: str
) -> None:
    async with serving(tmp_path) as served, client_of(served) as client:
        for attempt in (ask, streamed):
            served.models.then(Refusal(status, "no"))
            with pytest.raises(kind) as raised:
                await attempt(client, "Hi")
            assert raised.value.code == code
            assert raised.value.response.headers["x-should-retry"] == "false"
