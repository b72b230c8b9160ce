"""One streamed call: the retry policy, and the path from the stream through the parser to deltas."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

from gateway.backoff import Backoff
from gateway.contract.deltas import Delta
from gateway.contract.errors import (
    DeltaParseError,
    ProviderError,
    RateLimitError,
    ServerFailedError,
    StreamAbortedError,
    StreamTimeoutError,
)
from gateway.contract.provider import ProviderConfig
from gateway.provider_http.adapter import AnswerWriter, ChatParser
from gateway.provider_http.leases import KeyLease
from gateway.provider_http.transport import EventStream, StreamEvent
from gateway.provider_http.upstream_errors import redact

if TYPE_CHECKING:
    import stamina

KEEP_ALIVE_FACTOR = 10
"""A stream of keep-alives only is aborted after this multiple of ``stream_timeout_ms``."""

_BACKOFF = Backoff(0.25, 20, jitter=0.25)
_REFUSED_BACKOFF = Backoff(2, 30, jitter=0.25)
"""After an answer that refuses the call: a server that is overloaded needs longer than a lost connection."""


class Call:
    """One running call: reads the stream, feeds the parser, and hands out deltas.

    ``lease`` is released at the end, if the provider has limits. ``tokens`` are removed from errors.
    """

    __slots__ = ("_config", "_failure", "_parser", "_stream", "_tokens", "_writer", "deltas", "lease")

    def __init__(
        self,
        stream: EventStream,
        parser: ChatParser,
        writer: AnswerWriter,
        config: ProviderConfig,
        tokens: Iterable[str],
    ) -> None:
        self._stream = stream
        self._parser = parser
        self._writer = writer
        self._config = config
        self._tokens = tokens
        self._failure: ProviderError | None = None
        self.lease: KeyLease | None = None
        self.deltas: list[Delta] = []
        """The deltas of the last ``read``; empty once the answer is complete."""

    async def read(self) -> None:
        """Wait for deltas. Those that arrived before a failure are handed out first, then it is raised."""
        self.deltas = []
        if self._writer.size > self._config.most_answer_bytes:
            long = DeltaParseError("the answer is longer than limits.provider_stream_bytes allows")
            raise redact(long, self._config, self._tokens)
        parser, begun = self._parser, 0.0
        while not self.deltas and not parser.done:
            if self._failure is not None:
                raise self._failure
            try:
                try:
                    events = await self._stream.read()
                except StreamAbortedError:
                    # Some servers drop the connection after the stop reason; the answer is complete then.
                    if not self._writer.stopped:
                        raise
                    events = None
                self._parse(events)
                self.deltas = self._writer.take()
                if not self.deltas:
                    begun = begun or time.monotonic()
                    self._check_stalled(time.monotonic() - begun)
            except ProviderError as failure:
                self._failure = redact(failure, self._config, self._tokens)
                self.deltas = self._writer.take()
        if self._failure is not None and not self.deltas:
            raise self._failure

    def closing_deltas(self, model: str, provider: str) -> list[Delta]:
        """Return the deltas that end the answer, and report its tokens to the lease."""
        if self.lease is not None and (tokens := self._writer.tokens) is not None:
            self.lease.record_tokens(tokens)
        return self._writer.close(model, provider)

    async def release(self) -> None:
        """Leave the rest of the body, so that the connection can be used again."""
        await self._stream.release()

    def close(self) -> None:
        """End the call at once."""
        if self.lease is not None:
            self.lease.release()
        self._stream.close()

    def _check_stalled(self, seconds: float) -> None:
        # Keep-alives reset the stream's own timeout; without this bound a hung backend would never fail.
        limit = KEEP_ALIVE_FACTOR * self._config.stream_timeout_ms / 1000
        if seconds > limit and not self._parser.done:
            raise StreamTimeoutError(f"stream stalled: only keep-alives for {limit:g} s")

    def _parse(self, events: list[StreamEvent] | None) -> None:
        parser = self._parser
        if events is None:
            parser.finish()
            return
        for event in events:
            parser.feed(event)
            if parser.done:
                return


_AT_ONCE = 0.001
"""Seconds; 0 would mean no other attempt."""


class RetryPolicy:
    """Decides whether and when a failed call is tried again.

    A wait that the backend asked for is kept exactly; if it exceeds the remaining time, the call fails at
    once. After a refusal without one the pauses are 2 s, 4 s and so on up to 30 s; after a failed connection
    the first pause is 0.25 s. ``timeout`` bounds the time within which a new attempt may begin.
    """

    __slots__ = ("_deadline", "_pause", "_retries", "_seconds", "_server_retries")

    def __init__(self, config: ProviderConfig, server_retries: int | None = None) -> None:
        """``server_retries`` bounds the retries after failures of the backend's server, if given."""
        self._retries = config.max_retries
        self._server_retries = self._retries if server_retries is None else min(server_retries, self._retries)
        self._seconds = config.timeout / 1000
        self._deadline = time.monotonic() + self._seconds
        self._pause: float | bool = False

    @property
    def remaining_seconds(self) -> float:
        """Seconds within which an attempt may begin."""
        return max(0.0, self._deadline - time.monotonic())

    def attempts(self) -> AsyncIterator[stamina.Attempt]:
        """Return the attempts; the first one counts as made."""
        # Loaded at the first failure: a gateway without one needs neither its load time nor its memory.
        import stamina
        from stamina.instrumentation import set_on_retry_hooks

        # Its own log lines name its internals; ``ChatOptions.on_retry`` reports retries.
        set_on_retry_hooks(())
        return aiter(
            stamina.retry_context(
                on=lambda _: self._pause,
                attempts=self._retries + 1,
                timeout=None,
                wait_initial=_BACKOFF.first,
                wait_jitter=_BACKOFF.first,
                wait_max=_BACKOFF.longest,
            )
        )

    def next_pause(self, failure: ProviderError, attempt: int) -> float | None:
        """Return the seconds to wait after attempt ``attempt`` (from 1) failed; None if it was the last.

        After a rate limit the caller waits itself, because an operator may end that pause.
        """
        pause = self._wait(failure, attempt)
        most = self._server_retries if isinstance(failure, ServerFailedError) else self._retries
        if not failure.retryable or attempt > most or pause >= self.remaining_seconds:
            self._pause = False
            return None
        self._pause = _AT_ONCE if isinstance(failure, RateLimitError) else pause
        return pause

    def _wait(self, failure: ProviderError, attempt: int) -> float:
        if failure.retry_after is not None:
            return failure.retry_after
        refused = isinstance(failure, RateLimitError | ServerFailedError)
        return (_REFUSED_BACKOFF if refused else _BACKOFF).pause(attempt)
