"""Parser of Gemini streams: each event is a complete response with further parts."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from gateway import ImagePart
from gateway.provider_http import (
    ContentFilterError,
    ServerFailedError,
    StreamEvent,
    raise_stream_error,
)
from plugins.providers.google.contents import FORM
from plugins.providers.protocol import EventParser, decode_event

_FILTERED = frozenset(
    {
        "SAFETY",
        "RECITATION",
        "LANGUAGE",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
        "MODEL_ARMOR",
    }
)
_BROKEN = frozenset(
    {
        "MALFORMED_FUNCTION_CALL",
        "MALFORMED_RESPONSE",
        "UNEXPECTED_TOOL_CALL",
        "TOO_MANY_TOOL_CALLS",
        "MISSING_THOUGHT_SIGNATURE",
    }
)


class _Call(Struct):
    name: str = ""
    id: str = ""
    args: dict[str, Any] | None = None


class _Blob(Struct, rename="camel"):
    mime_type: str = ""
    data: str = ""


class _Part(Struct, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: _Call | None = None
    inline_data: _Blob | None = None


class _Content(Struct):
    parts: list[_Part] | None = None


class _Candidate(Struct, rename="camel"):
    index: int = 0
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


class _Feedback(Struct, rename="camel"):
    block_reason: str | None = None


class _Usage(Struct, rename="camel", gc=False):
    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    cached_content_token_count: int | None = None


class _Response(Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: _Usage | None = None
    error: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Response).decode


class ResponseParser(EventParser):
    """Parses one answer. The stream has no final event; a finish reason makes the answer complete."""

    __slots__ = ()

    def feed(self, event: StreamEvent) -> None:
        """Parse one event."""
        if not event.data:
            return
        response = decode_event(_decode, event, "usageMetadata")
        if response.error is not None:
            raise_stream_error(event.data)
        if response.usage_metadata is not None:
            self._usage(response.usage_metadata)
        feedback = response.prompt_feedback
        if feedback is not None and feedback.block_reason:
            raise ContentFilterError(f"the request was blocked ({feedback.block_reason})")
        for candidate in response.candidates or ():
            if candidate.index == 0:
                self._candidate(candidate)

    def _candidate(self, candidate: _Candidate) -> None:
        for part in (candidate.content and candidate.content.parts) or ():
            self._part(part)
        reason = candidate.finish_reason
        if reason is None:
            return
        if reason in _FILTERED:
            raise ContentFilterError(f"the model's filter stopped the answer ({reason})")
        if reason in _BROKEN:
            raise ServerFailedError(candidate.finish_message or f"the model aborted the answer ({reason})")
        self._writer.stop("max_tokens" if reason == "MAX_TOKENS" else "end_turn")

    def _part(self, part: _Part) -> None:
        if part.text:
            self._writer.text(part.text, "reasoning" if part.thought else "text")
        elif part.function_call is not None:
            self._call(part.function_call)
        elif part.inline_data is not None and not part.thought:
            blob = part.inline_data
            if blob.mime_type.startswith("image/") and blob.data:
                self._writer.part(ImagePart(blob.data, blob.mime_type))
        if part.thought_signature and not part.thought:
            self._writer.state(FORM, part.thought_signature)

    def _call(self, call: _Call) -> None:
        call_id = self._writer.call(call.name, call.id)
        self._writer.arguments(call_id, msgspec.json.encode(call.args or {}).decode())

    def _usage(self, usage: _Usage) -> None:
        # Counts are totals so far. Thoughts are output; the results of Google's own tools are input.
        given = (usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0)
        output = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
        self._writer.usage(given, output, usage.cached_content_token_count or 0)
