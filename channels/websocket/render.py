"""Rendering for the web page: messages as safe HTML, whole or block by block. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gateway import Complete, TextDelta
from gateway.channel import Event, MessageFrame, TurnStart
from gateway.server.pages.blocks import Block, BlockRenderer, render_html, rendered_blocks
from gateway.server.pages.messages import render_message

__all__ = ["Block", "BlockRenderer", "HtmlView", "render_html", "render_message", "rendered_blocks"]


_encode = msgspec.json.Encoder().encode


class HtmlView:
    """Renderer for the sessions that one client follows.

    ``frames`` yields the payloads for an event, in order, and None where other tasks may run.
    """

    def __init__(self) -> None:
        self._open: dict[str, dict[int, BlockRenderer]] = {}

    def frames(self, event: Event) -> Iterator[bytes | None]:
        """Yield the event itself, then the blocks that it completed."""
        frame = event.frame
        if isinstance(frame, MessageFrame):
            self._open.pop(frame.message.id, None)
            yield from _with_html(event, frame)
            return
        if isinstance(frame, Complete):
            yield from self._finish(event, frame.message_id)
            self._open.pop(frame.message_id, None)
        elif isinstance(frame, TurnStart):
            self._open.pop(frame.message_id, None)
        yield event.json
        if isinstance(frame, TextDelta):
            yield from self._text(event, frame)

    def _text(self, event: Event, delta: TextDelta) -> Iterator[bytes | None]:
        parts = self._open.setdefault(delta.message_id, {})
        renderer = parts.get(delta.part_index)
        if renderer is None:
            yield from self._finish(event, delta.message_id)
            renderer = parts[delta.part_index] = BlockRenderer()
        for block in renderer.feed(delta.content):
            yield None if block is None else _block(event, delta.message_id, delta.part_index, block)

    def _finish(self, event: Event, message_id: str) -> Iterator[bytes | None]:
        """Render the ends of the open parts, which get no more text."""
        for part, renderer in self._open.get(message_id, {}).items():
            for block in renderer.finish():
                yield None if block is None else _block(event, message_id, part, block)


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


def _with_html(event: Event, frame: MessageFrame) -> Iterator[bytes | None]:
    if frame.rendered is not None:
        made: list[str] = []
        for block in rendered_blocks(frame.rendered):
            made += () if block is None else (block.html,)
            yield None
        yield event.json[:-1] + b',"rendered_html":' + _encode("".join(made)) + b"}"
        return
    html: list[tuple[int, str]] = []
    for part in render_message(frame.message):
        html += () if part is None else (part,)
        yield None
    yield event.json if not html else event.json[:-1] + b',"html":' + _encode(html) + b"}"
