"""Placing answers: what becomes of them on Discord, and how to find out when nobody knows."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any, Generic, TypeVar, cast

import aiohttp
import msgspec
import structlog
from msgspec import Struct

from channels.discord.api import (
    ARCHIVED,
    INVALID_FORM,
    NO_HISTORY,
    NO_VOICE,
    THREAD_EXISTS,
    VOICE_STAYS,
    Api,
    Broken,
    Later,
    Refused,
    refuse,
)
from channels.discord.parse import DEFAULT, REPLY, VOICE_FLAG, Snowflake, read, snowflake
from channels.discord.render import Page
from gateway.channel import Address, OutboundMessage, Placed, PlacementDeferred, PlacementUncertain

log = structlog.get_logger("trunkline.discord")

T = TypeVar("T")
MESSAGES = "/channels/{channel_id}/messages"
MESSAGE = "/channels/{channel_id}/messages/{message_id}"
ORIGINAL = "/webhooks/{webhook_id}/{webhook_token}/messages/@original"
QUIET: Mapping[str, Any] = {"parse": []}
"""Nobody is pinged, whatever a text says."""
SUPPRESS_EMBEDS = 1 << 2
PROMPT = "🔐 "
"""What the question for an approval begins with; answers do not."""

_LOADING = 1 << 7
_PREVIEWS, _WINDOW = 3, 5.0
_TYPING_EVERY = 8.0
_DEFERRAL_SECONDS = 5.0
_MOST = 5_000
_SEARCHED = 100
_SEARCHED_PAGES = 20
_GONE = (401, 404)


class Found(Struct, frozen=True):
    """A message in a room's history, as far as it has to be told apart."""

    id: Snowflake
    author: Mapping[str, Any]
    type: int = DEFAULT
    content: str = ""
    message_reference: Mapping[str, Any] | None = None
    components: tuple[Any, ...] = ()
    interaction_metadata: Mapping[str, Any] | None = None

    @property
    def referred(self) -> str | None:
        """The message that it refers to."""
        return (self.message_reference or {}).get("message_id")


class Recent(Generic[T]):
    """What was last put here, by key; the oldest goes when there is too much."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, T] = OrderedDict()

    def put(self, key: str, value: T) -> T:
        """Keep a value."""
        self._kept[key] = value
        self._kept.move_to_end(key)
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        return value

    def get(self, key: str) -> T | None:
        """A value that is still kept."""
        return self._kept.get(key)

    def pop(self, key: str) -> T | None:
        """A value, which is not kept any more."""
        return self._kept.pop(key, None)


class Places:
    """Sends, changes and finds the bot's messages.

    ``personal`` says that several may be answered in a room at once. ``deferrals`` are the commands that are
    being acknowledged: whether that worked. ``titles`` are what threads are called that are opened at a
    message.
    """

    def __init__(self, api: Api, *, personal: bool, pace: float = 1.0) -> None:
        self.deferrals: Recent[asyncio.Future[bool]] = Recent()
        self.titles: Recent[str] = Recent()
        self._api = api
        self._personal = personal
        self._joined: Recent[bool] = Recent()
        self._newest: Recent[str] = Recent()
        self._opened: Recent[str] = Recent()
        self._typed: Recent[float] = Recent()
        self._previews: dict[str, deque[float]] = {}
        self._most_previews = max(1, int(_PREVIEWS * pace))
        self._application: str | None = None

    def note(self, room: str, message: str) -> None:
        """A message was seen in a room."""
        if int(message) > int(self._newest.get(room) or "0"):
            self._newest.put(room, message)

    def newest(self, address: Address) -> str | None:
        """The newest message of a room that was seen."""
        return self._newest.get(address.thread or address.chat)

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Place a message. Raises as a channel does."""
        address = outbound.address
        try:
            if outbound.part == 0 and ":" in (address.reply_to or ""):
                placed = await self._respond(outbound)
                if placed is not None:
                    return placed
            room = await self.room_of(address)
            if room == address.thread:
                await self._join(room)
            return await self._create(room, outbound, address)
        except Refused as refused:
            refuse(refused)

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        """Make a message show its page. Raises as a channel does."""
        room, message = placed.platform_id.split(":")
        self.note(room, message)
        if not outbound.final:
            self._pace(room)
        page = cast("Page", outbound.page)
        body = _body(page)
        try:
            try:
                await self._change(room, message, body, page, spare=not outbound.final)
            except Refused as refused:
                if refused.code != ARCHIVED:
                    raise
                await self._api.place("PATCH", "/channels/{channel_id}", {"archived": False}, channel_id=room)
                await self._change(room, message, body, page)
        except Refused as refused:
            if not (page.is_voice and refused.code == VOICE_STAYS):
                refuse(refused)

    async def delete(self, placed: Placed) -> None:
        """Take a message away. Raises as a channel does."""
        room, message = placed.platform_id.split(":")
        try:
            await self._api.place("DELETE", MESSAGE, None, channel_id=room, message_id=message)
        except Refused as refused:
            if refused.status != 404:
                refuse(refused)

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        """A message that may have been placed. Raises PlacementDeferred when that cannot be told now."""
        address = outbound.address
        try:
            if outbound.part == 0 and ":" in (address.reply_to or ""):
                found = await self._responded(address)
                if found is not None:
                    return found
            for room in dict.fromkeys((address.thread, address.chat)):
                if room is not None and (found := await self._search(room, outbound)) is not None:
                    return found
        except Later as later:
            raise PlacementDeferred("Discord asks to wait", later.seconds) from later
        except (Broken, aiohttp.ClientError, OSError) as error:
            raise PlacementDeferred(str(error) or type(error).__name__) from error
        return None

    async def typing(self, address: Address) -> None:
        """Show that an answer is being made."""
        room, now = address.thread or address.chat, asyncio.get_running_loop().time()
        waits = ":" in (address.reply_to or "") or address.thread == address.reply_to
        if waits or now < (self._typed.get(room) or 0) + _TYPING_EVERY:
            return
        self._typed.put(room, now)
        await self._api.call("POST", "/channels/{channel_id}/typing", channel_id=room, spare=True)

    async def room_of(self, address: Address) -> str:
        """The room for an answer; its thread is opened if it is not there. Raises as a channel does."""
        message = address.reply_to
        if message is None or address.thread != message:
            return address.thread or address.chat
        opened = self._opened.get(message)
        if opened is None:
            body = {"name": self.titles.get(message) or "Answer", "auto_archive_duration": 1440}
            try:
                await self._api.place(
                    "POST", MESSAGE + "/threads", body, channel_id=address.chat, message_id=message
                )
                opened = message
            except Refused as refused:
                # Where the bot may open no thread, or the message is gone, the answer goes to the channel.
                opened = message if refused.code == THREAD_EXISTS else address.chat
            self._opened.put(message, opened)
        return opened

    async def application(self) -> str:
        """The id of the bot's application. Raises Refused, and what a call raises."""
        if self._application is None:
            told = await self._api.call("GET", "/applications/@me")
            try:
                self._application = snowflake(told["id"])
            except (msgspec.ValidationError, KeyError, TypeError) as error:
                raise Broken("the API names no application") from error
        return self._application

    async def _join(self, thread: str) -> None:
        """Take part in a thread: who does may take it out of the archive, and is known there again."""
        if self._joined.get(thread) is None:
            try:
                await self._api.place(
                    "PUT", "/channels/{channel_id}/thread-members/@me", None, channel_id=thread
                )
            except Refused as refused:
                log.info("the bot cannot take part in a thread", thread=thread, reason=str(refused))
            self._joined.put(thread, True)

    async def _create(self, room: str, outbound: OutboundMessage, address: Address) -> Placed:
        page = cast("Page", outbound.page)
        body = _body(page) | {"nonce": outbound.nonce, "enforce_nonce": True}
        if (message := self._referred(room, outbound)) is not None:
            body["message_reference"] = {"message_id": message}
        if page.is_voice:
            body = body | {"flags": VOICE_FLAG}
        told = await self._insist(room, body, page, spare=not outbound.final)
        placed = self._placed(room, told)
        if str(told.get("content", "")).strip() != page.text.strip():
            # An earlier try stands there under this nonce, with what the answer was then.
            await self._change(room, placed.platform_id.rpartition(":")[2], _body(page), page)
        return placed

    async def _insist(self, room: str, body: dict[str, Any], page: Page, *, spare: bool) -> Mapping[str, Any]:
        """Place a message, without what the room does not allow of it."""
        while True:
            try:
                return await self._api.place(
                    "POST", MESSAGES, body, uploads=page.files, spare=spare, channel_id=room
                )
            except Refused as refused:
                if refused.code == NO_HISTORY and "message_reference" in body:
                    del body["message_reference"]
                elif refused.code == INVALID_FORM and "In message_reference: Unknown message" in str(refused):
                    # A preview without a reference could not be found again after a crash, to take it away
                    # when the deletion of the question is heard. A final answer is found by its words.
                    if spare:
                        raise PlacementDeferred("the question is gone") from refused
                    del body["message_reference"]
                elif refused.code in NO_VOICE and body["flags"] & VOICE_FLAG:
                    body["flags"] = SUPPRESS_EMBEDS
                else:
                    raise

    async def _change(
        self, room: str, message: str, body: Mapping[str, Any], page: Page, *, spare: bool = False
    ) -> None:
        await self._api.place(
            "PATCH", MESSAGE, body, uploads=page.files, spare=spare, channel_id=room, message_id=message
        )

    async def _respond(self, outbound: OutboundMessage) -> Placed | None:
        """Put the answer where "… is thinking" stands; None where it does not. Twice is once."""
        interaction, token = cast("str", outbound.address.reply_to).split(":", 1)
        deferral = self.deferrals.get(interaction)
        if deferral is not None:
            await asyncio.wait([deferral], timeout=_DEFERRAL_SECONDS)
            if deferral.done() and not deferral.result():
                return None
        page = cast("Page", outbound.page)
        try:
            told = await self._api.place(
                "PATCH",
                ORIGINAL,
                _body(page),
                uploads=page.files,
                webhook_id=await self._application_to_place(),
                webhook_token=token,
            )
        except Refused as refused:
            if refused.status in _GONE:
                return None
            raise
        return self._placed(outbound.address.thread or outbound.address.chat, told)

    async def _responded(self, address: Address) -> Placed | None:
        """The answer of a command, if it stands where "… is thinking" stood."""
        token = cast("str", address.reply_to).split(":", 1)[1]
        try:
            told = await self._api.call(
                "GET", ORIGINAL, webhook_id=await self.application(), webhook_token=token
            )
        except Refused as refused:
            if refused.status in _GONE:
                return None
            raise
        if int(told.get("flags", 0)) & _LOADING:
            return None
        return self._placed(address.thread or address.chat, told)

    async def _search(self, room: str, outbound: OutboundMessage) -> Placed | None:
        """Look for a message of ours behind the question, and behind the page before it."""
        asked = (outbound.address.reply_to or "0").split(":")[0]
        after = max(int(asked), int(outbound.watermark or "0"))
        for _ in range(_SEARCHED_PAGES):
            history = await self._history(room, after)
            for found in history:
                if f"{room}:{found.id}" in outbound.others:
                    continue
                if self._is_answer(found, room, outbound):
                    self.note(room, found.id)
                    return Placed(f"{room}:{found.id}")
            if len(history) < _SEARCHED:
                break
            after = int(history[-1].id)
        return None

    async def _history(self, room: str, after: int) -> list[Found]:
        """Messages behind an id, oldest first; none of a room that is closed."""
        query: dict[str, str | int] = {"after": str(after), "limit": _SEARCHED}
        try:
            told = await self._api.call("GET", MESSAGES, query=query, channel_id=room)
            return sorted(read(told, tuple[Found, ...]), key=lambda found: int(found.id))
        except Refused:
            return []
        except msgspec.ValidationError as error:
            raise Broken("the history cannot be read") from error

    def _is_answer(self, found: Found, room: str, outbound: OutboundMessage) -> bool:
        mine = found.author.get("id") == self._api.me.get("id")
        said = found.type in (DEFAULT, REPLY) and found.interaction_metadata is None
        if not (mine and said) or found.components or found.content.startswith(PROMPT):
            return False
        wanted = self._referred(room, outbound)
        stands_alone = outbound.part or room == outbound.address.reply_to
        if found.referred is not None or (wanted is None and stands_alone):
            return found.referred == wanted
        # The answer of a command that stands apart, or one whose question was deleted before it was placed:
        # there only its words tell it from others.
        page = cast("Page | None", outbound.page)
        return page is not None and found.content == page.text.strip()

    def _referred(self, room: str, outbound: OutboundMessage) -> str | None:
        """The message that an answer refers to; it can be found by that.

        Further pages are found behind the one before them, where only one conversation goes on.
        """
        message = outbound.address.reply_to
        if message is None or ":" in message or room == message:
            return None
        several = self._personal and outbound.address.group
        return message if outbound.part == 0 or several else None

    def _placed(self, room: str, told: Mapping[str, Any]) -> Placed:
        try:
            message, where = snowflake(told["id"]), snowflake(told.get("channel_id", room))
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            raise PlacementUncertain("Discord did not say where the message is") from error
        self.note(where, message)
        return Placed(f"{where}:{message}")

    def _pace(self, room: str) -> None:
        """Leave room for final answers. Raises PlacementDeferred."""
        now = asyncio.get_running_loop().time()
        shown = self._previews.setdefault(room, deque())
        while shown and shown[0] <= now - _WINDOW:
            shown.popleft()
        if len(shown) >= self._most_previews:
            raise PlacementDeferred("enough was shown in the last seconds", shown[0] + _WINDOW - now)
        shown.append(now)

    async def _application_to_place(self) -> str:
        try:
            return await self.application()
        except Later as later:
            raise PlacementDeferred("Discord asks to wait", later.seconds) from later
        except (Broken, aiohttp.ClientError, OSError) as error:
            raise PlacementDeferred(str(error) or type(error).__name__) from error


def _body(page: Page) -> dict[str, Any]:
    return {"content": page.text, "allowed_mentions": QUIET, "flags": SUPPRESS_EMBEDS}
