"""Delivery of answers as messages, edits and files; each has one transaction id in all attempts.

A homeserver applies a transaction id once for each device. It forgets it after a day, and another access
token is another device: so a message of an uncertain send is searched by its nonce before it is sent again.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections import OrderedDict
from collections.abc import Sequence

import structlog

from channels.matrix.api import Api, Json, RefusedError
from channels.matrix.options import Options
from channels.matrix.parse import MESSAGE, as_object
from channels.matrix.render import Text, body_of
from gateway.channel import (
    Address,
    AnswerFile,
    Limit,
    OutboundMessage,
    Pacer,
    Placed,
    PlacementDeferred,
    PlacementMismatch,
    PlacementUncertain,
)

log = structlog.get_logger("trunkline.matrix")

NONCE = "org.trunkline.nonce"
_SEND, _EDIT = Limit(12, 60.0, burst=10), Limit(6, 60.0, burst=4)
"""The limit of Synapse for messages of a user, and the half of it that previews may use."""
_TYPING_MS = 20_000
_EDIT_NOTE = 200
_MOST_ORDERS, _ORDER_SECONDS = 1_000, 65.0


class Delivery:
    """The messages of one account."""

    def __init__(self, api: Api, options: Options) -> None:
        self._api = api
        self._pacer = Pacer({"send": _SEND.times(options.pace), "edit": _EDIT.times(options.pace)})
        self._largest: int | None = None
        self._orders: OrderedDict[str, int] = OrderedDict()
        self._awaited: dict[str, asyncio.Future[int]] = {}
        self._redacted: OrderedDict[str, None] = OrderedDict()

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Send one page. Files are uploaded first, which places nothing."""
        page, address = outbound.page, outbound.address
        content = await self._file(page) if isinstance(page, AnswerFile) else body_of(page.markdown)
        content |= {NONCE: outbound.nonce, **_relation(address, outbound.part)}
        event = await self._put(address.chat, outbound.nonce, content)
        while event in self._redacted:
            # The homeserver answers a known transaction with its message, also if that is deleted.
            event = await self._put(address.chat, f"{outbound.nonce} {event}", content)
        return Placed(event)

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        """Show the current text of a page. An optional edit is omitted while the rate limit is used up."""
        if not isinstance(outbound.page, Text):
            return
        if placed.platform_id in self._redacted:
            # The homeserver takes the edit, but clients do not show it.
            raise PlacementMismatch("the message was deleted")
        if not outbound.final and self._pacer.wait("send", "edit") > 0:
            return
        content = body_of(outbound.page.markdown)
        await self.replace(outbound.address, placed, content, preview=not outbound.final)

    async def put(self, address: Address, txn: str, content: Json) -> str:
        """Send a message that is not an answer, once for a transaction id. Returns the id of its event."""
        return await self._put(address.chat, txn, content | _relation(address, 1))

    async def replace(
        self, address: Address, placed: Placed, content: Json, *, preview: bool = False
    ) -> None:
        """Replace the content of a message."""
        note: Json = {"msgtype": "m.text", "body": f"* {content['body'][:_EDIT_NOTE]}", "m.mentions": {}}
        replaced = {"rel_type": "m.replace", "event_id": placed.platform_id}
        change = {**note, "m.new_content": content, "m.relates_to": replaced}
        await self._put(address.chat, uuid.uuid4().hex, change, preview=preview)

    def note(self, event: str, order: int) -> None:
        """Keep the order of an event of this account, as ``/sync`` has it."""
        self._orders[event] = order
        if len(self._orders) > _MOST_ORDERS:
            self._orders.popitem(last=False)
        if event in self._awaited and not self._awaited[event].done():
            self._awaited[event].set_result(order)

    def note_redacted(self, event: str) -> None:
        """Keep that a message was deleted."""
        self._redacted[event] = None
        if len(self._redacted) > _MOST_ORDERS:
            self._redacted.popitem(last=False)

    @property
    def awaited(self) -> Sequence[str]:
        """The events of this account whose order is not known yet."""
        return tuple(self._awaited)

    def settle(self, events: Sequence[str], order: int) -> None:
        """Give events that ``/sync`` does not return any more the order of its position.

        They were sent before an answer of it was asked for, and that answer does not have them: an earlier
        process took them.
        """
        for event in events:
            if event in self._awaited and not self._awaited[event].done():
                self._awaited[event].set_result(order)

    async def order_of(self, event: str) -> int:
        """Return the order of a message among all messages; 0 if ``/sync`` does not answer in time."""
        if event in self._orders:
            return self._orders[event]
        awaited = self._awaited[event] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_ORDER_SECONDS):
                return await awaited
        except TimeoutError:
            return 0
        finally:
            del self._awaited[event]

    async def delete(self, placed: Placed, address: Address) -> None:
        """Redact a message. One that is gone is a success."""
        path = ("rooms", address.chat, "redact", placed.platform_id, uuid.uuid4().hex)
        try:
            await self._api.call("PUT", *path, body={})
        except RefusedError as refused:
            if refused.status != 404:
                raise
        self.note_redacted(placed.platform_id)

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        """Return a placed page by its nonce. Every message since the question is searched."""
        address = outbound.address
        async for events in self._api.messages(address.chat, "b"):
            for event in map(as_object, events):
                if (
                    as_object(event.get("content")).get(NONCE) == outbound.nonce
                    and event.get("sender") == self._api.me
                ):
                    return Placed(str(event.get("event_id")))
                if event.get("event_id") == address.reply_to:
                    return None
        return None

    async def typing(self, address: Address) -> None:
        """Show that an answer is being made."""
        body: Json = {"typing": True, "timeout": _TYPING_MS}
        await self._api.call("PUT", "rooms", address.chat, "typing", self._api.me, body=body)

    async def notify(self, room: str, text: str, txn: str) -> None:
        """Send a notice of the channel itself."""
        await self._put(room, txn, {"msgtype": "m.notice", "body": text})

    async def _put(self, room: str, txn: str, content: Json, *, preview: bool = False) -> str:
        keys = ("send", "edit") if preview else ("send",)
        async with self._pacer.turn(*keys, urgent=not preview):
            try:
                answer = await self._api.call("PUT", "rooms", room, "send", MESSAGE, txn, body=content)
            except PlacementDeferred as deferred:
                self._pacer.hold("send", deferred.seconds or 0)
                raise
        if not isinstance(answer.get("event_id"), str):
            raise PlacementUncertain("the answer has no id of an event")
        return str(answer["event_id"])

    async def _file(self, file: AnswerFile) -> Json:
        """Upload a file; return the content that shows it, or a note if it is too large."""
        if self._largest is None:
            config = await self._api.call("GET", "media", "config", api="client/v1")
            limit = config.get("m.upload.size")
            self._largest = limit if isinstance(limit, int) else sys.maxsize
        size, kind = len(file.data), file.mime_type.partition("/")[0]
        if size > self._largest:
            return body_of(f"📎 `{file.name}` is too large for the homeserver ({size:,} bytes)")
        try:
            uri = await self._api.upload(file.name, file.mime_type, file.data)
        except RefusedError as refused:
            # A proxy may accept less than the homeserver. The rest of the answer must not depend on a file.
            log.info("the homeserver refused a file", reason=str(refused))
            return body_of(f"📎 `{file.name}` could not be sent: `{refused}`")
        info = {"mimetype": file.mime_type, "size": size}
        msgtype = f"m.{kind}" if kind in ("image", "audio", "video") else "m.file"
        return {"msgtype": msgtype, "body": file.name, "filename": file.name, "url": uri, "info": info}


def _relation(address: Address, part: int) -> Json:
    """Return what connects an answer with its thread, or the first page in a room with its question."""
    reply: Json = {"m.in_reply_to": {"event_id": address.reply_to}} if address.reply_to else {}
    if address.thread is not None:
        thread = {"rel_type": "m.thread", "event_id": address.thread, "is_falling_back": True}
        return {"m.relates_to": {**thread, **reply}}
    return {"m.relates_to": reply} if reply and address.group and not part else {}
