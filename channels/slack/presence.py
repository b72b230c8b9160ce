"""What shows that an answer is being made: a status and a stop button in threads, a reaction elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

import structlog
from msgspec import Struct

from channels.slack.api import Api, RefusedError
from gateway.channel import Address, PlacementDeferred, PlacementUncertain

log = structlog.get_logger("trunkline.slack")

_STATUS_EVERY = 60.0
"""Seconds after which a status is set again; Slack lets it show for two minutes."""
_FORGOTTEN = 15.0
"""Seconds after which nobody is thinking any more."""
_STATUS = "is thinking…"
_MINE = frozenset(
    {"already_reacted", "no_reaction", "message_not_found", "invalid_thread_ts", "thread_ts_required"}
)
"""Refusals that are about the one message, not about what the app may do."""


_SESSION, _SAID = "agents.sessions.setStatus", "assistant.threads.setStatus"
_ADD, _REMOVE = "reactions.add", "reactions.remove"


class _Sign(Struct):
    """One sign: when it was shown, and when it was last asked for."""

    address: Address
    shown_at: float
    asked_at: float


class Presence:
    """The signs of one account. What the app may not do it is not asked again.

    Slack takes few of them a minute, so answers never wait for their turn: a sign is shown if it can be
    shown and taken back at once, and else it is left out.
    """

    def __init__(self, api: Api, reaction: str, clock: Callable[[], float] = monotonic) -> None:
        self._api = api
        self._reaction = reaction
        self._clock = clock
        self._signs: dict[tuple[str, str], _Sign] = {}
        self._denied: set[str] = set()

    async def thinking(self, address: Address) -> None:
        """Show it; this is called again every few seconds as long as it is so."""
        place, now = _place(address), self._clock()
        if place is None:
            return
        sign = self._signs.get(place)
        if sign is not None:
            sign.asked_at = now
        if address.thread is None:
            if sign is None and self._reaction and await self._api.pace.spare(_ADD, _REMOVE):
                self._signs[place] = _Sign(address, now, now)
                await self._try(_ADD, channel=place[0], timestamp=place[1], name=self._reaction)
            return
        if sign is not None and now < sign.shown_at + _STATUS_EVERY:
            return
        if await self._api.pace.spare(_SESSION, _SAID, *(() if sign is not None else (_SESSION,))):
            self._signs[place] = _Sign(address, now, now)
            thread = {"channel_id": place[0], "thread_ts": place[1]}
            await self._try(_SESSION, **thread, status="processing")
            await self._try(_SAID, **thread, status=_STATUS)

    async def done(self, address: Address) -> None:
        """Take it back."""
        place = _place(address)
        if place is None:
            return
        if address.thread is not None:
            await self.idle(*place)
        elif self._signs.pop(place, None) is not None:
            await self._try(_REMOVE, channel=place[0], timestamp=place[1], name=self._reaction)

    async def idle(self, chat: str, thread: str) -> None:
        """A thread waits for its people."""
        sign = self._signs.pop((chat, thread), None)
        if sign is not None or await self._api.pace.spare(_SESSION):
            await self._try(_SESSION, channel_id=chat, thread_ts=thread, status="active")

    async def sweep(self) -> None:
        """Take back what nobody has asked for in a while: an answer may end without any words."""
        since = self._clock() - _FORGOTTEN
        for sign in [sign for sign in self._signs.values() if sign.asked_at < since]:
            await self.done(sign.address)

    async def _try(self, method: str, **arguments: Any) -> None:
        if method in self._denied:
            return
        try:
            await self._api.call(method, has_turn=True, **arguments)
        except RefusedError as refused:
            if refused.error not in _MINE:
                self._denied.add(method)
                log.info("a sign of thinking is not shown any more", reason=str(refused))
        except (PlacementDeferred, PlacementUncertain) as error:
            log.debug("a sign of thinking was not shown", reason=str(error))


def _place(address: Address) -> tuple[str, str] | None:
    stamp = address.thread or address.reply_to
    return None if not stamp or "/" in stamp else (address.chat, stamp)
