"""Answers as clients of ``/v1/chat/completions`` read them: whole, or in chunks."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway.contract.messages import Message, Metadata, ToolCallPart, ToolResultPart, to_json
from gateway.server.openai.failures import FailureAnswer
from gateway.server.openai.telling import text_of

FinishReason = Literal["stop", "length", "tool_calls"]

DONE = b"data: [DONE]\n\n"
"""The end of every stream."""


class PromptDetails(Struct, frozen=True):
    """How many tokens of the prompt came from a cache."""

    cached_tokens: int = 0


class Usage(Struct, frozen=True):
    """What the answer took, over all calls of the model. Counts of tokens."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptDetails = PromptDetails()


class FunctionCall(Struct, frozen=True):
    """A function and its arguments, as JSON text."""

    name: str
    arguments: str


class AnsweredCall(Struct, frozen=True):
    """A call of one of the client's tools."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class Answered(Struct, frozen=True):
    """What the assistant says, and which of the client's tools it calls; ``content`` is null without text."""

    content: str | None
    tool_calls: list[AnsweredCall] | UnsetType = UNSET
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class Choice(Struct, frozen=True):
    """The answer; there is always one."""

    message: Answered
    finish_reason: FinishReason
    index: int = 0
    logprobs: None = None


class ChatCompletion(Struct, frozen=True):
    """A whole answer. ``model`` is who gave it, ``created`` seconds since the epoch."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"


class _CallPiece(Struct, frozen=True):
    index: int
    id: str
    function: FunctionCall
    type: str = "function"


class _Piece(Struct, frozen=True, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[_CallPiece] | UnsetType = UNSET


class _Part(Struct, frozen=True):
    delta: _Piece
    finish_reason: FinishReason | None = None
    index: int = 0
    logprobs: None = None


class _Chunk(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[_Part]
    object: str = "chat.completion.chunk"
    usage: Usage | UnsetType | None = UNSET


class Chunks:
    """One answer: its whole, and its chunks. ``counted`` says whether a stream is to tell the tokens."""

    def __init__(self, answer_id: str, model: str, created: int, *, counted: bool) -> None:
        self._counted = counted
        empty = None if counted else UNSET
        self._plain = _Chunk(f"chatcmpl-{answer_id}", created, model, [], usage=empty)
        self._before, _, self._after = self._chunk(_Part(_Piece(content=""))).rpartition(b'""')
        """What is the same in every chunk of text, around it."""

    def whole(self, answer: Message | None) -> ChatCompletion:
        """The whole answer; an empty one where nothing was said."""
        metadata = Metadata() if answer is None else answer.metadata
        text, calls = "" if answer is None else text_of(answer), calls_of(answer)
        said = Answered(text or None, calls) if calls else Answered(text)
        choice = Choice(said, "tool_calls" if calls else finish_reason(metadata))
        began = self._plain
        model = answered_by(metadata, began.model)
        return ChatCompletion(began.id, began.created, model, [choice], usage(metadata))

    def first(self) -> bytes:
        """Who speaks."""
        return self._chunk(_Part(_Piece(role="assistant", content="")))

    def text(self, more: str) -> bytes:
        """More of the answer."""
        return b"".join((self._before, to_json(more), self._after))

    def last(self, answer: Message | None) -> bytes:
        """The calls, why it ends, what it took if that was asked for, and the end.

        A call is sent whole, for it cannot be taken back if a fallback answers in place of who made it.
        """
        metadata = Metadata() if answer is None else answer.metadata
        calls = calls_of(answer)
        end = self._chunk(_Part(_Piece(), "tool_calls" if calls else finish_reason(metadata)))
        pieces = [_CallPiece(index, call.id, call.function) for index, call in enumerate(calls)]
        end = b"".join(self._chunk(_Part(_Piece(tool_calls=[piece]))) for piece in pieces) + end
        if not self._counted:
            return end + DONE
        return end + event(msgspec.structs.replace(self._plain, usage=usage(metadata))) + DONE

    def broken(self, failed: FailureAnswer) -> bytes:
        """That the answer failed."""
        return event(failed)

    def _chunk(self, part: _Part) -> bytes:
        return event(msgspec.structs.replace(self._plain, choices=[part]))


def calls_of(answer: Message | None) -> list[AnsweredCall]:
    """The calls of an answer that have no result: those of the client's own tools."""
    parts = () if answer is None else answer.parts
    answered = {part.tool_call_id for part in parts if isinstance(part, ToolResultPart)}
    return [
        AnsweredCall(part.tool_call_id, FunctionCall(part.tool_name, _arguments(part)))
        for part in parts
        if isinstance(part, ToolCallPart) and part.tool_call_id not in answered
    ]


def _arguments(call: ToolCallPart) -> str:
    return to_json(call.arguments).decode() if call.invalid_arguments is None else call.invalid_arguments


def answered_by(metadata: Metadata, asked: str) -> str:
    """The model that answered, or the one that was ``asked`` where none did."""
    return f"{metadata.provider}/{metadata.model}" if metadata.provider else asked


def event(value: object) -> bytes:
    """A value as one server-sent event."""
    return b"data: %b\n\n" % to_json(value)


def finish_reason(metadata: Metadata) -> FinishReason:
    """Why an answer ends, where it calls none of the client's tools: it is whole, or reached a limit."""
    return "length" if metadata.stop_reason == "max_tokens" else "stop"


def usage(metadata: Metadata) -> Usage:
    """What an answer took."""
    read, written = metadata.input_tokens or 0, metadata.output_tokens or 0
    return Usage(read, written, read + written, PromptDetails(metadata.cached_tokens or 0))
