"""A model server that costs next to nothing: canned chunks of the OpenAI format, sent as asked for.

What to send is asked for in the last message of the request, ``#!<mode><tokens>``:

* ``s32``: 32 tokens without delay. Streams that run at the same time take turns, a token each, as the
  tokens of a real server come: one event at a time, never a whole answer in one piece.
* ``p40``: 40 tokens, one every 12.5 ms, the first at once; the answer ends after 0.5 s.
* ``q99``: 99 tokens, one every 20 ms, and the end with the last; each says when it was sent.
* ``w20``: 2 tokens after 2.0 s.
* ``h00``: nothing, ever.

The first token of an answer is the time it was sent, ``@<seconds>;`` by the system's monotonic clock. An
argument on the command line is the mode of all answers, whatever is asked for.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections import deque
from typing import cast

import uvloop

PACE = 0.0125
SLOW_PACE = 0.02
MARK = b"#!"
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_COMMON = b'"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"fake"'


def _chunk(event: bytes) -> bytes:
    event = b"data: " + event + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


def _delta(content: bytes) -> bytes:
    choice = b'{"index":0,"delta":{"content":"%b"},"finish_reason":null}' % content
    return _chunk(b'{%b,"choices":[%b]}' % (_COMMON, choice))


_TOKEN = _delta(b" word")
_END = b"".join(
    (
        _chunk(b'{%b,"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}' % _COMMON),
        _chunk(b'{%b,"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":9}}' % _COMMON),
        _chunk(b"[DONE]"),
        b"0\r\n\r\n",
    )
)


def _stamp() -> bytes:
    return _delta(b"@%.6f;" % time.monotonic())


def _first() -> bytes:
    return _HEAD + _stamp()


class Turns:
    """The streams without delay: each gets a token in every round of the event loop."""

    def __init__(self) -> None:
        self._streams: deque[tuple[asyncio.Transport, int]] = deque()
        self._running = False

    def add(self, transport: asyncio.Transport, tokens: int) -> None:
        """Let a stream take part from the next round on."""
        self._streams.append((transport, tokens))
        if not self._running:
            self._running = True
            asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        for _ in range(len(self._streams)):
            transport, left = self._streams.popleft()
            if left > 1:
                transport.write(_TOKEN)
                self._streams.append((transport, left - 1))
            else:
                transport.write(_TOKEN + _END if left else _END)
        self._running = bool(self._streams)
        if self._running:
            asyncio.get_running_loop().call_soon(self._round)


class Connection(asyncio.Protocol):
    """One kept-alive connection of a client, with one request at a time."""

    def __init__(self, turns: Turns, always: bytes = b"") -> None:
        self._turns = turns
        self._always = always
        self._pieces: list[bytes] = []
        self._missing = 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        if self._missing > 0:
            self._missing -= len(data)
        else:
            self._missing = self._after_head()
        if self._missing == 0:
            request = b"".join(self._pieces)
            self._pieces.clear()
            self._answer(request)

    def _after_head(self) -> int:
        """How many bytes of the body are still to come; -1 while the head is not whole."""
        data = b"".join(self._pieces)
        self._pieces = [data]
        head = data.find(b"\r\n\r\n")
        if head < 0:
            return -1
        length = _LENGTH.search(data, 0, head)
        if length is None:
            raise ValueError("a request came without its length")
        return int(length[1]) - (len(data) - head - 4)

    def _answer(self, request: bytes) -> None:
        at = request.rfind(MARK) + len(MARK)
        asked = self._always or request[at : at + 3]
        mode, tokens = asked[:1], int(asked[1:])
        loop = asyncio.get_running_loop()
        if mode == b"s":
            self._burst(tokens)
        elif mode == b"w":
            loop.call_later(tokens / 10, self._burst, 2)
        elif mode == b"p":
            self._transport.write(_first())
            due = loop.time() + PACE
            loop.call_at(due, self._next, due, tokens - 1)
        elif mode == b"q":
            self._transport.write(_HEAD)
            self._next_stamped(loop.time(), tokens)

    def _burst(self, tokens: int) -> None:
        self._transport.write(_first())
        self._turns.add(self._transport, tokens - 1)

    def _next(self, due: float, left: int) -> None:
        """Send a token when it is due; one that comes late does not delay those after it."""
        if left == 0:
            self._transport.write(_END)
            return
        self._transport.write(_TOKEN)
        asyncio.get_running_loop().call_at(due + PACE, self._next, due + PACE, left - 1)

    def _next_stamped(self, due: float, left: int) -> None:
        if left == 1:
            self._transport.write(_stamp() + _END)
            return
        self._transport.write(_stamp())
        due += SLOW_PACE
        asyncio.get_running_loop().call_at(due, self._next_stamped, due, left - 1)


async def main(always: str = "") -> None:
    """Serve until the process is ended; the first line of the output is the port."""
    turns = Turns()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(turns, always.encode()), "127.0.0.1", 0, backlog=4096
    )
    print(f"ready: http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
