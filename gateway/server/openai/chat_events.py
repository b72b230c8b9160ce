"""Answers of ``/v1/chat/completions``: whole, or as the chunks of a stream."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway.contract.messages import Message, Metadata, ToolCallPart, ToolResultPart, to_json
from gateway.server.openai.errors import OpenAiError
from gateway.server.openai.listener import text_of

FinishReason = Literal["stop", "length", "tool_calls"]

DONE = b"data: [DONE]\n\n"
"""The end of every stream."""


class PromptDetails(Struct, frozen=True):
    """Prompt tokens that were read from a cache."""

    cached_tokens: int = 0


class Usage(Struct, frozen=True):
    """Token counts of the answer, summed over all model calls."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptDetails = PromptDetails()


class FunctionCall(Struct, frozen=True):
    """A function with its arguments as JSON text."""

    name: str
    arguments: str


class AnswerToolCall(Struct, frozen=True):
    """A call of one of the client's tools."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class AnswerMessage(Struct, frozen=True):
    """The answer, with calls of the client's tools. ``content`` is null for calls without text."""

    content: str | None
    tool_calls: list[AnswerToolCall] | UnsetType = UNSET
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class Choice(Struct, frozen=True):
    """The answer. A completion has exactly one."""

    message: AnswerMessage
    finish_reason: FinishReason
    index: int = 0
    logprobs: None = None


class ChatCompletion(Struct, frozen=True):
    """A whole answer. ``model`` is the model that answered, ``created`` is in seconds since the epoch."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"


class _ToolCallDelta(Struct, frozen=True):
    index: int
    id: str
    function: FunctionCall
    type: str = "function"


class _Delta(Struct, frozen=True, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[_ToolCallDelta] | UnsetType = UNSET


class _ChoiceDelta(Struct, frozen=True):
    delta: _Delta
    finish_reason: FinishReason | None = None
    index: int = 0
    logprobs: None = None


class _Chunk(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[_ChoiceDelta]
    object: str = "chat.completion.chunk"
    usage: Usage | UnsetType | None = UNSET


class ChatEvents:
    """Renderer of one answer. ``with_usage`` adds the token counts to a stream."""

    def __init__(self, answer_id: str, model: str, created: int, *, with_usage: bool) -> None:
        self._with_usage = with_usage
        empty = None if with_usage else UNSET
        self._plain = _Chunk(f"chatcmpl-{answer_id}", created, model, [], usage=empty)
        self._before, _, self._after = self._chunk(_ChoiceDelta(_Delta(content=""))).rpartition(b'""')
        """The constant bytes around the text of a chunk, so that only the text is encoded for each token."""

    def whole(self, answer: Message | None) -> ChatCompletion:
        """Return the whole answer; an empty one if the message has no answer."""
        metadata = Metadata() if answer is None else answer.metadata
        text, calls = "" if answer is None else text_of(answer), _client_tool_calls(answer)
        message = AnswerMessage(text or None, calls) if calls else AnswerMessage(text)
        choice = Choice(message, "tool_calls" if calls else finish_reason(metadata))
        began = self._plain
        model = answering_model(metadata, began.model)
        return ChatCompletion(began.id, began.created, model, [choice], _usage(metadata))

    def first(self) -> bytes:
        """Return the chunk with the role."""
        return self._chunk(_ChoiceDelta(_Delta(role="assistant", content="")))

    def text(self, text: str) -> bytes:
        """Return a chunk of text."""
        return b"".join((self._before, to_json(text), self._after))

    def last(self, answer: Message | None) -> bytes:
        """Return the tool calls, the finish reason, the token counts if requested, and the end of the stream.

        A call is sent whole and last: it cannot be taken back if a fallback answers instead of its model.
        """
        metadata = Metadata() if answer is None else answer.metadata
        calls = _client_tool_calls(answer)
        end = self._chunk(_ChoiceDelta(_Delta(), "tool_calls" if calls else finish_reason(metadata)))
        pieces = [_ToolCallDelta(index, call.id, call.function) for index, call in enumerate(calls)]
        end = b"".join(self._chunk(_ChoiceDelta(_Delta(tool_calls=[piece]))) for piece in pieces) + end
        if not self._with_usage:
            return end + DONE
        return end + _event(msgspec.structs.replace(self._plain, usage=_usage(metadata))) + DONE

    def failed(self, error: OpenAiError) -> bytes:
        """Return the event of a failed answer."""
        return _event(error)

    def _chunk(self, part: _ChoiceDelta) -> bytes:
        return _event(msgspec.structs.replace(self._plain, choices=[part]))


def _client_tool_calls(answer: Message | None) -> list[AnswerToolCall]:
    """Return the tool calls without a result: those of the client's tools."""
    parts = () if answer is None else answer.parts
    answered = {part.tool_call_id for part in parts if isinstance(part, ToolResultPart)}
    return [
        AnswerToolCall(part.tool_call_id, FunctionCall(part.tool_name, _arguments(part)))
        for part in parts
        if isinstance(part, ToolCallPart) and part.tool_call_id not in answered
    ]


def _arguments(call: ToolCallPart) -> str:
    return to_json(call.arguments).decode() if call.invalid_arguments is None else call.invalid_arguments


def answering_model(metadata: Metadata, requested: str) -> str:
    """Return the model that answered, or the ``requested`` one if none did."""
    return f"{metadata.provider}/{metadata.model}" if metadata.provider else requested


def _event(value: object) -> bytes:
    return b"data: %b\n\n" % to_json(value)


def finish_reason(metadata: Metadata) -> FinishReason:
    """Return the finish reason of an answer that calls none of the client's tools."""
    return "length" if metadata.stop_reason == "max_tokens" else "stop"


def _usage(metadata: Metadata) -> Usage:
    read, written = metadata.input_tokens or 0, metadata.output_tokens or 0
    return Usage(read, written, read + written, PromptDetails(metadata.cached_tokens or 0))
