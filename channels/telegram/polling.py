"""Long polling for updates: each poll confirms the updates of the previous ones."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import structlog

from channels.telegram.api import CallError, Client, RefusedError, UnansweredError
from channels.telegram.parse import update_id_of
from channels.telegram.pulse import Pulse
from channels.telegram.receiving import Receiving
from channels.telegram.wire import KINDS
from gateway.channel import OverloadedError

log = structlog.get_logger("trunkline.telegram")

POLL_SECONDS = 25
_GRACE = 15.0
_MOST = 100
_OVERLOADED = 1.0


async def poll(client: Client, receiving: Receiving, pulse: Pulse) -> None:
    """Poll until cancelled. The next poll, which confirms the updates, starts only after they are
    committed."""
    while True:
        offset = receiving.state.offset
        # Poll without waiting until a response proves that the platform works, so that health recovers at
        # once.
        wait = POLL_SECONDS if pulse.health().ok else 0
        try:
            batch = await client.call(
                "getUpdates",
                offset=offset,
                limit=_MOST,
                timeout=wait,
                allowed_updates=[*KINDS],
                seconds=wait + _GRACE,
            )
        except CallError as error:
            if isinstance(error, RefusedError) and error.says("webhook is active"):
                await _forget_webhook(client)
            await pulse.failed(error)
            continue
        if not isinstance(batch, list):
            await pulse.failed(UnansweredError("getUpdates: an answer that is no list"))
            continue
        pulse.beat()
        if batch:
            await _take(receiving, cast("list[Any]", batch), offset)


async def _take(receiving: Receiving, batch: list[Any], offset: int) -> None:
    """Take a batch in; if the inbox has no room for all of it, take its updates one by one."""
    batch = sorted(batch, key=lambda raw: update_id_of(raw) or 0)
    numbers = [number for number in map(update_id_of, batch) if number is not None]
    try:
        await receiving.take(batch, max(numbers) + 1 if numbers else offset + 1)
    except OverloadedError as error:
        log.warning("Telegram has to wait", reason=str(error))
        for raw in batch:
            try:
                await receiving.take([raw], (update_id_of(raw) or offset) + 1)
            except OverloadedError:
                await asyncio.sleep(_OVERLOADED)
                return


async def _forget_webhook(client: Client) -> None:
    try:
        await client.call("deleteWebhook", drop_pending_updates=False)
    except CallError as error:
        log.info("the webhook could not be taken away", reason=str(error))
