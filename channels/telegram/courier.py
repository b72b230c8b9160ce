"""Sending: places each message once, edits it later, and finds it again after an uncertain send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast
from weakref import WeakValueDictionary

import structlog
from telegram import InputFile

from channels.telegram.api import CallError, Client, RefusedError, media, upload
from channels.telegram.finding import Finding
from channels.telegram.known import Known
from channels.telegram.outcome import MISSING, SAME, outcome
from channels.telegram.pace import Pace
from channels.telegram.parse import is_group
from channels.telegram.render import FilePage, Page, TextPage
from gateway.channel import Address, OutboundMessage, Placed, PlacementDeferred, PlacementUncertain

log = structlog.get_logger("trunkline.telegram")

_GONE = ("message to delete not found", "message can't be deleted", "message_id_invalid")
_NO_MEDIA: Mapping[str, Sequence[str]] = {
    "sendPhoto": ("image_process_failed", "photo_invalid_dimensions", "photo_", "too big for a photo"),
    "sendVoice": ("voice_messages_forbidden", "send_voices_forbidden", "rights to send voice"),
    "sendAudio": ("send_audios_forbidden", "rights to send music"),
}
"""Error texts for a file that the chat or the platform refuses as media but accepts as a document."""
_IS_VOICE = "there is no media in the message to edit"
_UNHEARD = 1.0
"""Seconds to hold a method after its call was cancelled: the lost response may have been a rate limit."""
_SIGN_SECONDS = 5.0
"""Timeout in seconds of a call that sends no message, because answers may have to wait for it."""
_NO_PREVIEW: Mapping[str, Any] = {"is_disabled": True}


class Courier:
    """Sender of one bot. ``note`` records which messages exist; only the newest id per sequence is kept.

    ``on_wrong_token`` is called when Telegram rejects the bot's token.
    """

    def __init__(self, client: Client, pace: Pace, on_wrong_token: Callable[[], None] = lambda: None) -> None:
        self._on_wrong_token = on_wrong_token
        self._client = client
        self._pace = pace
        self._known = Known()
        self._finding = Finding(client, pace, self._known, self._one_at_a_time)
        self._moved: dict[str, str] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def note(self, chat: str, message_id: int) -> None:
        """Record that a message with this id exists."""
        self._known.note(chat, message_id)

    def watermark(self, address: Address) -> str:
        """Return the newest known message id in the chat's id sequence."""
        asked = int(address.reply_to) if address.reply_to else 0
        return str(max(asked, self._known.newest(self._where(address))))

    async def place(self, outbound: OutboundMessage) -> Placed:
        """Send one page. Raises the errors of ``Channel.send``."""
        address, page = outbound.address, outbound.page
        if not outbound.final:
            self._spare(address)
        arguments = _aim(address, first=outbound.part == 0, moved=address.chat in self._moved)
        async with self._lock(address):
            sent = await self._write(address, *_sending(page), preview=not outbound.final, **arguments)
        return Placed(str(self._stands(address, sent)))

    async def say(
        self, address: Address, page: TextPage, markup: object, file: InputFile | None = None
    ) -> int:
        """Send a message with buttons that is not an answer. Raises the errors of ``Channel.send``.

        With a file it is still one message: the text becomes the caption, which has at most 1,024 characters.
        """
        aim = _aim(address, first=True, moved=address.chat in self._moved)
        method, what = "sendMessage", _text(page)
        if file is not None:
            method, what = "sendDocument", {"document": file, **_caption(page)}
        async with self._lock(address):
            sent = await self._write(address, method, what, reply_markup=markup, **aim)
        return self._stands(address, sent)

    async def change(
        self,
        address: Address,
        message_id: int,
        page: Page,
        *,
        preview: bool = False,
        under_file: bool = False,
    ) -> None:
        """Replace the content of a message with a page, and remove its buttons. Raises the errors of
        ``Channel.send``.

        A preview that cannot be sent at once raises PlacementDeferred, because a newer one replaces it soon.
        With ``under_file`` the text is the caption of a file, which stays.
        """
        method, arguments = _changing(page)
        if under_file and isinstance(page, TextPage):
            method, arguments = "editMessageCaption", _caption(page)
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
        """Delete a message. Raises the errors of ``Channel.send``."""
        try:
            await self._call(address, "deleteMessage", {}, message_id=message_id)
        except RefusedError as refused:
            if not refused.says(*_GONE):
                raise self._outcome(address, refused) from refused
        except CallError as error:
            raise self._outcome(address, error) from error

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        """Return the message that an earlier, uncertain send may have created; None if there is none.
        Raises PlacementDeferred if the platform cannot be asked now; the next call continues the search
        from there."""
        address, chat = outbound.address, self._where(outbound.address)
        async with self._lock(address):
            number = await self._finding.find(outbound, chat)
        return None if number is None else Placed(str(self._known.remember(chat, number)))

    async def draft(self, outbound: OutboundMessage, draft_id: int) -> None:
        """Show a draft. Raises the errors of ``Channel.send``."""
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
        """Send an indicator, such as typing or a reaction, unless the platform asked to wait."""
        chat = self._where(address)
        if not self._pace.held(chat):
            await self.attend(method, patience=0.0, chat_id=int(chat), **arguments)

    async def attend(self, method: str, *, patience: float = 10.0, **arguments: Any) -> None:
        """Make a call that sends no message. Skips it if the platform asked to wait longer than
        ``patience`` seconds."""
        async with self._one_at_a_time(f"{method}, {arguments.get('chat_id', '')}"):
            wait = self._pace.held(method)
            if wait > patience:
                return
            await asyncio.sleep(wait)
            try:
                await self._client.call(method, seconds=_SIGN_SECONDS, **arguments)
            except RefusedError as refused:
                if refused.code == 401:
                    self._on_wrong_token()
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
        """Make one call about a chat when its rate limit allows, following the chat if it became a
        supergroup.

        If the platform rejects the entities of a text, the text is sent again without them.
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
                    elif (styled := _entities_of(what)) and refused.says("entit") and not last:
                        log.warning("Telegram does not take the entities of a text", reason=refused.reason)
                        what = {**what, styled: []}
                    else:
                        raise
        raise AssertionError("the last attempt returns or raises")

    def _spare(self, address: Address) -> None:
        """Raise PlacementDeferred if the rate limit leaves no room for a preview now."""
        wait = self._pace.wait(self._where(address))
        if wait > 0:
            raise PlacementDeferred("there is no room for a preview", wait)

    def _outcome(self, address: Address, error: CallError) -> Exception:
        if isinstance(error, RefusedError) and error.code == 401:
            self._on_wrong_token()
        return outcome(self._pace, self._where(address), error)

    def _stands(self, address: Address, sent: object) -> int:
        number = cast("Mapping[str, Any]", sent).get("message_id") if isinstance(sent, Mapping) else None
        if not isinstance(number, int) or isinstance(number, bool):
            raise PlacementUncertain("an answer without the message")
        return self._known.remember(self._where(address), number)

    def _where(self, address: Address) -> str:
        return self._moved.get(address.chat, address.chat)

    def _lock(self, address: Address) -> asyncio.Lock:
        """Return the lock that serializes sends in a chat."""
        return self._one_at_a_time(f"{address.chat}, placing")

    def _one_at_a_time(self, name: str) -> asyncio.Lock:
        """Return the lock with this name: a "retry after" has to be recorded before the next call is made."""
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
    """Return whether a page is a voice message, which Telegram does not let bots replace by another one."""
    return isinstance(page, FilePage) and page.kind == "voice"


def _text(page: TextPage) -> Mapping[str, Any]:
    return {"text": page.text, "entities": [*page.entities], "link_preview_options": _NO_PREVIEW}


def _caption(page: TextPage) -> Mapping[str, Any]:
    return {"caption": page.text, "caption_entities": [*page.entities]}


def _entities_of(what: Mapping[str, Any]) -> str | None:
    """Return the name of the argument that has entities, if any."""
    return next((name for name in ("entities", "caption_entities") if what.get(name)), None)


def _aim(address: Address, *, first: bool, moved: bool) -> dict[str, Any]:
    """Return the target within a chat: the topic, and in groups the message that is answered."""
    aim: dict[str, Any] = dict(_topic(address))
    if first and is_group(address.chat) and address.reply_to and not moved:
        aim["reply_parameters"] = {
            "message_id": int(address.reply_to),
            "allow_sending_without_reply": True,
        }
    return aim


def _topic(address: Address) -> Mapping[str, Any]:
    return {} if address.thread is None else {"message_thread_id": int(address.thread)}
