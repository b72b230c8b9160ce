"""Following one accepted message until it is answered, for a client that holds its connection open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aiohttp import web

from gateway.contract.channel import Receipt
from gateway.contract.deltas import Complete
from gateway.contract.errors import BackpressureError, OverloadedError
from gateway.contract.messages import Message
from gateway.host import Host
from gateway.server.openai.telling import Telling, text_of
from gateway.server.responses import abort_connection
from gateway.session.feed import Feed
from gateway.session.frames import Event, Frame, MessageFrame

_LOOK_SECONDS = 1.0
"""How often to see whether the client is still there, and to tell it that we are."""


class Listener(Protocol):
    """Who is told of an answer."""

    def tell(self, texts: Sequence[str]) -> bool:
        """More of it. Returns whether nothing more is wanted until ``ready`` is over."""
        ...

    async def ready(self) -> None: ...

    async def wait(self) -> None:
        """Nothing new for about a second."""
        ...


class ClientLeftError(ConnectionError):
    """The client closed its connection, or does not read."""


class Waiters:
    """The requests that wait for an answer. ``close`` lets all of them go, when the gateway stops."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._feeds: set[Feed] = set()

    def close(self) -> None:
        """Let everyone go; what is accepted is answered after the restart."""
        for feed in tuple(self._feeds):
            feed.close(OverloadedError("the gateway stops; this is answered after the restart"))

    async def follow(self, request: web.Request, receipt: Receipt, listener: Listener) -> Message | None:
        """Tell what is said in answer to a message. Returns the answer; None if nothing was said.

        Raises ClientLeftError when the client is gone, OverloadedError when the gateway stops.
        """
        host, session_id = self._host, receipt.session
        feed = host.feed(lambda: abort_connection(request))
        self._feeds.add(feed)
        host.counters.clients["openai"] += 1
        try:
            await host.follow(session_id, feed, receipt.seq, viewer=False)
            return await self._told(request, receipt, feed, listener)
        except BackpressureError:
            raise ClientLeftError("the client does not read") from None
        finally:
            host.counters.clients["openai"] -= 1
            self._feeds.discard(feed)
            host.unfollow(session_id, feed)

    async def _told(
        self, request: web.Request, receipt: Receipt, feed: Feed, listener: Listener
    ) -> Message | None:
        news = _News(receipt.answer_id, listener)
        while not news.settled:
            if request.transport is None or request.transport.is_closing():
                raise ClientLeftError("the client closed its connection")
            # Asked before looking: whatever an idle session had to show is in the feed by now.
            idle, news.heard = self._idle(receipt), False
            if await feed.pour(news.take, _LOOK_SECONDS):
                await listener.ready()
            elif not news.heard:
                news.settled = idle
                await listener.wait()
        answer = self._answer(receipt)
        if answer is not None and not news.begun and (text := text_of(answer)):
            listener.tell([text])
            await listener.ready()
        return answer

    def _idle(self, receipt: Receipt) -> bool:
        """Whether the session has nothing left to answer; then this message is settled too."""
        session = self._host.live(receipt.session)
        return session is None or not session.pending

    def _answer(self, receipt: Receipt) -> Message | None:
        session = self._host.live(receipt.session)
        said = () if session is None else session.messages()
        return next((message for message in reversed(said) if message.id == receipt.answer_id), None)


class _News:
    """What a session's events say of one answer. ``heard`` is set with every look at some."""

    def __init__(self, answer_id: str, listener: Listener) -> None:
        self._answer_id = answer_id
        self._listener = listener
        self._telling = Telling(answer_id)
        self.heard = False
        self.settled = False

    @property
    def begun(self) -> bool:
        """Whether some of the answer was told."""
        return self._telling.begun

    def take(self, events: list[Event]) -> bool:
        """Tell what is new. Returns whether to wait before there is more, or there is none."""
        self.heard = True
        texts: list[str] = []
        for event in events:
            if more := self._telling.more(event.frame):
                texts.append(more)
            elif self._settles(event.frame):
                self.settled = True
        full = bool(texts) and self._listener.tell(texts)
        return full or self.settled

    def _settles(self, frame: Frame) -> bool:
        """Whether nothing more will come for the message."""
        match frame:
            case Complete(message_id=answer_id):
                return answer_id == self._answer_id
            case MessageFrame(message=message):
                return message.id == self._answer_id
            case _:
                return False
