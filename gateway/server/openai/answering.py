"""Following one accepted message until it is answered, for a client that holds its connection open."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from aiohttp import web
from msgspec import Struct

from gateway.channel import Receipt
from gateway.deltas import Complete
from gateway.errors import BackpressureError, OverloadedError
from gateway.feed import Feed
from gateway.frames import Event, MessageFrame
from gateway.host import Host
from gateway.messages import Message
from gateway.server.openai.telling import Telling, text_of

_LOOK_SECONDS = 1.0
"""How often to see whether the client is still there, and to tell it that we are."""


class Text(Struct, frozen=True):
    """More of the answer."""

    content: str


class Waiting(Struct, frozen=True):
    """Nothing new, for about a second."""


class Done(Struct, frozen=True):
    """The message is settled. ``answer`` is None when nothing was said."""

    answer: Message | None


News = Text | Waiting | Done


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

    async def follow(self, request: web.Request, receipt: Receipt) -> AsyncGenerator[News]:
        """What happens to a message, ``Done`` last. Close the generator to stop looking.

        Raises ClientLeftError when the client is gone, OverloadedError when the gateway stops.
        """
        host, session_id = self._host, receipt.session
        feed = host.feed(lambda: _cut(request))
        self._feeds.add(feed)
        host.figures.clients["openai"] += 1
        try:
            await host.follow(session_id, feed, receipt.seq)
            async with aclosing(self._news(request, receipt, feed)) as all_news:
                async for news in all_news:
                    yield news
        except BackpressureError:
            raise ClientLeftError("the client does not read") from None
        finally:
            host.figures.clients["openai"] -= 1
            self._feeds.discard(feed)
            host.unfollow(session_id, feed)

    async def _news(self, request: web.Request, receipt: Receipt, feed: Feed) -> AsyncGenerator[News]:
        telling = Telling(receipt.answer_id)
        settled = False
        while not settled:
            if request.transport is None or request.transport.is_closing():
                raise ClientLeftError("the client closed its connection")
            # Asked before looking: whatever an idle session had to show is in the feed by now.
            idle = self._idle(receipt)
            events = await feed.take(_LOOK_SECONDS)
            for event in events:
                if more := telling.more(event.frame):
                    yield Text(more)
                settled = settled or _settles(event, receipt)
            if not events:
                settled = idle
                yield Waiting()
        answer = self._answer(receipt)
        if answer is not None and not telling.begun and text_of(answer):
            yield Text(text_of(answer))
        yield Done(answer)

    def _idle(self, receipt: Receipt) -> bool:
        """Whether the session has nothing left to answer; then this message is settled too."""
        session = self._host.live(receipt.session)
        return session is None or not session.pending

    def _answer(self, receipt: Receipt) -> Message | None:
        session = self._host.live(receipt.session)
        said = () if session is None else session.messages()
        return next((message for message in reversed(said) if message.id == receipt.answer_id), None)


def _settles(event: Event, receipt: Receipt) -> bool:
    """Whether nothing more will come for the message."""
    match event.frame:
        case Complete(message_id=answer_id):
            return answer_id == receipt.answer_id
        case MessageFrame(message=message):
            return message.id == receipt.answer_id
        case _:
            return False


def _cut(request: web.Request) -> None:
    """The client does not read: its connection is cut, for a farewell would wait as well."""
    if request.transport is not None:
        request.transport.abort()
