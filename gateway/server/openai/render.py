"""Answers as clients of ``/v1/chat/completions`` read them: whole, or in chunks."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway.messages import Message, Metadata, to_json
from gateway.server.openai.telling import text_of

FinishReason = Literal["stop", "length"]

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


class Answered(Struct, frozen=True):
    """What the assistant says."""

    content: str
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


class _Piece(Struct, frozen=True, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


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
    """The chunks of one stream. ``counted`` says whether the client wants to know the tokens."""

    def __init__(self, answer_id: str, model: str, created: int, *, counted: bool) -> None:
        self._counted = counted
        empty = None if counted else UNSET
        self._plain = _Chunk(f"chatcmpl-{answer_id}", created, model, [], usage=empty)

    def first(self) -> bytes:
        """Who speaks."""
        return self._chunk(_Part(_Piece(role="assistant", content="")))

    def text(self, more: str) -> bytes:
        """More of the answer."""
        return self._chunk(_Part(_Piece(content=more)))

    def last(self, answer: Message | None) -> bytes:
        """Why it ends, what it took if that was asked for, and the end."""
        metadata = Metadata() if answer is None else answer.metadata
        end = self._chunk(_Part(_Piece(), finish_reason(metadata)))
        if not self._counted:
            return end + DONE
        return end + event(msgspec.structs.replace(self._plain, usage=usage(metadata))) + DONE

    def _chunk(self, part: _Part) -> bytes:
        return event(msgspec.structs.replace(self._plain, choices=[part]))


def completion(answer_id: str, asked: str, created: int, answer: Message | None) -> ChatCompletion:
    """A whole answer; an empty one where nothing was said. ``asked`` is the model that was asked for."""
    metadata = Metadata() if answer is None else answer.metadata
    said = Answered("" if answer is None else text_of(answer))
    model = f"{metadata.provider}/{metadata.model}" if metadata.provider else asked
    choice = Choice(said, finish_reason(metadata))
    return ChatCompletion(f"chatcmpl-{answer_id}", created, model, [choice], usage(metadata))


def event(value: object) -> bytes:
    """A value as one server-sent event."""
    return b"data: %b\n\n" % to_json(value)


def finish_reason(metadata: Metadata) -> FinishReason:
    """Why an answer ends: only a limit is worth telling, for its tools are run on this side."""
    return "length" if metadata.stop_reason == "max_tokens" else "stop"


def usage(metadata: Metadata) -> Usage:
    """What an answer took."""
    read, written = metadata.input_tokens or 0, metadata.output_tokens or 0
    return Usage(read, written, read + written, PromptDetails(metadata.cached_tokens or 0))
