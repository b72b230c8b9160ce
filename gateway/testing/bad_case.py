"""One thing that a model's server may send and that is no answer; and the check whether it is borne well."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Struct

from gateway.contract.assembler import Assembler
from gateway.contract.deltas import Delta
from gateway.contract.errors import ProviderError
from gateway.contract.messages import Message
from gateway.contract.provider import Provider
from gateway.testing.backend import KEY, Backend, Check
from gateway.testing.dialect import Dialect
from gateway.testing.rude import Piece, RudeServer, http
from gateway.testing.script import Asked, Bytes, Count, Reply, Say, Think, Use, UseTogether
from gateway.testing.talk import OPTIONS, text_of, user

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

    async def check(backend: Backend) -> None:
        limits = {"stream_timeout_ms": _SILENCE_MS, "timeout": _SILENCE_MS} if case.silent else {}
        async with RudeServer(http(b"who is there?")) as other:
            async with (
                RudeServer(*case.sent(backend.dialect, other.url)) as rude,
                backend.connected_to(rude.url, max_retries=0, **limits) as provider,
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
