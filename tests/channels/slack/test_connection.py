"""Deliveries by HTTP: only what Slack signed lately is accepted."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from sqlalchemy import select
from structlog.testing import capture_logs

from channels.slack.connection import Dispatcher, SocketMode, Webhook
from channels.slack.fake import FakeSlack
from channels.slack.fake.delivery import event_callback
from gateway.app import Gateway
from gateway.server import Server
from gateway.store import schema as t
from gateway.testing.fake_models.server import FakeModels
from tests.channels.slack.gateways import settings_of, settled, states, until

pytestmark = pytest.mark.slow


@asynccontextmanager
async def served(directory: Path, **fake_options: Any) -> AsyncGenerator[tuple[FakeSlack, Gateway, str]]:
    async with FakeSlack(**fake_options) as fake, FakeModels() as models:
        settings = settings_of(directory, models, fake, mode="http", app_token="")
        gateway = Gateway(settings)
        async with gateway.running(), Server(gateway) as server:
            await until(lambda: gateway.health()["slack"][0])
            yield fake, gateway, f"{server.url}/slack/events"
        fake.transcript.check()


def an_event(fake: FakeSlack, text: str = "hello") -> str:
    team = fake.state.team_of(None)
    room, user = fake.chat("@ada"), fake.user("ada")
    event = {
        "type": "message",
        "channel": room.id,
        "user": user.id,
        "text": text,
        "ts": fake.state.stamps.next(),
    }
    return json.dumps(event_callback(fake.state, team, {**event, "channel_type": "im"}))


async def post(url: str, body: str, headers: dict[str, str]) -> tuple[int, str, str]:
    given = {"Content-Type": "application/json", **headers}
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, data=io.BytesIO(body.encode()), headers=given) as answer,
    ):
        return answer.status, answer.content_type, await answer.text()


async def test_a_signed_event_is_accepted_however_often_it_comes_and_answered_once(tmp_path: Path) -> None:
    async with served(tmp_path) as (fake, gateway, url):
        body = an_event(fake)
        for _ in range(3):
            assert (await post(url, body, fake.webhooks.signature(body)))[0] == 200
        await settled(gateway, "done")
        assert fake.answers("@ada") == ["You said: hello"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"X-Slack-Request-Timestamp": "1_0"},
        {"X-Slack-Request-Timestamp": "١٢٣"},
        {"X-Slack-Request-Timestamp": "17.5"},
        {"X-Slack-Request-Timestamp": ""},
        {"X-Slack-Request-Timestamp": "9" * 40},
        {"X-Slack-Signature": "v0=ä"},
        {"X-Slack-Signature": ""},
        {"X-Slack-Signature": "v1=abc"},
    ],
)
async def test_a_signature_that_is_none_is_refused(tmp_path: Path, wrong: dict[str, str]) -> None:
    async with served(tmp_path) as (fake, gateway, url):
        body = an_event(fake)
        assert (await post(url, body, {**fake.webhooks.signature(body), **wrong}))[0] == 401
        assert await states(gateway) == []


async def test_no_signature_is_none(tmp_path: Path) -> None:
    async with served(tmp_path) as (fake, _gateway, url):
        assert (await post(url, an_event(fake), {}))[0] == 401


@pytest.mark.parametrize(("skew", "status"), [(-301, 401), (320, 401), (-240, 200), (295, 200)])
async def test_what_is_old_or_of_tomorrow_is_refused(tmp_path: Path, skew: int, status: int) -> None:
    async with served(tmp_path) as (fake, _gateway, url):
        body = an_event(fake)
        assert (await post(url, body, fake.webhooks.signature(body, skew)))[0] == status


async def test_the_log_names_what_to_check_once_for_each_reason(tmp_path: Path) -> None:
    async with served(tmp_path) as (fake, gateway, url):
        body = an_event(fake)
        signed = fake.webhooks.signature(body)
        with capture_logs() as logs:
            for headers in (fake.webhooks.signature(body, -400), {**signed, "X-Slack-Signature": "v0=1"}) * 2:
                assert (await post(url, body, headers))[0] == 401
        ok, detail = gateway.health()["slack"]
        assert (ok, "check signing_secret" in detail) == (True, True)
        assert (await post(url, body, signed))[0] == 200
        assert gateway.health()["slack"] == (True, "")
    told = [entry["reason"] for entry in logs if entry["event"].startswith("refused a request")]
    assert [reason.partition("; ")[2] for reason in told] == [
        "check the clock of this machine",
        "check signing_secret, on the page Basic Information of the app",
    ]


async def test_one_byte_more_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as (fake, _gateway, url):
        body = an_event(fake)
        assert (await post(url, body + " ", fake.webhooks.signature(body)))[0] == 401


async def test_a_challenge_comes_back_as_plain_text(tmp_path: Path) -> None:
    async with served(tmp_path) as (fake, _gateway, url):
        body = json.dumps({"type": "url_verification", "challenge": "<script>alert(1)</script>"})
        status, kind, text = await post(url, body, fake.webhooks.signature(body))
        assert (status, kind, text) == (200, "text/plain", "<script>alert(1)</script>")
        await fake.register(url)


@pytest.mark.parametrize("body", ["{", "[]", "null", "7", "[" * 100_000])
async def test_a_signed_body_that_is_not_a_payload_is_a_bad_request(tmp_path: Path, body: str) -> None:
    async with served(tmp_path) as (fake, _gateway, url):
        assert (await post(url, body, fake.webhooks.signature(body)))[0] == 400


async def test_a_body_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as (fake, _gateway, url):
        body = " " * 2_000_000
        assert (await post(url, body, fake.webhooks.signature(body)))[0] == 413


async def test_commands_and_buttons_come_as_forms(tmp_path: Path) -> None:
    async with served(tmp_path) as (fake, gateway, url):
        await fake.register(url)
        delivery = await fake.command("general", "/model").settled()
        assert delivery.acknowledged
        await settled(gateway, "done")
        (told,) = fake.hidden("general")
        assert told.text.startswith("The model is")


async def test_what_cannot_be_read_is_kept_and_acknowledged(tmp_path: Path) -> None:
    async with served(tmp_path) as (fake, gateway, url):
        body = json.dumps(
            {"type": "event_callback", "event_id": "Ev7", "event": {"type": "message", "ts": 5}}
        )
        assert (await post(url, body, fake.webhooks.signature(body)))[0] == 200
        kept = await gateway.parts.store.read(lambda c: list(c.execute(select(t.quarantine)).mappings()))
        assert [row["key"] for row in kept] == ["Ev7"]


async def test_a_gateway_that_is_going_asks_slack_to_come_again(tmp_path: Path) -> None:
    async with served(tmp_path) as (fake, gateway, url):
        gateway.parts.dispatcher.stopping = True
        body = an_event(fake)
        assert (await post(url, body, fake.webhooks.signature(body)))[0] == 503
        gateway.parts.dispatcher.stopping = False
        assert (await post(url, body, fake.webhooks.signature(body)))[0] == 200
        await settled(gateway, "done")


async def test_a_delivery_that_fails_is_logged_and_not_acknowledged() -> None:
    class Broken:
        async def commit(self, payload: Any) -> bool:
            raise RuntimeError("a defect")

    dispatcher = Dispatcher(lambda _team: Broken())
    event = {"type": "message", "channel": "C1", "user": "U1", "text": "hello", "ts": "1.0"}
    with capture_logs() as logs:
        answer = await dispatcher.handle(
            "events_api", {"type": "event_callback", "team_id": "T1", "event": event}
        )
    assert answer == (False, None)
    assert [line["event"] for line in logs if line.get("exc_info")] == ["a delivery could not be committed"]


async def test_a_delivery_that_takes_long_does_not_delay_the_next_connection() -> None:
    begun, released, gaps = asyncio.Event(), asyncio.Event(), list[int]()

    async def handle(kind: str, payload: Any) -> tuple[bool, Any]:
        begun.set()
        await released.wait()
        return False, None

    async with FakeSlack() as fake, asyncio.TaskGroup() as tasks:
        socket_mode = SocketMode(fake.app_token, fake.api_url, handle, lambda: gaps.append(1))
        running = tasks.create_task(socket_mode.run())
        await until(lambda: not socket_mode.problem)
        fake.deliver_event({"type": "message", "channel": "C1", "user": "U1", "text": "hi", "ts": "1.0"})
        await begun.wait()
        fake.lose_sockets()
        await until(lambda: len(gaps) == 2)
        released.set()
        running.cancel()


async def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    async def handle(kind: str, payload: Any) -> tuple[bool, Any]:
        raise AssertionError("it has no body")

    webhook = Webhook("secret", handle, body_seconds=0.05)
    app = web.Application()
    app.router.add_post("/slack/events", webhook.serve)
    runner = web.AppRunner(
        app, lingering_time=0
    )  # the rest of the body does not come after the answer, either
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
        writer.write(b"POST /slack/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert b" 408 " in await reader.readline()
        writer.close()
    finally:
        await runner.cleanup()
