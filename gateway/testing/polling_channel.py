"""A small channel for the fake platform: the least that a channel with rooms of its own has to do.

It polls, hands over messages together with the cursor they bring it to, and places answers. Polling again
from that cursor is what tells the platform to forget, so nothing is forgotten that is not durable here.
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
_AGAIN = 0.1
_TIMEOUT = aiohttp.ClientTimeout(total=10)

Cursors = Callable[[str], Awaitable[Sequence[Cursor]]]


class PollingChannel:
    """The channel. ``cursors`` tells how far its platform was read before."""

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
                    log.info("polling again", reason=str(error) or type(error).__name__)
                    await asyncio.sleep(_AGAIN)

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Write one message into its room."""
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
        """Look whether the message stands in its room."""
        asked = {"chat": outbound.address.chat, "nonce": outbound.nonce}
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT) as http,
                http.get(f"{self._url}/find", params=asked, raise_for_status=True) as response,
            ):
                found: int | None = (await response.json())["id"]
        except (aiohttp.ClientError, TimeoutError) as error:
            raise PlacementDeferred(type(error).__name__) from error
        return None if found is None else Placed(str(found))

    async def _poll(self, http: aiohttp.ClientSession, receive: Receive, after: int) -> int:
        """One poll. Returns the new cursor, which is durable then."""
        asked = {"after": after, "wait": _POLL_MS}
        async with http.get(f"{self._url}/updates", params=asked, raise_for_status=True) as response:
            updates: list[Mapping[str, Any]] = (await response.json())["updates"]
        if not updates:
            return after
        last = max(update["id"] for update in updates)
        said = [self._inbound(update) for update in updates if update["deletes"] is None]
        deleted = [
            Withdrawal(ACCOUNT, f"{update['chat']}:{update['deletes']}")
            for update in updates
            if update["deletes"] is not None
        ]
        await receive(*said, cursor=Cursor(ACCOUNT, str(last)), signals=deleted)
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


def _placed(status: int, said: Mapping[str, Any]) -> Placed:
    """What the platform's answer means. 5xx may come from before or after the message was placed."""
    if status == 429:
        raise PlacementDeferred("the platform asked to wait", said["retry_after"])
    if status >= 500:
        raise PlacementUncertain(f"status {status}")
    if status >= 400:
        raise PlacementRefused(said["error"])
    return Placed(str(said["id"]))


def text_of(message: Message) -> str:
    """A message as plain text; errors are told in one line."""
    pieces: list[str] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            pieces.append(part.content)
        elif isinstance(part, ErrorPart):
            pieces.append(f"[{part.error_name}: {part.message}]")
    return "\n".join(pieces)
