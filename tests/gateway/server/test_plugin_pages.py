"""Routes of confined plugins under ``/plugins``: real processes behind a real socket."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from gateway.contract.errors import PluginError, SettingsError
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.packages.installer import Installer
from gateway.extensions.confined.http import HttpRoutes
from gateway.extensions.confined.plugin import ConfinedPlugin
from gateway.settings import load_settings
from gateway.testing.served import Served, serving, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="confinement needs Linux"),
]

TOKEN = "0123456789abcdef0123456789abcdef"
CODE = """\
import asyncio, os
from trunkline_plugin import Response, plugin

@plugin
def desk(ctx):
    def item(request):
        kept = {name: value for name, value in request.items() if name not in ("body", "headers")}
        return {**kept, "secrets": [name for name in request.headers if name in ("authorization", "cookie")]}

    async def echo(request):
        return Response(request.body, 201, {"content-type": request.headers["content-type"]})

    def answer(request):
        kind = request.params["kind"]
        if kind == "page":
            return Response("<h1>Hello</h1>")
        if kind == "moved":
            return Response("", 302, {"location": "/plugins/desk/items/1"})
        if kind == "away":
            return Response("", 302, {"location": request.query["to"]})
        if kind == "cookie":
            return Response("", headers={"set-cookie": "a=b"})
        if kind == "split":
            return Response("", headers={"etag": "a\\r\\nset-cookie: b"})
        if kind == "status":
            return Response("", 101)
        if kind == "large":
            return bytes(5 * 1024 * 1024)
        if kind == "larger":
            return bytes(5 * 1024 * 1024 + 1)
        if kind == "dies":
            os._exit(3)
        if kind == "raises":
            raise ValueError("a secret detail")

    return {"routes": {"GET /items/{id}": item, "POST /echo": echo, "GET /answers/{kind}": answer}}
"""


@asynccontextmanager
async def desk(tmp_path: Path, routes: str = "true", *allowed: str) -> AsyncGenerator[Served]:
    """A gateway with a token and the plugin ``desk``, which was granted its routes."""
    (tmp_path / "desk").mkdir()
    (tmp_path / "desk/plugin.yml").write_text(
        f"api: 1\nname: desk\nversion: 1.0.0\ncapabilities: {{routes: {routes}}}\n"
    )
    (tmp_path / "desk/main.py").write_text(CODE)
    file = tmp_path / "trunkline.toml"
    file.write_text('[plugins]\nenabled = ["./desk"]\n[plugins.desk]\ntool_timeout_ms = 30000\n')
    admission = Admission(load_settings(file, environ={}, cwd=tmp_path))
    grants = allowed or ("routes:public" if routes == "public" else "routes:token",)
    Installer(admission, {}).approve("./desk", grants, "cli:test")
    async with serving(tmp_path / "data", file=file, server={"token": TOKEN}) as served:
        yield served


async def ask(served: Served, method: str, path: str, **request: Any) -> tuple[int, Any, bytes]:
    headers = {"Authorization": f"Bearer {TOKEN}", **request.pop("headers", {})}
    url = f"{served.url}/plugins/desk{path}"
    async with served.http.request(method, url, headers=headers, allow_redirects=False, **request) as answer:
        return answer.status, answer.headers, await answer.read()


async def test_a_request_needs_the_token_and_brings_no_secrets(tmp_path: Path) -> None:
    async with desk(tmp_path) as served:
        for path in ("/plugins/desk/items/1", "/plugins/other/items/1"):
            assert (await served.ask("GET", path))[0] == 401
        status, _, body = await ask(served, "GET", "/items/a%20b?size=2", headers={"Cookie": "a=b"})
        assert status == 200
        assert body == (
            b'{"method": "GET", "path": "/items/a b", "params": {"id": "a b"}, "query": {"size": "2"}, '
            b'"user": "owner", "text": "", "secrets": []}'
        )
        assert (await ask(served, "GET", "/nothing"))[0] == 404
        assert (await ask(served, "POST", "/items/1"))[0] == 404
        assert (await ask(served, "HEAD", "/items/1"))[::2] == (200, b"")
        actions = served.gateway.parts.actions
        await actions.flush()
        noted = [(one.action, one.value, one.allowed) for one in await actions.latest("desk")]
        assert ("routes", "GET /items/a b", True) in noted


async def test_bodies_and_answers_are_bounded(tmp_path: Path) -> None:
    async with desk(tmp_path) as served:
        kind = {"Content-Type": "application/x-test"}
        for size in (0, 10, 1024 * 1024):
            data = bytes(range(256)) * (size // 256 or 1) if size else b""
            status, headers, body = await ask(served, "POST", "/echo", data=BytesIO(data), headers=kind)
            assert (status, headers["Content-Type"], body == data) == (201, "application/x-test", True)
        longer = BytesIO(bytes(1024 * 1024 + 1))
        assert (await ask(served, "POST", "/echo", data=longer, headers=kind))[0] == 413
        status, _, body = await ask(served, "GET", "/answers/large")
        assert (status, len(body)) == (200, 5 * 1024 * 1024)
        assert (await ask(served, "GET", "/answers/larger"))[0] == 500


async def test_a_page_runs_no_scripts_and_sets_no_cookies(tmp_path: Path) -> None:
    async with desk(tmp_path) as served:
        status, headers, body = await ask(served, "GET", "/answers/page")
        assert (status, body) == (200, b"<h1>Hello</h1>")
        assert headers["Content-Security-Policy"].startswith("sandbox; default-src 'none';")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        status, headers, _ = await ask(served, "GET", "/answers/moved")
        assert (status, headers["Location"]) == (302, "/plugins/desk/items/1")
        assert (await ask(served, "GET", "/answers/none"))[0] == 204
        folders = ("/plugins/desk/../x", "/plugins/desk/%2E%2e/x", "/plugins/desk/.%2e/x", "/plugins/desk\\x")
        for target in ("https://example.org/", "/api/sessions", *folders):
            assert (await ask(served, "GET", "/answers/away", params={"to": target}))[0] == 500
        for wrong in ("cookie", "split", "status", "raises"):
            status, headers, body = await ask(served, "GET", f"/answers/{wrong}")
            assert status == 500
            assert "Set-Cookie" not in headers
            assert b"secret detail" not in body


async def test_public_routes_need_no_token(tmp_path: Path) -> None:
    async with desk(tmp_path, "public") as served:
        assert (await served.ask("GET", "/plugins/desk/items/1"))[1]["user"] == ""
        assert (await served.ask("GET", "/api/sessions"))[0] == 401
        _, document = await served.ask("GET", "/openapi.json")
        shown = document["paths"]["/plugins/desk/items/{id}"]["get"]
        assert shown["security"] == []
        assert [one["name"] for one in shown["parameters"]] == ["id"]
        assert "503" in shown["responses"]


async def test_a_dead_plugin_is_unavailable_for_some_seconds(tmp_path: Path) -> None:
    async with desk(tmp_path) as served:
        plugin = served.gateway.registry.get("desk")
        assert isinstance(plugin, ConfinedPlugin)
        status, headers, _ = await ask(served, "GET", "/answers/dies")
        assert status == 503
        assert "Retry-After" in headers
        await until(lambda: plugin.process.record.deaths == 1 and plugin.is_ready())
        assert (await ask(served, "GET", "/items/1"))[0] == 200
        await plugin.process.stop()
        status, headers, _ = await ask(served, "GET", "/items/1")
        assert (status, headers["Retry-After"]) == (503, "5")


@pytest.mark.parametrize(
    ("routes", "allowed", "reason"),
    [
        ("true", "storage", "routes needs the capability routes:token, which is not granted"),
        ("false", "storage", "its code has routes, and capabilities.routes in plugin.yml says otherwise"),
    ],
)
async def test_routes_must_be_declared_and_granted(
    tmp_path: Path, routes: str, allowed: str, reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        async with desk(tmp_path, routes, allowed):
            pass


@pytest.mark.parametrize("route", ["GET", "get /a", "TRACE /a", "GET /a/../b", "GET /{a}/{a}", "GET /a?b"])
def test_a_wrong_route_is_refused(route: str) -> None:
    async def call(method: str, params: object) -> object:
        raise AssertionError

    with pytest.raises(PluginError, match="write a method of GET, POST"):
        HttpRoutes("desk", call).declare([route])
