"""A minimal channel for the polling platform.

It passes messages on together with the cursor after them, and sends answers. The next poll from that cursor
lets the platform forget the messages, so the platform forgets none that the gateway has not stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp
import structlog

from gateway.contract.channel import (
    Address,
    Cursor,
    InboundMessage,
    OutboundMessage,
    Placed,
    PlacementDeferred,
    PlacementRefused,
    PlacementUncertain,
    Receive,
    Sender,
    SessionKey,
    Withdrawal,
)
from gateway.contract.errors import OverloadedError
from gateway.contract.messages import ErrorPart, Message, TextPart

log = structlog.get_logger("trunkline.line")

ACCOUNT = "bot"
_POLL_MS = 2_000
_RETRY_SECONDS = 0.1
_TIMEOUT = aiohttp.ClientTimeout(total=10)

Cursors = Callable[[str], Awaitable[Sequence[Cursor]]]


class PollingChannel:
    """The channel. ``cursors`` returns the stored cursors of a channel."""

    def __init__(self, url: str, cursors: Cursors, channel_id: str = "line") -> None:
        self.id = channel_id
        self._url = url
        self._cursors = cursors

    async def run(self, receive: Receive) -> None:
        """Poll until cancelled."""
        known = {cursor.account: cursor.value for cursor in await self._cursors(self.id)}
        after = int(known.get(ACCOUNT, "0"))
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as http:
            while True:
                try:
                    after = await self._poll(http, receive, after)
                except (aiohttp.ClientError, TimeoutError, OverloadedError) as error:
                    log.info("poll failed", reason=str(error) or type(error).__name__)
                    await asyncio.sleep(_RETRY_SECONDS)

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Send one message."""
        address = outbound.address
        content = {
            "chat": address.chat,
            "text": text_of(outbound.message),
            "reply_to": None if address.reply_to is None else int(address.reply_to),
            "nonce": outbound.nonce,
        }
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT) as http,
                http.post(f"{self._url}/send", json=content) as response,
            ):
                return _placed(response.status, await response.json())
        except aiohttp.ClientConnectorError as error:
            raise PlacementDeferred(str(error)) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise PlacementUncertain(type(error).__name__) from error

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        """Return the message with the nonce of ``outbound``, if the platform has it."""
        query = {"chat": outbound.address.chat, "nonce": outbound.nonce}
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT) as http,
                http.get(f"{self._url}/find", params=query, raise_for_status=True) as response,
            ):
                found: int | None = (await response.json())["id"]
        except (aiohttp.ClientError, TimeoutError) as error:
            raise PlacementDeferred(type(error).__name__) from error
        return None if found is None else Placed(str(found))

    async def _poll(self, http: aiohttp.ClientSession, receive: Receive, after: int) -> int:
        """Poll once. Return the new cursor, which the gateway has stored then."""
        query = {"after": after, "wait": _POLL_MS}
        async with http.get(f"{self._url}/updates", params=query, raise_for_status=True) as response:
            updates: list[Mapping[str, Any]] = (await response.json())["updates"]
        if not updates:
            return after
        last = max(update["id"] for update in updates)
        messages = [self._inbound(update) for update in updates if update["deletes"] is None]
        deleted = [
            Withdrawal(ACCOUNT, f"{update['chat']}:{update['deletes']}")
            for update in updates
            if update["deletes"] is not None
        ]
        await receive(*messages, cursor=Cursor(ACCOUNT, str(last)), signals=deleted)
        return last

    def _inbound(self, update: Mapping[str, Any]) -> InboundMessage:
        chat, number = update["chat"], update["id"]
        return InboundMessage(
            session=str(SessionKey(self.id, ACCOUNT, chat)),
            dedup_key=f"{chat}:{number}",
            address=Address(self.id, ACCOUNT, chat, reply_to=str(number)),
            sender=Sender(update["user"]),
            text=update["text"],
            order=number,
        )


def _placed(status: int, body: Mapping[str, Any]) -> Placed:
    """Return the outcome of a send. A 5xx can come from before or after the message was stored."""
    if status == 429:
        raise PlacementDeferred("the platform asked to wait", body["retry_after"])
    if status >= 500:
        raise PlacementUncertain(f"status {status}")
    if status >= 400:
        raise PlacementRefused(body["error"])
    return Placed(str(body["id"]))


def text_of(message: Message) -> str:
    """Return a message as plain text, with each error in one line."""
    pieces: list[str] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            pieces.append(part.content)
        elif isinstance(part, ErrorPart):
            pieces.append(f"[{part.error_name}: {part.message}]")
    return "\n".join(pieces)
