"""The plugins of the running gateway over its API."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import aiohttp
import pytest

from gateway.extensions.admission.secrets import PluginSecrets
from gateway.server import Server
from gateway.testing.plugins import running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="confinement needs Linux"),
]

TOKEN = "t" * 32
MANIFEST = "api: 1\nname: greeter\nversion: 1.0\ncommands: [greet]\n"
CODE = """\
import sys
from trunkline_plugin import plugin


@plugin
async def greeter(ctx):
    async def greet(args, call):
        print("greeted", args, file=sys.stderr, flush=True)
        return "hello"

    return {"commands": [{"name": "greet", "description": "Greet", "execute": greet}]}
"""


async def test_001_32_plugins_are_listed_changed_and_read_with_the_token_alone(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "plugin.yml").write_text(MANIFEST)
    (source / "main.py").write_text(CODE)
    options = {"activate_timeout_ms": 60_000}
    web = {"host": "127.0.0.1", "port": 0, "token": TOKEN}
    async with (
        running(source, tmp_path, options=options, server=web) as chat,
        Server(chat.gateway) as server,
        aiohttp.ClientSession(server.url) as client,
    ):
        named = {"name": "greeter"}
        for method, path in (
            ("GET", "/api/plugins/running"),
            ("POST", "/api/plugins/apply"),
            ("POST", "/api/plugins/decisions"),
            ("GET", "/api/plugins/log?name=greeter"),
        ):
            async with client.request(method, path, json=named if method == "POST" else None) as refused:
                assert refused.status == 401
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        for word in ("one", "two"):
            assert (await chat.say(f"/greet {word}")).text == "hello"
        async with client.get("/api/plugins/running") as answer:
            listed = await answer.json()
        assert listed["settings"] == str(tmp_path / "trunkline.json")
        (state,) = listed["plugins"]
        assert (state["name"], state["version"], state["confined"]) == ("greeter", "1.0", True)
        assert (state["state"], state["deaths"], state["cost"]) == ("running", 0, 0)
        (call,) = state["calls"]
        assert (call["name"], call["calls"]) == ("command greet", 2)
        assert 0 < call["p50_ms"] <= call["p99_ms"]
        async with client.get("/api/plugins/log?name=greeter") as answer:
            log = await answer.json()
        assert log == {"text": "greeted one\ngreeted two\n", "end": 24}
        async with client.get("/api/plugins/log?name=greeter&after=12") as answer:
            assert (await answer.json())["text"] == "greeted two\n"
        async with client.get("/api/plugins/log?name=other") as answer:
            assert answer.status == 404
        (tmp_path / "plugin/main.py").write_text("changed")
        async with client.post("/api/plugins/apply", json=named) as answer:
            error = await answer.json()
            assert (answer.status, error["error_name"]) == (409, "InvalidStateError")
        assert "run `trunkline plugin approve" in error["message"]
        (tmp_path / "plugin/main.py").write_text(CODE)
        async with client.post("/api/plugins/apply", json=named) as answer:
            assert (await answer.json())["change"] == {
                "name": "greeter",
                "outcome": "unchanged",
                "version": "1.0",
            }
        async with client.get("/openapi.json") as answer:
            described = (await answer.json())["paths"]
        assert {"/api/plugins/running", "/api/plugins/apply", "/api/plugins/log"} <= described.keys()


FACTS = """\
from trunkline_plugin import plugin


@plugin
async def greeter(ctx):
    async def show(args, call):
        found = await ctx.session.metadata()
        return f"{found.channel} {found.owner} {found.messages} {found.model or 'default'}"

    return {"commands": [{"name": "greet", "description": "Show", "execute": show}]}
"""


async def test_001_18_the_context_has_facts_about_the_session(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "plugin.yml").write_text(MANIFEST)
    (source / "main.py").write_text(FACTS)
    async with running(source, tmp_path, options={"activate_timeout_ms": 60_000}) as chat:
        await chat.say("hello")
        assert (await chat.say("/greet")).text == "test ada 2 default"


TELLER = """\
from trunkline_plugin import plugin


@plugin
async def teller(ctx):
    async def tell(args, call):
        return f"It is {await ctx.secrets.get('API_TOKEN')}, {ctx.config.get('api_key')}."

    return {"commands": [{"name": "tell", "description": "Tell", "execute": tell}]}
"""


async def test_secrets_that_are_set_while_it_runs_are_masked_at_once(tmp_path: Path) -> None:
    source, first, second = tmp_path / "source", "first-secret-of-the-plugin", "second-secret-of-the-plugin"
    source.mkdir()
    keys = "config: {type: object, properties: {api_key: {type: string}}}"
    manifest = MANIFEST.replace("greeter", "teller").replace("greet", "tell")
    (source / "plugin.yml").write_text(f"{manifest}secrets: [API_TOKEN]\n{keys}\n")
    (source / "main.py").write_text(TELLER)
    options = {"activate_timeout_ms": 60_000, "api_key": "key-before-any-change"}
    async with running(source, tmp_path, options=options) as chat:
        secrets = PluginSecrets(chat.gateway.settings.data_dir)
        for value in (first, second):
            await asyncio.to_thread(secrets.put, "teller", "API_TOKEN", value)
            assert (await chat.say("/tell")).text == "It is **********, **********."
        file = chat.gateway.settings.file
        file.write_text(file.read_text().replace("key-before-any-change", "key-after-the-change"))
        await chat.gateway.live_plugins.apply("teller", 60)
        assert (await chat.say("/tell")).text == "It is **********, **********."
