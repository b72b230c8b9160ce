"""Slack's requests over HTTP: verified, then taken like what comes through a socket."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast
from urllib.parse import parse_qsl

from aiohttp import web

from channels.slack.api import Json

Handle = Callable[[str, Json, Mapping[str, Any]], Awaitable[tuple[bool, Json | None]]]

_WINDOW = 300
"""Seconds that a request's time may be off."""
_BODY_SECONDS = 10.0
"""How long a body may take; Slack itself gives up after three seconds."""
_TIME = re.compile(r"[0-9]{1,12}", re.ASCII)


class Webhook:
    """The one address that Slack sends to."""

    def __init__(
        self,
        secret: str,
        handle: Handle,
        clock: Callable[[], float] = time.time,
        body_seconds: float = _BODY_SECONDS,
    ) -> None:
        self._secret = secret.encode()
        self._handle = handle
        self._clock = clock
        self._body_seconds = body_seconds

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one request: 200 once it is durable, 503 so that Slack comes again."""
        try:
            # Before the signature can be checked: anyone may have sent this.
            async with asyncio.timeout(self._body_seconds):
                body = await request.read()
        except TimeoutError:
            return web.Response(status=408, text="the body did not arrive in time")
        if not self.is_genuine(request.headers, body):
            return web.Response(status=401, text="the signature is not valid")
        payload = _payload(request.content_type, body)
        if payload is None:
            return web.Response(status=400, text="this cannot be read")
        if payload.get("type") == "url_verification":
            return web.Response(text=str(payload.get("challenge", ""))[:1000])
        if "ssl_check" in payload and "command" not in payload:
            return web.Response()
        taken, answer = await self._handle(str(payload.get("type", "")), payload, {})
        if not taken:
            return web.Response(status=503, text="please send this again")
        return web.json_response(answer) if answer else web.Response()

    def is_genuine(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Whether Slack signed this, and lately."""
        stamp, signature = headers.get("X-Slack-Request-Timestamp", ""), headers.get("X-Slack-Signature", "")
        if not _TIME.fullmatch(stamp) or abs(self._clock() - int(stamp)) > _WINDOW:
            return False
        digest = hmac.new(self._secret, b"v0:" + stamp.encode() + b":" + body, hashlib.sha256).hexdigest()
        return hmac.compare_digest(f"v0={digest}".encode(), signature.encode(errors="surrogateescape"))


def _payload(kind: str, body: bytes) -> Json | None:
    """What a request says: JSON, or a form that holds JSON, or a slash command as a form."""
    try:
        if kind != "application/x-www-form-urlencoded":
            return _object(json.loads(body))
        form = dict(parse_qsl(body.decode(), keep_blank_values=True))
        return _object(json.loads(form["payload"])) if "payload" in form else dict(form)
    except (ValueError, RecursionError):
        return None


def _object(value: object) -> Json | None:
    return cast(Json, value) if isinstance(value, dict) else None
