"""The contract of adapters, and the writer that turns parsed answers into deltas.

An adapter knows one vendor's protocol: it builds requests and makes parsers. It does no I/O and holds no
connection; ``HttpProvider`` does that for all vendors.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec
import structlog

from gateway.contract.assembler import Assembler
from gateway.contract.deltas import Complete, Delta, DeltaWriter, MetadataDelta, StopReason
from gateway.contract.messages import (
    Message,
    Metadata,
    Part,
    ReasoningState,
    TextKind,
    TextPart,
    new_id,
)
from gateway.contract.provider import AuthMethod, Capabilities, ChatOptions, ModelInfo, ProviderConfig
from gateway.provider_http.exchange import RequestSpec
from gateway.provider_http.transport import StreamEvent, Transport

MAX_TOKENS = 2**31 - 1
"""The upper bound of a token count; larger counts from a backend are errors."""

log = structlog.get_logger("trunkline.provider")

Stream = Callable[[Sequence[Message], ChatOptions], AsyncIterator[Delta]]


def log_unsupported(provider: str, options: ChatOptions, *fields: str) -> None:
    """Log at debug which of these option fields are set although the API has no such parameter."""
    given = [field for field in fields if getattr(options, field) not in (None, (), "text", "auto")]
    if given:
        log.debug("options left out", provider=provider, model=options.model, options=given)


class AnswerWriter:
    """Collects the parsed answer of a model and returns it as deltas.

    Text (or the arguments of one call) added between two calls of ``take`` becomes a single delta, so that
    tokens that arrived together cost one delta. The options name the message and its existing parts.
    """

    __slots__ = (
        "_cached",
        "_call",
        "_calls",
        "_cost",
        "_deltas",
        "_input",
        "_kind",
        "_model",
        "_output",
        "_pieces",
        "_stop",
        "_taken",
        "_writer",
        "_written",
        "size",
    )

    def __init__(self, options: ChatOptions, provider: str = "") -> None:
        self._writer = DeltaWriter(options.message_id, options.first_part)
        self._model = provider, options.model
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
        self._cost = 0.0
        self.size = 0
        """Bytes of text and of arguments in the deltas so far."""

    @property
    def model(self) -> str:
        """The model that is called."""
        return self._model[1]

    @property
    def stopped(self) -> bool:
        """True once the model has reported a stop reason."""
        return self._stop is not None

    @property
    def tokens(self) -> int | None:
        """Input plus output tokens, if they were reported."""
        return None if self._input is None else self._input + self._output

    def text(self, content: str, kind: TextKind = "text") -> None:
        """Add text of the answer, or of the reasoning before it."""
        if self._kind != kind:
            self._flush()
            self._kind = kind
        self._pieces.append(content)

    def call(self, name: str, call_id: str | None = None) -> str:
        """Begin a tool call. Returns its id: ``call_id``, or a new one if that is empty or already used."""
        self._flush()
        if not call_id or call_id in self._calls or call_id in self._taken:
            call_id = f"call_{secrets.token_hex(12)}"
        self._calls.add(call_id)
        self._deltas.append(self._writer.tool_call(call_id, name))
        return call_id

    def arguments(self, call_id: str, fragment: str) -> None:
        """Add a fragment of a call's JSON arguments."""
        if self._call != call_id:
            self._flush()
            self._call = call_id
        self._pieces.append(fragment)

    def part(self, part: Part) -> None:
        """Add a complete part, such as an image."""
        self._flush()
        self._deltas.append(self._writer.part(part))

    def state(self, form: str, data: object) -> None:
        """Add what the model needs back of its reasoning: ``data`` for ``split_steps`` with the same form."""
        state = ReasoningState(*self._model, msgspec.json.encode({form: data}).decode())
        self.part(TextPart("", "reasoning", state))
        # It counts as part of the answer, whose size is limited.
        self.size += len(state.data)

    def usage(
        self, input_tokens: int, output_tokens: int, cached_tokens: int = 0, cache_write_tokens: int = 0
    ) -> None:
        """Set the token counts; the last ones count. ``input_tokens`` includes the cached and written ones.

        Impossible counts are clamped.
        """
        self._input, self._output = _clamp(input_tokens), _clamp(output_tokens)
        self._cached = min(_clamp(cached_tokens), self._input)
        self._written = min(_clamp(cache_write_tokens), self._input - self._cached)

    def cost(self, usd: float) -> None:
        """Set the cost that the backend reports, in US dollars; without it the known prices apply."""
        self._cost = usd

    def stop(self, reason: StopReason) -> None:
        """Set the stop reason; the first one counts. ``end_turn`` becomes ``tool_use`` after a tool call."""
        if self._stop is None:
            self._stop = "tool_use" if reason == "end_turn" and self._calls else reason

    def take(self) -> list[Delta]:
        """Return the deltas since the last ``take``."""
        if self._pieces:
            self._flush()
        deltas = self._deltas
        if deltas:
            self._deltas = []
        return deltas

    def close(self, model: str, provider: str) -> list[Delta]:
        """Return the remaining deltas, the token counts if known, and ``Complete``."""
        self.stop("end_turn")
        deltas = self.take()
        metadata = Metadata(model=model, provider=provider)
        if self._input is not None:
            counts = (self._input, self._output, self._cost, self._cached, None, self._written)
            deltas.append(MetadataDelta(self._writer.message_id, *counts))
            metadata = Metadata(model, provider, self._input, self._output, self._cached)
        deltas.append(Complete(self._writer.message_id, metadata, self._stop or "end_turn"))
        return deltas

    def _flush(self) -> None:
        if self._pieces:
            content = self._pieces[0] if len(self._pieces) == 1 else "".join(self._pieces)
            self._pieces.clear()
            self.size += len(content.encode(errors="replace"))
            if self._kind is not None:
                self._deltas.append(self._writer.text(content, self._kind))
            elif self._call is not None:
                self._deltas.append(self._writer.arguments(self._call, content))
        self._kind = self._call = None


def _clamp(count: int) -> int:
    return min(max(count, 0), MAX_TOKENS)


async def assemble(stream: Stream, messages: Sequence[Message], options: ChatOptions) -> Message:
    """Run a provider's ``stream`` to its end and return the message."""
    session_id = messages[-1].session_id if messages else ""
    options = msgspec.structs.replace(options, message_id=options.message_id or new_id(), first_part=0)
    assembler = Assembler(session_id, options.message_id)
    async for delta in stream(messages, options):
        assembler.apply(delta)
    return assembler.message()


class ChatParser(Protocol):
    """Parses the events of one answer into an AnswerWriter; each call has its own parser."""

    @property
    def done(self) -> bool:
        """True once the backend has ended the answer."""
        ...

    def feed(self, event: StreamEvent) -> None:
        """Parse one event. Raises DeltaParseError, or the error that the backend sent."""
        ...

    def finish(self) -> None:
        """Handle the end of the stream. Raises StreamAbortedError if the answer is incomplete."""
        ...


class ProviderAdapter(Protocol):
    """One vendor's protocol. ``transport`` is the framing of its streams.

    ``endpoint`` returns the address of the API and raises SettingsError if the settings lack it.
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

    def with_capabilities(self, capabilities: Capabilities) -> ProviderAdapter:
        """Return the same adapter for models with other capabilities."""
        ...

    def endpoint(self, config: ProviderConfig) -> str: ...

    def build_chat_request(
        self, messages: Sequence[Message], options: ChatOptions, config: ProviderConfig
    ) -> RequestSpec: ...

    def parser(self, writer: AnswerWriter) -> ChatParser: ...

    def build_models_request(self, config: ProviderConfig) -> RequestSpec: ...

    def parse_models_response(self, body: bytes, config: ProviderConfig) -> list[ModelInfo]: ...


@runtime_checkable
class BuildsKeyRequest(Protocol):
    """The ability of an adapter to build a request that verifies the key, if the model list is public."""

    def build_key_request(self, config: ProviderConfig) -> RequestSpec | None:
        """Build a request that needs a valid key; None if listing the models needs one."""
        ...
