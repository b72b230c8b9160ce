"""Announcements: messages of plugins in chats, outside of a turn, once for each key.

An announcement is stored with an entry of the inbox that needs no turn. The worker of its session delivers it
in its place, like an answer: it is added to the log, placed and settled. Newer content reopens the entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from gateway.access import Access
from gateway.contract.channel import Address, Channel, SessionKey
from gateway.contract.errors import InvalidRequestError, OverloadedError
from gateway.contract.messages import Message, Metadata, TextPart, sound, to_json
from gateway.conversations.chats import LONGEST_KEY, Chats
from gateway.extensions.registry import ChannelRegistry
from gateway.pipeline.intake import Intake, own_entry
from gateway.pipeline.mailbox import Dispatcher
from gateway.session import Sessions
from gateway.session.log import put_message
from gateway.store import Inserted, Store
from gateway.store.inbox import Entry, read_entry
from gateway.store.outbox import Announcement, find_announcement
from gateway.tables import KeyLocks

log = structlog.get_logger("trunkline.announcements")


class Announcements:
    """Accepts announcements, and newer content of them."""

    def __init__(
        self,
        store: Store,
        sessions: Sessions,
        channels: ChannelRegistry,
        access: Access,
        dispatcher: Dispatcher,
        intake: Intake,
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._chats = Chats(channels, sessions, access)
        self._dispatcher = dispatcher
        self._intake = intake
        self._locks = KeyLocks()

    async def announce(
        self, plugin: str, given: Address | Mapping[str, Any], message: Message | str, key: str
    ) -> None:
        """Announce a message in a chat, or change it; see ``gateway.contract.services.Announce``."""
        address, channel = self._chats.find(given)
        if not 0 < len(key) <= LONGEST_KEY or "\0" in key:
            raise InvalidRequestError(
                f"the key {key[:40]!r} of an announcement needs 1 to {LONGEST_KEY} characters, and no NUL"
            )
        checked, name = _checked(message), sound(f"{plugin}\n{key}")
        await self._locks.commit(name, lambda: self._submit(name, channel, address, checked))

    async def _submit(
        self, name: str, channel: Channel, address: Address, message: Message
    ) -> asyncio.Future[Inserted] | None:
        """Submit the write that an announcement needs; None if it is delivered as it is."""
        chat = str(SessionKey(channel.id, address.account, address.chat, address.thread))
        known = await self._store.read(lambda c: find_announcement(c, name))
        if known is None:
            return await self._begin(name, channel, address, chat, message)
        if known.chat != chat:
            raise InvalidRequestError(
                f"the announcement {name.partition(chr(10))[2]!r} was made in the chat {known.chat!r}, and "
                f"cannot be moved to {chat!r}; use another key"
            )
        old = known.message
        message = replace(message, id=old.id, session_id=old.session_id, created_at=old.created_at)
        return None if message == old else await self._renew(replace(known, message=message))

    async def _begin(
        self, name: str, channel: Channel, address: Address, chat: str, message: Message
    ) -> asyncio.Future[Inserted]:
        address = replace(address, reply_to=None)
        own = self._chats.session_of(channel, address)
        await self._chats.check_access(own, channel, address)
        session = await self._sessions.get_or_create(own, channel=channel.id, owner="", address=address)
        try:
            self._intake.check_capacity([session], own=True)
        except OverloadedError:
            self._sessions.drop_if_empty(session)
            raise
        session.seq += 1
        label = f"(announcement {name.replace(chr(10), ': ')})"
        entry = own_entry(session, channel.id, address, "", label)
        entry.inbound = replace(entry.inbound, dedup_key=f"announced:{entry.id}")
        entry.announced = True
        self._intake.put_next(session, entry)
        message = replace(message, id=entry.answer_id, session_id=session.id)
        made = Announcement(id=name, session=session.id, inbox_id=entry.id, chat=chat, message=message)
        return self._intake.queue(session, [entry], [made.put()])

    async def _renew(self, known: Announcement) -> asyncio.Future[Inserted]:
        """Store newer content; the waiting or running entry delivers it, or else the reopened one."""
        if known.state in (None, "dead"):
            session = await self._sessions.find(known.session)
            self._intake.check_capacity([session], own=True)
            # It is unknown which messages of the platform show it, and another one must not be sent.
            reason = (
                "its delivery failed" if known.state else "it was delivered too long ago (store.keep_days)"
            )
            log.warning("an announcement is changed in its session only", id=known.id, reason=reason)
            return session.replace_message(known.message, [known.put()])
        entry: Entry = await self._store.read(lambda c: read_entry(c, known.inbox_id))
        session = await self._sessions.find(known.session)
        self._intake.check_capacity([session], own=True)
        # Looked up after the last await: from here to the write nothing is delivered or settled.
        mailbox = self._dispatcher.mailbox(session.id)
        held = None if mailbox is None else mailbox.find(entry.id)
        if held is not None:
            held.renewed = known.message
            return self._store.submit([known.put()])
        return self._intake.queue(session, [entry], [known.put()], reopen=True)


def _checked(given: Message | str) -> Message:
    """Return the message to announce. Raises InvalidRequestError for one that cannot be shown or stored."""
    if isinstance(given, str):
        given = Message(session_id="", role="assistant", parts=(TextPart(given),))
    if given.role != "assistant":
        raise InvalidRequestError(f"an announcement has the role 'assistant', not {given.role!r}")
    if not given.parts or (given.display is not None and given.display.hidden):
        raise InvalidRequestError("an announcement must show something: it has no parts, or is hidden")
    # Only for its checks: the message must be storable in the log when its turn comes.
    put_message(given, 0)
    if all(isinstance(part, TextPart) and not part.content.strip() for part in given.parts):
        raise InvalidRequestError("an announcement must show something: its text is empty")
    # As it is read back, so that the same content compares as equal.
    return msgspec.json.decode(to_json(replace(given, metadata=Metadata(), origin=None)), type=Message)
