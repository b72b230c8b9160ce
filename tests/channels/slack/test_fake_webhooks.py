"""The fake's events by HTTP: signatures, the challenge, and trying again; with Bolt behind its own server."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

import pytest
from aiohttp import web
from slack_sdk.signature import SignatureVerifier

from channels.slack.fake import FakeSlack
from tests.channels.slack.apps import PATH, bolt, by_http, plain

JSON = {"Content-Type": "application/json"}


class Server:
    """An app's server without a library: answers what it is told to, and keeps what it got."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[web.Response] = []
        self.got: list[tuple[dict[str, str], str]] = []

    async def handle(self, request: web.Request) -> web.Response:
        text = await request.text()
        if "challenge" in text:
            return web.json_response({"challenge": json.loads(text)["challenge"]})
        self.got.append((dict(request.headers), text))
        return self.answers.pop(0) if self.answers else web.Response()


@asynccontextmanager
async def server(fake: FakeSlack) -> AsyncGenerator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_post(PATH, made.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.url = "http://{}:{}".format(*runner.addresses[0][:2]) + PATH
        await fake.register(made.url)
        yield made
    finally:
        await runner.cleanup()


async def test_an_address_has_to_answer_the_challenge() -> None:
    async with FakeSlack() as fake:
        async with by_http(fake, bolt(fake)):
            assert fake.webhooks.url is not None
        with pytest.raises(ValueError, match="does not answer the challenge"):
            await fake.register(fake.url + "/upload/v1/nothing")


async def test_an_event_is_signed_and_comes_once() -> None:
    async with FakeSlack() as fake, server(fake) as app:
        fake.say("general", "hi")
        delivery = await fake.deliveries[0].settled()
        headers, body = app.got[0]
        assert SignatureVerifier(fake.app.signing_secret).is_valid_request(body, headers)
        assert json.loads(body)["event"]["text"] == "hi"
        assert "X-Slack-Retry-Num" not in headers
        assert (delivery.attempts, len(app.got)) == (1, 1)


async def test_an_event_is_tried_four_times_and_each_is_signed_anew() -> None:
    async with FakeSlack() as fake, server(fake) as app:
        app.answers = [web.Response(status=500) for _ in range(4)]
        fake.say("general", "hi")
        await fake.until(lambda: len(fake.deliveries[0].reasons) == 2)
        fake.clock.advance(60)
        await fake.until(lambda: len(fake.deliveries[0].reasons) == 3)
        fake.clock.advance(300)
        assert (await fake.deliveries[0].settled()).lost
        tries = [(got.get("X-Slack-Retry-Num"), got.get("X-Slack-Retry-Reason")) for got, _ in app.got]
        assert tries == [(None, None), ("1", "http_error"), ("2", "http_error"), ("3", "http_error")]
        valid = SignatureVerifier(fake.app.signing_secret).is_valid_request
        assert all(valid(body, headers) for headers, body in app.got)
        assert len({json.loads(body)["event_id"] for _, body in app.got}) == 1


async def test_an_app_can_ask_not_to_be_tried_again() -> None:
    async with FakeSlack() as fake, server(fake) as app:
        app.answers = [web.Response(status=500, headers={"X-Slack-No-Retry": "1"})]
        fake.say("general", "hi")
        delivery = await fake.deliveries[0].settled()
        assert (delivery.lost, delivery.attempts) == (True, 1)


async def test_an_address_where_nobody_listens_fails() -> None:
    async with FakeSlack() as fake:
        async with server(fake):
            pass
        fake.say("general", "hi")
        await fake.until(lambda: len(fake.deliveries[0].reasons) == 2)
        assert fake.deliveries[0].reasons == ["connection_failed"] * 2


async def test_slash_commands_and_buttons_come_as_forms() -> None:
    async with plain() as (fake, api), server(fake) as app:
        app.answers = [web.json_response({"response_type": "in_channel", "text": "42"})]
        await fake.command("general", "/ask the answer").settled()
        form = parse_qs(app.got[0][1])
        assert (form["command"], form["text"]) == (["/ask"], ["the answer"])
        assert fake.answers("general") == ["42"]
        button = {"type": "button", "action_id": "yes", "text": {"type": "plain_text", "text": "Yes"}}
        blocks = [{"type": "actions", "elements": [button]}]
        posted = await api.call("chat.postMessage", channel="general", text="?", blocks=blocks)
        await fake.press("general", posted["ts"], "Yes").settled()
        payload = json.loads(parse_qs(app.got[-1][1])["payload"][0])
        assert (payload["type"], payload["actions"][0]["action_id"]) == ("block_actions", "yes")


@pytest.mark.parametrize(("skew", "status"), [(0, 200), (-299, 200), (-301, 401), (301, 401)])
async def test_bolt_takes_signatures_of_the_last_five_minutes(skew: int, status: int) -> None:
    async with FakeSlack() as fake:
        app = bolt(fake)
        app.event("message")(_nothing)
        async with by_http(fake, app) as url:
            fake.say("general", "hi")
            body = json.dumps(fake.deliveries[0].payload)
            answered, _, _ = await fake.webhooks.post(url, body, JSON, skew=skew)
            assert answered == status


async def test_a_platform_whose_clock_is_wrong_is_not_believed() -> None:
    async with FakeSlack() as fake:
        app = bolt(fake)
        app.event("message")(_nothing)
        async with by_http(fake, app):
            fake.state.stamps.skew = -400
            fake.say("general", "hi")
            await fake.until(lambda: fake.deliveries[0].reasons)
            assert fake.deliveries[0].reasons[0] == "http_error"
            assert float(fake.messages("general")[0].ts) < time.time() - 300


async def test_bolt_handles_a_command_a_button_and_an_event() -> None:
    async with plain() as (fake, _):
        app = bolt(fake)

        @app.command("/ask")
        async def ask(ack: Any, respond: Any, command: Any) -> None:
            await ack(f"thinking about {command['text']}")
            button = {"type": "button", "action_id": "more", "text": {"type": "plain_text", "text": "More"}}
            await respond(
                "42", blocks=[{"type": "actions", "elements": [button]}], response_type="in_channel"
            )

        @app.action("more")
        async def more(ack: Any, respond: Any) -> None:
            await ack()
            await respond("43", replace_original=True)

        async with by_http(fake, app):
            await fake.command("general", "/ask everything").settled()
            await fake.until(lambda: fake.answers("general"))
            assert [said.text for said in fake.hidden("general")] == ["thinking about everything"]
            await fake.press("general", fake.messages("general")[0].ts, "More").settled()
            await fake.until(lambda: fake.answers("general") == ["43"])
        fake.transcript.check()


async def _nothing(event: Any) -> None:
    assert event["type"] == "message"
