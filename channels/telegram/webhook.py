"""Webhook: Telegram posts each update to the gateway's HTTP server.

Requests carry a secret. The response 200 follows when the update is durable; Telegram repeats all others.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import structlog
from aiohttp import web

from channels.telegram.api import CallError, Client, UnansweredError
from channels.telegram.pulse import Pulse
from channels.telegram.receiving import Receiving
from channels.telegram.wire import KINDS, decoded
from gateway.channel import OverloadedError

log = structlog.get_logger("trunkline.telegram")

PROBE_SECONDS = 60.0
_BODY_SECONDS = 20.0
_HEADER = "X-Telegram-Bot-Api-Secret-Token"
_LATER = {"Retry-After": "2"}


class Webhook:
    """Webhook endpoint. Without ``receiving`` it answers 503, so that Telegram tries again later."""

    def __init__(self, url: str, secret: str) -> None:
        self.receiving: Receiving | None = None
        self._url = url
        self._secret = secret.encode()

    def routes(self) -> Sequence[web.AbstractRouteDef]:
        """Return the webhook's only route."""
        return [web.post(urlsplit(self._url).path or "/", self._deliver)]

    async def keep(self, client: Client, pulse: Pulse) -> None:
        """Register the webhook at Telegram and check it periodically, until cancelled."""
        known = False
        while True:
            try:
                if not known:
                    await client.call(
                        "setWebhook",
                        url=self._url,
                        secret_token=self._secret.decode(),
                        allowed_updates=[*KINDS],
                    )
                info = await client.call("getWebhookInfo")
                if not isinstance(info, dict):
                    raise UnansweredError("getWebhookInfo: an answer of an unexpected shape")
                info = cast("dict[str, Any]", info)
            except CallError as error:
                await pulse.failed(error)
                continue
            known = info.get("url") == self._url
            pulse.beat()
            if known and info.get("pending_update_count") and info.get("last_error_message"):
                pulse.complain(f"Telegram could not deliver: {info['last_error_message']}")
            await asyncio.sleep(PROBE_SECONDS if known else 1.0)

    async def _deliver(self, request: web.Request) -> web.Response:
        given = request.headers.get(_HEADER, "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._secret):
            return web.Response(status=401)
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await request.read()
        except TimeoutError:
            return web.Response(status=408)
        try:
            update = decoded(body)
        except ValueError:
            return web.Response(status=400)
        if self.receiving is None:
            return web.Response(status=503, headers=_LATER)
        try:
            await self.receiving.take([update])
        except OverloadedError as error:
            log.warning("Telegram has to wait", reason=str(error))
            return web.Response(status=503, headers=_LATER)
        return web.Response()
