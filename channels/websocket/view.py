"""What an HTML client gets beside the events: the finished blocks of every text, rendered once."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from channels.websocket.blocks import Block, BlockRenderer
from channels.websocket.render import render_message
from gateway import Complete, Event, MessageFrame, TextDelta, TurnStart

_encode = msgspec.json.Encoder().encode


class HtmlView:
    """Renders the sessions one client follows. ``frames`` gives the payloads for an event, in order."""

    def __init__(self) -> None:
        self._open: dict[str, dict[int, BlockRenderer]] = {}

    def frames(self, event: Event) -> Iterator[bytes]:
        """The event itself, then the blocks it finished."""
        frame = event.frame
        if isinstance(frame, MessageFrame):
            self._open.pop(frame.message.id, None)
            yield _with_html(event, frame)
            return
        if isinstance(frame, Complete):
            yield from self._finish(event, frame.message_id)
            self._open.pop(frame.message_id, None)
        elif isinstance(frame, TurnStart):
            self._open.pop(frame.message_id, None)
        yield event.json
        if isinstance(frame, TextDelta):
            yield from self._text(event, frame)

    def _text(self, event: Event, delta: TextDelta) -> Iterator[bytes]:
        parts = self._open.setdefault(delta.message_id, {})
        renderer = parts.get(delta.part_index)
        if renderer is None:
            yield from self._finish(event, delta.message_id)
            renderer = parts[delta.part_index] = BlockRenderer()
        for block in renderer.feed(delta.content):
            yield _block(event, delta.message_id, delta.part_index, block)

    def _finish(self, event: Event, message_id: str) -> Iterator[bytes]:
        """No more text comes for the parts that are open: render their ends."""
        for part, renderer in self._open.get(message_id, {}).items():
            for block in renderer.finish():
                yield _block(event, message_id, part, block)


def _block(event: Event, message_id: str, part_index: int, block: Block) -> bytes:
    return _encode(
        {
            "type": "block",
            "session": event.session,
            "seq": event.seq,
            "message_id": message_id,
            "part_index": part_index,
            "block_index": block.index,
            "html": block.html,
            "upto": block.upto,
        }
    )


def _with_html(event: Event, frame: MessageFrame) -> bytes:
    html = render_message(frame.message)
    return event.json if not html else event.json[:-1] + b',"html":' + _encode(html) + b"}"
