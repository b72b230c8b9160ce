"""What the bot writes: each message placed once, then edited; and found again where nobody knows.

The platform has neither a key for what is sent nor a history for bots. But it tells a bot that asks to change
nothing about a message whether that message is its own, somebody else's, or not there.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

import structlog

from channels.telegram.api import CallError, Client, NotSentError, RefusedError, media, upload
from channels.telegram.pace import Pace
from channels.telegram.parse import is_group, room_of
from channels.telegram.render import Page, TextPage
from channels.telegram.styling import Entity
from gateway import Address, OutboundMessage, Placed, PlacementDeferred, PlacementRefused, PlacementUncertain

log = structlog.get_logger("trunkline.telegram")

SAME = "message is not modified"
_FOREIGN = "can't be edited"
_MISSING = ("message to edit not found", "message_id_invalid")
_GONE = ("message to delete not found", "message can't be deleted", "message_id_invalid")
_NO_PHOTO = ("image_process_failed", "photo_invalid_dimensions", "photo_", "too big for a photo")
_AHEAD = 40
_ATTEMPTS = 8
_PAUSE = 0.2
_LONGEST_PAUSE = 5.0
_REMEMBERED = 10_000
_WAIT_FOR_TOKEN = 60.0
_NO_PREVIEW: Mapping[str, Any] = {"is_disabled": True}


class Courier:
    """Writes for one bot. ``note`` tells it which messages exist; the newest one counts."""

    def __init__(self, client: Client, pace: Pace) -> None:
        self._client = client
        self._pace = pace
        self._newest: dict[str, int] = {}
        self._own: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._looked: dict[str, tuple[int, int]] = {}
        self._moved: dict[str, str] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def note(self, chat: str, message_id: int) -> None:
        """A message with this number exists."""
        row = room_of(chat)
        self._newest[row] = max(message_id, self._newest.get(row, 0))

    def watermark(self, address: Address) -> str:
        """The number of the newest message known in a room's row."""
        asked = int(address.reply_to) if address.reply_to else 0
        return str(max(asked, self._newest.get(room_of(self._where(address)), 0)))

    async def place(self, outbound: OutboundMessage) -> Placed:
        """Place one page. Raises as ``Channel.send`` does."""
        address, page = outbound.address, outbound.page
        if not outbound.final:
            self._spare(address)
        arguments = _aim(address, first=outbound.part == 0, moved=address.chat in self._moved)
        async with self._lock(address):
            sent = await self._write(address, *_sending(page), preview=not outbound.final, **arguments)
        return Placed(str(self._stands(address, sent)))

    async def say(self, address: Address, text: str, entities: tuple[Entity, ...], markup: object) -> int:
        """Place a message that is no answer, with buttons. Raises as ``Channel.send`` does."""
        aim = _aim(address, first=True, moved=address.chat in self._moved)
        what = _text(TextPage(text, entities))
        async with self._lock(address):
            sent = await self._write(address, "sendMessage", what, reply_markup=markup, **aim)
        return self._stands(address, sent)

    async def change(self, address: Address, message_id: int, page: Page, *, preview: bool = False) -> None:
        """Make a message show a page, without buttons. Raises as ``Channel.send`` does.

        A preview does not wait for its turn: until it has one there will be more to show.
        """
        method, arguments = _changing(page)
        if preview:
            self._spare(address)
        try:
            await self._call(address, method, arguments, preview=preview, message_id=message_id)
        except RefusedError as refused:
            if refused.says(*_MISSING):
                log.info("a message was gone when it was to be edited", chat=address.chat)
            elif not refused.says(SAME):
                raise self._outcome(address, refused) from refused
        except CallError as error:
            raise self._outcome(address, error) from error

    async def delete(self, address: Address, message_id: int) -> None:
        """Remove a message. Raises as ``Channel.send`` does."""
        try:
            await self._call(address, "deleteMessage", {}, message_id=message_id)
        except RefusedError as refused:
            if not refused.says(*_GONE):
                raise self._outcome(address, refused) from refused
        except CallError as error:
            raise self._outcome(address, error) from error

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        """Look whether a message stands that may have been placed. Raises PlacementDeferred if that is not
        to be found out now; it goes on later from where it was."""
        address, chat = outbound.address, self._where(outbound.address)
        others = set(map(int, outbound.others))
        number, end = self._looked.get(outbound.nonce) or self._range(outbound)
        async with self._lock(address):
            while number < end:
                known = number in others or (chat, number) in self._own
                if not known and await self._is_ours(address, number):
                    self._looked.pop(outbound.nonce, None)
                    return Placed(str(self._remember(chat, number)))
                number += 1
                self._looked[outbound.nonce] = number, end
            self._looked.pop(outbound.nonce, None)
        return None

    def _range(self, outbound: OutboundMessage) -> tuple[int, int]:
        """The numbers that a message may have: after what was the newest when it was about to be placed, and
        not far after what is the newest now."""
        row = room_of(self._where(outbound.address))
        mark = int(outbound.watermark or outbound.address.reply_to or 0)
        placed = [int(number) for room, number in outbound.elsewhere if room_of(room) == row]
        newest = max(mark, self._newest.get(row, 0), *placed, *map(int, outbound.others))
        return mark + 1, newest + _AHEAD + 1

    async def draft(self, outbound: OutboundMessage, draft_id: int) -> None:
        """Show a preview. Raises as ``Channel.send`` does."""
        address, page = outbound.address, outbound.page
        if not isinstance(page, TextPage):
            return
        self._spare(address)
        what = {"text": page.text, "entities": [*page.entities], "draft_id": draft_id, "can_stop": True}
        try:
            await self._call(address, "sendMessageDraft", {**what, **_topic(address)}, preview=True)
        except CallError as error:
            raise self._outcome(address, error) from error

    async def sign(self, address: Address, method: str, **arguments: Any) -> None:
        """Show something that is no message, unless the platform asked to be left alone with it."""
        chat = self._where(address)
        if not self._pace.held(chat):
            await self.attend(method, patience=0.0, chat_id=int(chat), **arguments)

    async def attend(self, method: str, *, patience: float = 10.0, **arguments: Any) -> None:
        """A call that places nothing. Where the platform asked to wait longer than that, it is left out."""
        async with self._one_at_a_time(method):
            wait = self._pace.held(method)
            if wait > patience:
                return
            await asyncio.sleep(wait)
            try:
                await self._client.call(method, **arguments)
            except RefusedError as refused:
                if refused.retry_after is None:
                    raise
                self._pace.hold(method, refused.retry_after)

    async def _is_ours(self, address: Address, number: int) -> bool:
        """Whether a message stands that this bot wrote, as an answer without buttons."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._probe(address, number)
            except PlacementDeferred as deferred:
                wait = _PAUSE * attempt if deferred.seconds is None else deferred.seconds
                if attempt == _ATTEMPTS or wait > _LONGEST_PAUSE:
                    raise
                await asyncio.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    async def _probe(self, address: Address, number: int) -> bool:
        chat = self._where(address)
        async with self._one_at_a_time(chat), self._pace.probe():
            wait = self._pace.held(chat)
            if wait:
                raise PlacementDeferred("the platform asked to wait", wait)
            try:
                await self._client.call("editMessageReplyMarkup", chat_id=int(chat), message_id=number)
            except RefusedError as refused:
                if refused.says(*_MISSING):
                    return False
                if not refused.says(SAME, _FOREIGN):
                    raise self._outcome(address, refused) from refused
                self.note(chat, number)
                return refused.says(SAME)
            except CallError as error:
                raise PlacementDeferred(str(error)) from error
        return False

    async def _write(
        self, address: Address, method: str, what: Mapping[str, Any], **arguments: Any
    ) -> Mapping[str, Any]:
        try:
            try:
                return await self._call(address, method, what, **arguments)
            except RefusedError as refused:
                if method != "sendPhoto" or not refused.says(*_NO_PHOTO):
                    raise
                as_file = {"document": what["photo"], "caption": what["caption"]}
                return await self._call(address, "sendDocument", as_file, **arguments)
        except CallError as error:
            raise self._outcome(address, error) from error

    async def _call(
        self, address: Address, method: str, what: Mapping[str, Any], *, preview: bool = False, **more: Any
    ) -> Any:
        """One call about a room, at its turn, wherever the room has moved to.

        Where the platform takes a text but not what is to be special about it, it gets the text alone.
        """
        chat = self._where(address)
        for last in (False, False, True):
            async with self._one_at_a_time(chat), self._pace.turn(chat, preview=preview):
                try:
                    return await self._client.call(method, chat_id=int(chat), **what, **more)
                except RefusedError as refused:
                    if refused.migrated_to is not None and not last:
                        self._moved[address.chat] = chat = str(refused.migrated_to)
                        more.pop("reply_parameters", None)
                    elif what.get("entities") and refused.says("entit") and not last:
                        log.warning("Telegram does not take the entities of a text", reason=refused.reason)
                        what = {**what, "entities": []}
                    else:
                        raise
        raise AssertionError("the last attempt returns or raises")

    def _spare(self, address: Address) -> None:
        """Raises PlacementDeferred where there is no room for a preview now."""
        wait = self._pace.wait(self._where(address))
        if wait > 0:
            raise PlacementDeferred("there is no room for a preview", wait)

    def _outcome(self, address: Address, error: CallError) -> Exception:
        """What an error means for the message it was about."""
        if isinstance(error, NotSentError):
            return PlacementDeferred(str(error))
        if not isinstance(error, RefusedError):
            return PlacementUncertain(str(error))
        if error.retry_after is not None or error.code == 429:
            seconds = error.retry_after or 1.0
            self._pace.hold(self._where(address), seconds)
            return PlacementDeferred("the platform asked to wait", seconds)
        if error.code in (401, 404, 409):
            return PlacementDeferred(error.reason, _WAIT_FOR_TOKEN)
        return PlacementRefused(error.reason)

    def _stands(self, address: Address, sent: Mapping[str, Any]) -> int:
        number = sent.get("message_id")
        if not isinstance(number, int):
            raise PlacementUncertain("an answer without the message")
        return self._remember(self._where(address), number)

    def _remember(self, chat: str, number: int) -> int:
        self.note(chat, number)
        self._own[chat, number] = None
        while len(self._own) > _REMEMBERED:
            self._own.popitem(last=False)
        return number

    def _where(self, address: Address) -> str:
        return self._moved.get(address.chat, address.chat)

    def _lock(self, address: Address) -> asyncio.Lock:
        """One message at a time is placed in a room."""
        return self._one_at_a_time(f"{address.chat}, placing")

    def _one_at_a_time(self, name: str) -> asyncio.Lock:
        """Whoever is told to wait has to hear it before the next call is made."""
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock


def _sending(page: Page) -> tuple[str, Mapping[str, Any]]:
    if isinstance(page, TextPage):
        return "sendMessage", _text(page)
    file = upload(page.data, page.name)
    return f"send{page.kind.title()}", {page.kind: file, "caption": page.caption or None}


def _changing(page: Page) -> tuple[str, Mapping[str, Any]]:
    if isinstance(page, TextPage):
        return "editMessageText", _text(page)
    return "editMessageMedia", {"media": media(page.kind, page.data, page.name, page.caption)}


def _text(page: TextPage) -> Mapping[str, Any]:
    return {"text": page.text, "entities": [*page.entities], "link_preview_options": _NO_PREVIEW}


def _aim(address: Address, *, first: bool, moved: bool) -> dict[str, Any]:
    """Where in a room a message goes: its topic, and in a group what it answers."""
    aim: dict[str, Any] = dict(_topic(address))
    if first and is_group(address.chat) and address.reply_to and not moved:
        aim["reply_parameters"] = {
            "message_id": int(address.reply_to),
            "allow_sending_without_reply": True,
        }
    return aim


def _topic(address: Address) -> Mapping[str, Any]:
    return {} if address.thread is None else {"message_thread_id": int(address.thread)}
