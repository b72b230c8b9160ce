"""The answer to one accepted message, passed on as text while the client's request is open.

Text that was sent cannot be taken back. A part that a fallback empties stays with the client; a part that a
hook rewrites is sent again after a blank line, unless the new text begins with the old one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aiohttp import web

from gateway.contract.channel import Receipt
from gateway.contract.deltas import Complete, PartDelta, TextDelta
from gateway.contract.errors import BackpressureError, OverloadedError
from gateway.contract.messages import ErrorPart, Message, TextPart, is_said
from gateway.host import Host
from gateway.server.responses import abort_connection
from gateway.session.feed import Feed
from gateway.session.frames import Event, Frame, MessageFrame

_POLL_SECONDS = 1.0
"""Interval of checks whether the client is connected, and of calls of ``Listener.idle``."""


class Listener(Protocol):
    """Receiver of the text of an answer."""

    def receive(self, texts: Sequence[str]) -> bool:
        """Take new text. Return whether to call ``ready`` before more."""
        ...

    async def ready(self) -> None:
        """Wait until more text can be taken."""
        ...

    async def idle(self) -> None:
        """Called after each second without events."""
        ...


class ClientLeftError(ConnectionError):
    """The client closed its connection, or does not read."""


class AnswerFollower:
    """The requests that wait for an answer."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._feeds: set[Feed] = set()

    def close(self) -> None:
        """End all waiting requests. Accepted messages are answered after the restart."""
        for feed in tuple(self._feeds):
            feed.close(OverloadedError("the gateway stops; the message is answered after the restart"))

    async def follow(self, request: web.Request, receipt: Receipt, listener: Listener) -> Message | None:
        """Pass the text of an answer to a listener. Return the answer, or None if the message has none.

        Raises ClientLeftError when the client disconnected, OverloadedError when the gateway stops.
        """
        host, session_id = self._host, receipt.session
        feed = host.feed(lambda: abort_connection(request))
        self._feeds.add(feed)
        host.counters.clients["openai"] += 1
        try:
            await host.follow(session_id, feed, receipt.seq, viewer=False)
            return await self._pass_on(request, receipt, feed, listener)
        except BackpressureError:
            raise ClientLeftError("the client does not read") from None
        finally:
            host.counters.clients["openai"] -= 1
            self._feeds.discard(feed)
            host.unfollow(session_id, feed)

    async def _pass_on(
        self, request: web.Request, receipt: Receipt, feed: Feed, listener: Listener
    ) -> Message | None:
        reader = _EventReader(receipt.answer_id, listener)
        while not reader.settled:
            if request.transport is None or request.transport.is_closing():
                raise ClientLeftError("the client closed its connection")
            # Read before the feed: if the session is idle now, the feed has all its events already.
            idle, reader.heard = self._is_idle(receipt), False
            if await feed.pour(reader.read, _POLL_SECONDS):
                await listener.ready()
            elif not reader.heard:
                reader.settled = idle
                await listener.idle()
        answer = self._answer(receipt)
        if answer is not None and not reader.collector.begun and (text := text_of(answer)):
            listener.receive([text])
            await listener.ready()
        return answer

    def _is_idle(self, receipt: Receipt) -> bool:
        """Return whether the session has no message left to answer. Then this message is settled, too."""
        session = self._host.live(receipt.session)
        return session is None or not session.pending

    def _answer(self, receipt: Receipt) -> Message | None:
        session = self._host.live(receipt.session)
        messages = () if session is None else session.messages()
        return next((message for message in reversed(messages) if message.id == receipt.answer_id), None)


class _EventReader:
    """Reader of one answer among the events of its session. Each call of ``read`` sets ``heard``."""

    def __init__(self, answer_id: str, listener: Listener) -> None:
        self._answer_id = answer_id
        self._listener = listener
        self.collector = TextCollector(answer_id)
        self.heard = False
        self.settled = False

    def read(self, events: list[Event]) -> bool:
        """Pass new text to the listener. Return whether it is full, or the answer is complete."""
        self.heard = True
        texts: list[str] = []
        for event in events:
            if text := self.collector.collect(event.frame):
                texts.append(text)
            elif self._is_end(event.frame):
                self.settled = True
        full = bool(texts) and self._listener.receive(texts)
        return full or self.settled

    def _is_end(self, frame: Frame) -> bool:
        match frame:
            case Complete(message_id=answer_id):
                return answer_id == self._answer_id
            case MessageFrame(message=message):
                return message.id == self._answer_id
            case _:
                return False


class TextCollector:
    """Collector of one answer's text from the frames of its session. ``begun`` is whether there was any."""

    def __init__(self, answer_id: str) -> None:
        self._answer_id = answer_id
        self._sent: dict[int, list[str]] = {}
        self.begun = False

    def collect(self, frame: Frame) -> str:
        """Return the text to send for a frame; "" if it adds no text to the answer."""
        match frame:
            case TextDelta(kind=kind, content=text) if is_said(kind) and self._is_ours(frame):
                return self._add(self._sent.setdefault(frame.part_index, []), text)
            case PartDelta(part=TextPart(content="")):
                # Keep what was sent: if the part returns unchanged, it is not sent again.
                return ""
            case PartDelta(part=TextPart(kind=kind, content=text)) if is_said(kind) and self._is_ours(frame):
                before = "".join(self._sent.get(frame.part_index, ()))
                longer = bool(before) and text.startswith(before)
                sent = self._sent[frame.part_index] = [before] if longer else []
                return self._add(sent, text[len(before) :] if longer else text)
            case _:
                return ""

    def _is_ours(self, delta: TextDelta | PartDelta) -> bool:
        return delta.message_id == self._answer_id

    def _add(self, sent: list[str], text: str) -> str:
        gap = "\n\n" if text and self.begun and not sent else ""
        if text:
            sent.append(text)
            self.begun = True
        return gap + text


def text_of(answer: Message) -> str:
    """Return the text parts of an answer, joined by blank lines, without reasoning and notices."""
    texts = (p.content for p in answer.parts if isinstance(p, TextPart) and is_said(p.kind))
    return "\n\n".join(filter(None, texts))


def final_error(answer: Message) -> ErrorPart | None:
    """Return the error that ended an answer, or None."""
    last = answer.parts[-1] if answer.parts else None
    return last if isinstance(last, ErrorPart) else None
