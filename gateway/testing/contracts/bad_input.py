"""Invalid responses of a model's server, and their required outcomes.

Each case is a check of the contract: the provider raises a named error, or makes an answer of the response;
it never hangs, it keeps the text before the failure, and it closes the connection.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from msgspec import Struct

from gateway.contract.assembler import Assembler
from gateway.contract.deltas import Delta
from gateway.contract.errors import (
    BadRequestError,
    DeltaParseError,
    ProviderError,
    ServerFailedError,
    StreamAbortedError,
    StreamTimeoutError,
)
from gateway.contract.messages import Message, ToolCallPart
from gateway.contract.provider import Provider
from gateway.provider_http.adapter import MAX_TOKENS
from gateway.testing.contracts.provider_calls import OPTIONS, text_of, user
from gateway.testing.contracts.provider_setup import KEY, Check, ProviderSetup
from gateway.testing.contracts.rude_server import (
    Drip,
    Flood,
    Piece,
    RudeServer,
    chunk,
    http_response,
    response_head,
)
from gateway.testing.fake_models.dialect import Dialect
from gateway.testing.fake_models.script import (
    Bytes,
    Count,
    ModelRequest,
    Reply,
    Say,
    Think,
    Tokens,
    Use,
    UseTogether,
)

Response = Callable[[Dialect, str], Sequence[Piece]]
"""A response in a dialect; the text is the address of another server."""

_CASE_SECONDS = 60.0
_SILENT_HEAD = {"timeout": 300}
_SILENT_STREAM = {"stream_timeout_ms": 200}
"""Short, and no risk for the text before the silence: it arrives together with the head."""


class BadInput(Struct, frozen=True, kw_only=True):
    """A case: the call ends with one of the ``errors``, or with an answer for which ``accepted`` is true.

    ``text`` is the text before the failure, None for any; ``limits`` are the fields of a ProviderConfig that
    end a call whose server falls silent.
    """

    name: str
    response: Response
    errors: tuple[type[ProviderError], ...] = ()
    accepted: Callable[[Message], bool] | None = None
    text: str | None = ""
    limits: Mapping[str, int] = {}


def written(dialect: Dialect, reply: Reply, *, end: bool = True) -> bytes:
    """Return an answer in the vendor's format, with or without its end."""
    request = ModelRequest("", {}, {"model": "fake-small", "stream_options": {"include_usage": True}})
    wire = dialect.wire(request, reply)
    pieces = [wire.begin()]
    for move in reply.moves:
        if isinstance(move, Bytes):
            pieces.append(move.data)
        elif isinstance(move, Say | Think | Use | UseTogether | Count):
            pieces += wire.events(move)
    return b"".join((*pieces, wire.end(reply) if end else b""))


def check_of(case: BadInput) -> Check:
    """Return the check of a case."""

    async def check(setup: ProviderSetup) -> None:
        async with RudeServer(http_response(b"another host")) as other:
            async with (
                RudeServer(*case.response(setup.dialect, other.url)) as rude,
                setup.connected_to(rude.url, max_retries=0, **case.limits) as provider,
            ):
                await _check_outcome(case, provider)
                await rude.wait_disconnected()
            if other.requests:
                raise AssertionError("the request, with its key, went to another host")

    check.__name__ = case.name.replace(" ", "_")
    check.__doc__ = f"The server sends {case.name}."
    return check


async def _check_outcome(case: BadInput, provider: Provider) -> None:
    """Raise AssertionError unless the call ends as the case requires."""
    deltas: list[Delta] = []
    try:
        async with asyncio.timeout(_CASE_SECONDS):
            async for delta in provider.stream((user("Hi"),), OPTIONS):
                deltas.append(delta)  # noqa: PERF401 - deltas before a failure count
    except ProviderError as failure:
        _check_failure(case, failure, text_of(deltas))
        return
    assembler = Assembler("s", "answer")
    for delta in deltas:
        assembler.apply(delta)
    message = assembler.message()
    if case.accepted is None or not case.accepted(message):
        raise AssertionError(f"unexpected answer: {message.parts} {message.metadata}")


def _check_failure(case: BadInput, failure: ProviderError, text: str) -> None:
    if type(failure) not in case.errors:
        raise AssertionError(f"unexpected error {failure.name}: {failure}")
    if case.text not in (None, text):
        raise AssertionError(f"{text[:100]!r} was received instead of {case.text!r}")
    if KEY in str(failure) or not str(failure) or len(str(failure)) > 400:
        raise AssertionError(f"the error is empty, too long, or has the key: {failure}")


_TOKENS = Tokens(7, 2)


def _stream(*moves: Bytes | Say | Use | UseTogether | Count, tokens: Tokens = _TOKENS) -> Response:
    """Return a response with a whole answer."""
    reply = Reply(moves, tokens=tokens)
    return lambda dialect, _: (response_head(dialect.content_type), written(dialect, reply))


def _partial(after: Callable[[Dialect], Sequence[Piece]]) -> Response:
    """Return a response with the beginning of an answer, and other bytes after it."""

    def response(dialect: Dialect, _: str) -> Sequence[Piece]:
        half = written(dialect, Reply((Say("Half"),)), end=False)
        return (response_head(dialect.content_type) + half, *after(dialect))

    return response


def _event(payload: bytes, kind: str = "contentBlockDelta") -> Response:
    """Return a response with such an event in the middle of an answer."""
    return _partial(lambda dialect: [dialect.event(kind, payload)])


def _text_json(literal: bytes) -> Response:
    """Return a response with any JSON in place of a text."""
    return _partial(lambda dialect: [dialect.text_event(literal)])


def _with_extra_event(event: bytes, kind: str) -> Response:
    """Return a response with a whole answer and another event in its middle."""

    def response(dialect: Dialect, _: str) -> Sequence[Piece]:
        reply = Reply((Say("Half"), Bytes(dialect.event(kind, event)), Say(" done")), tokens=Tokens(7, 2))
        return (response_head(dialect.content_type), written(dialect, reply))

    return response


def _in_chunks(end: bytes) -> Response:
    def response(dialect: Dialect, _: str) -> Sequence[Piece]:
        half = chunk(written(dialect, Reply((Say("Half"),)), end=False))
        head = response_head(dialect.content_type, "Transfer-Encoding: chunked\r\n")
        return (head + half, end)

    return response


def _redirect(status: str) -> Response:
    return lambda _, other: (http_response(status=status, more=f"Location: {other}/v1/elsewhere\r\n"),)


def _compressed(data: bytes) -> Response:
    return lambda dialect, _: (http_response(data, dialect.content_type, more="Content-Encoding: gzip\r\n"),)


@cache
def _bomb() -> bytes:
    """Return few bytes that decompress to many."""
    return gzip.compress(b"data: " + b"0" * 80_000_000)


def _endless(dialect: Dialect) -> Sequence[Piece]:
    return (Flood(dialect.event("ping", b'{"type":"ping","padding":"%b"}' % (b"x" * 500_000))),)


def _tools(check: Callable[[Sequence[ToolCallPart]], bool]) -> Callable[[Message], bool]:
    return lambda message: check([part for part in message.parts if isinstance(part, ToolCallPart)])


def _counted(input_tokens: int | None, output_tokens: int | None) -> Callable[[Message], bool]:
    """Return a check for the whole answer with these token counts; None is any valid count."""

    def holds(message: Message) -> bool:
        counts = (message.metadata.input_tokens, message.metadata.output_tokens)
        expected = (input_tokens, output_tokens)
        return message.text == "Hi" and all(
            0 <= (count or 0) <= MAX_TOKENS and limit in (None, count)
            for count, limit in zip(counts, expected, strict=True)
        )

    return holds


def _says(text: str) -> Callable[[Message], bool]:
    return lambda message: message.text == text


def _ids_differ(calls: Sequence[ToolCallPart]) -> bool:
    return len({call.tool_call_id for call in calls}) == len(calls)


_ABORTED, _UNREADABLE = (StreamAbortedError,), (DeltaParseError,)
_BROKEN = _ABORTED + _UNREADABLE
_INVALID_JSON = Use("clock", '{"zone": "UT', "call_a")
_TWICE = UseTogether((Use("clock", '{"n": 1}', "same"), Use("clock", '{"n": 2}', "same")))

CASES: tuple[BadInput, ...] = (
    BadInput(
        name="noise instead of HTTP", response=lambda _, __: (bytes(range(256)) * 20,), errors=_UNREADABLE
    ),
    BadInput(
        name="a header of a megabyte",
        response=lambda _, __: (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000 + b"\r\n\r\n",),
        errors=_BROKEN,
    ),
    BadInput(
        name="an HTML page",
        response=lambda _, __: (http_response(b"<html>no</html>", "text/html"),),
        errors=_UNREADABLE,
    ),
    BadInput(
        name="an HTML page with the type of a stream",
        response=lambda d, _: (http_response(b"<html>\n<p>Log in</p>\n</html>", d.content_type),),
        errors=_BROKEN,
    ),
    BadInput(
        name="JSON instead of a stream",
        response=lambda _, __: (http_response(b'{"ok":true}', "application/json"),),
        errors=_UNREADABLE,
    ),
    BadInput(
        name="an error with status 200",
        response=lambda _, __: (http_response(b'{"error":{"message":"busy"}}', "application/json"),),
        errors=(ServerFailedError,),
    ),
    BadInput(
        name="an empty body", response=lambda d, _: (http_response(b"", d.content_type),), errors=_ABORTED
    ),
    BadInput(
        name="no content",
        response=lambda _, __: (b"HTTP/1.1 204 No Content\r\n\r\n",),
        errors=_BROKEN,
    ),
    BadInput(name="a redirect to another host", response=_redirect("307 There"), errors=(BadRequestError,)),
    BadInput(name="a permanent redirect", response=_redirect("301 Moved"), errors=(BadRequestError,)),
    BadInput(name="a close before the first byte", response=lambda _, __: (), errors=_ABORTED),
    BadInput(
        name="a close after the head", response=lambda d, _: (response_head(d.content_type),), errors=_ABORTED
    ),
    BadInput(name="a close in the middle", response=_partial(lambda _: ()), errors=_ABORTED, text="Half"),
    BadInput(name="a close in the middle of chunks", response=_in_chunks(b""), errors=_ABORTED, text="Half"),
    BadInput(
        name="a close in the middle of an event",
        response=_partial(lambda d: [d.text_event(b'" and more"')[:-9]]),
        errors=_BROKEN,
        text="Half",
    ),
    BadInput(
        name="silence before the head",
        response=lambda _, __: ("hang",),
        errors=(StreamTimeoutError,),
        limits=_SILENT_HEAD,
    ),
    BadInput(
        name="silence in the head",
        response=lambda _, __: (b"HTTP/1.1 200 OK\r\nX: ", "hang"),
        errors=(StreamTimeoutError,),
        limits=_SILENT_HEAD,
    ),
    BadInput(
        name="silence in the middle",
        response=_partial(lambda _: ["hang"]),
        errors=(StreamTimeoutError,),
        limits=_SILENT_STREAM,
        text="Half",
    ),
    BadInput(name="a broken chunk", response=_in_chunks(b"zz\r\nhello"), errors=_BROKEN, text=None),
    BadInput(
        name="a chunk of a negative size", response=_in_chunks(b"-5\r\nhello\r\n"), errors=_BROKEN, text=None
    ),
    BadInput(
        name="invalid gzip data",
        response=_compressed(b"not gzip at all"),
        errors=_BROKEN,
    ),
    BadInput(
        name="a decompression bomb",
        response=lambda d, other: _compressed(_bomb())(d, other),
        errors=_BROKEN,
    ),
    BadInput(name="invalid JSON", response=_event(b"{no json"), errors=_UNREADABLE, text="Half"),
    BadInput(name="a JSON array", response=_event(b"[1,2,3]"), errors=_UNREADABLE, text="Half"),
    BadInput(
        name="noise in an event", response=_event(bytes(range(14, 256))), errors=_UNREADABLE, text="Half"
    ),
    BadInput(name="invalid UTF-8", response=_text_json(b'"a\xff\xfeb"'), errors=_UNREADABLE, text="Half"),
    BadInput(name="a lone surrogate", response=_text_json(b'"a\\ud800b"'), errors=_UNREADABLE, text="Half"),
    BadInput(name="a number instead of a text", response=_text_json(b"7"), errors=_UNREADABLE, text="Half"),
    BadInput(
        name="excessive nesting",
        response=_event(b'{"type":"deep","deep":' + b"[" * 200_000),
        errors=_UNREADABLE,
        text="Half",
    ),
    BadInput(
        name="a huge number",
        response=_event(b'{"type":"x","usage":{"input_tokens":%b}}' % (b"9" * 100_000), "metadata"),
        errors=_BROKEN,
        text="Half",
    ),
    BadInput(
        name="a line of ten megabytes",
        response=_text_json(b'"%b"' % (b"x" * 10_000_000)),
        errors=_UNREADABLE,
        text="Half",
    ),
    BadInput(
        name="an endless line",
        response=_partial(
            lambda d: [d.text_event(b'"%b"' % (b"x" * 9_000_000))[:8_000_000], Flood(b"x" * 500_000)]
        ),
        errors=_UNREADABLE,
        text="Half",
    ),
    BadInput(
        name="endless keep-alives",
        response=_partial(lambda d: [Drip(d.event("ping", b'{"type":"ping"}'), 50)]),
        errors=(StreamTimeoutError,),
        limits=_SILENT_STREAM,
        text="Half",
    ),
    BadInput(name="an endless stream", response=_partial(_endless), errors=_UNREADABLE, text="Half"),
    BadInput(
        name="no end marker",
        response=lambda d, _: (
            response_head(d.content_type) + written(d, Reply((Say("Hi"),))).removesuffix(b"data: [DONE]\n\n"),
        ),
        accepted=_says("Hi"),
    ),
    BadInput(
        name="an unknown event",
        response=_with_extra_event(b'{"type":"mystery","what":[1,{"a":null}]}', "mystery"),
        accepted=_says("Half done"),
    ),
    BadInput(name="a NUL in the text", response=_stream(Say("a\0b")), accepted=_says("a\0b")),
    BadInput(
        name="another content type",
        response=lambda d, _: (response_head("text/plain"), written(d, Reply((Say("Hi"),)))),
        accepted=_says("Hi"),
    ),
    BadInput(
        name="no content type",
        response=lambda d, _: (
            b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + written(d, Reply((Say("Hi"),))),
        ),
        accepted=_says("Hi"),
    ),
    BadInput(
        name="arguments of invalid JSON",
        response=_stream(_INVALID_JSON),
        errors=_UNREADABLE,
        accepted=_tools(lambda calls: bool(calls[0].invalid_arguments)),
    ),
    BadInput(
        name="two calls with one id",
        response=_stream(_TWICE),
        accepted=_tools(lambda calls: [c.arguments["n"] for c in calls] == [1, 2] and _ids_differ(calls)),
    ),
    BadInput(
        name="a negative count",
        response=_stream(Say("Hi"), tokens=Tokens(-5, -7, -1)),
        accepted=_counted(0, 0),
    ),
    BadInput(
        name="a huge count",
        response=_stream(Say("Hi"), tokens=Tokens(10**30, 10**24)),
        accepted=_counted(None, None),
    ),
    BadInput(
        name="a fractional count",
        response=_stream(Say("Hi"), tokens=Tokens(float("2.5"), float("1e12"))),  # type: ignore[arg-type]
        accepted=_counted(None, None),
    ),
    BadInput(
        name="counts that shrink",
        response=_stream(Count(Tokens(100, 50)), Say("Hi"), tokens=Tokens(90, 7)),
        accepted=lambda m: m.text == "Hi" and (m.metadata.output_tokens in (50, 7)),
    ),
)
"""All cases."""


BAD_INPUT: tuple[Check, ...] = tuple(map(check_of, CASES))
"""The checks of all cases."""
