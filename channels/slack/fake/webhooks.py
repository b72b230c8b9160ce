"""Deliveries by HTTP: signed requests to the app's address."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

import aiohttp

from channels.slack.fake.delivery import Delivery
from channels.slack.fake.state import State
from channels.slack.fake.workspace import Json

PATIENCE = 3
"""Seconds for an answer."""


class Webhooks:
    """Posts to ``url``. ``refused`` is set for a delivery whose app asked not to be sent it again."""

    def __init__(self, state: State) -> None:
        self.url: str | None = None
        self._state = state
        self._client: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Webhooks:
        self._client = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()

    async def attempt(self, delivery: Delivery) -> str | None:
        """Post a delivery. None once it is acknowledged, else why not; ``no_retry`` ends the attempts."""
        assert self.url is not None
        try:
            async with self._state.clock.within(PATIENCE):
                status, headers, answer = await self.post(self.url, *_request(delivery))
        except TimeoutError:
            return "http_timeout"
        except aiohttp.ClientError:
            return "connection_failed"
        if 200 <= status < 300:
            delivery.acknowledge(answer)
            return None
        return "no_retry" if headers.get("X-Slack-No-Retry") == "1" else "http_error"

    async def verify(self, url: str) -> bool:
        """Whether an address answers a challenge, as it must before it may be registered."""
        body = json.dumps(
            {
                "token": self._state.app.verification_token,
                "challenge": (challenge := self._state.names.next("")),
                "type": "url_verification",
            }
        )
        status, _, answer = await self.post(url, body, {"Content-Type": "application/json"})
        return status == 200 and answer in (challenge, {"challenge": challenge})

    async def post(
        self, url: str, body: str, headers: Mapping[str, str], *, skew: float = 0
    ) -> tuple[int, Mapping[str, str], Any]:
        """Post something signed, ``skew`` seconds off the platform's time: status, headers, answer."""
        assert self._client is not None
        signed = {**headers, **self.signature(body, skew)}
        async with self._client.post(
            url, data=body.encode(), headers=signed, allow_redirects=False
        ) as answer:
            return answer.status, answer.headers, _read(await answer.text())

    def signature(self, body: str, skew: float = 0) -> dict[str, str]:
        """The headers that prove where a body comes from."""
        stamp = str(int(self._state.stamps.seconds() + skew))
        base = f"v0:{stamp}:{body}".encode()
        digest = hmac.new(self._state.app.signing_secret.encode(), base, hashlib.sha256).hexdigest()
        return {
            "X-Slack-Request-Timestamp": stamp,
            "X-Slack-Signature": f"v0={digest}",
            "User-Agent": "Slackbot 1.0 (+https://api.slack.com/robots)",
        }


def _request(delivery: Delivery) -> tuple[str, dict[str, str]]:
    """The body and headers of a delivery."""
    if delivery.kind == "events_api":
        headers = {"Content-Type": "application/json"}
        if delivery.reasons:
            headers["X-Slack-Retry-Num"] = str(delivery.attempts - 1)
            headers["X-Slack-Retry-Reason"] = delivery.reasons[-1]
        return json.dumps(delivery.payload), headers
    form: Json = delivery.payload
    if delivery.kind == "interactive":
        form = {"payload": json.dumps(delivery.payload)}
    return urlencode(form), {"Content-Type": "application/x-www-form-urlencoded"}


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
