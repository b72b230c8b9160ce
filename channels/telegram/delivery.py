"""Sending: places each message once, edits it later, and finds it again after an uncertain send."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, cast
from weakref import WeakValueDictionary

import structlog
from msgspec.structs import replace
from telegram import InputFile

from channels.telegram.api import CallError, Client, NotSentError, RefusedError, media, upload
from channels.telegram.limits import RateLimiter
from channels.telegram.render import MAX_TEXT, FilePage, P, Page, TextPage, copyable, inert, is_question
from channels.telegram.updates.chats import connection_of, id_sequence, is_group, target_of
from gateway.channel import (
    Address,
    OutboundMessage,
    Placed,
    PlacementDeferred,
    PlacementMismatch,
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
"""Errors for files that the chat or the platform refuses as media; they are sent as documents instead."""
_NO_RICH = ("method not found", "rich message must be non-empty", "message text is empty")
"""Errors of Bot API servers before 10.1 to new methods, before 10.2 to blocks, and before 10.1 to edits."""
_NO_EDITABLE_MEDIA = "there is no media in the message to edit"
_CANCELLED_HOLD_SECONDS = 1.0
"""Seconds to hold a method after its call was cancelled; the lost response may have been a 429."""
_INDICATOR_SECONDS = 5.0
"""Timeout in seconds of a call that sends no message; short, because answers may wait for it."""
_NO_PREVIEW: Mapping[str, Any] = {"is_disabled": True}


class Delivery:
    """Sending and editing of one bot's messages, one at a time in each chat.

    ``on_wrong_token`` is called when Telegram rejects the bot's token. ``rich``: texts with headings or
    tables are rich messages, until the Bot API server shows that it is too old for them.
    """

    def __init__(
        self,
        client: Client,
        limits: RateLimiter,
        on_wrong_token: Callable[[], None] = lambda: None,
        *,
        rich: bool = True,
    ) -> None:
        self._rich = rich
        self._on_wrong_token = on_wrong_token
        self._client = client
        self._limits = limits
        self._known = KnownMessages()
        self._search = MessageSearch(client, limits, self._known, self._lock_named)
        self._moved: dict[str, str] = {}
        """Ids of supergroups by the ids of the groups that became them."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def note(self, chat: str, message_id: int) -> None:
        """Record that a message with this id exists."""
        self._known.note(chat, message_id)

    def watermark(self, address: Address) -> str:
        """Return the newest known message id in the chat's id sequence."""
        asked = int(address.reply_to) if address.reply_to else 0
        return str(max(asked, self._known.newest(address.chat)))

    async def place(self, outbound: OutboundMessage) -> Placed:
        """Send one page. Raises the errors of ``Channel.send``."""
        address = outbound.address
        page = _as_shown(address, outbound.page)
        if not outbound.final:
            self._defer_preview(self._current_chat(address))
        arguments = _target(address, first=outbound.part == 0, moved=address.chat in self._moved)
        async with self._send_lock(self._current_chat(address)):
            try:
                method, content = _send_call(page)
                preview = not outbound.final
                sent = await self._send(address, method, content, page=page, preview=preview, **arguments)
            except PlacementRefused as refused:
                if not isinstance(page, FilePage):
                    raise
                # The rest of the answer must not depend on one file. If the chat is gone, this fails, too.
                sent = await self._send(address, *_send_call(_refusal_note(page, refused)), **arguments)
        return self._record_sent(address, sent)

    async def place_album(self, outbounds: Sequence[OutboundMessage]) -> list[Placed]:
        """Send files as one album. Raises the errors of ``Channel.send``."""
        first = outbounds[0]
        address = first.address
        if connection_of(address.chat) is not None:
            raise PlacementRefused("the search cannot find an album in a business chat")
        files = [cast("FilePage", _as_shown(address, outbound.page)) for outbound in outbounds]
        items = [media(_media_kind(page), page.data, page.name, page.caption) for page in files]
        target = _target(address, first=first.part == 0, moved=address.chat in self._moved)
        async with self._send_lock(self._current_chat(address)):
            # Telegram counts the messages of an album, not the call.
            for _ in items[1:]:
                async with self._limits.turn(self._current_chat(address)):
                    pass
            sent = await self._send(address, "sendMediaGroup", {"media": items}, **target)
        if not isinstance(sent, list) or len(cast("list[object]", sent)) != len(items):
            raise PlacementUncertain("the response does not have all messages of the album")
        return [self._record_sent(address, one) for one in cast("list[object]", sent)]

    async def send_prompt(
        self, address: Address, page: TextPage, markup: object, file: InputFile | None = None
    ) -> Placed:
        """Send a message with buttons that is not an answer. Raises the errors of ``Channel.send``.

        With a file it is still one message: the text becomes the caption, which has at most 1,024 characters.
        """
        target = _target(address, first=True, moved=address.chat in self._moved)
        page = _as_shown(address, page)
        method, content = "sendMessage", _text(page)
        if file is not None:
            method, content = "sendDocument", {"document": file, **_caption(page)}
        async with self._send_lock(self._current_chat(address)):
            sent = await self._send(address, method, content, reply_markup=markup, **target)
        return self._record_sent(address, sent)

    async def edit(
        self,
        address: Address,
        message: str,
        page: Page,
        *,
        preview: bool = False,
        under_file: bool = False,
    ) -> None:
        """Replace the content of a message with a page, and remove its buttons. ``message`` is the id that
        ``place`` returned. Raises the errors of ``Edits.edit``.

        A preview that cannot be sent at once raises PlacementDeferred, because a newer one replaces it soon.
        With ``under_file`` the text is the caption of a file, which stays.
        """
        page = _as_shown(address, page)
        chat, number = _place_of(address.chat, message)
        method, arguments = _edit_call(page)
        if under_file and isinstance(page, TextPage):
            method, arguments = "editMessageCaption", _caption(page)
        if preview:
            self._defer_preview(chat)
        try:
            more: dict[str, Any] = {"chat": chat, "preview": preview, "message_id": number}
            if under_file or not await self._show_rich(address, "editMessageText", page, **more):
                await self._call(address, method, arguments, **more)
        except RefusedError as refused:
            if refused.migrated_to is not None or refused.says(*MISSING):
                # An answer must not be lost with a message that a user deleted: it is placed again.
                raise PlacementMismatch(refused.reason) from refused
            if not (refused.says(SAME) or (_is_voice(page) and refused.says(_NO_EDITABLE_MEDIA))):
                error = self._delivery_error(chat, refused)
                # ``place`` has other ways to show a file; an edit does not.
                if isinstance(error, PlacementRefused) and (
                    isinstance(page, FilePage) or refused.says(_NO_TEXT)
                ):
                    error = PlacementMismatch(refused.reason)
                raise error from refused
        except CallError as error:
            raise self._delivery_error(chat, error) from error

    async def delete(self, address: Address, message: str) -> None:
        """Delete a message; ``message`` is the id that ``place`` returned. Raises the errors of
        ``Channel.send``."""
        chat, number = _place_of(address.chat, message)
        method, arguments = "deleteMessage", dict[str, Any](message_id=number)
        if connection_of(address.chat) is not None:
            method, arguments = "deleteBusinessMessages", {"chat_id": None, "message_ids": [number]}
        try:
            await self._call(address, method, arguments, chat=chat)
        except RefusedError as refused:
            if refused.migrated_to is not None:
                log.info("a message of a group that became a supergroup cannot be deleted", chat=chat)
            elif not refused.says(*_GONE):
                raise self._delivery_error(chat, refused) from refused
        except CallError as error:
            raise self._delivery_error(chat, error) from error

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        """Return the message that an earlier, uncertain send may have created; None if there is none.
        Raises PlacementDeferred if the platform cannot be asked now; the next call continues the search
        from there."""
        address = outbound.address
        if outbound.page:  # otherwise the search is for a message that is not wanted any more
            outbound = replace(outbound, page=_as_shown(address, outbound.page))
        found = None
        try:
            found = await self._find_in(address.chat, outbound)
        except PlacementRefused as refused:
            if not await self._has_moved(address):
                raise
            # Rather shown twice than not at all.
            log.info("a group that became a supergroup cannot be searched", reason=str(refused))
        if found is None and await self._has_moved(address):
            found = await self._find_in(self._current_chat(address), outbound)
        return found

    async def show_draft(self, outbound: OutboundMessage, draft_id: int) -> None:
        """Show a draft. Raises the errors of ``Channel.send``."""
        address = outbound.address
        page = _as_shown(address, outbound.page)
        if not isinstance(page, TextPage):
            return  # a growing answer ends with a text
        self._defer_preview(self._current_chat(address))
        content = {"text": page.text, "entities": [*page.entities]}
        more: dict[str, Any] = {"draft_id": draft_id, "can_stop": True, "preview": True, **_topic(address)}
        try:
            if not await self._show_rich(address, "sendRichMessageDraft", page, **more):
                await self._call(address, "sendMessageDraft", content, **more)
        except CallError as error:
            raise self._delivery_error(self._current_chat(address), error) from error

    async def send_indicator(self, address: Address, method: str, **arguments: Any) -> None:
        """Send an indicator, such as typing or a reaction; skip it while the platform asks to wait."""
        # A supergroup renumbers its messages: the id of a reaction is one of the former group.
        chat = address.chat if "message_id" in arguments else self._current_chat(address)
        if not self._limits.held(chat):
            await self.call_best_effort(method, longest_wait=0.0, **target_of(chat), **arguments)

    async def call_best_effort(self, method: str, *, longest_wait: float = 10.0, **arguments: Any) -> None:
        """Make a call that sends no message; skip it if the platform refuses it with a wait, or asks to wait
        for more than ``longest_wait`` seconds. Raises CallError."""
        async with self._lock_named(f"{method}, {arguments.get('chat_id', '')}"):
            wait = self._limits.held(method)
            if wait > longest_wait:
                return
            await asyncio.sleep(wait)
            try:
                await self._client.call(method, seconds=_INDICATOR_SECONDS, **arguments)
            except RefusedError as refused:
                if refused.code == 401:
                    self._on_wrong_token()
                if refused.retry_after is None:
                    raise
                self._limits.hold(method, refused.retry_after)
            except asyncio.CancelledError:
                self._limits.hold(method, _CANCELLED_HOLD_SECONDS)
                raise

    async def _send(
        self,
        address: Address,
        method: str,
        content: Mapping[str, Any],
        *,
        page: Page | None = None,
        **arguments: Any,
    ) -> object:
        try:
            try:
                shown = await self._show_rich(address, "sendRichMessage", page, **arguments)
                return shown or await self._call(address, method, content, **arguments)
            except RefusedError as refused:
                if not refused.says(*_NO_MEDIA.get(method, ())):
                    raise
                as_file = {
                    "document": content[method.removeprefix("send").lower()],
                    "caption": content["caption"],
                }
                return await self._call(address, "sendDocument", as_file, **arguments)
        except CallError as error:
            raise self._delivery_error(self._current_chat(address), error) from error

    async def _show_rich(self, address: Address, method: str, page: Page | None, **more: Any) -> Any:
        """Show a page as a rich message, if it has headings or tables.

        Returns None if it has to be shown as a text. Raises CallError.
        """
        if not (self._rich and isinstance(page, TextPage) and page.blocks):
            return None
        # Detection would turn names into mentions, which notify users.
        content = {"rich_message": {"blocks": [*page.blocks], "skip_entity_detection": True}}
        try:
            return await self._call(address, method, content, **more)
        except RefusedError as refused:
            if refused.code not in (400, 404) or refused.says(SAME, FOREIGN, *MISSING, _NO_TEXT):
                raise
            if refused.says(*_NO_RICH):
                self._rich = False
            log.info("sending a text instead of a rich message", reason=refused.reason)
            return None

    async def _call(
        self,
        address: Address,
        method: str,
        content: Mapping[str, Any],
        *,
        chat: str | None = None,
        preview: bool = False,
        **more: Any,
    ) -> Any:
        """Make one call about a chat when its rate limit allows, following the chat if it became a
        supergroup.

        A call about a message names its ``chat`` and does not follow: the supergroup counts its messages
        again, so the same id is another message there. If the platform rejects the entities of a text, the
        text is sent again without them.
        """
        follow = chat is None
        chat = chat or self._current_chat(address)
        for last in (False, False, True):
            async with self._lock_named(chat), self._limits.turn(chat, preview=preview):
                try:
                    return await self._client.call(method, **{**target_of(chat), **content, **more})
                except RefusedError as refused:
                    if refused.migrated_to is not None and follow and not last:
                        self._moved[address.chat] = chat = str(refused.migrated_to)
                        more.pop("reply_parameters", None)
                    elif (styled := _entities_of(content)) and refused.says("entit") and not last:
                        log.warning(
                            "sending a text without its entities",
                            reason=refused.reason,
                        )
                        content = {**content, styled: []}
                    else:
                        raise
        raise AssertionError("the last attempt returns or raises")

    def _defer_preview(self, chat: str) -> None:
        """Raise PlacementDeferred if the rate limit leaves no room for a preview now."""
        wait = self._limits.wait(chat)
        if wait > 0:
            raise PlacementDeferred("the rate limit leaves no room for a preview", wait)

    def _delivery_error(self, chat: str, error: CallError) -> Exception:
        if isinstance(error, RefusedError) and error.code == 401:
            self._on_wrong_token()
        return delivery_error(self._limits, chat, error)

    def _record_sent(self, address: Address, sent: object) -> Placed:
        number = cast("Mapping[str, Any]", sent).get("message_id") if isinstance(sent, Mapping) else None
        if not isinstance(number, int) or isinstance(number, bool):
            raise PlacementUncertain("the response has no message id")
        return self._own(address, self._current_chat(address), number)

    def _own(self, address: Address, chat: str, number: int) -> Placed:
        return placed_in(address.chat, chat, self._known.add_own(chat, number))

    async def _find_in(self, chat: str, outbound: OutboundMessage) -> Placed | None:
        async with self._send_lock(chat):
            number = await self._search.find(_searched_in(chat, outbound))
            return None if number is None else self._own(outbound.address, chat, number)

    async def _has_moved(self, address: Address) -> bool:
        """Return whether the chat became a supergroup. Raises PlacementDeferred and PlacementUncertain."""
        chat = address.chat
        if is_group(chat) and not id_sequence(chat) and chat not in self._moved:
            try:
                # The edits of a search are allowed in the old group, so they do not reveal that it has moved.
                await self._call(address, "sendChatAction", {"action": "typing"})
            except CallError as error:
                raised = self._delivery_error(chat, error)
                if not isinstance(raised, PlacementRefused):
                    raise raised from error
        return chat in self._moved

    def _current_chat(self, address: Address) -> str:
        return self._moved.get(address.chat, address.chat)

    def _send_lock(self, chat: str) -> asyncio.Lock:
        """Return the lock that serializes sends in a chat."""
        return self._lock_named(f"{chat}, placing")

    def _lock_named(self, name: str) -> asyncio.Lock:
        """Return the lock with this name. It is held until the response of a call, because a ``retry_after``
        has to be recorded before the next call is made."""
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock


def placed_in(group: str, chat: str, number: int) -> Placed:
    """Return the id of a message for ``group``, with its chat if that is the supergroup that it became."""
    return Placed(str(number) if chat == group else f"{chat}:{number}", number)


def _place_of(chat: str, message: str) -> tuple[str, int]:
    """Return the chat and the number of a message that was placed for an address in ``chat``."""
    moved_to, _, number = message.rpartition(":")
    return moved_to or chat, int(number)


def _searched_in(chat: str, outbound: OutboundMessage) -> OutboundMessage:
    """Return a page as it would have been placed in a chat: in a supergroup that the group of its address
    became, nothing is replied to, and the ids of the messages start over."""
    address = outbound.address
    names = [*((address.chat, message) for message in outbound.others), *outbound.elsewhere]
    places = [_place_of(where, message) for where, message in names]
    if chat != address.chat:
        address, outbound = replace(address, chat=chat, reply_to=None), replace(outbound, watermark=None)
    return replace(
        outbound,
        address=address,
        others=tuple(str(number) for where, number in places if where == chat),
        elsewhere=tuple((where, str(number)) for where, number in places if where != chat),
    )


def _as_shown(address: Address, page: P) -> P:
    """Return a page as a chat shows it: in a private chat without marks in mentions."""
    return page if is_group(address.chat) else copyable(page)


def _send_call(page: Page) -> tuple[str, Mapping[str, Any]]:
    if isinstance(page, TextPage):
        return "sendMessage", _text(page)
    file = upload(page.data, page.name)
    duration = None if page.seconds is None else max(1, round(page.seconds))
    return f"send{page.kind.title()}", {
        page.kind: file,
        "caption": page.caption or None,
        "duration": duration,
    }


def _refusal_note(page: FilePage, refused: PlacementRefused) -> TextPage:
    return TextPage(inert(f"⚠️ {page.name} could not be sent: {refused}")[:MAX_TEXT])


def _edit_call(page: Page) -> tuple[str, Mapping[str, Any]]:
    if isinstance(page, TextPage):
        return "editMessageText", _text(page)
    return "editMessageMedia", {"media": media(_media_kind(page), page.data, page.name, page.caption)}


def _media_kind(page: FilePage) -> Literal["photo", "audio", "document"]:
    return "document" if page.kind == "voice" else page.kind


def _is_voice(page: object) -> bool:
    """Return whether a page is a voice message. Telegram does not let bots edit those."""
    return isinstance(page, FilePage) and page.kind == "voice"


def _text(page: TextPage) -> Mapping[str, Any]:
    return {"text": page.text, "entities": [*page.entities], "link_preview_options": _NO_PREVIEW}


def _caption(page: TextPage) -> Mapping[str, Any]:
    return {"caption": page.text, "caption_entities": [*page.entities]}


def _entities_of(content: Mapping[str, Any]) -> str | None:
    """Return the name of the argument that has entities, if any."""
    return next((name for name in ("entities", "caption_entities") if content.get(name)), None)


def _target(address: Address, *, first: bool, moved: bool) -> dict[str, Any]:
    """Return the target within a chat: the topic, and in groups the message that is answered."""
    target: dict[str, Any] = dict(_topic(address))
    if first and is_group(address.chat) and address.reply_to and not moved:
        target["reply_parameters"] = {
            "message_id": int(address.reply_to),
            "allow_sending_without_reply": True,
        }
    return target


def _topic(address: Address) -> Mapping[str, Any]:
    return {} if address.thread is None else {"message_thread_id": int(address.thread)}


_LOOKAHEAD = 40
"""Ids to probe after the newest known one: other chats use ids of the same sequence meanwhile."""
_ATTEMPTS = 8
_PAUSE = 0.2
_LONGEST_PAUSE = 5.0
_NO_TEXT = "no text in the message"
"""Telegram's error when the text of a message with a file is edited."""
_NO_CAPTION = "no caption in the message"
_MAX_SEEN = 1_000
_BUTTON: Mapping[str, Any] = {"inline_keyboard": [[{"text": "…", "callback_data": "-"}]]}

BotMessage = Mapping[str, Any]
"""A message of the bot as Telegram returns it; empty if Telegram only confirmed that the bot wrote it."""


class MessageSearch:
    """Search for a message that an uncertain send may have created.

    Telegram has no idempotency keys, and bots cannot read the history of a chat. A no-op edit tells a bot
    whether a message id is one of its own messages, another sender's, or missing. That is not enough to
    identify an answer: several conversations may share a chat, and the bot also sends questions about tools.
    So the bot adds a button to its message for a moment, because the response contains the message.

    ``lock_named`` returns the lock that serializes the calls about a chat.
    """

    def __init__(
        self,
        client: Client,
        limits: RateLimiter,
        known: KnownMessages,
        lock_named: Callable[[str], AbstractAsyncContextManager[Any]],
    ) -> None:
        self._client = client
        self._limits = limits
        self._known = known
        self._lock_named = lock_named
        self._progress: dict[tuple[str, str], tuple[int, int]] = {}
        self._seen: OrderedDict[tuple[str, int], BotMessage] = OrderedDict()
        """Messages of the bot that an earlier search read. Reading one takes up to three calls, and a group
        allows 20 a minute. Empty for one without buttons that could not get its button yet."""

    async def find(self, outbound: OutboundMessage) -> int | None:
        """Return the id of the message of a page in its chat; None if there is none.

        Raises PlacementDeferred if Telegram cannot be asked now; the next call continues from that id.
        """
        chat = outbound.address.chat
        search = outbound.nonce, chat
        others = set(map(int, outbound.others))
        number, end = self._progress.get(search) or self._range(outbound, chat)
        while number < end:
            known = number in others or self._known.is_own(chat, number)
            if not known and await self._is_answer(outbound, chat, number):
                self._progress.pop(search, None)
                return number
            number += 1
            self._progress[search] = number, end
        self._progress.pop(search, None)
        return None

    def _range(self, outbound: OutboundMessage, chat: str) -> tuple[int, int]:
        """Return the first and the last id (exclusive) that the message may have.

        The range starts after the newest id known before the send, and ends ``_LOOKAHEAD`` after the newest
        id known now.
        """
        sequence = id_sequence(chat)
        start = int(outbound.watermark or outbound.address.reply_to or 0)
        placed = [int(number) for other, number in outbound.elsewhere if id_sequence(other) == sequence]
        newest = max(start, self._known.newest(chat), *placed, *map(int, outbound.others))
        return start + 1, newest + _LOOKAHEAD + 1

    async def _is_answer(self, outbound: OutboundMessage, chat: str, number: int) -> bool:
        """Return whether a message of the bot is an answer for the same target as this page.

        The content is not compared, because a preview may show less of the answer; but a text page is never
        found in a message with a file.
        """
        shown = self._seen.get((chat, number))
        if shown is None:
            shown = await self._read_own(chat, number)
        has_button = shown == {}
        if has_button:
            shown = await self._add_button(chat, number)
        if shown is None:
            return False
        if not shown:
            if await self._takes_content(outbound, chat, number):
                return True
            await self._set_buttons(chat, number)
            return False
        # A question with a file has its text in the caption.
        words = str(shown.get("text") or shown.get("caption") or "")
        # A message with a file never becomes a text, so an edit of it would be refused.
        takes_page = not isinstance(outbound.page, TextPage) or "text" in shown or "rich_message" in shown
        found = takes_page and not is_question(words) and has_same_target(shown, outbound)
        # The edit that follows removes the button, but a voice message cannot be edited.
        if has_button and (not found or _is_voice(outbound.page)):
            await self._set_buttons(chat, number)
        # Kept only now: an interrupted search has to remove the button before anything else.
        self._remember(chat, number, shown)
        return found

    async def _add_button(self, chat: str, number: int) -> BotMessage | None:
        """Add a button to a message without any, and return the message as ``_edit`` does."""
        self._seen.pop((chat, number), None)
        try:
            return await self._set_buttons(chat, number, reply_markup=_BUTTON)
        except PlacementDeferred as deferred:
            if deferred.seconds is not None:
                # It has no button yet. If it were read again, that would use up the one call that a chat at
                # its limit allows after the wait, and so on each time.
                self._remember(chat, number, {})
            raise

    def _remember(self, chat: str, number: int, shown: BotMessage) -> None:
        self._seen[chat, number] = shown
        while len(self._seen) > _MAX_SEEN:
            self._seen.popitem(last=False)

    async def _takes_content(self, outbound: OutboundMessage, chat: str, number: int) -> bool:
        """Write the text or the caption of the page into a message that Telegram did not return.

        Return whether Telegram accepted it: it does so only for messages of the bot of that kind. It never
        returns a message of an album, because that cannot have buttons.
        """
        page = outbound.page
        # In a business chat it could be a message of the owner, which the bot can edit, too.
        if connection_of(chat) is not None:
            return False
        content: dict[str, Any]
        if isinstance(page, TextPage):
            method, content = "editMessageText", {"text": page.text, "entities": [*page.entities]}
        elif isinstance(page, FilePage):
            method, content = "editMessageCaption", {"caption": page.caption or None}
        else:
            return False
        try:
            async with self._lock_named(chat), self._limits.turn(chat):
                shown: object = await self._client.call(
                    method, **target_of(chat), message_id=number, **content
                )
        except RefusedError as refused:
            if refused.says(*MISSING, FOREIGN, _NO_TEXT, _NO_CAPTION):
                return False
            if not refused.says(SAME):
                raise delivery_error(self._limits, chat, refused) from refused
            return True
        except CallError as error:
            raise PlacementDeferred(str(error)) from error
        return not isinstance(shown, Mapping) or has_same_target(cast(BotMessage, shown), outbound)

    async def _read_own(self, chat: str, number: int) -> BotMessage | None:
        """Remove the buttons of a message, and return it; None if the bot sent no message with this id."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._probe(chat, number)
            except PlacementDeferred as deferred:
                wait = _PAUSE * attempt if deferred.seconds is None else deferred.seconds
                if attempt == _ATTEMPTS or wait > _LONGEST_PAUSE:
                    raise
                await asyncio.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    async def _probe(self, chat: str, number: int) -> BotMessage | None:
        async with self._lock_named(chat), self._limits.probe():
            wait = self._limits.held(chat)
            if wait:
                raise PlacementDeferred("the platform asked to wait", wait)
            return await self._edit(chat, number)

    async def _set_buttons(self, chat: str, number: int, **markup: Any) -> BotMessage | None:
        """Set the buttons of a message to ``reply_markup``, or remove them without it. Returns the changed
        message."""
        async with self._lock_named(chat), self._limits.turn(chat):
            return await self._edit(chat, number, **markup)

    async def _edit(self, chat: str, number: int, **markup: Any) -> BotMessage | None:
        """Change the buttons of a message. Returns the message; empty if Telegram does not return it, None if
        the message does not exist or is not the bot's."""
        try:
            shown: object = await self._client.call(
                "editMessageReplyMarkup", **target_of(chat), message_id=number, **markup
            )
        except RefusedError as refused:
            if refused.says(*MISSING):
                return None
            if not refused.says(SAME, FOREIGN):
                raise delivery_error(self._limits, chat, refused) from refused
            self._known.note(chat, number)
            return {} if refused.says(SAME) else None
        except CallError as error:
            raise PlacementDeferred(str(error)) from error
        if not isinstance(shown, Mapping):
            log.warning("Telegram did not return the message that it changed", chat=chat, number=number)
            return {}
        self._known.note(chat, number)
        return cast(BotMessage, shown)


def has_same_target(shown: BotMessage, outbound: OutboundMessage) -> bool:
    """Return whether a message is in the page's topic and is not a reply to a different message.

    In a business chat, return whether this bot wrote it: the bot could also edit what the owner wrote.
    """
    address = outbound.address
    if connection_of(address.chat) is not None:
        bot: BotMessage = shown.get("sender_business_bot") or {}
        return str(bot.get("id")) == address.account
    topic = shown.get("message_thread_id") if shown.get("is_topic_message") else None
    if str(topic or "") != (address.thread or ""):
        return False
    replied: BotMessage | None = shown.get("reply_to_message")
    answered = None if replied is None else replied.get("message_id")
    if answered in (None, topic):
        return True
    return outbound.part == 0 and str(answered) == address.reply_to


_MAX_OWN = 10_000


class KnownMessages:
    """Message ids that this process has seen."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._own: OrderedDict[tuple[str, int], None] = OrderedDict()

    def note(self, chat: str, number: int) -> None:
        """Record that a message with this id exists."""
        sequence = id_sequence(chat)
        self._newest[sequence] = max(number, self._newest.get(sequence, 0))

    def newest(self, chat: str) -> int:
        """Return the newest known id in a chat's id sequence; 0 if none is known."""
        return self._newest.get(id_sequence(chat), 0)

    def add_own(self, chat: str, number: int) -> int:
        """Record that this process knows which page this message of the bot is. Returns the id."""
        self.note(chat, number)
        self._own[chat, number] = None
        while len(self._own) > _MAX_OWN:
            self._own.popitem(last=False)
        return number

    def is_own(self, chat: str, number: int) -> bool:
        """Return whether this is a message of the bot that this process has identified."""
        return (chat, number) in self._own


SAME = "message is not modified"
FOREIGN = "can't be edited"
MISSING = ("message to edit not found", "message_id_invalid")

_WRONG_TOKEN_PAUSE = 60.0


def delivery_error(limits: RateLimiter, chat: str, error: CallError) -> Exception:
    """Map a failed call to the error that ``Channel.send`` raises. If Telegram asked to wait, hold the calls
    about the chat."""
    if isinstance(error, NotSentError):
        return PlacementDeferred(str(error))
    if not isinstance(error, RefusedError):
        return PlacementUncertain(str(error))
    if error.retry_after is not None or error.code == 429:
        seconds = max(1.0, error.retry_after or 0.0)
        limits.hold(chat, seconds)
        return PlacementDeferred("the platform asked to wait", seconds)
    if error.code in (401, 404, 409):
        return PlacementDeferred(error.reason, _WRONG_TOKEN_PAUSE)
    if connection_of(chat) is not None and error.says("business", "access_forbidden"):
        return PlacementRefused(f"the business account does not let the bot write here: {error.reason}")
    return PlacementRefused(error.reason)
