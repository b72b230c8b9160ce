"""Routes of plugins under ``/api/plugins``: like the gateway's own, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec import Struct

from gateway import NotFoundError, Plugin, PluginError
from gateway.api import ApiCall, ApiRoute
from gateway.contract.errors import AlreadyRegisteredError
from gateway.testing.chat import chatting
from gateway.testing.served import Served, serving
from plugins.snippets import Snippets

SETTINGS = {"texts": {"shorter": "Say it in one sentence."}, "answers": {"vpn": "vpn.example.org"}}


class ShelfPath(Struct, frozen=True):
    """A shelf."""

    shelf: int


class ShelfQuery(Struct, frozen=True):
    """The most books to show."""

    most: int = 10


class Status(Struct, frozen=True):
    """The books of a shelf."""

    shelf: int
    books: list[str]
    user: str = ""


class Library(Plugin):
    """A plugin with routes of all kinds."""

    name = "library"

    def __init__(self) -> None:
        self.books: list[str] = []

    def routes(self) -> Sequence[ApiRoute]:
        return [
            ApiRoute("GET", "/shelves/{shelf}", "Show a shelf.", self._show, (NotFoundError,)),
            ApiRoute("PUT", "/shelves/{shelf}", "Fill a shelf.", self._put),
            ApiRoute("DELETE", "/shelves/{shelf}", "Clear a shelf.", self._clear),
            ApiRoute("GET", "/broken/{shelf}", "Fail in a way.", self._fail),
        ]

    async def _show(self, call: ApiCall[ShelfPath, ShelfQuery, None]) -> Status:
        if call.path.shelf != 1:
            raise NotFoundError(f"no shelf {call.path.shelf}")
        return Status(call.path.shelf, self.books[: call.query.most], call.user)

    async def _put(self, call: ApiCall[ShelfPath, None, Status]) -> Status:
        self.books = call.body.books
        return call.body

    async def _clear(self, call: ApiCall[ShelfPath, None, None]) -> None:
        self.books.clear()

    async def _fail(self, call: ApiCall[ShelfPath, None, None]) -> Status:
        match call.path.shelf:
            case 1:
                raise ValueError("a secret detail")
            case 2:
                raise SystemExit(3)
            case 3:
                await asyncio.Event().wait()
            case 4:
                raise asyncio.CancelledError
            case _:
                pass
        return None  # type: ignore[return-value]


BASE = "/api/plugins/library"


async def test_routes_read_typed_parameters_and_bodies(tmp_path: Path) -> None:
    async with serving(tmp_path, Library()) as served:
        book = {"shelf": 1, "books": ["Emma", "Kim"], "user": ""}
        assert await served.ask("PUT", f"{BASE}/shelves/1", json=book) == (200, book)
        status, shown = await served.ask("GET", f"{BASE}/shelves/1?most=1")
        assert (status, shown["books"]) == (200, ["Emma"])
        assert (await served.ask("GET", f"{BASE}/shelves/2"))[1]["error_name"] == "NotFoundError"
        for method, path, body, said in (
            ("GET", f"{BASE}/shelves/one", None, "the path"),
            ("GET", f"{BASE}/shelves/1?most=x", None, "the query"),
            ("PUT", f"{BASE}/shelves/1", {"shelf": 1}, "books"),
        ):
            status, error = await served.ask(method, path, json=body)
            assert (status, error["error_name"]) == (400, "InvalidRequestError")
            assert said in error["message"]
        assert await served.ask("DELETE", f"{BASE}/shelves/1") == (204, None)
        assert (await served.ask("GET", f"{BASE}/shelves/1"))[1]["books"] == []
        assert (await served.ask("POST", f"{BASE}/shelves/1"))[0] == 405
        assert (await served.ask("GET", f"{BASE}/nothing"))[0] == 404
        assert (await served.ask("GET", "/api/plugins/nobody/nothing"))[0] == 404


async def test_a_route_needs_the_token_as_all_others(tmp_path: Path) -> None:
    server = {"token": "t" * 40}
    async with serving(tmp_path, Snippets(), server=server, plugins={"snippets": SETTINGS}) as served:
        url = f"{served.url}/api/plugins/snippets/texts"
        async with aiohttp.ClientSession() as http:
            for path in (url, f"{served.url}/api/plugins/unknown/x"):
                async with http.get(path) as response:
                    assert response.status == 401
                    assert (await response.json())["error_name"] == "UnauthorizedError"
            async with http.get(url, headers={"Authorization": "Bearer wrong"}) as response:
                assert response.status == 401
            async with http.get(url, headers={"Authorization": f"Bearer {server['token']}"}) as response:
                assert response.status == 200
                names = [each["name"] for each in (await response.json())["snippets"]]
    assert names == ["shorter", "vpn"]


@pytest.mark.parametrize("shelf", [1, 2, 3, 4, 5])
async def test_a_handler_that_fails_gives_an_error_and_the_server_continues(
    tmp_path: Path, shelf: int
) -> None:
    settings: dict[str, Any] = {"plugins": {"library": {"tool_timeout_ms": 3_000}}}
    async with serving(tmp_path, Library(), **settings) as served:
        status, error = await served.ask("GET", f"{BASE}/broken/{shelf}")
        assert (status, error["error_name"]) == (500, "InternalError")
        assert "plugin 'library' could not answer" in error["message"]
        assert "secret" not in error["message"]
        assert (await served.ask("GET", f"{BASE}/shelves/1"))[0] == 200


async def test_routes_come_and_go_with_their_plugin(tmp_path: Path) -> None:
    async def paths(served: Served) -> set[str]:
        return set((await served.ask("GET", "/openapi.json"))[1]["paths"])

    async with serving(tmp_path) as served:
        before = await paths(served)
        assert (await served.ask("GET", f"{BASE}/shelves/1"))[0] == 404
        await served.gateway.registry.register(Library())
        assert (await served.ask("GET", f"{BASE}/shelves/1"))[0] == 200
        assert await paths(served) - before == {f"{BASE}/shelves/{{shelf}}", f"{BASE}/broken/{{shelf}}"}
        await served.gateway.registry.unregister("library")
        assert (await served.ask("GET", f"{BASE}/shelves/1"))[0] == 404
        assert await paths(served) == before


async def test_the_description_has_the_routes_and_renames_no_schema_of_the_gateway(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        _, before = await served.ask("GET", "/openapi.json")
        await served.gateway.registry.register(Library())
        _, document = await served.ask("GET", "/openapi.json")
    shown = document["paths"][f"{BASE}/shelves/{{shelf}}"]
    assert shown["get"]["operationId"] == "library_get_shelves_shelf"
    assert [(each["name"], each["in"]) for each in shown["get"]["parameters"]] == [
        ("shelf", "path"),
        ("most", "query"),
    ]
    assert set(shown["get"]["responses"]) == {"200", "400", "401", "403", "404", "429", "500"}
    answer = shown["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer == {"$ref": "#/components/schemas/library_Status"}
    assert shown["put"]["requestBody"]["content"]["application/json"]["schema"] == answer
    schemas = document["components"]["schemas"]
    assert set(schemas) - set(before["components"]["schemas"]) == {"library_Status"}
    assert all(schemas[name] == schema for name, schema in before["components"]["schemas"].items())


class NoStruct:
    """A type that cannot be described."""


async def no_annotation(call: Any) -> None:
    """Answer nothing."""


async def wrong_type(call: ApiCall[None, None, NoStruct]) -> None:  # type: ignore[type-var]
    """Answer nothing."""


async def fine(call: ApiCall[None, None, None]) -> None:
    """Answer nothing."""


async def reading(call: ApiCall[None, None, Status]) -> None:
    """Answer nothing."""


@pytest.mark.parametrize(
    ("routes", "said"),
    [
        ([ApiRoute("GET", "status", "", fine)], "write the path as /word"),
        ([ApiRoute("GET", "/../status", "", fine)], "write the path as /word"),
        ([ApiRoute("GET", "/status", "", fine)] * 2, "has the method and path of route GET"),
        ([ApiRoute("GET", "/a/{x}", "", fine)], r"the path has the parameters \['x'\]"),
        ([ApiRoute("GET", "/a", "", no_annotation)], "lacks annotations"),
        ([ApiRoute("GET", "/a", "", wrong_type)], "is not a msgspec.Struct"),
        ([ApiRoute("GET", "/a", "", reading)], "a GET request has no body"),
        ([ApiRoute("GET", "/a", "", lambda call: fine(call))], "not an async function"),
        ([ApiRoute("TRACE", "/a", "", fine)], "the method is not one of"),  # type: ignore[arg-type]
    ],
)
async def test_a_wrong_route_is_refused_when_the_plugin_is_registered(
    tmp_path: Path, routes: Sequence[ApiRoute], said: str
) -> None:
    class Wrong(Plugin):
        name = "wrong"

        def routes(self) -> Sequence[ApiRoute]:
            return routes

    async with chatting(tmp_path) as chat:
        with pytest.raises(PluginError, match=f"plugin 'wrong' failed to activate: .*{said}"):
            await chat.gateway.registry.register(Wrong())
        assert chat.gateway.registry.get("wrong") is None
        assert chat.gateway.registry.routes == {}


def test_two_parameters_of_other_names_are_one_path() -> None:
    from gateway.extensions.routes import check_routes

    library = Library()
    twice = [*library.routes(), ApiRoute("GET", "/shelves/{shelf}", "", library._clear)]
    with pytest.raises(AlreadyRegisteredError, match="remove one"):
        check_routes("library", twice)


async def test_the_snippets_are_shown_and_tried(tmp_path: Path) -> None:
    async with serving(tmp_path, Snippets(), plugins={"snippets": SETTINGS}) as served:
        base = "/api/plugins/snippets"
        assert (await served.ask("GET", f"{base}/texts/vpn"))[1]["answered"] is True
        assert (await served.ask("GET", f"{base}/texts/no"))[0] == 404
        for text, outcome in (
            ("!vpn", {"text": "vpn.example.org", "answered": True}),
            ("!shorter Hm.", {"text": "Say it in one sentence.\n\nHm.", "answered": False}),
            ("Hm.", {"text": "Hm.", "answered": False}),
        ):
            assert await served.ask("POST", f"{base}/trial", json={"text": text}) == (200, outcome)
        assert (await served.ask("POST", f"{base}/trial", json={"words": ""}))[0] == 400
