"""Encoding of frames, compared with that of the web server."""

from __future__ import annotations

import pytest
from aiohttp import WSMsgType
from aiohttp.http_websocket import WebSocketWriter

from channels.websocket.server_frames import text_frames


class Sink:
    """Transport that records what is written."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 65_535, 65_536, 200_000])
async def test_a_frame_is_what_the_server_itself_would_send(length: int) -> None:
    sink = Sink()
    payload = b"x" * length
    await WebSocketWriter(None, sink).send_frame(payload, WSMsgType.TEXT)  # type: ignore[arg-type]
    assert text_frames([payload]) == sink.written


def test_several_are_one_piece_in_order() -> None:
    assert text_frames([b"a", b"bc"]) == text_frames([b"a"]) + text_frames([b"bc"])
    assert text_frames([]) == b""
