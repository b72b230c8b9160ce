"""The outbox: placing an answer on a platform exactly once.

The finished answer is committed with an intent and a nonce before the one call that is not idempotent.
If nobody knows whether that call went through (a crash, a lost answer), the platform is asked whether a
message with the nonce stands in the room; only when it does not is the message sent again.

Channels whose clients follow the session's own log place nothing and need no row here.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import NamedTuple

import msgspec
import structlog
from sqlalchemy import Connection, select

from gateway.channel import (
    Channel,
    OutboundMessage,
    Placed,
    PlacementDeferred,
    PlacementRefused,
    PlacementUncertain,
    Reconciles,
)
from gateway.errors import FAILURES, asked_for
from gateway.inbox import Entry, Outcome
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

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.25, 60.0
_MOST_FAILURES = 8

_encode = msgspec.json.Encoder().encode


class Intended(NamedTuple):
    """An answer that is durable and has to be placed, and what its message is settled as then."""

    answer: Message
    outcome: Outcome


class Outbox:
    """Places answers for channels that have to be told."""

    def __init__(self, store: Store, channels: ChannelRegistry) -> None:
        self._store = store
        self._channels = channels

    def places(self, entry: Entry) -> bool:
        """Whether this entry's channel has to be sent its answer."""
        channel = self._channels.get(entry.channel)
        # Asked for every turn; ``isinstance`` with the protocol would look at all its attributes each time.
        return channel is not None and not getattr(channel, "follows_session", False)

    def intend(self, entry: Entry, answer: Message) -> list[Op]:
        """The writes that record the answer, and that it is about to be placed; the entry stays open."""
        address = _encode(entry.inbound.address).decode()
        body = _encode(answer).decode()
        row = (entry.answer_id, entry.id, 0, nonce_of(entry.id, 0), "intent", entry.channel, address)
        return [(INTEND, (*row, None, None, body, now_ms())), *entry.absorb()]

    async def intended(self, entry: Entry) -> Intended:
        """The answer that an earlier process recorded for an entry."""
        body = select(t.outbox.c.body).where(t.outbox.c.inbox_id == entry.id, t.outbox.c.part == 0)
        buried = select(t.dead_letter.c.at).where(t.dead_letter.c.inbox_id == entry.id)

        def read(connection: Connection) -> Intended:
            answer = msgspec.json.decode(connection.execute(body).scalar_one(), type=Message)
            return Intended(answer, "done" if connection.execute(buried).first() is None else "dead")

        return await self._store.read(read)

    async def place(self, entry: Entry, intended: Intended, *, ambiguous: bool) -> None:
        """Place the answer and settle the entry. ``ambiguous``: an earlier attempt may have placed it.

        While the platform cannot be reached it tries on. Raises PlacementRefused when there is no use.
        """
        channel = self._channels.get(entry.channel)
        if channel is None:
            log.warning("the channel is gone; its answer stays in the session", channel=entry.channel)
            return
        outbound = OutboundMessage(
            address=entry.inbound.address,
            message=intended.answer,
            nonce=nonce_of(entry.id, 0),
            response_mode=entry.inbound.response_mode,
        )
        placed = await _until_placed(channel, outbound, ambiguous=ambiguous)
        placement = (entry.answer_id, "final", placed.platform_id, now_ms())
        await self._store.write((PLACE, placement), entry.settle(intended.outcome))

    def give_up(self, entry: Entry, reason: str) -> list[Op]:
        """The writes that record that the answer will never stand in its room."""
        return [(PLACE, (entry.answer_id, "dead", None, now_ms())), *entry.dead(reason, None)]


async def _until_placed(channel: Channel, outbound: OutboundMessage, *, ambiguous: bool) -> Placed:
    """Try until it stands in the room. What may have gone through is looked for before it is sent again."""
    failures = 0
    while True:
        try:
            if ambiguous and (found := await _find(channel, outbound)) is not None:
                return found
            return await channel.send(outbound)
        except PlacementRefused:
            raise
        except PlacementDeferred as deferred:
            pause = deferred.seconds
        except PlacementUncertain:
            ambiguous, pause = True, None
        except FAILURES as error:  # a channel is somebody else's code; its surprises are bounded here
            if asked_for(error):
                raise
            if failures >= _MOST_FAILURES:
                raise PlacementRefused(f"{type(error).__name__}: {error}") from error
            log.exception("a channel failed to place an answer", channel=channel.id)
            ambiguous, pause = True, None
        failures += 1
        await asyncio.sleep(_pause(failures) if pause is None else pause)


def _pause(failures: int) -> float:
    return min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2.0 ** min(failures - 1, 10))


async def _find(channel: Channel, outbound: OutboundMessage) -> Placed | None:
    return await channel.find(outbound) if isinstance(channel, Reconciles) else None


def nonce_of(inbox_id: str, part: int) -> str:
    """The idempotency key of a part of an answer: 24 characters, the same in every attempt."""
    return hashlib.blake2b(f"{inbox_id}:{part}".encode(), digest_size=12).hexdigest()
