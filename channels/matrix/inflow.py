"""Intake of events: the position of ``/sync`` moves only after everything before it is durable.

The position is the count of events so far, which orders messages, and the homeserver's token. It begins at
the newest event of each room: what was written before the bot was there is not answered.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace

from channels.matrix import parse
from channels.matrix.api import FAILURES, Api, Json, RefusedError, TooLargeError
from channels.matrix.delivery import Delivery
from channels.matrix.options import Options
from channels.matrix.parse import MESSAGE, Bot, Event, File, Place, as_list, as_object, as_text
from gateway import FilePart, Part
from gateway.channel import (
    Address,
    Attention,
    Cursor,
    Earlier,
    Feedback,
    Host,
    InboundMessage,
    OverloadedError,
    PlacementDeferred,
    PlacementUncertain,
    Quoted,
    Receive,
    Rejected,
    Sender,
    Signal,
    Withdrawal,
    feedback_value,
)

T = TypeVar("T")

log = structlog.get_logger("trunkline.matrix")

_POLL_MS, _POLL_SECONDS, _JOIN_SECONDS, _RECEIPT_SECONDS = 30_000, 60.0, 40.0, 5.0
_FULL_PAUSE = 1.0
_GAP_PATIENCE = 12
"""Factor of the time in which reading the events of a gap is repeated; then they are skipped."""
_TIMELINE = 50
"""Most events of a room in one answer; the events before them are paged."""
_NAMED = 3
"""Members that name a room without a name."""
_BATCH, _MOST_KNOWN, _MOST_RAW = 100, 10_000, 100_000
_ENCRYPTED = "I cannot read encrypted messages. Please write to me in a room without encryption."
_NOTIFIED = "org.trunkline.encrypted"
"""Account data of a room that has got the notice."""


class Inflow:
    """Intake of the rooms of one account."""

    def __init__(
        self, host: Host, api: Api, delivery: Delivery, bot: Bot, options: Options, receive: Receive
    ) -> None:
        self._host = host
        self._api = api
        self._delivery = delivery
        self._bot = bot
        self._options = options
        self._receive = receive
        self._since: str | None = None
        self._order = 0
        self._limit = _TIMELINE
        self._direct: Json = {}
        self._joined: set[str] = set()
        """Rooms that the bot joined since the stored position."""
        self._followed: set[str] = set()
        """Rooms that the bot joined because they replace one of the present answer."""
        self._known: OrderedDict[tuple[str, ...], Any] = OrderedDict()
        self._batch: tuple[list[InboundMessage], list[Rejected], list[Signal]] = ([], [], [])

    async def follow(self, ready: Callable[[], None]) -> None:
        """Take events until cancelled. ``ready`` is called when the homeserver answers."""
        for cursor in await self._host.cursors(self._bot.channel):
            if cursor.account == self._bot.me:
                order, _, self._since = cursor.value.partition(" ")
                self._order = int(order)
        with suppress(RefusedError):
            self._direct = await self._api.read("user", self._bot.me, "account_data", "m.direct")
        wait = 0
        while True:
            none: Json = {"types": []}
            timeline = {"limit": self._limit if self._since else 1}
            rooms = {"state": none, "ephemeral": none, "timeline": timeline}
            wanted: Json = {"room": rooms, "presence": none, "account_data": {"types": ["m.direct"]}}
            query: Json = {"since": self._since} if self._since else {}
            query |= {"filter": json.dumps(wanted), "timeout": wait}
            awaited = self._delivery.awaited
            try:
                found = await self._api.read("sync", seconds=_POLL_SECONDS, **query)
            except TooLargeError:
                if self._limit == 1:
                    raise
                self._limit = max(1, self._limit // 4)
                continue
            ready()
            self._limit, wait = _TIMELINE, _POLL_MS
            await self._take(found, awaited)

    async def _take(self, sync: Json, awaited: Sequence[str]) -> None:
        """Take the events of one answer, and then its position.

        ``awaited`` are events of the bot that were sent before the answer was asked for.
        """
        token, rooms, order = as_text(sync.get("next_batch")), as_object(sync.get("rooms")), self._order
        if not token:
            raise PlacementUncertain("sync: the answer has no position")
        for event in map(as_object, as_list(as_object(sync.get("account_data")).get("events"))):
            if event.get("type") == "m.direct":
                self._direct = as_object(event.get("content"))
        invited = [await self._invited(*one) for one in as_object(rooms.get("invite")).items()]
        if any(invited) and self._since:
            return  # The next answer, from the same position, has what was written since the invitation.
        for room, found in as_object(rooms.get("join")).items() if self._since else ():
            await self._take_room(room, as_object(as_object(found).get("timeline")))
        self._delivery.settle(awaited, order)
        if token != self._since or self._order != order:
            await self._flush(Cursor(self._bot.me, f"{self._order} {token}"))
            self._since = token
        self._joined, self._followed = self._followed, set()

    async def _take_room(self, room: str, timeline: Json) -> None:
        dropping = room in self._joined
        async for events in self._events(room, timeline):
            for raw in events:
                dropping = dropping and not self._is_invitation(as_object(raw))
                self._order += 1
                if not dropping:
                    await self._event(room, raw)
                heavy = any(one.parts or one.quotes for one in self._batch[0][-1:])
                if heavy or sum(map(len, self._batch)) >= _BATCH:
                    await self._flush()

    async def _events(self, room: str, timeline: Json) -> AsyncIterator[Sequence[Any]]:
        """Yield the events of a room since the position, page by page if the homeserver left some out."""
        start = timeline.get("prev_batch")
        if timeline.get("limited") is True and isinstance(start, str) and self._since:
            gap: Json = {"from": self._since, "to": start}
            try:
                async for page in self._api.messages(room, "f", _GAP_PATIENCE, **gap):
                    yield page
            except (RefusedError, PlacementUncertain) as error:
                await self._must_work(error)
                reason = "the messages of a room cannot be read, and those before the newest are skipped"
                log.warning(reason, room=room, since=self._since, until=start, reason=str(error))
        yield as_list(timeline.get("events"))

    async def _event(self, room: str, raw: object) -> None:
        """Take one event. An event that cannot be read goes to quarantine, and stops no other."""
        try:
            await self._handle(room, parse.event_of(raw))
        except PlacementDeferred:
            raise
        except Exception as error:  # noqa: BLE001 - any content of an event: the next ones must be read
            await self._must_work(error)
            reason = f"{type(error).__name__}: {error}"[:500]
            log.warning("an event cannot be read", room=room, reason=reason)
            key = as_text(as_object(raw).get("event_id"))[:255] or f"{room} {self._order}"
            self._batch[1].append(Rejected(self._bot.me, key, json.dumps(raw)[:_MOST_RAW], reason))

    async def _must_work(self, error: Exception) -> None:
        """Raise if the homeserver fails altogether, and not only for one room or event."""
        if isinstance(error, PlacementUncertain):
            await self._api.read("account", "whoami")

    async def _handle(self, room: str, event: Event) -> None:
        if event.type == "m.room.member":
            self._forget(("private", room), ("title", room), ("name", room, event.state_key or ""))
            name = as_text(event.content.get("displayname"))
            if name and event.state_key == self._bot.me:
                self._bot = replace(self._bot, name=name)
        elif event.type == "m.room.tombstone" and event.state_key == "":
            await self._follow_upgrade(room, event)
        elif event.type in ("m.room.name", "m.room.canonical_alias"):
            self._forget(("title", room))
        elif event.sender == self._bot.me:
            self._delivery.note(event.event_id, self._order)
        elif event.type == MESSAGE and event.content:
            await self._message(room, event)
        elif event.type == "m.reaction":
            self._reaction(room, event)
        elif event.type == "m.room.redaction":
            redacted = parse.event_id(event.redacts or event.content.get("redacts"))
            self._delivery.note_redacted(redacted)
            given = self._known.get(("reaction", room, redacted))
            taken = (
                Withdrawal(self._bot.me, redacted)
                if given is None
                else replace(given, value="none", stops=False)
            )
            self._batch[2].append(taken)
        elif event.type == "m.room.encrypted" and self._attention(room, event.sender) == "answer":
            await self._cached(("notified", room), lambda: self._notify_encrypted(room))

    async def _message(self, room: str, event: Event) -> None:
        """Take a message, or an edit by the author of its message."""
        change, original, content = parse.relation(event.content), event, event.content
        if change.kind == "m.replace":
            found = await self._lookup(room, change.event) if self._options.edits == "rerun" else None
            if found is None or found.sender != event.sender:
                return
            original, content = found, as_object(content.get("m.new_content"))
        if any(one.get("msgtype") in parse.NOT_FOR_BOTS for one in (content, original.content)):
            return
        place = await self._place(room, event.sender)
        message = parse.message_of(event, original, content, self._bot, place, self._order)
        quoted = await self._quoted(room, message.in_reply_to) if message.in_reply_to else None
        if quoted is not None and quoted.sender == self._bot.me and message.addressed in ("none", "mention"):
            message = replace(message, addressed="reply")
        else:
            message = await self._in_thread(room, message, content)
        attention = self._host.attention(self._bot.channel, message)
        if attention == "ignore":
            return
        parts = await self._parts(parse.file_of(content), attention)
        quotes = () if quoted is None else (await self._quote(room, quoted, attention),)
        self._batch[0].append(replace(message, parts=parts, quotes=quotes))

    async def _in_thread(self, room: str, message: InboundMessage, content: Json) -> InboundMessage:
        """Return a message as addressed to the bot if it is in a thread that the bot was called into."""
        thread = message.address.thread
        if not thread:
            return message
        if message.addressed in ("mention", "command"):
            self._remember(("thread", room, thread), True)
            return message
        if message.addressed != "none" or parse.for_another(content):
            return message
        follows = await self._cached(("thread", room, thread), lambda: self._was_called(room, thread))
        return replace(message, addressed="thread") if follows else message

    def _reaction(self, room: str, event: Event) -> None:
        related = parse.relation(event.content)
        key = as_text(as_object(event.content.get("m.relates_to")).get("key"))
        value = feedback_value([key])
        stops = key != "" and key.replace("\ufe0f", "") == self._options.stop_reaction.replace("\ufe0f", "")
        if related.kind == "m.annotation" and (value != "none" or stops):
            given = Feedback(self._bot.me, room, related.event, event.sender, value, stops, key)
            self._remember(("reaction", room, event.event_id), given)
            self._batch[2].append(given)

    async def _quote(self, room: str, event: Event, attention: Attention) -> Quoted:
        content = parse.latest(event)
        text = parse.text_of(content, parse.relation(event.content).reply_to is not None)
        sender = Sender(event.sender, (await self._place(room, event.sender)).name, event.sender[1:])
        parts = await self._parts(parse.file_of(content), attention)
        return Quoted("reply", text, sender, parts, own=event.sender == self._bot.me)

    async def _parts(self, file: File | None, attention: Attention) -> tuple[Part, ...]:
        """Return the file of a message, with its content only if the message is answered."""
        if file is None:
            return ()
        if attention != "answer":
            return (FilePart(file.name),)
        most, path = self._options.file_bytes, ("media", "download", *file.place)
        try:
            if not file.place[0]:
                raise RefusedError(0, "M_BAD_URI", "it is encrypted, or its address is malformed")
            data = await self._api.patiently(
                lambda: self._api.request("GET", "client/v1", path, {}, most=most)
            )
        except TooLargeError:
            return (FilePart(file.name, f"[it has more than {most:,} bytes]"),)
        except (RefusedError, PlacementUncertain) as error:
            return (FilePart(file.name, f"[it could not be downloaded: {error}]"),)
        return (await self._host.read_file(file.name, file.mime_type, data),)

    async def _flush(self, cursor: Cursor | None = None) -> None:
        """Commit what was taken; waits while the gateway is full."""
        (messages, rejected, signals), self._batch = self._batch, ([], [], [])
        if cursor is None and self._since:
            # The events after this position come again if the process ends, and perhaps in another order of
            # rooms: their orders have to continue after those that are stored.
            cursor = Cursor(self._bot.me, f"{self._order} {self._since}")
        await asyncio.sleep(0)  # A question that these messages answer learns its place before them.
        while True:
            try:
                receipts = await self._receive(*messages, cursor=cursor, rejected=rejected, signals=signals)
                break
            except OverloadedError as error:
                log.info("the gateway takes no messages", channel=self._bot.channel, reason=str(error))
                await asyncio.sleep(_FULL_PAUSE)
        pairs = zip(messages, receipts, strict=True)
        read = {(m.address.chat, m.address.thread or "main"): m.dedup_key for m, r in pairs if not r.ignored}
        for (room, thread), event in read.items():
            path, body = ("rooms", room, "receipt", "m.read", event), {"thread_id": thread}
            with suppress(*FAILURES, RefusedError):
                await self._api.call("POST", *path, body=body, seconds=_RECEIPT_SECONDS)

    async def _invited(self, room: str, found: object) -> bool:
        """Join a room if the person who invites may use the bot, else leave it; return whether it joined."""
        events = as_object(as_object(found).get("invite_state")).get("events")
        nothing: Json = {}
        own = next(filter(self._is_invitation, map(as_object, as_list(events))), nothing)
        inviter, reason = as_text(own.get("sender")), "the person who invites may not use this bot"
        if room in self._joined:
            return False
        accepted = inviter and self._attention(room, inviter) == "answer"
        if accepted:
            path = ("rooms", room, "join")
            try:
                if as_object(own.get("content")).get("is_direct") is True:
                    await self._mark_direct(room, inviter)
                await self._api.patiently(
                    lambda: self._api.call("POST", *path, body={}, seconds=_JOIN_SECONDS)
                )
            except (*FAILURES, RefusedError) as error:
                reason = f"the bot cannot join: {error}"
            else:
                log.info("joined a room", room=room, invited_by=inviter)
                self._joined.add(room)
                return True
        log.warning("an invitation was not accepted", room=room, invited_by=inviter, reason=reason)
        with suppress(*FAILURES, RefusedError):
            await self._api.call("POST", "rooms", room, "leave", body={"reason": reason})
        return False

    async def _follow_upgrade(self, old: str, event: Event) -> None:
        """Join the room that replaces an upgraded one, if who upgraded it may use the bot."""
        new, server = as_text(event.content.get("replacement_room")), event.sender.partition(":")[2]
        if not new.startswith("!") or self._attention(old, event.sender) != "answer":
            return
        query = {"via": server, "server_name": server}  # the second one is for servers before Matrix 1.12
        try:
            await self._api.call("POST", "join", new, body={}, seconds=_JOIN_SECONDS, **query)
        except RefusedError as refused:
            reason = "the bot cannot join the room that replaces an upgraded one; invite it there"
            log.warning(reason, room=old, replacement=new, reason=str(refused))
        else:
            log.info("joined the room that replaces an upgraded one", room=old, replacement=new)
            self._followed.add(new)

    def _is_invitation(self, event: Json) -> bool:
        """Return whether an event invites the bot or lets it join."""
        membership = as_object(event.get("content")).get("membership")
        mine = event.get("type") == "m.room.member" and event.get("state_key") == self._bot.me
        return mine and membership in ("invite", "join")

    def _attention(self, room: str, user: str) -> Attention:
        """Return how a message of a user that can only be for the bot would be treated in a room."""
        address = Address(self._bot.channel, self._bot.me, room, group=True)
        probe = InboundMessage(session="", dedup_key="", address=address, sender=Sender(user))
        return self._host.attention(self._bot.channel, probe)

    async def _mark_direct(self, room: str, inviter: str) -> None:
        listed = as_list(self._direct.get(inviter))
        if room not in listed:
            self._direct = {**self._direct, inviter: [*listed, room]}
            path = ("user", self._bot.me, "account_data", "m.direct")
            await self._api.patiently(lambda: self._api.call("PUT", *path, body=self._direct))

    async def _notify_encrypted(self, room: str) -> bool:
        """Notify a room once that encrypted messages cannot be read; the homeserver stores that it was."""
        path = ("user", self._bot.me, "rooms", room, "account_data", _NOTIFIED)
        with suppress(RefusedError):
            await self._api.read(*path)
            return True
        log.warning("the messages of a room are encrypted and cannot be read", room=room)
        with suppress(RefusedError):
            await self._delivery.notify(room, _ENCRYPTED, _NOTIFIED)
            await self._api.call("PUT", *path, body={"told": True})
        return True

    async def _place(self, room: str, user: str) -> Place:
        """Return what is known of a room and a user in it. Only a direct chat of two is private."""
        private = await self._cached(("private", room), lambda: self._is_private(room))
        title = "" if private else await self._cached(("title", room), lambda: self._title(room))
        member = ("m.room.member", user)
        name = await self._cached(("name", room, user), lambda: self._state(room, "displayname", *member))
        return Place(room, not private, title, name)

    async def _is_private(self, room: str) -> bool:
        if not any(room in as_list(rooms) for rooms in self._direct.values()):
            return False
        members = (await self._api.read("rooms", room, "members")).get("chunk")
        events = map(as_object, as_list(members))
        there = [
            one for one in events if as_object(one.get("content")).get("membership") in ("join", "invite")
        ]
        return len(there) == 2

    async def _title(self, room: str) -> str:
        named = await self._state(room, "name", "m.room.name")
        return named or await self._state(room, "alias", "m.room.canonical_alias") or await self._people(room)

    async def _people(self, room: str) -> str:
        """Return the names of the others in a room without a name, as clients show it."""
        members = map(as_object, as_list((await self._api.read("rooms", room, "members")).get("chunk")))
        names = sorted(
            as_text(as_object(one.get("content")).get("displayname")) or as_text(one.get("state_key"))
            for one in members
            if as_object(one.get("content")).get("membership") == "join"
            and one.get("state_key") != self._bot.me
        )
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return ", ".join(names[:_NAMED]) + more

    async def _state(self, room: str, field: str, *path: str) -> str:
        try:
            return as_text((await self._api.read("rooms", room, "state", *path)).get(field))
        except RefusedError:
            return ""

    async def _was_called(self, room: str, thread: str) -> bool:
        """Return whether the bot takes part in a thread, or is mentioned in it."""
        said = map(as_object, await self._thread(room, thread, _BATCH))
        return any(one.get("sender") == self._bot.me or self._bot.me in json.dumps(one) for one in said)

    async def _thread(self, room: str, root: str, limit: int) -> list[Any]:
        """Return the newest messages of a thread, the newest first, and its root."""
        path = ("rooms", room, "relations", root, "m.thread")
        try:
            found = (await self._api.read(*path, api="client/v1", dir="b", limit=limit)).get("chunk")
            begin = await self._api.read("rooms", room, "event", root)
        except RefusedError:
            return []
        return [*as_list(found), begin]

    async def _lookup(self, room: str, event: str) -> Event | None:
        """Return a message by its id; None if it cannot be read."""
        try:
            found = parse.event_of(await self._api.read("rooms", room, "event", event))
        except (RefusedError, ValueError):
            return None
        return found if found.type == MESSAGE and isinstance(found.content.get("body"), str) else None

    async def _quoted(self, room: str, event: str) -> Event | None:
        """Return the message that a reply points at; None if it cannot be read: the reply is answered."""
        try:
            return await self._lookup(room, event)
        except PlacementUncertain as error:
            await self._must_work(error)
            log.warning(
                "the message that another one replies to cannot be read", room=room, reason=str(error)
            )
            return None

    async def history(self, message: InboundMessage, limit: int) -> Sequence[Earlier]:
        """Return what was written before in a thread, or before a reply in its room."""
        room, thread = message.address.chat, message.address.thread
        if thread is not None:
            events = await self._thread(room, thread, limit + 1)
        elif message.in_reply_to:
            start = await self._api.read("rooms", room, "context", message.original, limit=0)
            before: Json = {"from": as_text(start.get("start"))}
            events = await anext(self._api.messages(room, "b", **before))
        else:
            return ()
        found: list[Earlier] = []
        for event in map(as_object, events):
            if event.get("event_id") == message.original:
                found.clear()  # the events before it in this order are newer
            elif earlier := await self._earlier(room, event, thread):
                found.append(earlier)
        return found[:limit][::-1]

    async def _earlier(self, room: str, raw: Json, thread: str | None) -> Earlier | None:
        try:
            event = parse.event_of(raw)
            content, related = parse.latest(event), parse.relation(event.content)
            text = parse.text_of(content, related.reply_to is not None)
        except ValueError:
            return None
        if event.type != MESSAGE or related.kind == "m.replace" or (related.kind and thread is None):
            return None
        file, own = parse.file_of(content), event.sender == self._bot.me
        sender = Sender(event.sender, (await self._place(room, event.sender)).name, event.sender[1:])
        names = () if file is None else (file.name,)
        bot = content.get("msgtype") == "m.notice" and not own
        return Earlier(
            key=event.event_id, sender=sender, text=text, at=event.at, files=names, own=own, bot=bot
        )

    async def _cached(self, key: tuple[str, ...], ask: Callable[[], Awaitable[T]]) -> T:
        """Return what is known, or ask the homeserver."""
        if key not in self._known:
            self._remember(key, await ask())
        return self._known[key]

    def _remember(self, key: tuple[str, ...], value: object) -> None:
        self._known[key] = value
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    def _forget(self, *keys: tuple[str, ...]) -> None:
        for key in keys:
            self._known.pop(key, None)
