"""The pages of an answer: messages of the platform that together show it.

Each page is placed once and only edited afterwards; a page is placed after the one before it. When the
outcome of a call is unknown (a crash, a lost response), the platform is searched for the page's nonce, and
the page is sent again only if it is not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, assert_never

import structlog
from msgspec.structs import replace

from gateway.backoff import Backoff
from gateway.contract.channel import (
    Channel,
    Deletes,
    Drafts,
    Edits,
    OutboundMessage,
    Paginates,
    Placed,
    PlacementDeferred,
    PlacementMismatch,
    PlacementRefused,
    PlacementUncertain,
    Reconciles,
    SendsAlbums,
    ShowsTyping,
    Streaming,
    Streams,
    Watermarks,
)
from gateway.contract.messages import (
    ErrorPart,
    FilePart,
    ImagePart,
    Message,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from gateway.store import Op
from gateway.store.inbox import Entry, Outcome
from gateway.store.outbox import Outbox, Page, make_nonce

log = structlog.get_logger("trunkline.delivery")

_BACKOFF = Backoff(0.25, 60, jitter=-0.5)
"""Random, because limits and outages of platforms recur each minute: an even pause can meet all of them."""
_MAX_INLINE_COST = 2_000
"""Cost up to which a message is paginated on the event loop: characters, and more for markup."""
_COSTLY, _EXTRA_COST = "*_~[`|\n", 9
"""Characters that may begin markup, a table cell or a line; each costs the parser ten times as much."""
_UNDONE = "↩ undone"
"""Text of pages that cannot be deleted."""
_LONG_WAIT = 60.0
"""Seconds from which a wait that a platform asks for is logged: Telegram may ask for hours."""
_MAX_UNEXPECTED = 4
"""Number of retries after errors that a channel must not raise, such as a malformed response; about 4 s."""


class AnswerPages:
    """Shows one answer in its chat. ``pages`` are those that earlier attempts placed or may have placed."""

    def __init__(self, outbox: Outbox, channel: Channel, entry: Entry, pages: Sequence[Page] = ()) -> None:
        self._outbox = outbox
        self._channel = channel
        self._entry = entry
        self._pages = {page.number: page for page in pages}
        self._unsaved: list[Op] = []
        self._refused_albums: set[int] = set()
        """Numbers of pages that the platform refused as an album, and that are sent one by one."""
        self._paginated: tuple[Message, bool, Sequence[Any]] | None = None
        self._kept = not isinstance(channel, Edits) and any(page.settled for page in pages)
        """An answer was placed, and the channel cannot change it: nothing is placed beside it."""
        self.newest: str | None = None
        """The newest message of the chat, where the address has no message that is answered."""
        self.placing = False
        """True while a call places a page, and so must not be cancelled."""

    @property
    def undone(self) -> bool:
        """Return whether the answer was undone, so that its pages are deleted."""
        return any(page.undone for page in self._pages.values())

    @property
    def streaming(self) -> Streaming | None:
        """The way the channel shows a growing answer; None if it only shows finished ones."""
        channel = self._channel
        found = channel.streaming(self._entry.inbound.address) if isinstance(channel, Streams) else None
        if found is None:
            return None
        return found if isinstance(channel, Drafts if found.kind == "draft" else Edits) else None

    @property
    def shows_typing(self) -> bool:
        """Return whether the channel has a typing indicator."""
        return isinstance(self._channel, ShowsTyping)

    async def send_typing(self) -> None:
        """Show the typing indicator. Errors are only logged."""
        if isinstance(self._channel, ShowsTyping):
            try:
                await self._channel.typing(self._entry.inbound.address)
            except Exception as error:  # noqa: BLE001 - no answer depends on the indicator
                log.debug("could not show the typing indicator", channel=self._channel.id, reason=str(error))

    async def update(self, message: Message, *, final: bool) -> None:
        """Make the chat show a message, in one attempt. Raises what the channel raises."""
        contents = await self._paginate(message, final)
        for number in range(len(contents)):
            await self._put(message, number, contents, settles=final)
        if final:
            await self._delete_from(len(contents))
            # Forgotten, because newer content of an announcement may need these pages again.
            gone = [self._pages.pop(number) for number in [*self._pages] if self._pages[number].unfit]
            if gone:
                await self._outbox.write(*(self._outbox.drop(self._entry, page) for page in gone))

    async def update_draft(self, message: Message) -> None:
        """Show the last page of a growing message as a draft; place the full pages before it."""
        contents = await self._paginate(message, final=False)
        for number in range(len(contents) - 1):
            await self._put(message, number, contents, settles=False)
        if contents and isinstance(self._channel, Drafts):
            await self._outbox.confirm_owner()
            await self._channel.draft(self._outbound(message, len(contents) - 1, contents, final=False))

    def intend(self, answer: Message) -> list[Op]:
        """Return the writes that record the answer and the intent to place it. Its message stays open."""
        first, trail = self._page(0), self._entry.trail
        trail.decided()
        trail.intend(self._channel.id, *([] if first.platform_id else [first.nonce]))
        return [
            *self._unsaved_ops(),
            self._outbox.intend(self._entry, first, answer),
            *self._entry.settle_merged(),
        ]

    async def place(self, answer: Message) -> None:
        """Make the chat show the final answer, however long the platform is unreachable.

        Raises PlacementRefused when the platform refuses it.
        """
        if not self._kept:
            await self._retry_until_accepted(lambda: self.update(answer, final=True))
            self._kept = not isinstance(self._channel, Edits)

    async def settle(self, outcome: Outcome) -> None:
        """Commit that the answer is placed, and settle its message."""
        placed = [self._outbox.record(self._entry, page, "final") for page in self._pages.values()]
        self._unsaved.clear()
        await self._outbox.write(*placed, self._entry.settle(outcome), *self._entry.trail.finish())

    def give_up(self, reason: str) -> list[Op]:
        """Return the writes that record that the answer will never be placed completely."""
        return self._outbox.give_up(self._entry, [*self._pages.values()], reason)

    async def retract(self) -> None:
        """Delete all pages of an unwanted answer that the channel can delete."""
        try:
            await self._retry_until_accepted(lambda: self._delete_from(0))
        except PlacementRefused as refused:
            log.info("could not delete an answer", channel=self._channel.id, reason=str(refused))

    async def remove(self) -> None:
        """Delete the pages of an answer that was undone, or mark them as such, and settle the entry."""
        for page in self._pages.values():
            try:
                await self._retry_until_accepted(partial(self._remove, page))
            except PlacementRefused as refused:
                log.info("could not delete a page", channel=self._channel.id, reason=str(refused))
        await self.settle_removed()

    async def settle_removed(self) -> None:
        """Commit that the pages are deleted as far as possible, and settle their entry."""
        trail = self._entry.trail.finish("nothing", "undone")
        await self._outbox.write(self._outbox.remove(self._entry), self._entry.settle("done"), *trail)

    async def _remove(self, page: Page) -> None:
        channel, entry = self._channel, self._entry
        if isinstance(channel, Deletes):
            try:
                return await self._delete(page, channel)
            except PlacementRefused:
                # Telegram deletes no messages that are older than two days.
                if not isinstance(channel, Edits):
                    raise
        if isinstance(channel, Edits) and page.platform_id is not None:
            mark = Message(
                id=entry.answer_id, session_id=entry.session, role="assistant", parts=(TextPart(_UNDONE),)
            )
            contents = await self._paginate(mark, final=True)
            outbound = replace(self._outbound(mark, 0, contents, final=True), part=page.number)
            await self._outbox.confirm_owner()
            await channel.edit(Placed(page.platform_id), outbound)
        return None

    async def _retry_until_accepted(self, step: Callable[[], Awaitable[None]]) -> None:
        """Retry a delivery step with backoff until the platform accepts or refuses it.

        An error that the channel contract does not name leaves open whether a page was placed, like a lost
        response. Such errors are retried only a few times, because nothing says that they will pass.

        Raises PlacementRefused.
        """
        failures = unexpected = 0
        trail, channel = self._entry.trail, self._channel.id
        while True:
            try:
                return await step()
            except PlacementRefused:
                raise
            except PlacementDeferred as deferred:
                # A rate limit is not a failure: it neither counts nor lengthens the backoff.
                if deferred.seconds is not None:
                    trail.await_next("platform", deferred.seconds)
                    if deferred.seconds >= _LONG_WAIT:
                        log.warning(
                            "an answer waits", channel=channel, seconds=deferred.seconds, reason=str(deferred)
                        )
                    await asyncio.sleep(deferred.seconds)
                    continue
                trail.fail_to_place(channel, "waiting", "PlacementDeferred", failures + 1, str(deferred))
            except PlacementUncertain as error:
                log.debug("the platform did not confirm a page", channel=channel)
                trail.fail_to_place(channel, "waiting", "PlacementUncertain", failures + 1, str(error))
            except Exception as error:  # a channel is third-party code; its unknown errors are bounded here
                if unexpected >= _MAX_UNEXPECTED:
                    reason = f"the platform answers in an unexpected way ({type(error).__name__}: {error})"
                    raise PlacementRefused(reason) from error
                log.exception("a channel failed to place an answer", channel=channel)
                unexpected += 1
                trail.fail_to_place(channel, "failed", type(error).__name__, unexpected, str(error))
                await asyncio.sleep(_BACKOFF.pause(unexpected))
                continue
            unexpected = 0
            failures += 1
            await asyncio.sleep(_BACKOFF.pause(failures))

    async def _put(self, message: Message, number: int, contents: Sequence[Any], *, settles: bool) -> None:
        """Make one page show its content: place it if it is not there, otherwise edit it."""
        # A page that another one follows is complete and is not edited again, not even at the end of the
        # answer: an answer of many pages would cost an edit of each. After a crash its content is unknown,
        # so it is edited once.
        final = settles or number + 1 < len(contents)
        page, channel, content = self._pages.get(number), self._channel, contents[number]
        if page is not None and page.unfit:
            await self._displace(number)
        album = range(number, number + self._album_size(number, contents))
        await self._intend_pages(album)
        page = self._page(number)
        outbounds = [self._outbound(message, n, contents, settles or n + 1 < len(contents)) for n in album]
        if page.platform_id is None:
            await self._place(outbounds, contents, settles=settles)
        # Still not placed after an album that was refused, or of which only other messages are there.
        if page.platform_id is None:
            await self._place(outbounds[:1], contents, settles=settles)
        if (page.shown, page.final) == (content, final) or page.platform_id is None:
            return
        if isinstance(channel, Edits):
            await self._outbox.confirm_owner()
            try:
                await channel.edit(Placed(page.platform_id), outbounds[0])
            except PlacementMismatch:
                await self._displace(number)
                await self._place(outbounds[:1], contents, settles=settles)
        page.shown, page.final = content, final

    async def _displace(self, first: int) -> None:
        """Delete the messages of a page and of those after it, so that they can be placed again, in order."""
        pages = [page for number, page in self._pages.items() if number >= first]
        await self._delete_from(first)
        for page in pages:
            page.platform_id, page.shown, page.final = None, None, False
            page.uncertain = page.unfit = False
        await self._outbox.write(*(self._outbox.record(self._entry, page, "intent") for page in pages))

    async def _intend_pages(self, numbers: Sequence[int]) -> None:
        """Record the intent to place pages, except those that have one."""
        new = [self._page(number) for number in numbers if number not in self._pages]
        if new:
            self._entry.trail.intend(self._channel.id, *(page.nonce for page in new))
            # The nonces are durable before the call, so that the next process can search for these pages.
            intents = [self._outbox.intend(self._entry, page) for page in new]
            await self._outbox.write(*self._unsaved_ops(), *intents)

    def _album_size(self, number: int, contents: Sequence[Any]) -> int:
        """Return how many pages from a number on are to be placed with one call."""
        if not isinstance(self._channel, SendsAlbums):
            return 1
        run: list[Any] = []
        for at in range(number, len(contents)):
            page = self._pages.get(at)
            if at in self._refused_albums or (page is not None and (page.platform_id or page.unfit)):
                break
            run.append(contents[at])
        return max(1, self._channel.album_size(run)) if len(run) > 1 else 1

    async def _place(
        self, outbounds: Sequence[OutboundMessage], contents: Sequence[Any], *, settles: bool
    ) -> None:
        """Place a page, or an album, unless some of it is there. Places nothing if an album is refused."""
        channel, pages = self._channel, [self._page(outbound.part) for outbound in outbounds]
        self.placing = True
        try:
            for page, outbound in zip(pages, outbounds, strict=True):
                if page.uncertain and isinstance(channel, Reconciles):
                    found = await self._find(channel, page, outbound)
                    page.uncertain = False
                    if found is not None:
                        # Committed, because the search for the next page must not find this message again.
                        await self._outbox.write(self._placed(page, found), *self._unsaved_ops())
            if not any(page.platform_id for page in pages):
                await self._send(pages, outbounds, contents)
            # Committed before the view may be ended: if the turn fails now, its dead letter reads this page.
            # The pages of the final answer are recorded together with the settlement.
            if not settles:
                await self._outbox.write(*self._unsaved_ops())
        finally:
            self.placing = False

    async def _send(
        self, pages: Sequence[Page], outbounds: Sequence[OutboundMessage], contents: Sequence[Any]
    ) -> None:
        channel = self._channel
        await self._outbox.confirm_owner()
        for page in pages:
            # Set before the call: a cancellation or an unknown error leaves it set.
            page.uncertain = True
        try:
            if len(pages) > 1 and isinstance(channel, SendsAlbums):
                placed = await channel.send_album(outbounds)
            else:
                placed = [await channel.send(outbounds[0])]
        except (PlacementDeferred, PlacementRefused) as error:
            for page in pages:
                page.uncertain = False
            if len(pages) == 1 or isinstance(error, PlacementDeferred):
                raise
            log.info("the platform refused an album", channel=channel.id, reason=str(error))
            self._refused_albums.update(page.number for page in pages)
            return
        for page, outbound, one in zip(pages, outbounds, placed, strict=True):
            page.shown, page.final = contents[page.number], outbound.final
            self._unsaved.append(self._placed(page, one))

    def _placed(self, page: Page, placed: Placed) -> Op:
        """Note the message of a page. Returns the write that records it."""
        page.platform_id, page.uncertain = placed.platform_id, False
        detail = {"nonce": page.nonce, "platform_id": placed.platform_id}
        self._entry.trail.add("placement", self._channel.id, "ok", **detail)
        return self._outbox.record(self._entry, page, "placed")

    async def _find(self, channel: Reconciles, page: Page, outbound: OutboundMessage) -> Placed | None:
        # Telegram keeps no nonces: its search probes message ids, so those of other answers are excluded.
        placed, chat_id = await self._outbox.read_other_placements(self._entry, page), outbound.address.chat
        others = tuple(id_ for chat, id_ in placed if chat == chat_id)
        elsewhere = tuple((chat, id_) for chat, id_ in placed if chat != chat_id)
        return await channel.find(replace(outbound, others=others, elsewhere=elsewhere))

    async def _delete_from(self, count: int) -> None:
        """Delete all pages after the first ``count``, also those that only may have been placed."""
        pages = [page for number, page in self._pages.items() if number >= count]
        if not isinstance(self._channel, Deletes):
            return
        if any(not page.unfit for page in pages):
            for page in pages:
                page.unfit = True
            # Durable before the deletion: an attempt after a crash would take a deleted message for a placed
            # one. The writes of what made the answer unwanted, such as a withdrawal, are older, so they are
            # durable, too.
            marked = [self._outbox.record(self._entry, page, "unfit") for page in pages]
            await self._outbox.write(*self._unsaved_ops(), *marked)
        for page in pages:
            await self._delete(page, self._channel)

    async def _delete(self, page: Page, channel: Deletes) -> None:
        if page.uncertain and isinstance(channel, Reconciles):
            nothing = Message(id=self._entry.answer_id, session_id=self._entry.session, role="assistant")
            found = await self._find(channel, page, self._outbound(nothing, page.number, (), final=True))
            page.platform_id = None if found is None else found.platform_id
        if page.platform_id is not None:
            await self._outbox.confirm_owner()
            await channel.delete(Placed(page.platform_id), self._entry.inbound.address)

    async def _paginate(self, message: Message, final: bool) -> Sequence[Any]:
        """Return the contents of a message's pages. Those of the last message are kept for retries."""
        channel = self._channel
        if not isinstance(channel, Paginates):
            return (message,)
        if self._paginated is not None and self._paginated[0] is message and self._paginated[1] == final:
            return self._paginated[2]
        if is_quickly_paginated(message):
            contents = channel.pages(message, final=final)
        else:
            # In a thread: a long message takes longer than the event loop can wait.
            async with self._outbox.paging_lock:
                contents = await asyncio.to_thread(channel.pages, message, final=final)
        self._paginated = message, final, contents
        return contents

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
            # The pages of an answer that was undone keep theirs.
            nonce=make_nonce(self._entry.id, number) if page is None else page.nonce,
            final=final,
            watermark=None if page is None else page.watermark,
            response_mode=inbound.response_mode,
        )

    def _page(self, number: int) -> Page:
        page = self._pages.get(number)
        if page is None:
            channel, address = self._channel, self._entry.inbound.address
            if self.newest is not None:
                address = replace(address, reply_to=self.newest)
            mark = channel.watermark(address) if isinstance(channel, Watermarks) else None
            page = Page(number=number, nonce=make_nonce(self._entry.id, number), watermark=mark)
            self._pages[number] = page
        return page

    def _unsaved_ops(self) -> list[Op]:
        """Return the writes for the next commit, and forget them."""
        ops, self._unsaved = self._unsaved, []
        return [*ops, *self._entry.trail.ops()]


def is_quickly_paginated(message: Message) -> bool:
    """Return whether a message is short enough to be paginated on the event loop."""
    return _pagination_cost(message) <= _MAX_INLINE_COST


def _pagination_cost(message: Message) -> int:
    """Estimate the work of paginating a message, in characters of plain text."""
    size = 0
    for part in message.parts:
        match part:
            case TextPart():
                size += len(part.content) + _EXTRA_COST * sum(map(part.content.count, _COSTLY))
            case FilePart(content=str(content)):
                size += len(content)
            case ImagePart():
                size += len(part.data)
            case ToolCallPart():
                size += sum(len(value) for value in part.arguments.values() if isinstance(value, str))
            case ToolResultPart():
                size += sum(len(attachment.data) for attachment in part.attachments)
            case FilePart() | ErrorPart():
                pass
            case _:
                assert_never(part)
    return size
