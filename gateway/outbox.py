"""The outbox: placing an answer on a platform exactly once.

The finished answer is committed with an intent and a nonce before the one call that is not idempotent.
If nobody knows whether that call went through (a crash, a lost answer), the platform is asked whether a
message with the nonce stands in the room; only when it does not is the message sent again.

Channels whose clients follow the session's own log place nothing and need no row here.
"""

from __future__ import annotations

import hashlib

import msgspec
import structlog
from sqlalchemy import select

from gateway.channel import (
    Channel,
    FollowsSession,
    OutboundMessage,
    Placed,
    PlacementUncertain,
    Reconciles,
)
from gateway.inbox import Entry
from gateway.messages import Message, now_ms
from gateway.registry import ChannelRegistry
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.writes import Write

log = structlog.get_logger("trunkline.outbox")

INTEND = Write(
    "insert", 37, t.outbox, "id inbox_id part nonce state channel address platform_id hiwater body sent_at"
)
FORGET_OUTBOX = Write("delete", 51, t.outbox, "id")
PLACE = Write("update", 38, t.outbox, "id state platform_id sent_at")

_encode = msgspec.json.Encoder().encode


class Outbox:
    """Places answers for channels that have to be told."""

    def __init__(self, store: Store, channels: ChannelRegistry) -> None:
        self._store = store
        self._channels = channels

    def places(self, entry: Entry) -> bool:
        """Whether this entry's channel has to be sent its answer."""
        channel = self._channels.get(entry.channel)
        return channel is not None and not isinstance(channel, FollowsSession)

    def intend(self, entry: Entry, answer: Message) -> Op:
        """The write that records the answer, and that it is about to be placed."""
        address = _encode(entry.inbound.address).decode()
        body = _encode(answer).decode()
        row = (entry.answer_id, entry.id, 0, nonce_of(entry.id, 0), "intent", entry.channel, address)
        return INTEND, (*row, None, None, body, now_ms())

    async def intended(self, entry: Entry) -> Message | None:
        """The answer an earlier attempt recorded for this entry, if it got that far."""
        query = select(t.outbox.c.body).where(t.outbox.c.inbox_id == entry.id, t.outbox.c.part == 0)
        body = await self._store.read(lambda c: c.execute(query).scalar())
        return None if body is None else msgspec.json.decode(body, type=Message)

    async def place(self, entry: Entry, answer: Message, *, ambiguous: bool) -> None:
        """Place the answer and settle the entry. ``ambiguous``: an earlier attempt may have placed it."""
        channel = self._channels.get(entry.channel)
        if channel is None:
            log.warning("the channel is gone; its answer stays in the session", channel=entry.channel)
            return
        outbound = _outbound(entry, answer)
        placed = await self._once(channel, outbound, ambiguous=ambiguous)
        await self._store.write(
            (PLACE, (entry.answer_id, "final", placed.platform_id, now_ms())), *entry.done()
        )

    async def _once(self, channel: Channel, outbound: OutboundMessage, *, ambiguous: bool) -> Placed:
        if ambiguous and (found := await _find(channel, outbound)) is not None:
            return found
        try:
            return await channel.send(outbound)
        except PlacementUncertain:
            found = await _find(channel, outbound)
            return found if found is not None else await channel.send(outbound)


def _outbound(entry: Entry, answer: Message) -> OutboundMessage:
    inbound = entry.inbound
    return OutboundMessage(
        address=inbound.address,
        message=answer,
        nonce=nonce_of(entry.id, 0),
        response_mode=inbound.response_mode,
    )


async def _find(channel: Channel, outbound: OutboundMessage) -> Placed | None:
    return await channel.find(outbound) if isinstance(channel, Reconciles) else None


def nonce_of(inbox_id: str, part: int) -> str:
    """The idempotency key of a part of an answer: 24 characters, the same in every attempt."""
    return hashlib.blake2b(f"{inbox_id}:{part}".encode(), digest_size=12).hexdigest()
