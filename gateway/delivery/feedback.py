"""Feedback: what users think of answers, such as a thumb up on a platform's message.

Only feedback on a placed answer, from a user who may use the bot, is stored. A user's newest value counts,
and of reactions that a platform reports one by one the newest value of each.
Such a user can also stop a running answer by feedback on one of its messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, func, select

from gateway.access import Access
from gateway.contract.channel import Address, Feedback, InboundMessage, Sender
from gateway.contract.messages import now_ms
from gateway.counters import Counters
from gateway.events.bus import ActivityBus
from gateway.events.types import FeedbackGiven
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.writes import Write

_COLUMNS = ("channel", "account", "chat", "message", "user_id", "session", "answer_id", "value", "at")
PUT_FEEDBACK = Write("upsert", 75, t.feedback, " ".join(("id", *_COLUMNS)))
_address = msgspec.json.Decoder(Address).decode


class FeedbackRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The feedback of one user on one answer. ``at`` is milliseconds; ``value`` is up, down or none.

    ``sign`` is the reaction, if each counts separately.
    """

    channel: str
    account: str
    chat: str
    message: str
    user_id: str
    session: str
    answer_id: str
    value: str
    at: int
    sign: str = ""

    @property
    def id(self) -> str:
        """Return the key of its row; a row of the same user, message and sign replaces it."""
        whose = (self.channel, self.account, self.chat, self.message, self.user_id)
        return "\n".join((*whose, self.sign) if self.sign else whose)

    def put(self) -> Op:
        """Return the write that stores it, in place of the user's earlier value."""
        return PUT_FEEDBACK, (self.id, *(getattr(self, name) for name in _COLUMNS))

    def is_taken_back(self, channel: str, withdrawn: Feedback) -> bool:
        """Return whether a withdrawal on a channel is about it."""
        at = (channel, withdrawn.account, withdrawn.chat, withdrawn.message)
        whose = withdrawn.user in ("", self.user_id) and withdrawn.sign in ("", self.sign)
        return whose and at == (self.channel, self.account, self.chat, self.message) and self.value != "none"


class FoundFeedback(NamedTuple):
    """Feedback that counts. ``stops``: it asks to stop the answer."""

    record: FeedbackRecord
    stops: bool


class FeedbackLog:
    """Finds the answers that feedback is about, and reports it once it is durable."""

    def __init__(self, store: Store, access: Access, activity: ActivityBus, counters: Counters) -> None:
        self._store = store
        self._access = access
        self._activity = activity
        self._counters = counters
        self._recent: deque[FeedbackRecord] = deque(maxlen=1_000)
        """The newest records, because they may be taken back before they are committed."""

    async def find(self, channel: str, given: Sequence[Feedback]) -> list[FoundFeedback]:
        """Return the feedback that counts."""
        found: list[FoundFeedback] = []
        for one in given:
            is_new = one.value != "none" or one.stops
            records = await (self._given(channel, one) if is_new else self._withdrawn(channel, one))
            self._recent.extend(records)
            found += [FoundFeedback(record, one.stops) for record in records]
        return found

    async def _given(self, channel: str, one: Feedback) -> list[FeedbackRecord]:
        answer = await self._store.read(lambda c: _read_answer(c, channel, one))
        if answer is None or not await self._may_use_the_bot(channel, answer[1], one.user):
            return []
        made = FeedbackRecord(
            channel=channel,
            account=one.account,
            chat=one.chat,
            message=one.message,
            user_id=one.user,
            session=answer[0],
            answer_id=answer[2],
            value=one.value,
            at=now_ms(),
            sign=one.sign,
        )
        return [made]

    async def _withdrawn(self, channel: str, one: Feedback) -> list[FeedbackRecord]:
        # Not by the answer: platforms report removed reactions also of messages that are not the bot's.
        stored = await self._store.read(lambda c: _read_given(c, channel, one.message))
        known = {record.id: record for record in (*stored, *self._recent)}
        taken = [record for record in known.values() if record.is_taken_back(channel, one)]
        return [msgspec.structs.replace(record, value="none", at=now_ms()) for record in taken]

    def report(self, found: Sequence[FoundFeedback]) -> None:
        """Count durable feedback and notify plugins of it."""
        for one, _ in found:
            self._counters.feedback[one.channel, one.value] += 1
            detail = {"channel": one.channel, "user": one.user_id, "answer": one.answer_id}
            self._activity.emit("feedback", one.session, one.value, detail)
            given = FeedbackGiven(one.session, one.answer_id, one.channel, one.user_id, one.value)
            self._access.events.emit(given)

    async def _may_use_the_bot(self, channel: str, address: Address, user: str) -> bool:
        # The same rules as for a message that the user would write in that chat.
        message = InboundMessage(session="", dedup_key="", address=address, sender=Sender(user))
        await self._access.confirm(channel, message)
        return self._access.policy.role(channel, message) is not None


def _read_answer(connection: Connection, channel: str, given: Feedback) -> tuple[str, Address, str] | None:
    """Return the session, the address and the id of the answer that a platform's message is a page of."""
    o, i, tail = t.outbox.c, t.inbox.c, given.message.rpartition(":")[2]
    # Only the tail of a platform's id has an index, which SQLite does not use beside the whole id.
    query = (
        select(o.address, o.platform_id, i.session, i.answer_id)
        .join(t.inbox, o.inbox_id == i.id)
        .where(o.channel == channel, t.tail_of(o.platform_id) == tail)
    )
    for address, message, session, answer_id in connection.execute(query):
        place = _address(address)
        if (place.account, place.chat, message) == (given.account, given.chat, given.message):
            return session, place, answer_id
    return None


def _read_given(connection: Connection, channel: str, message: str) -> list[FeedbackRecord]:
    """Return the stored feedback on a platform's message. The sign is the sixth part of a row's key."""
    query = select(t.feedback).where(t.feedback.c.channel == channel, t.feedback.c.message == message)
    rows = [{**row} for row in connection.execute(query).mappings()]
    return [FeedbackRecord(sign=(*row.pop("id").split("\n"), "")[5], **row) for row in rows]


def read_feedback(connection: Connection, last: int) -> list[FeedbackRecord]:
    """Read the newest feedback, the latest first, without values that were taken back.

    Of several reactions of a user to a message, one against the answer outweighs the others.
    """
    f = t.feedback.c
    who = [t.feedback.c[name] for name in _COLUMNS if name not in ("value", "at")]
    value, at = func.min(f.value).label("value"), func.max(f.at).label("at")  # "down" is before "up"
    query = select(*who, value, at).where(f.value != "none").group_by(*who)
    newest = query.order_by(at.desc(), f.message, f.user_id).limit(last)
    return [FeedbackRecord(**row) for row in connection.execute(newest).mappings()]
