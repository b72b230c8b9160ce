"""Answers of ``/v1/responses``: whole, or as the events of a stream."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from gateway.contract.channel import Receipt
from gateway.contract.messages import Message, Metadata, to_json
from gateway.server.openai.chat_events import answering_model, finish_reason
from gateway.server.openai.errors import OpenAiError
from gateway.server.openai.listener import text_of
from gateway.server.openai.responses import ResponseRequest, response_id

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class AnswerText(Struct, frozen=True):
    """Text of an answer."""

    text: str
    type: Literal["output_text"] = "output_text"
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()


class OutputMessage(Struct, frozen=True):
    """The message of the assistant."""

    id: str
    content: list[AnswerText]
    status: Status
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class InputDetails(Struct, frozen=True):
    """Input tokens that were read from a cache."""

    cached_tokens: int = 0


class OutputDetails(Struct, frozen=True):
    """Reasoning tokens, if they are counted separately."""

    reasoning_tokens: int = 0


class ResponseUsage(Struct, frozen=True):
    """Token counts of the answer, summed over all model calls."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails
    output_tokens_details: OutputDetails = OutputDetails()


class IncompleteDetails(Struct, frozen=True):
    """The reason why an answer is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseError(Struct, frozen=True):
    """The error of a failed answer."""

    code: str
    message: str


class ResponseAnswer(Struct, frozen=True):
    """An answer. ``model`` is the model that answered, ``created_at`` is in seconds since the epoch."""

    id: str
    created_at: int
    model: str
    status: Status
    output: list[OutputMessage] = []
    usage: ResponseUsage | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    metadata: dict[str, str] = {}
    previous_response_id: str | None = None
    object: Literal["response"] = "response"
    parallel_tool_calls: bool = True
    tool_choice: Literal["auto"] = "auto"
    tools: tuple[()] = ()
    temperature: float | None = None
    top_p: float | None = None


class ResponseEvents:
    """Renderer of one answer. The events of a stream are numbered in the order of the calls."""

    def __init__(self, request: ResponseRequest, receipt: Receipt, model: str, created: int) -> None:
        self._item_id = f"msg_{receipt.answer_id}"
        self._initial = ResponseAnswer(
            response_id(receipt.session, receipt.answer_id),
            created,
            model,
            "in_progress",
            instructions=request.instructions,
            metadata=request.metadata or {},
            previous_response_id=request.previous_response_id,
        )
        self._sequence = -1
        self._sent: list[str] = []

    def whole(self, answer: Message | None) -> ResponseAnswer:
        """Return the whole answer; an empty one if the message has no answer."""
        return self._final(answer, "" if answer is None else text_of(answer))

    def first(self) -> bytes:
        """Return the events that begin an answer."""
        return b"".join(
            (
                self._event("response.created", response=self._initial),
                self._event("response.in_progress", response=self._initial),
                self._item_event("response.output_item.added", item=self._item("", "in_progress")),
                self._part_event("response.content_part.added", part=AnswerText("")),
            )
        )

    def text(self, text: str) -> bytes:
        """Return an event with more text."""
        self._sent.append(text)
        return self._part_event("response.output_text.delta", delta=text, logprobs=())

    def last(self, answer: Message | None) -> bytes:
        """Return the events that end an answer, with its whole text and its token counts."""
        text = "".join(self._sent)
        final = self._final(answer, text)
        kind = "response.completed" if final.status == "completed" else "response.incomplete"
        return b"".join(
            (
                self._part_event("response.output_text.done", text=text, logprobs=()),
                self._part_event("response.content_part.done", part=AnswerText(text)),
                self._item_event("response.output_item.done", item=final.output[0]),
                self._event(kind, response=final),
            )
        )

    def failed(self, error: OpenAiError) -> bytes:
        """Return the event of a failed answer."""
        details = ResponseError(error.error.code or "server_error", error.error.message)
        output = [self._item("".join(self._sent), "incomplete")]
        response = msgspec.structs.replace(self._initial, status="failed", error=details, output=output)
        return self._event("response.failed", response=response)

    def _final(self, answer: Message | None, text: str) -> ResponseAnswer:
        metadata = Metadata() if answer is None else answer.metadata
        cut = finish_reason(metadata) == "length"
        status: Status = "incomplete" if cut else "completed"
        read, made = metadata.input_tokens or 0, metadata.output_tokens or 0
        return msgspec.structs.replace(
            self._initial,
            model=answering_model(metadata, self._initial.model),
            status=status,
            output=[self._item(text, status)],
            usage=ResponseUsage(read, made, read + made, InputDetails(metadata.cached_tokens or 0)),
            incomplete_details=IncompleteDetails("max_output_tokens") if cut else None,
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
