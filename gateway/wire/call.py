"""One answer on its way: from the stream through the parser to deltas."""

from __future__ import annotations

import time

from gateway.deltas import Delta
from gateway.errors import ProviderError, StreamAbortedError, StreamTimeoutError
from gateway.provider import ProviderConfig
from gateway.wire.adapter import AnswerWriter, ChatParser
from gateway.wire.transport import EventStream
from gateway.wire.upstream import redacted
from gateway.wire.waiting import Slot

SIGNS_OF_LIFE = 10
"""How many times as long as in silence a backend is waited for that says that it is still there."""


class Call:
    """One answer on its way: reads the stream, feeds the parser, hands out deltas.

    ``slot`` is what it holds of the provider's limits, if there are any; it is given back at the end.
    """

    __slots__ = ("_config", "_failure", "_parser", "_stream", "_writer", "deltas", "slot")

    def __init__(
        self, stream: EventStream, parser: ChatParser, writer: AnswerWriter, config: ProviderConfig
    ) -> None:
        self._stream = stream
        self._parser = parser
        self._writer = writer
        self._config = config
        self._failure: ProviderError | None = None
        self.slot: Slot | None = None
        self.deltas: list[Delta] = []
        """What the last ``read`` found; empty once the answer is whole."""

    async def read(self) -> None:
        """Wait for more. What came before a failure is handed out first; then the failure is raised."""
        self.deltas = []
        begun = time.monotonic()
        while not self.deltas and not self._parser.done:
            if self._failure is not None:
                raise self._failure
            try:
                await self._take_in()
                self.deltas = self._writer.take()
                if not self.deltas:
                    self._check_patience(time.monotonic() - begun)
            except ProviderError as failure:
                self._failure = redacted(failure, self._config)
                self.deltas = self._writer.take()
        if self._failure is not None and not self.deltas:
            raise self._failure

    def ending(self, model: str, provider: str) -> list[Delta]:
        """The deltas that end the answer."""
        if self.slot is not None and (tokens := self._writer.tokens) is not None:
            self.slot.used(tokens)
        return self._writer.close(model, provider)

    async def drain(self) -> None:
        """Let the connection come to rest, so that it can be used again."""
        await self._stream.drain()

    def close(self) -> None:
        """End the call at once."""
        if self.slot is not None:
            self.slot.release()
        self._stream.close()

    def _check_patience(self, seconds: float) -> None:
        """Signs of life are no answer: a backend may think for long, but not for ever."""
        most = SIGNS_OF_LIFE * self._config.stream_timeout_ms / 1000
        if seconds > most and not self._parser.done:
            raise StreamTimeoutError(f"nothing but signs of life came for {most:g} s")

    async def _take_in(self) -> None:
        parser = self._parser
        try:
            events = await self._stream.read()
        except StreamAbortedError:
            if not self._writer.stopped:
                raise
            events = None
        if events is None:
            parser.finish()
            return
        for event in events:
            parser.feed(event)
            if parser.done:
                return
