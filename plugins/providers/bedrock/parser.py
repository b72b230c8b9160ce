"""Parser of Converse streams: events of several kinds, each a JSON object."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from gateway.provider_http import (
    UNDECODABLE,
    AnswerWriter,
    ContentFilterError,
    DeltaParseError,
    ServerFailedError,
    StopReason,
    StreamEvent,
    raise_stream_error,
)
from plugins.providers.bedrock.conversation import FORM
from plugins.providers.bedrock.frames import EXCEPTION, UNREADABLE
from plugins.providers.protocol import EventParser, decode_event

_STATUS = {
    b"internalServerException": 500,
    b"modelStreamErrorException": 424,
    b"modelTimeoutException": 408,
    b"serviceUnavailableException": 503,
    b"throttlingException": 429,
    b"validationException": 400,
}
_STOP_REASONS: dict[str, StopReason] = {
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "tool_use": "tool_use",
}


class _ToolUse(Struct, rename="camel"):
    tool_use_id: str = ""
    name: str = ""
    input: str = ""


class _Reasoning(Struct, rename="camel"):
    text: str | None = None
    signature: str | None = None
    redacted_content: str | None = None


class _Piece(Struct, rename="camel"):
    text: str | None = None
    tool_use: _ToolUse | None = None
    reasoning_content: _Reasoning | None = None


class _Usage(Struct, rename="camel", gc=False):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int | None = None
    cache_write_input_tokens: int | None = None


class _Body(Struct, rename="camel"):
    content_block_index: int = 0
    start: _Piece | None = None
    delta: _Piece | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None


_decode = msgspec.json.Decoder(_Body).decode


class ConverseParser(EventParser):
    """Parses one answer; skips unknown kinds of events."""

    __slots__ = ("_calls", "_thought")

    def __init__(self, writer: AnswerWriter) -> None:
        super().__init__(writer)
        self._calls: dict[int, str] = {}
        self._thought: _Reasoning | None = None
        """The open block of reasoning."""

    def feed(self, event: StreamEvent) -> None:
        """Parse one event."""
        if event.name == UNREADABLE:
            raise DeltaParseError(f"the stream cannot be read: {event.data.decode()}")
        if event.name.startswith(EXCEPTION):
            _raise(event.name.removeprefix(EXCEPTION), event.data)
        body = decode_event(_decode, event, "usage")
        match event.name:
            case b"contentBlockStart" | b"contentBlockDelta":
                self._piece(body.content_block_index, body.start or body.delta or _Piece())
            case b"contentBlockStop":
                self._keep_thought()
            case b"messageStop":
                self._stop(body.stop_reason or "end_turn")
            case b"metadata":
                self._usage(body.usage or _Usage())
            case _:
                pass

    def _piece(self, index: int, piece: _Piece) -> None:
        if piece.text:
            self._writer.text(piece.text)
        elif piece.reasoning_content is not None:
            self._think(piece.reasoning_content)
        elif piece.tool_use is not None:
            use = piece.tool_use
            if use.name:
                self._calls[index] = self._writer.call(use.name, use.tool_use_id)
            elif use.input and index in self._calls:
                self._writer.arguments(self._calls[index], use.input)

    def _think(self, piece: _Reasoning) -> None:
        if piece.text:
            self._writer.text(piece.text, "reasoning")
        thought = self._thought = self._thought or _Reasoning("", "", "")
        for name in _Reasoning.__struct_fields__:
            setattr(thought, name, getattr(thought, name) + (getattr(piece, name) or ""))

    def _keep_thought(self) -> None:
        """Keep a complete block of reasoning for the next request; models that sign none refuse it there."""
        thought, self._thought = self._thought or _Reasoning(), None
        if thought.redacted_content:
            self._writer.state(FORM, {"redactedContent": thought.redacted_content})
        elif thought.signature:
            text = {"text": thought.text, "signature": thought.signature}
            self._writer.state(FORM, {"reasoningText": text})

    def _stop(self, reason: str) -> None:
        if reason in ("guardrail_intervened", "content_filtered"):
            raise ContentFilterError(f"the model's filter stopped the answer ({reason})")
        if reason.startswith("malformed"):
            raise ServerFailedError(f"the model aborted the answer ({reason})")
        self._writer.stop(_STOP_REASONS.get(reason, "end_turn"))

    def _usage(self, usage: _Usage) -> None:
        # ``inputTokens`` excludes the tokens read from and written to the cache. This event is the last one.
        cached, written = usage.cache_read_input_tokens or 0, usage.cache_write_input_tokens or 0
        given = usage.input_tokens + cached + written
        self._writer.usage(given, usage.output_tokens, cached, written)
        self.done = self._writer.stopped


def _raise(kind: bytes, payload: bytes) -> None:
    try:
        message = msgspec.json.decode(payload, type=dict[str, Any]).get("message", "")
    except UNDECODABLE:
        message = ""
    code = _STATUS.get(kind, 500)
    raise_stream_error(msgspec.json.encode({"error": {"code": code, "message": message or kind.decode()}}))
