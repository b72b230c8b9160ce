"""Search for a message that may have been sent, on a platform without idempotency keys and without a message
history for bots.

A no-op edit tells a bot whether a message is its own, another sender's, or missing. That is not enough if
several conversations share a chat, or after a question about a tool: then the bot adds a button to its
message for a moment, because the response to that edit contains the message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import structlog

from channels.telegram.api import CallError, Client, RefusedError
from channels.telegram.known import Known
from channels.telegram.outcome import FOREIGN, MISSING, SAME, outcome
from channels.telegram.pace import Pace
from channels.telegram.parse import room_of
from channels.telegram.render import TextPage, is_question
from gateway.channel import OutboundMessage, PlacementDeferred

log = structlog.get_logger("trunkline.telegram")

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


class Finding:
    """Search for messages. ``locks`` returns the lock that serializes the calls about a chat."""

    def __init__(
        self,
        client: Client,
        pace: Pace,
        known: Known,
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
                raise outcome(self._pace, chat, refused) from refused
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
                raise outcome(self._pace, chat, refused) from refused
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
