"""``web_search`` against fakes of the three engines on real sockets, with their documented formats."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from gateway import SettingsError, ToolError
from gateway.provider_http import open_client
from gateway.testing.chat import chatting
from gateway.testing.fake_models.script import Reply, Say, Use
from plugins.web import Web
from plugins.web.engines import ANSWER_BYTES, ENGINES, WebSearch
from tests.plugins.web.test_fetch import results

KEY = "tvly-0123456789abcdef0123456789"
FOUND = [
    {"title": f"T{n}", "url": f"https://e{n}.example/", "content": f"Text <strong>{n}</strong> &amp; more"}
    for n in range(30)
]


class FakeEngine:
    """A server with the paths of all three engines. ``status`` and ``body`` replace its answers."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.status = 200
        self.body: bytes | None = None

    async def searxng(self, request: web.Request) -> web.Response:
        self.asked.append(dict(request.query))
        if request.query.get("format") != "json":
            return web.Response(status=403)
        return self._answer({"query": request.query["q"], "number_of_results": 0, "results": FOUND})

    async def brave(self, request: web.Request) -> web.Response:
        self.asked.append(dict(request.query))
        if request.headers.get("X-Subscription-Token") != KEY:
            error = {"type": "ErrorResponse", "error": {"code": "SUBSCRIPTION_TOKEN_INVALID", "status": 422}}
            return web.json_response(error, status=422)
        count = int(request.query.get("count", "20"))
        if count > 20:
            return web.json_response({"type": "ErrorResponse"}, status=422)
        found = [
            {**{k: v for k, v in each.items() if k != "content"}, "description": each["content"]}
            for each in FOUND
        ]
        return self._answer({"type": "search", "web": {"type": "search", "results": found[:count]}})

    async def tavily(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.json_response(
                {"detail": {"error": "Unauthorized: missing or invalid API key."}}, status=401
            )
        found = [{**each, "score": 0.9} for each in FOUND[: body["max_results"]]]
        return self._answer({"query": body["query"], "results": found, "response_time": 1.0})

    def _answer(self, value: Any) -> web.Response:
        body = msgspec.json.encode(value) if self.body is None else self.body
        return web.Response(body=body, status=self.status, content_type="application/json")


@asynccontextmanager
async def engines() -> AsyncGenerator[tuple[FakeEngine, str]]:
    fake = FakeEngine()
    app = web.Application()
    app.router.add_get("/search", fake.searxng)
    app.router.add_get("/res/v1/web/search", fake.brave)
    app.router.add_post("/search", fake.tavily)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield fake, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def searching(name: str, url: str, key: str = KEY) -> AsyncGenerator[WebSearch]:
    search = WebSearch(ENGINES[name], open_client(), url, key)
    try:
        yield search
    finally:
        await search.close()


@pytest.mark.parametrize("name", ENGINES)
async def test_004_t16_a_search_returns_titles_addresses_and_excerpts(name: str) -> None:
    async with engines() as (fake, url), searching(name, url) as search:
        hits = await search.search("cats & dogs", 3)
        assert [(hit.title, hit.url) for hit in hits] == [
            (f"T{n}", f"https://e{n}.example/") for n in range(3)
        ]
        assert hits[1].snippet == "Text 1 & more"
        assert fake.asked[0].get("q", fake.asked[0].get("query")) == "cats & dogs"
        assert len(await search.search("many", 100)) >= 20


@pytest.mark.parametrize("name", ["brave", "tavily"])
async def test_a_refused_key_is_named_and_never_shown(name: str) -> None:
    async with engines() as (_, url), searching(name, url, "wrong-key-0123456789") as search:
        with pytest.raises(ToolError, match=r"plugins\.web\.api_key") as refused:
            await search.search("x", 8)
        assert "wrong-key" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("searxng", 403, "add json to search.formats"),
        ("searxng", 429, "limiter.toml"),
        ("searxng", 500, "status 500: see plugins.web.url"),
        ("brave", 429, "limit of the plan"),
        ("tavily", 432, "limit of the plan"),
        ("searxng", 302, "status 302: see plugins.web.url"),
    ],
)
async def test_a_failure_says_what_to_do(name: str, status: int, said: str) -> None:
    async with engines() as (fake, url), searching(name, url) as search:
        fake.status = status
        with pytest.raises(ToolError, match=said):
            await search.search("x", 8)


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b'{"results": 1}', b"\xff", b"[" * 100_000, b'{"results": [{}]}']
)
async def test_an_answer_that_cannot_be_read_is_an_error(body: bytes) -> None:
    async with engines() as (fake, url), searching("searxng", url) as search:
        fake.body = body
        with pytest.raises(ToolError, match="cannot be read"):
            await search.search("x", 8)


async def test_a_huge_answer_and_an_absent_server_are_errors() -> None:
    async with engines() as (fake, url), searching("searxng", url) as search:
        fake.body = b" " * (ANSWER_BYTES + 1)
        with pytest.raises(ToolError, match=f"more than {ANSWER_BYTES} bytes"):
            await search.search("x", 8)
    async with searching("searxng", url) as search:
        with pytest.raises(ToolError, match=r"SearXNG cannot be reached: .*plugins\.web\.url"):
            await search.search("x", 8)


async def test_004_t16_the_model_searches_with_eight_results_by_default(tmp_path: Path) -> None:
    async with engines() as (fake, url):
        settings = {"web": {"engine": "tavily", "url": url, "api_key": KEY}}
        async with chatting(tmp_path, Web(), plugins=settings) as chat:
            chat.model.then(
                Reply((Use("web_search", '{"query": "cats"}'),), "tools"), Reply((Say("Found."),))
            )
            [found] = results(await chat.say("search"))
            assert fake.asked == [{"query": "cats", "max_results": 8}]
            assert "8. T7\nhttps://e7.example/\nText 7 & more" in found.output
            assert "9. T8" not in found.output
            assert found.metadata is not None
            assert found.metadata.untrusted
            offered = {tool.name for tool in chat.gateway.registry.get_tools()}
            assert {"web_fetch", "web_search"} <= offered


async def test_without_an_engine_there_is_no_search(tmp_path: Path) -> None:
    web = Web()
    async with chatting(tmp_path, web, plugins={"web": {"engine": "searxng", "url": "http://127.0.0.1:1"}}):
        assert len(web.tools()) == 2
    # The same object, as when the plugin is disabled and enabled again.
    async with chatting(tmp_path, web) as chat:
        assert "web_search" not in {tool.name for tool in chat.gateway.registry.get_tools()}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"engine": "brave"}, r"plugins\.web\.api_key is missing.*BRAVE_API_KEY"),
        ({"engine": "tavily", "api_key": " "}, r"plugins\.web\.api_key is missing.*TAVILY_API_KEY"),
        ({"engine": "searxng"}, r"plugins\.web\.url is missing"),
        ({"engine": "altavista"}, r"plugins\.web\.engine"),
        ({"engine": "searxng", "url": "ftp://x"}, r"plugins\.web\.url"),
        ({"allow": ["everything"]}, r"plugins\.web\.allow"),
        ({"key": "x"}, r"plugins\.web\.key"),
    ],
)
async def test_wrong_settings_stop_the_start_by_name(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises((SettingsError, Exception), match=said):
        async with chatting(tmp_path, Web(), plugins={"web": settings}):
            pass


@pytest.mark.parametrize("name", ["searxng", "brave", "tavily"])
async def test_the_doctor_reports_whether_the_engine_answers(tmp_path: Path, name: str) -> None:
    async with engines() as (fake, url):
        for key, said in ((KEY, ""), ("wrong-" + KEY, "it rejected the API key")):
            options = {"engine": name, "url": f"{url}", "api_key": key}
            plugins = {"enabled": ["web"], "web": options}
            async with chatting(tmp_path / key, plugins=plugins) as chat:
                web = chat.gateway.registry.get("web")
                assert web is not None
                problem = await web.find_problem()
                assert said in problem if name != "searxng" else not problem
                assert key not in problem
        fake.status = 500
        async with chatting(tmp_path / "broken", plugins=plugins) as chat:
            web = chat.gateway.registry.get("web")
            assert web is not None
            assert "answered with status" in await web.find_problem()
