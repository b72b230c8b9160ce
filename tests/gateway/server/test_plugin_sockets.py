"""Websockets of plugins, and routes under their own path, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec import Struct

from gateway import NotFoundError, Plugin, PluginError
from gateway.access.tokens import Auth
from gateway.api import ApiCall, ApiConnection, ApiRoute, ApiSocket
from gateway.contract.errors import AlreadyRegisteredError
from gateway.extensions.routes import RESERVED, check_prefixes, check_routes
from gateway.server import Server
from gateway.server.app import Api
from gateway.testing.served import Served, serving, until

URL = "/api/plugins/radio"
TOKEN = "t" * 40


class Station(Struct, frozen=True):
    """A station."""

    station: str


class Volume(Struct, frozen=True):
    """The volume."""

    volume: int = 5


class Radio(Plugin):
    """A plugin with websockets of all kinds."""

    name = "radio"

    def __init__(self) -> None:
        self.open = 0

    def routes(self) -> Sequence[ApiRoute | ApiSocket]:
        return [ApiSocket("/stations/{station}", "Listen to a station.", self._listen, (NotFoundError,))]

    async def _listen(self, call: ApiCall[Station, Volume, None], client: ApiConnection) -> None:
        self.open += 1
        try:
            await self._play(call.path.station, call, client)
        finally:
            self.open -= 1

    async def _play(self, station: str, call: ApiCall[Station, Volume, None], client: ApiConnection) -> None:
        match station:
            case "echo":
                await client.send(f"{call.user} {call.query.volume}")
                while (frame := await client.receive()) is not None:
                    await client.send(frame)
            case "flood":
                while True:
                    await client.send(b"x" * 65_536)
            case "huge":
                await client.send("first")
                await client.send(b"x" * (1024 * 1024 + 1))
            case "late":
                await client.send("first")
                raise NotFoundError("this station ended, ä" + "n" * 200)
            case "broken":
                await client.send("first")
                raise ValueError("a secret detail")
            case "hangs":
                await asyncio.Event().wait()
            case "silent":
                pass
            case _:
                raise NotFoundError(f"no station {station}")


class Library(Plugin):
    """A plugin with its own path."""

    name = "library"
    api_prefixes = ("/api/books",)

    def routes(self) -> Sequence[ApiRoute | ApiSocket]:
        return [
            ApiRoute("GET", "/api/books", "List the books.", self._list),
            ApiRoute("GET", "/api/books/{station}", "Show a book.", self._show),
            ApiRoute("GET", "/other", "Anything else.", self._list),
        ]

    async def _list(self, call: ApiCall[None, None, None]) -> Volume:
        return Volume(7)

    async def _show(self, call: ApiCall[Station, None, None]) -> Station:
        return call.path


Library.__module__ = "plugins.library"  # as if it came with Trunkline


@asynccontextmanager
async def listening(
    served: Served, station: str, **how: Any
) -> AsyncGenerator[aiohttp.ClientWebSocketResponse]:
    async with served.http.ws_connect(f"{served.url}{URL}/stations/{station}", **how) as client:
        yield client


async def refused(served: Served, path: str, **how: Any) -> int:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await served.http.ws_connect(f"{served.url}{path}", **how)
    return caught.value.status


async def closed(client: aiohttp.ClientWebSocketResponse) -> int | None:
    async with asyncio.timeout(60):
        while (await client.receive()).type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            pass
    return client.close_code


async def test_a_handler_receives_and_sends_frames_with_typed_parameters(tmp_path: Path) -> None:
    async with serving(tmp_path, radio := Radio()) as served:
        async with listening(served, "echo?volume=9") as client:
            assert await client.receive_str() == "owner 9"
            await client.send_str("text ä")
            assert await client.receive_str() == "text ä"
            await client.send_bytes(b"\x00\xff" * 500_000)
            assert await client.receive_bytes() == b"\x00\xff" * 500_000
        await until(lambda: radio.open == 0)
        async with listening(served, "silent") as client:
            assert await closed(client) == 1000
        assert await refused(served, f"{URL}/stations/echo?volume=loud") == 400
        assert await refused(served, f"{URL}/stations") == 404


async def test_errors_are_responses_before_the_first_frame_and_close_codes_after_it(tmp_path: Path) -> None:
    async with serving(tmp_path, Radio(), plugins={"radio": {"tool_timeout_ms": 1000}}) as served:
        assert await refused(served, f"{URL}/stations/none") == 404
        assert await refused(served, f"{URL}/stations/hangs") == 500
        status, error = await served.ask("GET", f"{URL}/stations/echo")
        assert (status, error["error_name"]) == (426, "UpgradeRequiredError")
        for station, code in (("late", 4404), ("broken", 4500), ("huge", 4500)):
            async with listening(served, station) as client:
                assert await closed(client) == code
        async with listening(served, "echo") as client:
            await asyncio.sleep(1.1)  # longer than the time limit until the first frame
            await client.send_str("on")
            assert [await client.receive_str(), await client.receive_str()] == ["owner 5", "on"]


async def test_a_frame_has_at_most_a_mebibyte(tmp_path: Path) -> None:
    async with serving(tmp_path, radio := Radio()) as served, listening(served, "echo") as client:
        await client.send_bytes(b"x" * (1024 * 1024 + 1))
        assert await closed(client) == 1009
        await until(lambda: radio.open == 0)


async def test_a_client_that_does_not_read_is_dropped(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, radio := Radio()) as served,
        Server(served.gateway) as server,
        served.lazy_http() as http,
    ):
        server._api.plugins.sockets.slow_seconds = 0.2
        async with http.ws_connect(f"{server.url}{URL}/stations/flood"):
            await until(lambda: radio.open == 1)
            await until(lambda: radio.open == 0)


async def test_a_websocket_needs_the_token_and_no_foreign_page_opens_it(tmp_path: Path) -> None:
    path = f"{URL}/stations/echo"
    async with serving(tmp_path, Radio(), server={"token": TOKEN}) as served:
        assert await refused(served, path) == 401
        assert await refused(served, path, headers={"Authorization": "Bearer wrong"}) == 401
        allowed = {"Authorization": f"Bearer {TOKEN}"}
        assert await refused(served, path, headers={**allowed, "Origin": "https://evil.example"}) == 403
        assert await refused(served, path, headers={**allowed, "Host": "evil.example"}) == 421
        async with listening(served, "echo", headers=allowed) as client:
            assert await client.receive_str() == "owner 5"
        async with served.http.post(f"{served.url}/api/browser", headers=allowed) as response:
            assert response.status == 204
            name, value = next((cookie.key, cookie.value) for cookie in response.cookies.values())
        cookie = {"Cookie": f"{name}={value}"}
        assert await refused(served, path, headers={**cookie, "Sec-Fetch-Site": "same-site"}) == 401
        async with listening(served, "echo", headers={**cookie, "Origin": served.url}) as client:
            assert await client.receive_str() == "owner 5"


async def test_a_websocket_ends_with_its_token(tmp_path: Path) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        serving(tmp_path, Radio(), server={"token": TOKEN}) as served,
        Server(served.gateway) as server,
    ):
        server._api.plugins.sockets.check_seconds = 0.05
        async with served.http.ws_connect(f"{server.url}{URL}/stations/echo", headers=headers) as client:
            await client.receive_str()
            served.gateway.parts.host.auth.__dict__.update(Auth("n" * 40).__dict__)
            assert await closed(client) == 4401


async def test_a_websocket_ends_with_its_plugin_and_with_the_gateway(tmp_path: Path) -> None:
    radio = Radio()
    async with serving(tmp_path, radio) as served:
        async with listening(served, "echo") as client:
            await client.receive_str()
            await served.gateway.registry.replace("radio", second := Radio())
            assert await closed(client) == 1012
        async with listening(served, "echo") as client:
            await client.receive_str()
            assert (radio.open, second.open) == (0, 1)
            await served.gateway.registry.unregister("radio")
            assert await closed(client) == 1012
        assert await refused(served, f"{URL}/stations/echo") == 404
        await served.gateway.registry.register(radio)
        async with asyncio.TaskGroup() as tasks, Server(served.gateway) as server:
            client = await served.http.ws_connect(f"{server.url}{URL}/stations/echo")
            await client.receive_str()
            code = tasks.create_task(closed(client))
        assert code.result() == 1012


async def test_the_description_has_websockets(tmp_path: Path) -> None:
    async with serving(tmp_path, Radio()) as served:
        _, document = await served.ask("GET", "/openapi.json")
    shown = document["paths"][f"{URL}/stations/{{station}}"]["get"]
    assert shown["summary"] == "Listen to a station."
    assert shown["responses"]["101"] == {"description": "The connection is a websocket."}
    assert set(shown["responses"]) == {"101", "400", "401", "403", "404", "426", "429", "500"}
    assert [each["name"] for each in shown["parameters"]] == ["station", "volume"]


async def test_a_plugin_that_comes_with_trunkline_has_routes_under_its_own_path(tmp_path: Path) -> None:
    async with serving(tmp_path, server={"token": TOKEN}) as served:
        assert (await served.ask("GET", "/api/books"))[0] == 404
        await served.gateway.registry.register(Library())
        assert (await served.ask("GET", "/api/books"))[0] == 401
        how: Any = {"headers": {"Authorization": f"Bearer {TOKEN}"}}
        assert await served.ask("GET", "/api/books", **how) == (200, {"volume": 7})
        assert await served.ask("GET", "/api/books/emma", **how) == (200, {"station": "emma"})
        assert (await served.ask("POST", "/api/books", **how))[0] == 405
        assert (await served.ask("GET", "/api/booksellers", **how))[0] == 404
        assert (await served.ask("GET", "/api/plugins/library/other", **how))[0] == 200
        assert (await served.ask("POST", "/api/search", **how))[0] == 405
        paths = (await served.ask("GET", "/openapi.json", **how))[1]["paths"]
        assert {"/api/books", "/api/books/{station}", "/api/plugins/library/other"} <= set(paths)
        await served.gateway.registry.unregister("library")
        assert (await served.ask("GET", "/api/books", **how))[0] == 404


async def test_a_path_is_refused_if_it_is_taken_or_not_for_this_plugin(tmp_path: Path) -> None:
    class Foreign(Plugin):
        name = "foreign"
        api_prefixes = ("/api/books",)

    class Second(Library):
        name = "second"

    Second.__module__ = "plugins.second"
    async with serving(tmp_path, Library()) as served:
        registry = served.gateway.registry
        with pytest.raises(PluginError, match="only plugins that come with Trunkline"):
            await registry.register(Foreign())
        with pytest.raises(AlreadyRegisteredError, match="'/api/books', which is a path of library"):
            await registry.register(Second())
        await registry.replace("library", Library())
        for prefix, said in (
            ("/api/sessions", "a path of the gateway"),
            ("/api/a/b", "write it as /api/word"),
        ):
            second = Second()
            second.api_prefixes = (prefix,)
            with pytest.raises(PluginError, match=said):
                check_prefixes(second, {})


async def test_the_first_words_of_the_gateways_own_routes_are_reserved(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        paths = [route.path.split("/") for route in await Api(served.gateway).routes()]
    assert {parts[2] for parts in paths if parts[1] == "api"} | {"v1"} == RESERVED


async def no_client(call: ApiCall[None, None, None]) -> None:
    """Answer nothing."""


async def with_answer(call: ApiCall[None, None, None], client: ApiConnection) -> Volume:
    """Answer wrongly."""
    return Volume()


async def with_body(call: ApiCall[None, None, Volume], client: ApiConnection) -> None:
    """Read a body."""


@pytest.mark.parametrize(
    ("handler", "said"),
    [(no_client, "lacks annotations"), (with_answer, "returns None"), (with_body, "has no body")],
)
def test_a_wrong_websocket_is_refused(handler: Any, said: str) -> None:
    with pytest.raises(PluginError, match=said):
        check_routes("radio", [ApiSocket("/a", "", handler)])
