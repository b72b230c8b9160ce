"""The rude answers of a model server that are tried."""

from __future__ import annotations

import gzip
import json
from typing import Any

from gateway.testing.contracts.rude_server import Piece, http_response


def stream(*events: bytes) -> bytes:
    """An answer that streams events."""
    return http_response(b"".join(b"data: " + event + b"\n\n" for event in events))


def chunk(finish: Any = None, **delta: Any) -> bytes:
    """An event of OpenAI's streams."""
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).encode()


FINE = stream(chunk(content="All is well."), chunk("stop"), b"[DONE]")

_SPEAKS_NO_HTTP = {
    "closes at once": b"",
    "a TLS alert": b"\x15\x03\x01\x00\x02\x02F" * 50,
    "noise": bytes(range(256)) * 20,
    "a header of a megabyte": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000 + b"\r\n\r\n",
    "headers without end": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
    "a negative status": http_response(status="-1 What"),
    "a broken chunk": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello",
}
_NO_STREAM = {
    "a page": http_response(b"<html>Please log in</html>", "text/html"),
    "an answer that is not a stream": http_response(
        b'{"choices":[{"message":{"content":"x"}}]}', "application/json"
    ),
    "nothing": http_response(),
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    "a status nobody knows": http_response(status="999 What"),
    "noise as a reason": http_response(b"\xff\xfe\0" * 100, "text/plain", "418 Teapot"),
    "a redirect to itself": http_response(status="307 There", more="Location: /v1/chat/completions\r\n"),
    "a redirect to a file": http_response(status="307 There", more="Location: file:///etc/passwd\r\n"),
    "what is not compressed": http_response(b"not gzip", more="Content-Encoding: gzip\r\n"),
    "a bomb": http_response(gzip.compress(b"data: " + b"0" * 50_000_000), more="Content-Encoding: gzip\r\n"),
    "less than it said": http_response(b"data: " + chunk(content="half") + b"\n\n", size=5000),
}
_NO_EVENTS = {
    "half an object": b"{no",
    "a list": b"[]",
    "a number": b"7",
    "null": b"null",
    "a number of choices": b'{"choices":5}',
    "no choice": b'{"choices":[null]}',
    "a text as a delta": b'{"choices":[{"delta":"x"}]}',
    "a number as content": chunk(content=5),
    "a text as calls": chunk(tool_calls="x"),
    "an end that is a number": chunk(7),
    "a text as a count": b'{"choices":[],"usage":{"prompt_tokens":"x"}}',
    "a count beyond all": b'{"choices":[],"usage":{"prompt_tokens":1e400}}',
    "an error": b'{"error":{"message":"boom"}}',
    "an error that is a number": b'{"error":7}',
    "half a character": b'{"choices":[{"index":0,"delta":{"content":"a\\ud800b"}}]}',
    "no UTF-8": b'{"choices":[{"index":0,"delta":{"content":"a\xff\xfeb"}}]}',
    "deep lists": b"[" * 200_000,
    "deep objects": b'{"choices":' * 50_000,
    "a line of ten megabytes": chunk(content="x" * 10_000_000),
}
_NO_ANSWER = {
    "only the end": stream(b"[DONE]"),
    "no end": stream(chunk(content="half")),
    "a call without a tool": stream(
        chunk(tool_calls=[{"index": 0, "id": "a", "function": None}]), chunk("tool_calls"), b"[DONE]"
    ),
    "calls that were announced": stream(chunk("tool_calls"), b"[DONE]"),
}
RUDE: dict[str, tuple[Piece, ...]] = {
    **{name: (answer,) for name, answer in (_SPEAKS_NO_HTTP | _NO_STREAM | _NO_ANSWER).items()},
    **{name: (stream(event),) for name, event in _NO_EVENTS.items()},
    "hangs": ("hang",),
    "hangs in the headers": (b"HTTP/1.1 200 OK\r\nX: ", "hang"),
    "hangs in the stream": (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: " + chunk(content="half") + b"\n\n",
        "hang",
    ),
}
"""Answers that are none: each has to become an error with a name."""
