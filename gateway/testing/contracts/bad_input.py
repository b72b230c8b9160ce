"""One thing that a model's server may send and that is no answer; and the check whether it is borne well."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Sequence
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
from gateway.testing.contracts.rude_server import Drip, Flood, Piece, RudeServer, chunk, http, opened
from gateway.testing.fake_models.dialect import Dialect
from gateway.testing.fake_models.script import (
    Asked,
    Bytes,
    Count,
    Reply,
    Say,
    Think,
    Tokens,
    Use,
    UseTogether,
)

Sent = Callable[[Dialect, str], Sequence[Piece]]
"""What is sent, in a dialect; the text is the address of another server."""

_PATIENCE = 60.0
_SILENCE_MS = 300


class Bad(Struct, frozen=True, kw_only=True):
    """A case: it fails with one of the ``errors``, or else what is made of it is ``mended``.

    ``shown`` is the text that is seen before the failure, None any that may have been; ``silent`` says
    that the server falls silent.
    """

    name: str
    sent: Sent
    errors: tuple[type[ProviderError], ...] = ()
    mended: Callable[[Message], bool] | None = None
    shown: str | None = ""
    silent: bool = False


def written(dialect: Dialect, reply: Reply, *, end: bool = True) -> bytes:
    """An answer as the vendor writes it, with its end or without."""
    asked = Asked("", {}, {"model": "fake-small", "stream_options": {"include_usage": True}})
    wire = dialect.wire(asked, reply)
    pieces = [wire.begin()]
    for move in reply.moves:
        if isinstance(move, Bytes):
            pieces.append(move.data)
        elif isinstance(move, Say | Think | Use | UseTogether | Count):
            pieces += wire.events(move)
    return b"".join((*pieces, wire.end(reply) if end else b""))


def check_of(case: Bad) -> Check:
    """The check that a case is."""

    async def check(setup: ProviderSetup) -> None:
        limits = {"stream_timeout_ms": _SILENCE_MS, "timeout": _SILENCE_MS} if case.silent else {}
        async with RudeServer(http(b"who is there?")) as other:
            async with (
                RudeServer(*case.sent(setup.dialect, other.url)) as rude,
                setup.connected_to(rude.url, max_retries=0, **limits) as provider,
            ):
                await _judge(case, provider)
                await rude.left()
            if other.requests:
                raise AssertionError("the request, with its key, went to another host")

    check.__name__ = case.name.replace(" ", "_")
    check.__doc__ = f"The server sends {case.name}."
    return check


async def _judge(case: Bad, provider: Provider) -> None:
    """Raises AssertionError unless it ends as it should."""
    seen: list[Delta] = []
    try:
        async with asyncio.timeout(_PATIENCE):
            async for delta in provider.stream((user("Hi"),), OPTIONS):
                seen.append(delta)  # noqa: PERF401 - what came before a failure counts
    except ProviderError as failure:
        _judge_failure(case, failure, text_of(seen))
        return
    assembler = Assembler("s", "answer")
    for delta in seen:
        assembler.apply(delta)
    message = assembler.message()
    if case.mended is None or not case.mended(message):
        raise AssertionError(f"this was made of it: {message.parts} {message.metadata}")


def _judge_failure(case: Bad, failure: ProviderError, shown: str) -> None:
    if type(failure) not in case.errors:
        raise AssertionError(f"it failed with {failure.name}: {failure}")
    if case.shown not in (None, shown):
        raise AssertionError(f"{shown[:100]!r} was shown instead of {case.shown!r}")
    if KEY in str(failure) or not str(failure) or len(str(failure)) > 400:
        raise AssertionError(f"the error reads badly: {failure}")


_USUAL = Tokens(7, 2)


def _stream(*moves: Bytes | Say | Use | UseTogether | Count, tokens: Tokens = _USUAL) -> Sent:
    """A whole answer."""
    reply = Reply(moves, tokens=tokens)
    return lambda dialect, _: (opened(dialect.content_type), written(dialect, reply))


def _begun(after: Callable[[Dialect], Sequence[Piece]], more: str = "") -> Sent:
    """An answer that begins as it should, and what comes then."""

    def sent(dialect: Dialect, _: str) -> Sequence[Piece]:
        half = written(dialect, Reply((Say("Half"),)), end=False)
        return (opened(dialect.content_type, more) + half, *after(dialect))

    return sent


def _event(payload: bytes, kind: str = "contentBlockDelta") -> Sent:
    """An answer with one such event in the middle."""
    return _begun(lambda dialect: [dialect.event(kind, payload)])


def _saying(literal: bytes) -> Sent:
    """An answer in which such JSON stands for a text."""
    return _begun(lambda dialect: [dialect.saying(literal)])


def _among(event: bytes, kind: str) -> Sent:
    """A whole answer with one more event in its middle."""

    def sent(dialect: Dialect, _: str) -> Sequence[Piece]:
        reply = Reply((Say("Half"), Bytes(dialect.event(kind, event)), Say(" done")), tokens=Tokens(7, 2))
        return (opened(dialect.content_type), written(dialect, reply))

    return sent


def _in_chunks(end: bytes) -> Sent:
    def sent(dialect: Dialect, _: str) -> Sequence[Piece]:
        half = chunk(written(dialect, Reply((Say("Half"),)), end=False))
        head = opened(dialect.content_type, "Transfer-Encoding: chunked\r\n")
        return (head + half, end)

    return sent


def _redirect(status: str) -> Sent:
    return lambda _, other: (http(status=status, more=f"Location: {other}/v1/elsewhere\r\n"),)


def _zipped(data: bytes) -> Sent:
    return lambda dialect, _: (http(data, dialect.content_type, more="Content-Encoding: gzip\r\n"),)


@cache
def _bomb() -> bytes:
    """Little that becomes much."""
    return gzip.compress(b"data: " + b"0" * 80_000_000)


def _endless(dialect: Dialect) -> Sequence[Piece]:
    return (Flood(dialect.event("ping", b'{"type":"ping","padding":"%b"}' % (b"x" * 500_000))),)


def _tools(check: Callable[[Sequence[ToolCallPart]], bool]) -> Callable[[Message], bool]:
    return lambda message: check([part for part in message.parts if isinstance(part, ToolCallPart)])


def _counted(input_tokens: int | None, output_tokens: int | None) -> Callable[[Message], bool]:
    """The answer is whole, and so many tokens are told; None is any number that can be."""

    def holds(message: Message) -> bool:
        told = (message.metadata.input_tokens, message.metadata.output_tokens)
        wanted = (input_tokens, output_tokens)
        return message.text == "Hi" and all(
            0 <= (count or 0) <= MAX_TOKENS and want in (None, count)
            for count, want in zip(told, wanted, strict=True)
        )

    return holds


def _says(text: str) -> Callable[[Message], bool]:
    return lambda message: message.text == text


def _apart(calls: Sequence[ToolCallPart]) -> bool:
    return len({call.tool_call_id for call in calls}) == len(calls)


_ABORTED, _UNREADABLE = (StreamAbortedError,), (DeltaParseError,)
_BROKEN = _ABORTED + _UNREADABLE
_NO_JSON = Use("clock", '{"zone": "UT', "call_a")
_TWICE = UseTogether((Use("clock", '{"n": 1}', "same"), Use("clock", '{"n": 2}', "same")))

CASES: tuple[Bad, ...] = (
    Bad(name="noise instead of HTTP", sent=lambda _, __: (bytes(range(256)) * 20,), errors=_UNREADABLE),
    Bad(
        name="a header of a megabyte",
        sent=lambda _, __: (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000 + b"\r\n\r\n",),
        errors=_BROKEN,
    ),
    Bad(name="a page", sent=lambda _, __: (http(b"<html>no</html>", "text/html"),), errors=_UNREADABLE),
    Bad(
        name="a page that says it is a stream",
        sent=lambda d, _: (http(b"<html>\n<p>Log in</p>\n</html>", d.content_type),),
        errors=_BROKEN,
    ),
    Bad(
        name="JSON instead of a stream",
        sent=lambda _, __: (http(b'{"ok":true}', "application/json"),),
        errors=_UNREADABLE,
    ),
    Bad(
        name="an error that is no refusal",
        sent=lambda _, __: (http(b'{"error":{"message":"busy"}}', "application/json"),),
        errors=(ServerFailedError,),
    ),
    Bad(name="nothing", sent=lambda d, _: (http(b"", d.content_type),), errors=_ABORTED),
    Bad(
        name="no content",
        sent=lambda _, __: (b"HTTP/1.1 204 No Content\r\n\r\n",),
        errors=_BROKEN,
    ),
    Bad(name="a redirect to another host", sent=_redirect("307 There"), errors=(BadRequestError,)),
    Bad(name="a redirect for good", sent=_redirect("301 Moved"), errors=(BadRequestError,)),
    Bad(name="a close before the first byte", sent=lambda _, __: (), errors=_ABORTED),
    Bad(name="a close after the head", sent=lambda d, _: (opened(d.content_type),), errors=_ABORTED),
    Bad(name="a close in the middle", sent=_begun(lambda _: ()), errors=_ABORTED, shown="Half"),
    Bad(name="a close in the middle of chunks", sent=_in_chunks(b""), errors=_ABORTED, shown="Half"),
    Bad(
        name="a close in the middle of an event",
        sent=_begun(lambda d: [d.saying(b'" and more"')[:-9]]),
        errors=_BROKEN,
        shown="Half",
    ),
    Bad(
        name="silence before the head",
        sent=lambda _, __: ("hang",),
        errors=(StreamTimeoutError,),
        silent=True,
    ),
    Bad(
        name="silence in the head",
        sent=lambda _, __: (b"HTTP/1.1 200 OK\r\nX: ", "hang"),
        errors=(StreamTimeoutError,),
        silent=True,
    ),
    Bad(
        name="silence in the middle",
        sent=_begun(lambda _: ["hang"]),
        errors=(StreamTimeoutError,),
        silent=True,
        shown="Half",
    ),
    Bad(name="a broken chunk", sent=_in_chunks(b"zz\r\nhello"), errors=_BROKEN, shown=None),
    Bad(name="a chunk of a negative size", sent=_in_chunks(b"-5\r\nhello\r\n"), errors=_BROKEN, shown=None),
    Bad(
        name="what is not compressed",
        sent=_zipped(b"not gzip at all"),
        errors=_BROKEN,
    ),
    Bad(
        name="a bomb",
        sent=lambda d, other: _zipped(_bomb())(d, other),
        errors=_BROKEN,
    ),
    Bad(name="no JSON", sent=_event(b"{no json"), errors=_UNREADABLE, shown="Half"),
    Bad(name="a list", sent=_event(b"[1,2,3]"), errors=_UNREADABLE, shown="Half"),
    Bad(name="noise as an event", sent=_event(bytes(range(14, 256))), errors=_UNREADABLE, shown="Half"),
    Bad(name="no UTF-8", sent=_saying(b'"a\xff\xfeb"'), errors=_UNREADABLE, shown="Half"),
    Bad(name="half a character", sent=_saying(b'"a\\ud800b"'), errors=_UNREADABLE, shown="Half"),
    Bad(name="a number for a text", sent=_saying(b"7"), errors=_UNREADABLE, shown="Half"),
    Bad(
        name="a depth without end",
        sent=_event(b'{"type":"deep","deep":' + b"[" * 200_000),
        errors=_UNREADABLE,
        shown="Half",
    ),
    Bad(
        name="a number without end",
        sent=_event(b'{"type":"x","usage":{"input_tokens":%b}}' % (b"9" * 100_000), "metadata"),
        errors=_BROKEN,
        shown="Half",
    ),
    Bad(
        name="a line of ten megabytes",
        sent=_saying(b'"%b"' % (b"x" * 10_000_000)),
        errors=_UNREADABLE,
        shown="Half",
    ),
    Bad(
        name="a line without end",
        sent=_begun(lambda d: [d.saying(b'"%b"' % (b"x" * 9_000_000))[:8_000_000], Flood(b"x" * 500_000)]),
        errors=_UNREADABLE,
        shown="Half",
    ),
    Bad(
        name="signs of life without end",
        sent=_begun(lambda d: [Drip(d.event("ping", b'{"type":"ping"}'), 50)]),
        errors=(StreamTimeoutError,),
        silent=True,
        shown="Half",
    ),
    Bad(name="a stream without end", sent=_begun(_endless), errors=_UNREADABLE, shown="Half"),
    Bad(
        name="no mark behind the end",
        sent=lambda d, _: (
            opened(d.content_type) + written(d, Reply((Say("Hi"),))).removesuffix(b"data: [DONE]\n\n"),
        ),
        mended=_says("Hi"),
    ),
    Bad(
        name="an event nobody knows",
        sent=_among(b'{"type":"mystery","what":[1,{"a":null}]}', "mystery"),
        mended=_says("Half done"),
    ),
    Bad(name="a NUL in the text", sent=_stream(Say("a\0b")), mended=_says("a\0b")),
    Bad(
        name="another content type",
        sent=lambda d, _: (opened("text/plain"), written(d, Reply((Say("Hi"),)))),
        mended=_says("Hi"),
    ),
    Bad(
        name="no content type",
        sent=lambda d, _: (
            b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + written(d, Reply((Say("Hi"),))),
        ),
        mended=_says("Hi"),
    ),
    Bad(
        name="arguments that are no JSON",
        sent=_stream(_NO_JSON),
        errors=_UNREADABLE,
        mended=_tools(lambda calls: bool(calls[0].invalid_arguments)),
    ),
    Bad(
        name="two calls with one id",
        sent=_stream(_TWICE),
        mended=_tools(lambda calls: [c.arguments["n"] for c in calls] == [1, 2] and _apart(calls)),
    ),
    Bad(name="a negative count", sent=_stream(Say("Hi"), tokens=Tokens(-5, -7, -1)), mended=_counted(0, 0)),
    Bad(
        name="a count beyond all",
        sent=_stream(Say("Hi"), tokens=Tokens(10**30, 10**24)),
        mended=_counted(None, None),
    ),
    Bad(
        name="a count that is no number",
        sent=_stream(Say("Hi"), tokens=Tokens(float("2.5"), float("1e12"))),  # type: ignore[arg-type]
        mended=_counted(None, None),
    ),
    Bad(
        name="counts that shrink",
        sent=_stream(Count(Tokens(100, 50)), Say("Hi"), tokens=Tokens(90, 7)),
        mended=lambda m: m.text == "Hi" and (m.metadata.output_tokens in (50, 7)),
    ),
)
"""All of them."""


BAD_INPUT: tuple[Check, ...] = tuple(map(check_of, CASES))
"""The checks that they are."""
