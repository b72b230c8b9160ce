"""The painter: brings one answer to its room, page by page, so that it stands there exactly once.

Each page is placed once and from then on only edited; a page follows when the one before it stands. If nobody
knows whether a call placed a page (a crash, a lost answer), the platform is asked for its nonce; only when it
does not stand there is it sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog
from msgspec.structs import replace

from gateway.channel import (
    Channel,
    Deletes,
    Drafts,
    Edits,
    OutboundMessage,
    Paginates,
    Placed,
    PlacementDeferred,
    PlacementRefused,
    PlacementUncertain,
    Reconciles,
    ShowsTyping,
    Streaming,
    Streams,
    Watermarks,
)
from gateway.inbox import Entry, Outcome
from gateway.messages import Message
from gateway.outbox import Outbox, Page, nonce_of
from gateway.store import Op

log = structlog.get_logger("trunkline.painter")

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.25, 60.0
_MOST_FAILURES = 8


class Painter:
    """Shows one answer in its room. ``pages`` is what earlier attempts left there."""

    def __init__(self, outbox: Outbox, channel: Channel, entry: Entry, pages: Sequence[Page] = ()) -> None:
        self._outbox = outbox
        self._channel = channel
        self._entry = entry
        self._pages = {page.number: page for page in pages}
        self._unsaved: list[Op] = []
        self.placing = False
        """Whether a call is under way that must not be cut short: it places something."""

    @classmethod
    async def of(cls, outbox: Outbox, entry: Entry) -> Painter | None:
        """The painter of an entry's answer; None if its channel has to be sent nothing."""
        channel = outbox.channel(entry)
        if channel is None:
            return None
        first = entry.attempts <= 1 and not (entry.recovered or entry.answered)
        return cls(outbox, channel, entry, () if first else await outbox.pages(entry))

    @property
    def streaming(self) -> Streaming | None:
        """How the channel shows this answer while it is made."""
        channel = self._channel
        found = channel.streaming(self._entry.inbound.address) if isinstance(channel, Streams) else None
        if found is None:
            return None
        return found if isinstance(channel, Drafts if found.kind == "draft" else Edits) else None

    @property
    def types(self) -> bool:
        """Whether the channel can show that an answer is being made."""
        return isinstance(self._channel, ShowsTyping)

    async def typing(self) -> None:
        """Show that an answer is being made, if that works; nothing depends on it."""
        if isinstance(self._channel, ShowsTyping):
            try:
                await self._channel.typing(self._entry.inbound.address)
            except Exception as error:  # noqa: BLE001 - it is a courtesy, and told to those who look for it
                log.debug("typing could not be shown", channel=self._channel.id, reason=str(error))

    def intend(self, answer: Message) -> list[Op]:
        """The writes that record the answer, and that it is about to be placed; the entry stays open."""
        first = self._page(0)
        return [*self._saved(), self._outbox.intend(self._entry, first, answer), *self._entry.absorb()]

    async def show(self, message: Message, *, final: bool) -> None:
        """Bring the room up to date, in one attempt. Raises what the channel raises."""
        contents = self._contents(message, final)
        for number in range(len(contents)):
            await self._put(message, number, contents, final)
        if final:
            await self._remove(len(contents))
        elif self._unsaved:
            await self._outbox.write(*self._saved())

    async def draft(self, message: Message) -> None:
        """Show what there is of the answer as a draft; its pages that are full are placed."""
        contents = self._contents(message, final=False)
        for number in range(len(contents) - 1):
            await self._put(message, number, contents, final=False)
        if self._unsaved:
            await self._outbox.write(*self._saved())
        if contents and isinstance(self._channel, Drafts):
            await self._channel.draft(self._outbound(message, len(contents) - 1, contents, final=False))

    async def finish(self, message: Message) -> None:
        """Bring the final answer to its room, however long the platform is away.

        Raises PlacementRefused when there is no use.
        """
        await self._insist(lambda: self.show(message, final=True))

    async def retract(self) -> None:
        """Take away all that stands of an answer that is not wanted, as far as the channel can."""
        try:
            await self._insist(lambda: self._remove(0))
        except PlacementRefused as refused:
            log.info("an answer could not be taken away", channel=self._channel.id, reason=str(refused))

    async def _insist(self, bring: Callable[[], Awaitable[None]]) -> None:
        """Bring the room to something, however long the platform is away. Raises PlacementRefused."""
        failures = 0
        while True:
            try:
                return await bring()
            except PlacementRefused:
                raise
            except PlacementDeferred as deferred:
                if deferred.seconds is not None:  # a platform that asks to wait has not failed
                    await asyncio.sleep(deferred.seconds)
                    continue
            except PlacementUncertain:
                log.debug("whether an answer was placed is uncertain", channel=self._channel.id)
            except Exception as error:  # a channel is somebody else's code; its surprises are bounded here
                if failures >= _MOST_FAILURES:
                    raise PlacementRefused(f"{type(error).__name__}: {error}") from error
                log.exception("a channel failed to place an answer", channel=self._channel.id)
            failures += 1
            await asyncio.sleep(_pause(failures))

    async def settle(self, outcome: Outcome) -> None:
        """Commit that the answer stands in its room."""
        placed = [self._outbox.record(self._entry, page, "final") for page in self._pages.values()]
        self._unsaved.clear()
        await self._outbox.write(*placed, self._entry.settle(outcome))

    def give_up(self, reason: str) -> list[Op]:
        """The writes that record that the answer will never stand in its room."""
        return self._outbox.give_up(self._entry, [*self._pages.values()], reason)

    async def _put(self, message: Message, number: int, contents: Sequence[Any], final: bool) -> None:
        """Make one page show its content: place it if it does not stand, else edit it."""
        page, channel, content = self._pages.get(number), self._channel, contents[number]
        if page is None:
            page = self._page(number)
            await self._outbox.write(*self._saved(), self._outbox.intend(self._entry, page))
        outbound = self._outbound(message, number, contents, final)
        if page.platform_id is None:
            await self._place(page, outbound, content)
        if (page.shown, page.final) == (content, final) or page.platform_id is None:
            return
        if isinstance(channel, Edits):
            await channel.edit(Placed(page.platform_id), outbound)
        page.shown, page.final = content, final

    async def _place(self, page: Page, outbound: OutboundMessage, content: Any) -> None:
        channel = self._channel
        self.placing = True
        try:
            if page.uncertain and isinstance(channel, Reconciles):
                found = await self._find(channel, page, outbound)
                if found is not None:
                    self._stands(page, found)
                    return
            page.uncertain = True
            try:
                placed = await channel.send(outbound)
            except (PlacementDeferred, PlacementRefused):
                page.uncertain = False
                raise
            self._stands(page, placed)
            page.shown, page.final = content, outbound.final
        finally:
            self.placing = False

    async def _find(self, channel: Reconciles, page: Page, outbound: OutboundMessage) -> Placed | None:
        placed, room = await self._outbox.others(self._entry, page), outbound.address.chat
        others = tuple(id_ for chat, id_ in placed if chat == room)
        elsewhere = tuple((chat, id_) for chat, id_ in placed if chat != room)
        return await channel.find(replace(outbound, others=others, elsewhere=elsewhere))

    def _stands(self, page: Page, placed: Placed) -> None:
        page.platform_id, page.uncertain = placed.platform_id, False
        self._unsaved.append(self._outbox.record(self._entry, page, "placed"))

    async def _remove(self, count: int) -> None:
        """Take away what was placed and the answer has no use for: all but so many pages."""
        channel, address = self._channel, self._entry.inbound.address
        for page in [page for number, page in self._pages.items() if number >= count]:
            if page.uncertain and isinstance(channel, Reconciles):
                nothing = Message(id=self._entry.answer_id, session_id=self._entry.session, role="assistant")
                found = await self._find(channel, page, self._outbound(nothing, page.number, (), final=True))
                page.platform_id = None if found is None else found.platform_id
            if page.platform_id is not None and isinstance(channel, Deletes):
                await channel.delete(Placed(page.platform_id), address)

    def _contents(self, message: Message, final: bool) -> Sequence[Any]:
        channel = self._channel
        return channel.pages(message, final=final) if isinstance(channel, Paginates) else (message,)

    def _outbound(
        self, message: Message, number: int, contents: Sequence[Any], final: bool
    ) -> OutboundMessage:
        page = self._pages.get(number)
        inbound = self._entry.inbound
        return OutboundMessage(
            address=inbound.address,
            message=message,
            page=contents[number]
            if number < len(contents) and isinstance(self._channel, Paginates)
            else None,
            part=number,
            parts=len(contents),
            nonce=nonce_of(self._entry.id, number),
            final=final,
            watermark=None if page is None else page.watermark,
            response_mode=inbound.response_mode,
        )

    def _page(self, number: int) -> Page:
        page = self._pages.get(number)
        if page is None:
            channel, address = self._channel, self._entry.inbound.address
            mark = channel.watermark(address) if isinstance(channel, Watermarks) else None
            page = Page(number=number, nonce=nonce_of(self._entry.id, number), watermark=mark)
            self._pages[number] = page
        return page

    def _saved(self) -> list[Op]:
        """What is to be written with the next commit."""
        ops, self._unsaved = self._unsaved, []
        return ops


def _pause(failures: int) -> float:
    return min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2.0 ** min(failures - 1, 10))
