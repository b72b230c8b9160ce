"""Interactions over HTTP: only what Discord signed lately is processed, as it would be over the gateway."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from channels.discord.connection import Endpoint
from channels.discord.fake import FakeDiscord, relaxed
from channels.discord.inflow import EventReader
from channels.discord.options import Options
from channels.discord.parse import BotProfile
from gateway.app import Gateway
from gateway.channel import OverloadedError
from gateway.server import Server
from gateway.testing.fake_models.script import Gate, Reply, Use
from gateway.testing.fake_models.server import FakeModels
from tests.channels.discord.talking import (
    CALLBACK,
    CREATE,
    NO_DRAIN,
    Measuring,
    bot_at,
    bots,
    gateway_at,
    quarantined,
    registered,
    settings_for,
    settled,
    states,
    until,
)

pytestmark = pytest.mark.slow

EVENT = "INTERACTION"


@asynccontextmanager
async def served(fake: FakeDiscord, directory: Path, **more: Any) -> AsyncGenerator[tuple[Gateway, str]]:
    """Run a gateway with its server; yield it and the URL of the endpoint, to which the fake posts."""
    more = {"public_key": fake.endpoint.public_key, **more}
    async with gateway_at(fake, directory, **more) as gateway, Server(gateway) as server:
        url = f"{server.url}/discord/interactions"
        await fake.register_endpoint(url)
        await registered(fake)
        yield gateway, url


async def post(url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, data=io.BytesIO(body), headers=headers) as told,
    ):
        return told.status, await told.text()


def a_command(fake: FakeDiscord) -> bytes:
    """Return the body of the command ``/ask hello`` in a direct chat, which the fake does not know of."""
    ada = fake.user("ada")
    return json.dumps(
        {
            "id": "1300000000000000001",
            "type": 2,
            "token": "t" * 40,
            "application_id": str(fake.bot_id),
            "channel_id": str(fake.dm("ada")),
            "user": {"id": str(ada.id), "username": "ada"},
            "data": {
                "id": "1",
                "name": "ask",
                "type": 1,
                "options": [{"name": "text", "type": 3, "value": "hello"}],
            },
        }
    ).encode()


async def test_a_command_is_answered_in_its_place(fake: FakeDiscord, tmp_path: Path) -> None:
    async with served(fake, tmp_path) as (gateway, _):
        pressed = fake.slash("general", "ask", {"text": "hello"})
        fake.slash(fake.dm("ada"), "model")
        await settled(gateway, 2)
    (answer,) = fake.messages("general")
    assert (answer.content, answer.loading) == ("You said: hello", False)
    assert fake.interaction(pressed).response == answer.id
    (told,) = fake.answers(fake.dm("ada"))
    assert "fake-small" in told
    assert fake.transcript.of(CALLBACK) == fake.transcript.of(CREATE) == []
    assert [call.status for call in fake.transcript.of(EVENT)] == [200, 200]
    fake.transcript.check()


async def test_buttons_and_typed_options_are_answered(fake: FakeDiscord, tmp_path: Path) -> None:
    ask = {"permissions": {"measure": "ask"}}
    async with (
        FakeModels() as models,
        served(fake, tmp_path, models=models, plugins=[Measuring()], more=ask) as (gateway, _),
    ):
        models.then(Reply((Use("measure", '{"what": "the table"}'),), "tools"))
        fake.say("general", f"{fake.mention} go")
        await fake.until(lambda: any(m.components for m in bots(fake, "general")))
        (prompt,) = [m for m in bots(fake, "general") if m.components]
        button = prompt.components[0]["components"][0]["custom_id"]
        stranger = fake.press("general", prompt.id, button, "bob")
        await fake.until(lambda: fake.interaction(stranger).state == "answered")
        fake.press("general", prompt.id, button)
        await settled(gateway, 1)
        await fake.until(lambda: "Allowed once" in fake.message("general", prompt.id).content)
        typed = fake.complete("general", "agent", "")
        await fake.until(lambda: fake.interaction(typed).state == "answered")
        await fake.until(lambda: len(fake.transcript.of(EVENT)) == 3)
    assert fake.transcript.of(CALLBACK) == []
    fake.transcript.check()


async def test_a_repeated_request_is_answered_once_also_after_a_restart(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    async with served(fake, tmp_path) as (gateway, url):
        body = a_command(fake)
        headers = fake.endpoint.headers(body)
        told = await asyncio.gather(*(post(url, body, headers) for _ in range(3)))
        assert told == [(200, '{"type": 5}')] * 3
        await settled(gateway, 1)
    async with served(fake, tmp_path) as (gateway, url):
        await post(url, body, headers)
        await settled(gateway, 1)
    assert fake.answers(fake.dm("ada")) == ["You said: hello"]


async def test_a_command_that_was_cut_by_the_end_of_the_gateway_is_answered(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    async with FakeModels() as models:
        models.then(Reply((Gate(asyncio.Event()),)))
        async with served(fake, tmp_path, models=models, more=NO_DRAIN):
            fake.slash("general", "ask", {"text": "hello"})
            await until(lambda: bool(fake.messages("general")) and bool(models.requests))
        async with served(fake, tmp_path, models=models) as (gateway, _):
            await settled(gateway, 1)
    (answer,) = fake.messages("general")
    assert (answer.content, answer.loading) == ("You said: hello", False)


WRONG: Sequence[Mapping[str, str]] = (
    {"X-Signature-Ed25519": ""},
    {"X-Signature-Ed25519": "00" * 64},
    {"X-Signature-Ed25519": "not hexadecimal"},
    {"X-Signature-Ed25519": "00" * 3_000},
    {"X-Signature-Timestamp": ""},
    {"X-Signature-Timestamp": "1"},
    {"X-Signature-Timestamp": "17.5"},
    {"X-Signature-Timestamp": "9" * 40},
)


async def test_what_discord_did_not_sign_is_refused(fake: FakeDiscord, tmp_path: Path) -> None:
    async with served(fake, tmp_path) as (gateway, url):
        body = a_command(fake)
        right = fake.endpoint.headers(body)
        for wrong in WRONG:
            assert (await post(url, body, {**right, **wrong}))[0] == 401, wrong
        assert (await post(url, body, {}))[0] == 401
        assert (await post(url, body + b" ", right))[0] == 401
        assert (await post(url, body, fake.endpoint.headers(body, key=b"k" * 32)))[0] == 401
        assert await states(gateway) == []


@pytest.mark.parametrize(("skew", "status"), [(-301, 401), (320, 401), (-240, 200), (295, 200)])
async def test_what_is_old_or_of_tomorrow_is_refused(
    fake: FakeDiscord, tmp_path: Path, skew: int, status: int
) -> None:
    async with served(fake, tmp_path) as (_, url):
        body = a_command(fake)
        with capture_logs() as logs:
            for _ in range(2):
                assert (await post(url, body, fake.endpoint.headers(body, skew=skew)))[0] == status
    told = [entry["event"] for entry in logs if "check the clock" in entry["event"]]
    assert len(told) == (status == 401), told


async def test_what_is_not_an_interaction_is_refused_and_kept(fake: FakeDiscord, tmp_path: Path) -> None:
    async with served(fake, tmp_path) as (gateway, url):
        for body in (b"{", b"[]", b"null", b"7", b"[" * 100_000, b'{"id": 1, "type": 2}', b'{"type": 1}'):
            assert (await post(url, body, fake.endpoint.headers(body)))[0] == 400, body[:30]
        assert await quarantined(gateway) == []
        body = b'{"id": "13", "type": 2, "token": "t", "data": 5}'
        assert (await post(url, body, fake.endpoint.headers(body)))[0] == 400
        assert [json.loads(raw)["id"] for raw in await quarantined(gateway)] == ["13"]
        body = b"{" + b" " * 2_000_000
        assert (await post(url, body, fake.endpoint.headers(body)))[0] == 413
        assert gateway.health()["discord"][0]


async def test_a_gateway_without_the_key_has_no_endpoint(fake: FakeDiscord, tmp_path: Path) -> None:
    async with gateway_at(fake, tmp_path) as gateway, Server(gateway) as server:
        body = a_command(fake)
        status, _ = await post(f"{server.url}/discord/interactions", body, fake.endpoint.headers(body))
        assert status in (404, 405)
        with pytest.raises(ValueError, match="could not be verified"):
            await fake.register_endpoint(f"{server.url}/discord/interactions")


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("0" * 64, "public_key is not the Public Key of this"),
        ("", "Discord posts commands and buttons to http:"),
    ],
)
async def test_interactions_that_cannot_arrive_are_reported(
    fake: FakeDiscord, tmp_path: Path, key: str, told: str
) -> None:
    fake.post_interactions("http://127.0.0.1:9/")
    async with FakeModels() as models:
        gateway = Gateway(settings_for(tmp_path, models, bot_at(fake, public_key=key)))
        async with gateway.running():
            await until(lambda: gateway.health()["discord"][1].startswith(told))
            assert not gateway.health()["discord"][0]


async def test_discord_refuses_an_endpoint_that_accepts_every_signature(fake: FakeDiscord) -> None:
    async def trusting(_: web.Request) -> web.Response:
        return web.json_response({"type": 1})

    async with listening([web.post("/", trusting)]) as address:
        with pytest.raises(ValueError, match="could not be verified"):
            await fake.register_endpoint(address)


@asynccontextmanager
async def listening(routes: Sequence[web.AbstractRouteDef]) -> AsyncGenerator[str]:
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, lingering_time=0)  # a body that does not come, does not come later, either
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}/"
    finally:
        await runner.cleanup()


async def test_a_response_that_is_not_ready_in_time_is_posted_instead() -> None:
    async with FakeDiscord(figures=relaxed()) as fake, asyncio.TaskGroup() as tasks:
        endpoint = Endpoint("/", fake.endpoint.public_key)
        late, told = asyncio.Event(), list[bool]()

        async def interact(data: Any, receive: Any, answer: Any) -> None:
            await late.wait()
            told.append(await answer({"type": 5}))

        reader: EventReader = object.__new__(EventReader)  # only for what cannot be parsed
        body = b'{"id": "13", "type": 2}'
        headers = fake.endpoint.headers(body)
        async with listening(endpoint.routes()) as address:
            assert (await post(address, body, headers))[0] == 503  # the bot has not logged in
            with endpoint.opened(interact, _receive, reader, tasks):
                assert (await post(address, body, headers))[0] == 503
                late.set()
                await until(lambda: told == [False])


async def test_an_invalid_interaction_during_an_overload_does_not_end_the_channel() -> None:
    async def interact(data: Any, receive: Any, answer: Any) -> None:
        raise msgspec.ValidationError("no name")

    async def receive(*_: Any, **__: Any) -> Sequence[Any]:
        raise OverloadedError("100000 messages are waiting")

    bot = BotProfile("discord", "1", Options.model_validate({"token": "t"}), frozenset(), str)
    reader: EventReader = object.__new__(EventReader)
    reader._bot = bot  # pyright: ignore[reportPrivateUsage]
    async with FakeDiscord(figures=relaxed()) as fake, asyncio.TaskGroup() as tasks:
        endpoint = Endpoint("/", fake.endpoint.public_key)
        body = b'{"id": "13", "type": 2}'
        async with listening(endpoint.routes()) as address:
            with endpoint.opened(interact, receive, reader, tasks), capture_logs() as logs:
                assert (await post(address, body, fake.endpoint.headers(body)))[0] == 400
    assert [line["event"] for line in logs][-1] == "an invalid event was not stored"


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    endpoint = Endpoint("/", "00" * 32, body_seconds=0.05)
    async with listening(endpoint.routes()) as address:
        host, port = address.removeprefix("http://").rstrip("/").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert b" 408 " in await reader.readline()
        writer.close()


async def _receive(*_: Any, **__: Any) -> Sequence[Any]:
    return ()


@pytest.mark.parametrize(
    "wrong", [{"public_key": "secret"}, {"public_key": "0" * 63}, {"interactions_path": "here"}]
)
def test_wrong_settings_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Options.model_validate({"token": "t", **wrong})


def test_each_account_has_its_own_path() -> None:
    options = Options.model_validate({"token": "t"})
    assert options.route("discord") == "/discord/interactions"
    assert options.route("discord.two") == "/discord/two/interactions"
    assert Options.model_validate({"token": "t", "interactions_path": "/a/b"}).route("discord") == "/a/b"


def test_the_missing_library_is_named() -> None:
    script = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from channels.discord.options import Options\n"
        "Options.model_validate({'token': 'a.b.c'}).check('channels.discord')\n"
        "Options.model_validate({'token': 'a.b.c', 'public_key': '0' * 64}).check('channels.discord')\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.stderr.endswith(
        "SettingsError: channels.discord.public_key: needs the extra interactions: "
        "pip install 'trunkline[interactions]'\n"
    )
