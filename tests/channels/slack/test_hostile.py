"""Malformed deliveries of every kind: each is parsed or refused, by the parser and by HTTP."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from channels.slack.fake import FakeSlack
from channels.slack.parse import Rules, UnreadableError, UserMessage, parse
from tests.channels.hostile import spoiled, strange
from tests.channels.slack.gateways import gateway_at

RECORDED = [json.loads(path.read_text()) for path in (Path(__file__).parent / "payloads").glob("*.json")]
RULES = Rules(channel="slack", team="T1", bot_user="U1")


async def everything() -> list[dict[str, Any]]:
    """Return a delivery of each kind that a user can cause, and the recorded ones."""
    async with FakeSlack() as fake:
        ts = fake.say("general", "hello @trunkline", files=[("a.txt", b"x")])
        fake.edit("general", ts, "changed")
        fake.say("general", "below", thread=ts, broadcast=True)
        fake.react("general", ts, "eyes")
        fake.react("general", ts, "eyes", add=False)
        fake.another_bot_says("general", "beep")
        fake.share("general", "general", ts, "look @trunkline")
        fake.rename_user("ada", "Ada L.")
        fake.user_group("team", "ada")
        fake.user_group("team")
        fake.delete("general", ts)
        fake.rename_session("@ada", fake.say("@ada", "hello"), "A title")
        for tab in ("messages", "home"):
            fake.open_app("ada", tab)
        fake.invite("general", away=True)
        fake.invite("general")
        fake.rename_chat("general", "lobby")
        fake.limit_events()
        fake.uninstall()
        return [*(one.payload for one in fake.deliveries), *RECORDED]


async def test_any_delivery_is_read_or_refused() -> None:
    dice, payloads = Random(3), await everything()
    assert len({(one.get("type"), (one.get("event") or {}).get("type")) for one in payloads}) >= 12
    for payload in payloads:
        for _ in range(120):
            try:
                found = parse(spoiled(payload, dice), RULES, 1)
            except UnreadableError:
                continue
            if isinstance(found, UserMessage):
                assert isinstance(found.message.text, str)


async def test_any_request_is_answered_and_never_with_a_server_error(tmp_path: Path) -> None:
    dice, payloads = Random(4), await everything()
    async with (
        FakeSlack() as fake,
        aiohttp.ClientSession() as http,
        gateway_at(fake, tmp_path, mode="http", groups="always") as gateway,
    ):
        url, secret = str(fake.webhooks.url), fake.app.signing_secret
        for payload in payloads:
            for _ in range(4):
                body = json.dumps(spoiled(payload, dice)).encode()
                async with http.post(url, data=body, headers=signed(body, secret)) as answer:
                    assert answer.status in (200, 400, 503), body
        for _ in range(60):
            body = json.dumps(dice.choice(payloads)).encode()
            async with http.post(url, data=body, headers=forged(body, secret, dice)) as answer:
                assert answer.status == 401
        fake.say("@ada", "still there?")
        await fake.until(lambda: "You said: still there?" in fake.answers("@ada"))
        gateway.parts.dispatcher.cancel()


def signed(body: bytes, secret: str, stamp: str | None = None) -> dict[str, str]:
    """Return the headers with which Slack signs a body."""
    stamp = stamp or str(int(time.time()))
    digest = hmac.new(secret.encode(), f"v0:{stamp}:".encode() + body, hashlib.sha256).hexdigest()
    headers = {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": f"v0={digest}"}
    return {"Content-Type": "application/json", **headers}


def forged(body: bytes, secret: str, dice: Random) -> dict[str, str]:
    """Return headers that prove nothing: too old, for another body or secret, cut, or missing."""
    now = int(time.time())
    match dice.randrange(5):
        case 0:
            return signed(body, secret, str(now + dice.choice([-301, -86_400, 400])))
        case 1:
            return signed(body + b" ", secret)
        case 2:
            return signed(body, secret[:-1])
        case 3:
            good = signed(body, secret)
            return {name: value[: dice.randrange(len(value))] for name, value in good.items()}
        case _:
            odd = str(strange(dice)).encode("ascii", "ignore").decode().replace("\0", "")[:5_000]
            name = dice.choice(["X-Slack-Signature", "X-Slack-Request-Timestamp"])
            return {**signed(body, secret), name: odd}
