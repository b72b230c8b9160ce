"""Answers as clients of ``/v1/chat/completions`` read them: whole, or in chunks."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway.messages import Message, Metadata, to_json
from gateway.server.openai.failures import FailureAnswer
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
        choice = Choice(Answered("" if answer is None else text_of(answer)), finish_reason(metadata))
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
        """Why it ends, what it took if that was asked for, and the end."""
        metadata = Metadata() if answer is None else answer.metadata
        end = self._chunk(_Part(_Piece(), finish_reason(metadata)))
        if not self._counted:
            return end + DONE
        return end + event(msgspec.structs.replace(self._plain, usage=usage(metadata))) + DONE

    def broken(self, failed: FailureAnswer) -> bytes:
        """That the answer failed."""
        return event(failed)

    def _chunk(self, part: _Part) -> bytes:
        return event(msgspec.structs.replace(self._plain, choices=[part]))


def answered_by(metadata: Metadata, asked: str) -> str:
    """The model that answered, or the one that was ``asked`` where none did."""
    return f"{metadata.provider}/{metadata.model}" if metadata.provider else asked


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
