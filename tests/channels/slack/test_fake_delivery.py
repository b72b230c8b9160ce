"""Deliveries to the app over sockets and by HTTP, and their retries."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

import aiohttp
import pytest
from aiohttp import web
from slack_sdk.signature import SignatureVerifier

from channels.slack.fake import FakeSlack
from channels.slack.fake.state import Envelope
from tests.channels.slack.apps import PATH, Socket, bolt, by_http, connect, in_socket_mode, plain


async def test_a_socket_is_greeted_and_an_event_is_acknowledged() -> None:
    async with plain() as (fake, api):
        socket = await connect(fake, api)
        ts = fake.say("general", "hi")
        frame = await socket.read()
        assert (frame["type"], frame["accepts_response_payload"]) == ("events_api", False)
        assert (frame["retry_attempt"], frame["retry_reason"]) == (0, "")
        payload = frame["payload"]
        assert (payload["type"], payload["api_app_id"]) == ("event_callback", fake.app.id)
        assert payload["authorizations"][0]["team_id"] == payload["team_id"]
        assert (payload["event"]["ts"], payload["event"]["channel_type"]) == (ts, "channel")
        await socket.ack(frame)
        delivery = await fake.deliveries[0].settled()
        assert (delivery.acknowledged, delivery.attempts) == (True, 1)


async def test_what_is_not_acknowledged_comes_again_at_once_after_a_minute_and_after_five() -> None:
    async with plain() as (fake, api):
        socket = await connect(fake, api)
        fake.say("general", "hi")
        first = await socket.read()
        fake.clock.advance(3)
        second = await socket.read()
        fake.clock.advance(3)
        await fake.until(lambda: len(fake.deliveries[0].reasons) == 2)
        fake.clock.advance(59)
        fake.clock.advance(1)
        third = await socket.read()
        fake.clock.advance(3)
        await fake.until(lambda: len(fake.deliveries[0].reasons) == 3)
        fake.clock.advance(300)
        fourth = await socket.read()
        frames = (first, second, third, fourth)
        assert [(frame["retry_attempt"], frame["retry_reason"]) for frame in frames] == [
            (0, ""),
            (1, "timeout"),
            (2, "timeout"),
            (3, "timeout"),
        ]
        assert len({frame["payload"]["event_id"] for frame in frames}) == 1
        fake.clock.advance(3)
        assert (await fake.deliveries[0].settled()).lost


async def test_an_event_waits_a_minute_for_a_socket_when_there_is_none() -> None:
    async with plain() as (fake, api):
        fake.say("general", "hi")
        await fake.until(lambda: len(fake.deliveries[0].reasons) == 2)
        socket = await connect(fake, api)
        fake.clock.advance(60)
        frame = await socket.read()
        assert frame["retry_attempt"] == 2
        await socket.ack(frame)
        assert (await fake.deliveries[0].settled()).acknowledged


async def test_an_acknowledgement_that_comes_late_counts() -> None:
    async with plain() as (fake, api):
        socket = await connect(fake, api)
        fake.say("general", "hi")
        frame = await socket.read()
        fake.clock.advance(3)
        await socket.read()
        fake.clock.advance(3)
        await fake.until(lambda: len(fake.deliveries[0].reasons) == 2)
        await socket.ack(frame)
        assert (await fake.deliveries[0].settled()).attempts == 2


async def test_each_event_goes_to_one_of_the_sockets() -> None:
    async with plain() as (fake, api):
        sockets = [await connect(fake, api) for _ in range(3)]
        for number in range(6):
            fake.say("general", str(number))
        frames = [await socket.read() for socket in sockets for _ in range(2)]
        texts = sorted(frame["payload"]["event"]["text"] for frame in frames)
        assert texts == [str(number) for number in range(6)]


async def test_the_eleventh_socket_is_one_too_many() -> None:
    async with plain() as (fake, api):
        ten = [await connect(fake, api) for _ in range(10)]
        opened = await api.call("apps.connections.open", fake.app_token)
        socket = Socket(await api.http.ws_connect(opened["url"]))
        assert (await socket.read())["reason"] == "too_many_websockets"
        assert (await socket.socket.receive()).type is aiohttp.WSMsgType.CLOSE
        assert fake.transcript.problems == ["socket.connect: more than ten sockets"]
        assert len(fake.sockets.live) == len(ten)


async def test_an_address_opens_one_socket_only() -> None:
    async with plain() as (fake, api):
        opened = await api.call("apps.connections.open", fake.app_token)
        await api.http.ws_connect(opened["url"])
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await api.http.ws_connect(opened["url"])


async def test_an_address_is_good_for_half_a_minute() -> None:
    async with plain() as (fake, api):
        opened = await api.call("apps.connections.open", fake.app_token)
        fake.clock.advance(31)
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await api.http.ws_connect(opened["url"])


async def test_an_event_whose_socket_breaks_goes_to_another_at_once() -> None:
    async with plain() as (fake, api):
        first = await connect(fake, api)
        fake.say("general", "hi")
        await first.read()
        second = await connect(fake, api)
        fake.sockets.sockets[0].abort()
        frame = await second.read()
        assert (frame["retry_attempt"], frame["payload"]["event"]["text"]) == (1, "hi")


async def test_connections_are_renewed_with_a_warning() -> None:
    async with plain() as (fake, api), asyncio.TaskGroup() as tasks:
        old = await connect(fake, api)
        renewal = tasks.create_task(fake.refresh_sockets())
        assert (await old.read())["reason"] == "warning"
        new = await connect(fake, api)
        fake.say("general", "hi")
        assert (await new.read())["payload"]["event"]["text"] == "hi"
        assert not renewal.done()
        fake.clock.advance(10)
        assert (await old.read())["reason"] == "refresh_requested"
        assert (await old.socket.receive()).type is aiohttp.WSMsgType.CLOSE


async def test_socket_mode_can_be_switched_off() -> None:
    async with plain() as (fake, api), asyncio.TaskGroup() as tasks:
        socket = await connect(fake, api)
        tasks.create_task(fake.disable_sockets())
        assert (await socket.read())["reason"] == "link_disabled"
        await socket.socket.close()
        assert not (await api.call("apps.connections.open", fake.app_token))["ok"]


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"envelope_id": "unknown"}'])
async def test_an_acknowledgement_of_nothing_is_noted(text: str) -> None:
    async with plain() as (fake, api):
        socket = await connect(fake, api)
        await socket.socket.send_str(text)
        fake.say("general", "hi")
        await socket.ack(await socket.read())
        await fake.deliveries[0].settled()
        assert fake.transcript.problems == ["socket.ack: acknowledgement of an unknown delivery"]


async def test_an_answer_is_only_taken_where_one_is_expected() -> None:
    async with plain() as (fake, api):
        socket = await connect(fake, api)
        fake.say("general", "hi")
        await socket.ack(await socket.read(), text="hello")
        await fake.deliveries[0].settled()
        assert "only an acknowledgement" in fake.transcript.problems[0]


async def test_events_come_twice_if_the_script_says_so() -> None:
    async with plain(repeats=1) as (fake, api):
        socket = await connect(fake, api)
        fake.say("general", "hi")
        one, two = await socket.read(), await socket.read()
        assert one["envelope_id"] != two["envelope_id"]
        assert one["payload"]["event_id"] == two["payload"]["event_id"]


async def test_events_can_be_reordered() -> None:
    async with plain() as (fake, api):
        socket = await connect(fake, api)
        with fake.reordered():
            fake.say("general", "first")
            fake.say("general", "second")
        texts = [(await socket.read())["payload"]["event"]["text"] for _ in range(2)]
        assert texts == ["second", "first"]


async def test_anything_can_be_sent() -> None:
    async with plain() as (fake, api):
        socket = await connect(fake, api)
        fake.deliver_raw({"type": "event_callback", "event": None})
        frame = await socket.read()
        assert frame["payload"] == {"type": "event_callback", "event": None}
        await socket.ack(frame)
        await fake.deliveries[0].settled()
        kinds: tuple[Envelope, ...] = ("interactive", "slash_commands")
        for kind in kinds:
            delivery = fake.deliver_raw({"odd": [1]}, kind)
            assert (await socket.read())["type"] == kind
            fake.clock.advance(3)
            assert (await delivery.settled()).refused == "operation_timeout"
        fake.deliver_event({"type": "app_context_changed"})
        assert (await socket.read())["payload"]["event"] == {"type": "app_context_changed"}
        fake.limit_events()
        assert (await socket.read())["payload"]["type"] == "app_rate_limited"


async def test_bolt_handles_events_and_answers() -> None:
    async with FakeSlack() as fake:
        app = bolt(fake)

        @app.event("app_mention")
        async def mentioned(event: Any, say: Any) -> None:
            await say(f"you said {event['text'][-3:]}", thread_ts=event["ts"])

        app.event(re.compile(".*"))(_ignore)
        async with in_socket_mode(fake, app):
            root = fake.say("general", "@trunkline one")
            await fake.until(lambda: fake.answers("general"))
        assert [said.text for said in fake.messages("general", thread=root)][1:] == ["you said one"]
        fake.transcript.check()


async def test_bolt_comes_back_when_its_connection_is_renewed_or_lost() -> None:
    async with FakeSlack() as fake, asyncio.TaskGroup() as tasks:
        app = bolt(fake)
        heard: list[str] = []

        @app.event("message")
        async def said(event: Any) -> None:
            heard.append(event["text"])

        async with in_socket_mode(fake, app):
            tasks.create_task(fake.refresh_sockets())
            await fake.until(lambda: fake.sockets.opened == 2 and len(fake.sockets.live) == 1)
            fake.say("general", "after the renewal")
            await fake.deliveries[-1].settled()
            fake.lose_sockets()
            await fake.until(lambda: fake.sockets.opened == 3 and len(fake.sockets.live) == 1)
            fake.say("general", "after the loss")
            await fake.deliveries[-1].settled()
            fake.clock.advance(10)
        assert heard == ["after the renewal", "after the loss"]


async def test_bolt_does_not_acknowledge_what_it_has_no_listener_for() -> None:
    async with FakeSlack() as fake:
        async with in_socket_mode(fake, bolt(fake)):
            fake.say("general", "hi")
            await fake.until(lambda: fake.deliveries[0].attempts == 1)
            fake.clock.advance(3)
            await fake.until(lambda: fake.deliveries[0].attempts == 2)
        assert not fake.deliveries[0].acknowledged


async def test_what_an_app_did_not_ask_for_is_not_sent() -> None:
    async with plain() as (fake, api):
        fake.switches.subscribed = frozenset({"message.im"})
        socket = await connect(fake, api)
        fake.say("general", "@trunkline hi")
        fake.react("general", fake.messages("general")[0].ts, "eyes")
        fake.say("@ada", "psst")
        assert (await socket.read())["payload"]["event"]["text"] == "psst"
        assert len(fake.deliveries) == 1


async def _ignore(body: Any) -> None:
    assert json.dumps(body)


JSON = {"Content-Type": "application/json"}


class Server:
    """HTTP server of an app without a library. Answers as set, and records the requests."""

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


async def test_an_event_is_tried_four_times_each_with_its_own_signature() -> None:
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


async def test_an_address_without_a_listener_fails() -> None:
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
