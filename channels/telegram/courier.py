"""What the bot writes: each message placed once, then edited; and found again where nobody knows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import structlog

from channels.telegram.api import CallError, Client, RefusedError, media, upload
from channels.telegram.finding import Finding
from channels.telegram.known import Known
from channels.telegram.outcome import MISSING, SAME, outcome
from channels.telegram.pace import Pace
from channels.telegram.parse import is_group
from channels.telegram.render import FilePage, Page, TextPage
from channels.telegram.styling import Entity
from gateway import Address, OutboundMessage, Placed, PlacementDeferred, PlacementUncertain

log = structlog.get_logger("trunkline.telegram")

_GONE = ("message to delete not found", "message can't be deleted", "message_id_invalid")
_NO_MEDIA: Mapping[str, Sequence[str]] = {
    "sendPhoto": ("image_process_failed", "photo_invalid_dimensions", "photo_", "too big for a photo"),
    "sendVoice": ("voice_messages_forbidden", "send_voices_forbidden", "rights to send voice"),
    "sendAudio": ("send_audios_forbidden", "rights to send music"),
}
"""What a room or the platform says of a file that it may take as a document."""
_IS_VOICE = "there is no media in the message to edit"
_UNHEARD = 1.0
"""Seconds to wait after a call that nobody waited for: perhaps it was answered that others have to."""
_NO_PREVIEW: Mapping[str, Any] = {"is_disabled": True}


class Courier:
    """Writes for one bot. ``note`` tells it which messages exist; the newest one counts."""

    def __init__(self, client: Client, pace: Pace) -> None:
        self._client = client
        self._pace = pace
        self._known = Known()
        self._finding = Finding(client, pace, self._known, self._one_at_a_time)
        self._moved: dict[str, str] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def note(self, chat: str, message_id: int) -> None:
        """A message with this number exists."""
        self._known.note(chat, message_id)

    def watermark(self, address: Address) -> str:
        """The number of the newest message known in a room's row."""
        asked = int(address.reply_to) if address.reply_to else 0
        return str(max(asked, self._known.newest(self._where(address))))

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
            if refused.says(*MISSING):
                log.info("a message was gone when it was to be edited", chat=address.chat)
            elif not (refused.says(SAME) or (_is_voice(page) and refused.says(_IS_VOICE))):
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
        async with self._lock(address):
            number = await self._finding.find(outbound, chat)
        return None if number is None else Placed(str(self._known.remember(chat, number)))

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
            except asyncio.CancelledError:
                self._pace.hold(method, _UNHEARD)
                raise

    async def _write(
        self, address: Address, method: str, what: Mapping[str, Any], **arguments: Any
    ) -> Mapping[str, Any]:
        try:
            try:
                return await self._call(address, method, what, **arguments)
            except RefusedError as refused:
                if not refused.says(*_NO_MEDIA.get(method, ())):
                    raise
                as_file = {
                    "document": what[method.removeprefix("send").lower()],
                    "caption": what["caption"],
                }
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
        return outcome(self._pace, self._where(address), error)

    def _stands(self, address: Address, sent: Mapping[str, Any]) -> int:
        number = sent.get("message_id")
        if not isinstance(number, int):
            raise PlacementUncertain("an answer without the message")
        return self._known.remember(self._where(address), number)

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
    duration = None if page.seconds is None else max(1, round(page.seconds))
    return f"send{page.kind.title()}", {
        page.kind: file,
        "caption": page.caption or None,
        "duration": duration,
    }


def _changing(page: Page) -> tuple[str, Mapping[str, Any]]:
    if isinstance(page, TextPage):
        return "editMessageText", _text(page)
    kind = "document" if page.kind == "voice" else page.kind
    return "editMessageMedia", {"media": media(kind, page.data, page.name, page.caption)}


def _is_voice(page: Page) -> bool:
    """Whether it is a page that cannot be changed where it stands as it was meant to."""
    return isinstance(page, FilePage) and page.kind == "voice"


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
