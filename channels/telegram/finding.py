"""Finding a message that may have been placed, on a platform without a key for what is sent and without a
history for bots.

But it tells a bot that asks to change nothing about a message whether that message is its own, somebody
else's, or not there. That is not enough where several conversations go on in one room, nor after a question
about a tool: so a message of the bot is given a button for a moment, as the answer to that shows the message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from channels.telegram.api import CallError, Client, RefusedError
from channels.telegram.known import Known
from channels.telegram.outcome import FOREIGN, MISSING, SAME, outcome
from channels.telegram.pace import Pace
from channels.telegram.parse import room_of
from channels.telegram.render import is_question
from gateway import OutboundMessage, PlacementDeferred

_AHEAD = 40
_ATTEMPTS = 8
_PAUSE = 0.2
_LONGEST_PAUSE = 5.0
_BUTTON: Mapping[str, Any] = {"inline_keyboard": [[{"text": "…", "callback_data": "-"}]]}

Shown = Mapping[str, Any]
"""A message of the bot as the platform shows it; empty where it only said that it is the bot's."""


class Finding:
    """Looks for messages. ``locks`` gives whoever calls about a room its turn."""

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
        """The number of a message in a room, if it stands there. Raises PlacementDeferred if that is not to
        be found out now; it goes on later from where it was."""
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
        """The numbers that a message may have: after what was the newest when it was about to be placed, and
        not far after what is the newest now."""
        row = room_of(chat)
        mark = int(outbound.watermark or outbound.address.reply_to or 0)
        placed = [int(number) for room, number in outbound.elsewhere if room_of(room) == row]
        newest = max(mark, self._known.newest(chat), *placed, *map(int, outbound.others))
        return mark + 1, newest + _AHEAD + 1

    async def _is_it(self, outbound: OutboundMessage, chat: str, number: int) -> bool:
        """Whether a message stands that the bot wrote, to answer what this one answers."""
        shown = await self._own(chat, number)
        marked = shown == {}
        if marked:
            shown = await self._mark(chat, number, reply_markup=_BUTTON)
        if not shown:
            return False
        if not is_question(str(shown.get("text", ""))) and fits(shown, outbound):
            return True
        if marked:
            await self._mark(chat, number)
        return False

    async def _own(self, chat: str, number: int) -> Shown | None:
        """A message that the bot wrote, which has no buttons now; None if there is none."""
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
        """Give a message a button, or take it away. Returns it as it stands then."""
        async with self._locks(chat), self._pace.turn(chat):
            return await self._edit(chat, number, **markup)

    async def _edit(self, chat: str, number: int, **markup: Any) -> Shown | None:
        """Change the buttons of a message. Returns it if it is the bot's own."""
        try:
            shown: Shown = await self._client.call(
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
        self._known.note(chat, number)
        return shown


def fits(shown: Shown, outbound: OutboundMessage) -> bool:
    """Whether a message stands in the topic of another, and does not answer something else."""
    address = outbound.address
    topic = shown.get("message_thread_id") if shown.get("is_topic_message") else None
    if str(topic or "") != (address.thread or ""):
        return False
    replied: Shown | None = shown.get("reply_to_message")
    answered = None if replied is None else replied.get("message_id")
    if answered in (None, topic):
        return True
    return outbound.part == 0 and str(answered) == address.reply_to
