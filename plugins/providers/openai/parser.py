"""Parser of chat completion streams, with the fields of all compatible services."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from gateway.provider_http import (
    UNDECODABLE,
    AnswerWriter,
    ContentFilterError,
    ServerFailedError,
    StopReason,
    StreamEvent,
    raise_stream_error,
)
from plugins.providers.protocol import EventParser, decode_event

_STOP_REASONS: dict[str, StopReason] = {
    "length": "max_tokens",
    "model_length": "max_tokens",
    "tool_calls": "tool_use",
}


FORM = "completions"
"""The form in which reasoning is kept and returned."""
_REASONING = ("reasoning_content", "reasoning", "reasoning_text")
"""The fields in which services send reasoning."""


class Kept(Struct, omit_defaults=True):
    """Reasoning and signatures that go back to the model with its answer.

    ``reasoning``: the field in which its reasoning came; ``fields``: fields of the message; ``calls``: fields
    of the calls, by id.
    """

    reasoning: str = ""
    fields: dict[str, Any] = {}
    calls: dict[str, dict[str, Any]] = {}


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _Fragment(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: Any = None


class _Content(Struct):
    """A piece of text, or of reasoning that is a list of such pieces."""

    text: str | None = None
    thinking: str | list[_Content] | None = None


class _Delta(Struct):
    content: str | list[_Content] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_text: str | None = None
    reasoning_opaque: str | None = None
    reasoning_details: Any = None
    refusal: str | None = None
    tool_calls: list[_Fragment] | None = None


class _PromptDetails(Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(Struct, gc=False):
    reasoning_tokens: int | None = None


class _Upstream(Struct):
    upstream_inference_cost: float | None = None


class _Cost(Struct):
    """OpenRouter's cost. With a key of the user's own, the vendor's cost is added to its fee."""

    cost: float = 0.0
    is_byok: bool = False
    cost_details: _Upstream | None = None

    @property
    def usd(self) -> float:
        details = self.cost_details
        return self.cost + ((details.upstream_inference_cost or 0.0) if self.is_byok and details else 0.0)


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    prompt_cache_hit_tokens: int | None = None


class _Choice(Struct):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: str | None = None
    usage: _Usage | None = None


class _Groq(Struct):
    usage: _Usage | None = None


class _Charged(Struct):
    usage: _Cost | None = None


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    x_groq: _Groq | None = None
    error: dict[str, Any] | str | None = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_charged = msgspec.json.Decoder(_Charged).decode


class _OpenCall:
    """An incomplete tool call. Its name may arrive in pieces, so the call begins with its first arguments."""

    __slots__ = ("begun", "extra", "id", "name", "waiting")

    def __init__(self) -> None:
        self.extra: Any = None
        self.id = ""
        self.name = ""
        self.begun = ""
        self.waiting = ""


class CompletionParser(EventParser):
    """Parses a stream of chat completion chunks.

    ``reasoning_apart``: the reported output tokens exclude reasoning tokens; ``has_costs``: the usage has the
    cost.
    """

    __slots__ = ("_begun", "_calls", "_details", "_has_costs", "_kept", "_reasoning_apart")

    def __init__(
        self, writer: AnswerWriter, *, reasoning_apart: bool = False, has_costs: bool = False
    ) -> None:
        super().__init__(writer)
        self._reasoning_apart = reasoning_apart
        self._has_costs = has_costs
        self._calls: dict[int, _OpenCall] = {}
        self._begun: dict[str, str] = {}
        """The ids of the calls by those in the stream."""
        self._kept = Kept()
        self._details: list[dict[str, Any]] = []

    def feed(self, event: StreamEvent) -> None:
        """Parse one event."""
        if event.data == b"[DONE]":
            self._end()
        elif event.data:
            chunk = decode_event(_decode_chunk, event, "usage")
            if chunk.error is not None:
                raise_stream_error(event.data)
            if chunk.choices:
                self._choice(chunk.choices[0])
            if chunk.usage is not None:
                self._usage(chunk.usage)
                if self._has_costs:
                    self._cost(event.data)
            elif chunk.x_groq is not None and chunk.x_groq.usage is not None:
                self._usage(chunk.x_groq.usage)

    def _end(self) -> None:
        self._begin_calls()
        self._keep()
        super()._end()

    def _choice(self, choice: _Choice) -> None:
        delta = choice.delta
        if choice.index != 0:
            return
        if delta is not None:
            self._delta(delta)
        if choice.usage is not None:
            self._usage(choice.usage)
        if choice.finish_reason:
            self._stop(choice.finish_reason)

    def _delta(self, delta: _Delta) -> None:
        for name in _REASONING:
            if reasoning := getattr(delta, name):
                self._writer.text(reasoning, "reasoning")
                self._kept.reasoning = name
                break
        if delta.reasoning_opaque:
            self._kept.fields["reasoning_opaque"] = delta.reasoning_opaque
        if delta.reasoning_details is not None:
            self._detail(delta.reasoning_details)
        if isinstance(delta.content, list):
            self._pieces(delta.content)
        elif text := delta.content or delta.refusal:
            self._writer.text(text)
        if delta.tool_calls:
            for position, fragment in enumerate(delta.tool_calls):
                self._fragment(position, fragment)

    def _detail(self, details: Any) -> None:
        """Collect details of the reasoning; texts and summaries arrive in pieces."""
        try:
            found = msgspec.convert(details, list[dict[str, Any]])
        except msgspec.ValidationError:
            return  # another server's field of this name
        for detail in found:
            last = self._details[-1] if self._details else {}
            same = all(detail.get(name) == last.get(name) for name in ("type", "index"))
            if not same or detail.get("type") == "reasoning.encrypted":
                self._details.append(detail)
                continue
            for name, value in detail.items():
                joins = name in ("text", "summary") and isinstance(value, str) and last.get(name)
                last[name] = last[name] + value if joins else last.get(name) if value is None else value

    def _keep(self) -> None:
        """Keep what the service needs back of its reasoning."""
        kept, details = self._kept, self._details
        self._kept, self._details = Kept(), []
        for detail in details:
            # The id of a signature is that of its call; without one it is that of the first call.
            if detail.get("type") == "reasoning.encrypted" and self._begun:
                begun = self._begun.get(detail.get("id") or next(iter(self._begun)))
                detail.update({} if begun is None else {"id": begun})
        if details:
            kept.fields["reasoning_details"] = details
        if kept != Kept():
            self._writer.state(FORM, kept)

    def _pieces(self, pieces: list[_Content]) -> None:
        for piece in pieces:
            if reasoning := _thought(piece):
                self._writer.text(reasoning, "reasoning")
                self._kept.reasoning = "content"
            if piece.text:
                self._writer.text(piece.text)

    def _stop(self, reason: str) -> None:
        if reason == "content_filter":
            raise ContentFilterError("the model's content filter stopped the answer")
        if reason == "error":
            raise ServerFailedError("the model's server aborted the answer")
        self._begin_calls()
        self._writer.stop(_STOP_REASONS.get(reason, "end_turn"))

    def _usage(self, usage: _Usage) -> None:
        details = usage.prompt_tokens_details
        cached = (details and details.cached_tokens) or usage.prompt_cache_hit_tokens or 0
        written = (details and details.cache_write_tokens) or 0
        output = usage.completion_tokens or 0
        if self._reasoning_apart and usage.completion_tokens_details is not None:
            output += usage.completion_tokens_details.reasoning_tokens or 0
        self._writer.usage(usage.prompt_tokens or 0, output, cached, written)

    def _cost(self, data: bytes) -> None:
        try:
            charged = _decode_charged(data).usage
        except UNDECODABLE:
            return  # the known prices apply
        if charged is not None and 0 < charged.usd < float("inf"):
            self._writer.cost(charged.usd)

    def _fragment(self, position: int, fragment: _Fragment) -> None:
        function = fragment.function or _Function()
        call = self._call(position if fragment.index is None else fragment.index, fragment.id, function.name)
        if call.begun:
            if function.arguments:
                self._writer.arguments(call.begun, function.arguments)
            return
        call.id = fragment.id or call.id
        call.extra = call.extra if fragment.extra_content is None else fragment.extra_content
        if function.name and function.name != call.name:
            call.name += function.name
        call.waiting += function.arguments or ""
        if call.waiting and call.name:
            self._begin(call)

    def _call(self, index: int, call_id: str | None, name: str | None) -> _OpenCall:
        """Return the call at an index."""
        call = self._calls.get(index)
        # Some servers number all calls 0: a new id with a name begins a new call.
        if call is None or (call_id and name and call.id and call_id != call.id):
            self._begin_calls()
            call = self._calls[index] = _OpenCall()
        return call

    def _begin_calls(self) -> None:
        for call in self._calls.values():
            if call.name and not call.begun:
                self._begin(call)

    def _begin(self, call: _OpenCall) -> None:
        self._begun[call.id] = call.begun = self._writer.call(call.name, call.id)
        if call.extra is not None:
            self._kept.calls[call.begun] = {"extra_content": call.extra}
        if call.waiting:
            self._writer.arguments(call.begun, call.waiting)


def _thought(piece: _Content) -> str:
    if isinstance(piece.thinking, list):
        return "".join(inner.text or "" for inner in piece.thinking)
    return piece.thinking or ""
