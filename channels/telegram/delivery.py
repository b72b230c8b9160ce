"""Sending: places each message once, edits it later, and finds it again after an uncertain send."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, cast
from weakref import WeakValueDictionary

import structlog
from telegram import InputFile

from channels.telegram.api import CallError, Client, NotSentError, RefusedError, media, upload
from channels.telegram.limits import RateLimiter
from channels.telegram.parse import is_group, room_of
from channels.telegram.render import FilePage, Page, TextPage, is_question
from gateway.channel import (
    Address,
    OutboundMessage,
    Placed,
    PlacementDeferred,
    PlacementRefused,
    PlacementUncertain,
)

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


class Delivery:
    """Sender of one bot. ``note`` records which messages exist; only the newest id per sequence is kept.

    ``on_wrong_token`` is called when Telegram rejects the bot's token.
    """

    def __init__(
        self, client: Client, pace: RateLimiter, on_wrong_token: Callable[[], None] = lambda: None
    ) -> None:
        self._on_wrong_token = on_wrong_token
        self._client = client
        self._pace = pace
        self._known = KnownMessages()
        self._search = MessageSearch(client, pace, self._known, self._one_at_a_time)
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
            number = await self._search.find(outbound, chat)
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
        return delivery_error(self._pace, self._where(address), error)

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


_AHEAD = 40
_ATTEMPTS = 8
_PAUSE = 0.2
_LONGEST_PAUSE = 5.0
_HAS_FILE = "no text in the message"
"""Telegram's error for a text edit of a message with a file."""
_BUTTON: Mapping[str, Any] = {"inline_keyboard": [[{"text": "…", "callback_data": "-"}]]}

Shown = Mapping[str, Any]
"""A message of the bot as the platform shows it; empty if the platform only confirmed that the bot wrote
it."""


class MessageSearch:
    """Search for messages. ``locks`` returns the lock that serializes the calls about a chat."""

    def __init__(
        self,
        client: Client,
        pace: RateLimiter,
        known: KnownMessages,
        locks: Callable[[str], AbstractAsyncContextManager[Any]],
    ) -> None:
        self._client = client
        self._pace = pace
        self._known = known
        self._locks = locks
        self._looked: dict[str, tuple[int, int]] = {}

    async def find(self, outbound: OutboundMessage, chat: str) -> int | None:
        """Return the id of a message in a chat; None if it does not exist. Raises PlacementDeferred if the
        platform cannot be asked now; the next call continues the search from there."""
        others = set(map(int, outbound.others))
        number, end = self._looked.get(outbound.nonce) or self._range(outbound, chat)
        while number < end:
            known = number in others or self._known.is_own(chat, number)
            if not known and await self._is_it(outbound, chat, number):
                self._looked.pop(outbound.nonce, None)
                return number
            number += 1
            self._looked[outbound.nonce] = number, end
        self._looked.pop(outbound.nonce, None)
        return None

    def _range(self, outbound: OutboundMessage, chat: str) -> tuple[int, int]:
        """Return the range of ids that a message may have: it starts after the newest id known before the
        send, and ends shortly after the newest id known now."""
        row = room_of(chat)
        mark = int(outbound.watermark or outbound.address.reply_to or 0)
        placed = [int(number) for room, number in outbound.elsewhere if room_of(room) == row]
        newest = max(mark, self._known.newest(chat), *placed, *map(int, outbound.others))
        return mark + 1, newest + _AHEAD + 1

    async def _is_it(self, outbound: OutboundMessage, chat: str, number: int) -> bool:
        """Return whether a message was written by the bot as an answer to the same message as this one."""
        shown = await self._own(chat, number)
        marked = shown == {}
        if marked:
            shown = await self._mark(chat, number, reply_markup=_BUTTON)
        if shown is None:
            return False
        if not shown:
            if await self._becomes(outbound, chat, number):
                return True
            await self._mark(chat, number)
            return False
        # A question with a file has its text in the caption.
        words = str(shown.get("text") or shown.get("caption") or "")
        if not is_question(words) and fits(shown, outbound):
            return True
        if marked:
            await self._mark(chat, number)
        return False

    async def _becomes(self, outbound: OutboundMessage, chat: str, number: int) -> bool:
        """Return whether a message without visible content accepts the text of the page: only an existing
        message of the bot does."""
        page = outbound.page
        if not isinstance(page, TextPage):
            return False
        try:
            async with self._locks(chat), self._pace.turn(chat):
                await self._client.call(
                    "editMessageText",
                    chat_id=int(chat),
                    message_id=number,
                    text=page.text,
                    entities=[*page.entities],
                )
        except RefusedError as refused:
            if refused.says(*MISSING, FOREIGN, _HAS_FILE):
                return False
            if not refused.says(SAME):
                raise delivery_error(self._pace, chat, refused) from refused
        except CallError as error:
            raise PlacementDeferred(str(error)) from error
        return True

    async def _own(self, chat: str, number: int) -> Shown | None:
        """Return a message of the bot, without its buttons; None if the bot wrote no message with this id."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._probe(chat, number)
            except PlacementDeferred as deferred:
                wait = _PAUSE * attempt if deferred.seconds is None else deferred.seconds
                if attempt == _ATTEMPTS or wait > _LONGEST_PAUSE:
                    raise
                await asyncio.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    async def _probe(self, chat: str, number: int) -> Shown | None:
        async with self._locks(chat), self._pace.probe():
            wait = self._pace.held(chat)
            if wait:
                raise PlacementDeferred("the platform asked to wait", wait)
            return await self._edit(chat, number)

    async def _mark(self, chat: str, number: int, **markup: Any) -> Shown | None:
        """Add a button to a message, or remove it. Returns the message as it is then."""
        async with self._locks(chat), self._pace.turn(chat):
            return await self._edit(chat, number, **markup)

    async def _edit(self, chat: str, number: int, **markup: Any) -> Shown | None:
        """Change the buttons of a message. Returns the message if the bot wrote it, empty if its content
        is not shown, None if it is missing or another sender's."""
        try:
            shown: object = await self._client.call(
                "editMessageReplyMarkup", chat_id=int(chat), message_id=number, **markup
            )
        except RefusedError as refused:
            if refused.says(*MISSING):
                return None
            if not refused.says(SAME, FOREIGN):
                raise delivery_error(self._pace, chat, refused) from refused
            self._known.note(chat, number)
            return {} if refused.says(SAME) else None
        except CallError as error:
            raise PlacementDeferred(str(error)) from error
        if not isinstance(shown, Mapping):
            log.warning("Telegram does not show a message that it changed", chat=chat, number=number)
            return {}
        self._known.note(chat, number)
        return cast(Shown, shown)


def fits(shown: Shown, outbound: OutboundMessage) -> bool:
    """Return whether a message is in the topic of another and does not answer a different message."""
    address = outbound.address
    topic = shown.get("message_thread_id") if shown.get("is_topic_message") else None
    if str(topic or "") != (address.thread or ""):
        return False
    replied: Shown | None = shown.get("reply_to_message")
    answered = None if replied is None else replied.get("message_id")
    if answered in (None, topic):
        return True
    return outbound.part == 0 and str(answered) == address.reply_to


_REMEMBERED = 10_000


class KnownMessages:
    """Message ids that this process has seen."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._own: OrderedDict[tuple[str, int], None] = OrderedDict()

    def note(self, chat: str, number: int) -> None:
        """Record that a message with this id exists."""
        row = room_of(chat)
        self._newest[row] = max(number, self._newest.get(row, 0))

    def newest(self, chat: str) -> int:
        """Return the newest id in a chat's id sequence; 0 if none is known."""
        return self._newest.get(room_of(chat), 0)

    def remember(self, chat: str, number: int) -> int:
        """Record that the bot wrote this message and that its content is known."""
        self.note(chat, number)
        self._own[chat, number] = None
        while len(self._own) > _REMEMBERED:
            self._own.popitem(last=False)
        return number

    def is_own(self, chat: str, number: int) -> bool:
        """Return whether this is a message of the bot with known content."""
        return (chat, number) in self._own


SAME = "message is not modified"
FOREIGN = "can't be edited"
MISSING = ("message to edit not found", "message_id_invalid")

_WAIT_FOR_TOKEN = 60.0


def delivery_error(pace: RateLimiter, chat: str, error: CallError) -> Exception:
    """Return the error that ``Channel.send`` raises. If the platform asked to wait, calls about the chat
    are held."""
    if isinstance(error, NotSentError):
        return PlacementDeferred(str(error))
    if not isinstance(error, RefusedError):
        return PlacementUncertain(str(error))
    if error.retry_after is not None or error.code == 429:
        seconds = error.retry_after or 1.0
        pace.hold(chat, seconds)
        return PlacementDeferred("the platform asked to wait", seconds)
    if error.code in (401, 404, 409):
        return PlacementDeferred(error.reason, _WAIT_FOR_TOKEN)
    return PlacementRefused(error.reason)
