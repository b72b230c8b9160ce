"""The plugin ``traces``: spans of turns, models and tools, at a collector on a real socket."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from gateway.testing.chat import chatting
from gateway.testing.fake_models.script import Reply, Say, Use
from plugins.traces import Traces

Span = dict[str, Any]


@asynccontextmanager
async def collector(status: int = 200) -> AsyncGenerator[tuple[str, list[Any]]]:
    """A collector that takes requests, or refuses them; yields its address and what it got."""
    requests: list[Any] = []

    async def take(request: web.Request) -> web.Response:
        requests.append((request.headers.get("api-key"), await request.json()))
        return web.json_response({}, status=status)

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces", requests
    finally:
        await runner.cleanup()


def facts(span: Span) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}


async def test_a_turn_with_a_tool_is_one_trace_without_texts(tmp_path: Path) -> None:
    async with collector() as (endpoint, requests):
        settings = {"endpoint": endpoint, "headers": {"api-key": "k"}, "service": "ours"}
        async with chatting(tmp_path, Traces(), plugins={"traces": settings}) as chat:
            calculate = Use("calculator", json.dumps({"expression": "12 * 34"}))
            chat.model.then(Reply((calculate,), "tools"), Reply((Say("A secret answer."),)))
            answer = await chat.say("A secret question")
    [(key, sent)] = requests
    [group] = sent["resourceSpans"]
    spans: list[Span] = group["scopeSpans"][0]["spans"]
    assert (key, facts(group["resource"])) == ("k", {"service.name": "ours"})
    assert [span["name"] for span in spans] == ["chat", "execute_tool calculator", "chat", "turn"]
    turn = spans[-1]
    assert {span["traceId"] for span in spans} == {answer.id.replace("-", "")}
    assert {span["parentSpanId"] for span in spans[:-1]} == {turn["spanId"]}
    assert "parentSpanId" not in turn
    assert facts(turn)["trunkline.outcome"] == "end_turn"
    assert int(facts(turn)["gen_ai.usage.output_tokens"]) > 0
    assert all(int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]) for span in spans)
    assert "secret" not in str(sent)


async def test_a_collector_that_refuses_delays_nothing_and_is_counted(tmp_path: Path) -> None:
    traces = Traces()
    async with collector(status=503) as (endpoint, _):
        async with chatting(tmp_path, traces, plugins={"traces": {"endpoint": endpoint}}) as chat:
            assert (await chat.say("Hello")).text
        assert [figure.value for figure in traces.figures()] == [0, 2]
