"""The adapter contract: what one vendor's wire protocol needs to say, and where its answers are written.

An adapter builds requests and makes parsers; it does no I/O and holds no connection. ``HttpProvider``
does the rest, the same for all vendors.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from gateway.assembler import Assembler
from gateway.deltas import Complete, Delta, DeltaWriter, MetadataDelta, StopReason
from gateway.messages import Message, Metadata, Part, TextKind, new_id
from gateway.provider import AuthMethod, Capabilities, ChatOptions, ModelInfo, ProviderConfig
from gateway.wire.exchange import RequestSpec
from gateway.wire.transport import StreamEvent, Transport

MOST_TOKENS = 2**31 - 1
"""No call takes more tokens; what is said to is a mistake."""

Stream = Callable[[Sequence[Message], ChatOptions], AsyncIterator[Delta]]


class AnswerWriter:
    """Gathers what a model says and hands it out as deltas.

    Text (or arguments of one call) that was added between two ``take`` becomes a single delta: what
    arrived together is shown together. The options say which message it is and what that holds already.
    """

    __slots__ = (
        "_cached",
        "_call",
        "_calls",
        "_deltas",
        "_input",
        "_kind",
        "_output",
        "_pieces",
        "_stop",
        "_taken",
        "_writer",
        "_written",
    )

    def __init__(self, options: ChatOptions) -> None:
        self._writer = DeltaWriter(options.message_id, options.first_part)
        self._deltas: list[Delta] = []
        self._pieces: list[str] = []
        self._kind: TextKind | None = None
        self._call: str | None = None
        self._calls: set[str] = set()
        self._taken = options.call_ids
        self._stop: StopReason | None = None
        self._input: int | None = None
        self._output = 0
        self._cached = 0
        self._written = 0

    @property
    def stopped(self) -> bool:
        """Whether the model said why it stopped."""
        return self._stop is not None

    @property
    def tokens(self) -> int | None:
        """What went in and came out, if that was told."""
        return None if self._input is None else self._input + self._output

    def text(self, content: str, kind: TextKind = "text") -> None:
        """More of the answer, or of the reasoning before it."""
        if self._kind != kind:
            self._flush()
            self._kind = kind
        self._pieces.append(content)

    def call(self, name: str, call_id: str | None = None) -> str:
        """A tool call begins. Returns its id: the one given, or a fresh one if that is empty or taken."""
        self._flush()
        if not call_id or call_id in self._calls or call_id in self._taken:
            call_id = f"call_{secrets.token_hex(12)}"
        self._calls.add(call_id)
        self._deltas.append(self._writer.tool_call(call_id, name))
        return call_id

    def arguments(self, call_id: str, fragment: str) -> None:
        """More of a call's arguments."""
        if self._call != call_id:
            self._flush()
            self._call = call_id
        self._pieces.append(fragment)

    def part(self, part: Part) -> None:
        """A part that came whole, such as a picture."""
        self._flush()
        self._deltas.append(self._writer.part(part))

    def usage(
        self, input_tokens: int, output_tokens: int, cached_tokens: int = 0, cache_write_tokens: int = 0
    ) -> None:
        """The call's tokens as known now; the last word counts. Those of a cache are part of the input.

        Counts that cannot be are brought to the nearest that can.
        """
        self._input, self._output = _possible(input_tokens), _possible(output_tokens)
        self._cached = min(_possible(cached_tokens), self._input)
        self._written = min(_possible(cache_write_tokens), self._input - self._cached)

    def stop(self, reason: StopReason) -> None:
        """Why the model stopped; only the first word counts. Asking for tools outranks a plain end."""
        if self._stop is None:
            self._stop = "tool_use" if reason == "end_turn" and self._calls else reason

    def take(self) -> list[Delta]:
        """The deltas since the last time."""
        if self._pieces:
            self._flush()
        deltas = self._deltas
        if deltas:
            self._deltas = []
        return deltas

    def close(self, model: str, provider: str) -> list[Delta]:
        """What is left, the tokens if they are known, and the end."""
        self.stop("end_turn")
        deltas = self.take()
        metadata = Metadata(model=model, provider=provider)
        if self._input is not None:
            counts = (self._input, self._output, 0.0, self._cached, None, self._written)
            deltas.append(MetadataDelta(self._writer.message_id, *counts))
            metadata = Metadata(model, provider, self._input, self._output, self._cached)
        deltas.append(Complete(self._writer.message_id, metadata, self._stop or "end_turn"))
        return deltas

    def _flush(self) -> None:
        if self._pieces:
            content = self._pieces[0] if len(self._pieces) == 1 else "".join(self._pieces)
            self._pieces.clear()
            if self._kind is not None:
                self._deltas.append(self._writer.text(content, self._kind))
            elif self._call is not None:
                self._deltas.append(self._writer.arguments(self._call, content))
        self._kind = self._call = None


def _possible(count: int) -> int:
    return min(max(count, 0), MOST_TOKENS)


async def assembled(stream: Stream, messages: Sequence[Message], options: ChatOptions) -> Message:
    """The message that a provider's ``stream`` comes to."""
    session_id = messages[-1].session_id if messages else ""
    options = msgspec.structs.replace(options, message_id=options.message_id or new_id(), first_part=0)
    assembler = Assembler(session_id, options.message_id)
    async for delta in stream(messages, options):
        assembler.apply(delta)
    return assembler.message()


class ChatParser(Protocol):
    """Reads one answer, event by event, into an AnswerWriter. Made afresh for every call."""

    @property
    def done(self) -> bool:
        """Whether the backend said that nothing more will come."""
        ...

    def feed(self, event: StreamEvent) -> None:
        """Take one event in. Raises DeltaParseError, or the error that the backend sent."""
        ...

    def finish(self) -> None:
        """The stream has ended. Raises StreamAbortedError if the answer had not."""
        ...


class ProviderAdapter(Protocol):
    """One vendor's protocol. ``transport`` is how answers are framed: a usual way, or readers of its own.

    ``endpoint`` is the address that requests go to; it raises SettingsError where that cannot be known.
    """

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def auth_method(self) -> AuthMethod: ...
    @property
    def transport(self) -> Transport: ...
    @property
    def capabilities(self) -> Capabilities: ...

    def able(self, capabilities: Capabilities) -> ProviderAdapter:
        """The same for models that can do other things."""
        ...

    def endpoint(self, config: ProviderConfig) -> str: ...

    def build_chat_request(
        self, messages: Sequence[Message], options: ChatOptions, config: ProviderConfig
    ) -> RequestSpec: ...

    def parser(self, writer: AnswerWriter) -> ChatParser: ...

    def build_models_request(self, config: ProviderConfig) -> RequestSpec: ...

    def parse_models_response(self, body: bytes, config: ProviderConfig) -> list[ModelInfo]: ...


@runtime_checkable
class ListsForAll(Protocol):
    """The ability of an adapter to have a key tried where the list of models is for everybody."""

    def build_key_request(self, config: ProviderConfig) -> RequestSpec | None:
        """What only a right key is answered; None where the list of models is just that."""
        ...
