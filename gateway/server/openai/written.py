"""Answers as clients of ``/v1/responses`` read them: whole, or as the events of a stream."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from gateway.contract.channel import Receipt
from gateway.contract.messages import Message, Metadata, to_json
from gateway.server.openai.failures import FailureAnswer
from gateway.server.openai.render import answered_by, finish_reason
from gateway.server.openai.responses import ResponseRequest, response_id
from gateway.server.openai.telling import text_of

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class AnswerText(Struct, frozen=True):
    """Text of an answer."""

    text: str
    type: Literal["output_text"] = "output_text"
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()


class OutputMessage(Struct, frozen=True):
    """What the assistant says."""

    id: str
    content: list[AnswerText]
    status: Status
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class InputDetails(Struct, frozen=True):
    """How many tokens of the input came from a cache."""

    cached_tokens: int = 0


class OutputDetails(Struct, frozen=True):
    """How many tokens were reasoning, where that is counted apart."""

    reasoning_tokens: int = 0


class ResponseUsage(Struct, frozen=True):
    """What the answer took, over all calls of the model. Counts of tokens."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails
    output_tokens_details: OutputDetails = OutputDetails()


class Incomplete(Struct, frozen=True):
    """Why an answer is not complete."""

    reason: Literal["max_output_tokens"]


class Broken(Struct, frozen=True):
    """Why there is no answer."""

    code: str
    message: str


class ResponseAnswer(Struct, frozen=True):
    """An answer. ``model`` is who gave it, ``created_at`` seconds since the epoch."""

    id: str
    created_at: int
    model: str
    status: Status
    output: list[OutputMessage] = []
    usage: ResponseUsage | None = None
    error: Broken | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None = None
    metadata: dict[str, str] = {}
    previous_response_id: str | None = None
    object: Literal["response"] = "response"
    parallel_tool_calls: bool = True
    tool_choice: Literal["auto"] = "auto"
    tools: tuple[()] = ()
    temperature: float | None = None
    top_p: float | None = None


class Written:
    """One answer: its whole, and its events."""

    def __init__(self, request: ResponseRequest, receipt: Receipt, model: str, created: int) -> None:
        self._item_id = f"msg_{receipt.answer_id}"
        self._began = ResponseAnswer(
            response_id(receipt.session, receipt.answer_id),
            created,
            model,
            "in_progress",
            instructions=request.instructions,
            metadata=request.metadata or {},
            previous_response_id=request.previous_response_id,
        )
        self._sequence = -1
        self._told: list[str] = []

    def whole(self, answer: Message | None) -> ResponseAnswer:
        """The whole answer; an empty one where nothing was said."""
        return self._ended(answer, "" if answer is None else text_of(answer))

    def first(self) -> bytes:
        """That the answer begins."""
        return b"".join(
            (
                self._event("response.created", response=self._began),
                self._event("response.in_progress", response=self._began),
                self._item_event("response.output_item.added", item=self._item("", "in_progress")),
                self._part_event("response.content_part.added", part=AnswerText("")),
            )
        )

    def text(self, more: str) -> bytes:
        """More of the answer."""
        self._told.append(more)
        return self._part_event("response.output_text.delta", delta=more, logprobs=())

    def last(self, answer: Message | None) -> bytes:
        """The end: once more all that was told, and what it took."""
        text = "".join(self._told)
        ended = self._ended(answer, text)
        kind = "response.completed" if ended.status == "completed" else "response.incomplete"
        return b"".join(
            (
                self._part_event("response.output_text.done", text=text, logprobs=()),
                self._part_event("response.content_part.done", part=AnswerText(text)),
                self._item_event("response.output_item.done", item=ended.output[0]),
                self._event(kind, response=ended),
            )
        )

    def broken(self, failed: FailureAnswer) -> bytes:
        """That the answer failed."""
        error = Broken(failed.error.code or "server_error", failed.error.message)
        output = [self._item("".join(self._told), "incomplete")]
        response = msgspec.structs.replace(self._began, status="failed", error=error, output=output)
        return self._event("response.failed", response=response)

    def _ended(self, answer: Message | None, text: str) -> ResponseAnswer:
        metadata = Metadata() if answer is None else answer.metadata
        cut = finish_reason(metadata) == "length"
        status: Status = "incomplete" if cut else "completed"
        read, made = metadata.input_tokens or 0, metadata.output_tokens or 0
        return msgspec.structs.replace(
            self._began,
            model=answered_by(metadata, self._began.model),
            status=status,
            output=[self._item(text, status)],
            usage=ResponseUsage(read, made, read + made, InputDetails(metadata.cached_tokens or 0)),
            incomplete_details=Incomplete("max_output_tokens") if cut else None,
        )

    def _item(self, text: str, status: Status) -> OutputMessage:
        return OutputMessage(self._item_id, [] if status == "in_progress" else [AnswerText(text)], status)

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        return self._item_event(kind, item_id=self._item_id, content_index=0, **fields)

    def _item_event(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, output_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._sequence += 1
        body = to_json({"type": kind, "sequence_number": self._sequence, **fields})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), body)
