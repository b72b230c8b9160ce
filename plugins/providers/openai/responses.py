"""OpenAI's Responses protocol, for models that lose their reasoning in Chat Completions.

Nothing is stored at the service: each request has the whole conversation, with the encrypted reasoning of
earlier answers at its place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from gateway import Capabilities, ChatOptions, Message, ToolCallPart
from gateway.provider_http import (
    AnswerWriter,
    ContentFilterError,
    FragmentCache,
    OneTool,
    RecentEncodings,
    Returned,
    Step,
    StreamAbortedError,
    StreamEvent,
    ToolChoice,
    ToolDefinition,
    output_text,
    raise_stream_error,
    wire_id,
)
from plugins.providers.protocol import (
    EMPTY_OUTPUT,
    JSON_ONLY,
    Block,
    EventParser,
    accepted_choice,
    decode_event,
    message_encoder,
    result_images,
    tool_specs,
)

_FORM = "responses"
_INCLUDED = ("reasoning.encrypted_content",)


class Responses:
    """Builds the bodies of requests. ``refused`` are fields of ChatOptions that the model refuses;
    ``summarize`` asks for a summary of the reasoning.
    """

    def __init__(self, capabilities: Capabilities) -> None:
        self._history = FragmentCache(
            message_encoder(_FORM, _step, _text, _image, images=capabilities.images)
        )
        self._tools: RecentEncodings[tuple[ToolDefinition, ...]] = RecentEncodings(_encode_tools)

    def body(
        self,
        messages: Sequence[Message],
        options: ChatOptions,
        refused: Collection[str],
        *,
        summarize: bool,
    ) -> bytes:
        """Encode the body of a request for a streamed answer."""
        as_json = options.response_format == "json"
        texts = (options.system_prompt, JSON_ONLY if as_json else "", accepted_choice(options)[1])
        prompt = "\n\n".join(filter(None, texts))
        system = msgspec.json.encode({"role": "system", "content": prompt}) if prompt else b""
        history = b",".join(filter(None, (system, self._history.join(messages))))
        pieces = [_head(options, refused, summarize=summarize)[:-1], b',"input":[', history, b"]"]
        if options.tools:
            pieces += [b',"tools":', self._tools.get(options.tools)]
            choice, _ = accepted_choice(options)
            if choice != "auto":
                pieces += [b',"tool_choice":', _tool_choice(choice)]
        return b"".join((*pieces, b"}"))


def _head(options: ChatOptions, refused: Collection[str], *, summarize: bool) -> bytes:
    head: dict[str, Any] = {"model": options.model, "stream": True, "store": False, "include": _INCLUDED}
    for name in ("temperature", "top_p"):
        if name not in refused and (value := getattr(options, name)) is not None:
            head[name] = value
    if options.max_tokens is not None:
        head["max_output_tokens"] = options.max_tokens
    if options.response_format == "json":
        schema = options.answer_schema
        asked = (
            {"type": "json_schema", **msgspec.structs.asdict(schema)} if schema else {"type": "json_object"}
        )
        head["text"] = {"format": asked}
    effort = {} if options.effort is None else {"effort": options.effort}
    if reasoning := effort | ({"summary": "auto"} if summarize else {}):
        head["reasoning"] = reasoning
    return msgspec.json.encode(head)


def _tool_choice(choice: ToolChoice) -> bytes:
    if isinstance(choice, OneTool):
        return msgspec.json.encode({"type": "function", "name": choice.name})
    return msgspec.json.encode(choice)


def _encode_tools(tools: tuple[ToolDefinition, ...]) -> bytes:
    # Tools are strict by default, and most schemas do not meet the rules for that.
    specs = tool_specs(tools, "parameters")
    return msgspec.json.encode([{"type": "function", **spec, "strict": False} for spec in specs])


def _text(text: str) -> Block:
    return {"type": "input_text", "text": text}


def _image(mime_type: str, data: str) -> Block:
    return {"type": "input_image", "image_url": f"data:{mime_type};base64,{data}"}


def _step(step: Step, types: Collection[str]) -> list[Block]:
    results = [
        {
            "type": "function_call_output",
            "call_id": wire_id(result.tool_call_id),
            "output": output_text(result, types) or EMPTY_OUTPUT,
        }
        for result in step.results
    ]
    images = result_images(step.results, _image, types)
    shown = [{"role": "user", "content": [_text("(images from the tools above)"), *images]}] if images else []
    return [*map(_said, step.said), *results, *shown]


def _said(said: str | ToolCallPart | Returned) -> Block:
    match said:
        case str():
            return {"role": "assistant", "content": said}
        case Returned():
            return said.data
        case ToolCallPart():
            return {
                "type": "function_call",
                "call_id": wire_id(said.tool_call_id),
                "name": said.tool_name,
                "arguments": msgspec.json.encode(said.arguments).decode(),
            }


class _Item(Struct, omit_defaults=True):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    summary: Any = None
    content: Any = None
    encrypted_content: str | None = None


class _Details(Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Incomplete(Struct, gc=False):
    reason: str | None = None


class _Response(Struct):
    usage: _Usage | None = None
    incomplete_details: _Incomplete | None = None
    error: Any = None


class _Event(Struct):
    type: str = ""
    output_index: int = 0
    delta: str = ""
    item: _Item | None = None
    response: _Response | None = None
    error: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode


class ResponsesParser(EventParser):
    """Parses a stream of response events; skips unknown kinds of events and items."""

    __slots__ = ("_argued", "_calls")

    def __init__(self, writer: AnswerWriter) -> None:
        super().__init__(writer)
        self._calls: dict[int, str] = {}
        self._argued: set[int] = set()
        """The calls whose arguments came in fragments."""

    def feed(self, event: StreamEvent) -> None:
        """Parse one event."""
        if not event.data or event.data == b"[DONE]":
            return
        known = decode_event(_decode_event, event, "usage")
        kind, index = known.type.removeprefix("response."), known.output_index
        if kind == "error" or known.error is not None:
            raise_stream_error(event.data)
        match kind:
            case "output_text.delta" | "refusal.delta":
                self._writer.text(known.delta)
            case "reasoning_summary_text.delta" | "reasoning_text.delta":
                self._writer.text(known.delta, "reasoning")
            case "function_call_arguments.delta" if index in self._calls:
                self._argued.add(index)
                self._writer.arguments(self._calls[index], known.delta)
            case "output_item.added" | "output_item.done":
                self._item(index, known.item or _Item(), is_done=kind == "output_item.done")
            case "completed" | "incomplete" | "failed":
                self._response_done(known.response or _Response())
            case _:
                pass

    def finish(self) -> None:
        """Handle the end of the stream. Raises StreamAbortedError if the answer is incomplete."""
        if not self.done:
            raise StreamAbortedError("the stream ended before the answer did")

    def _item(self, index: int, item: _Item, *, is_done: bool) -> None:
        if item.type == "function_call":
            if index not in self._calls:
                self._calls[index] = self._writer.call(item.name or "", item.call_id)
            # Some services send a call whole.
            if is_done and item.arguments and index not in self._argued:
                self._writer.arguments(self._calls[index], item.arguments)
        elif item.type == "reasoning" and is_done and item.encrypted_content:
            item.summary = item.summary or ()
            self._writer.state(_FORM, item)

    def _response_done(self, response: _Response) -> None:
        if response.error is not None:
            raise_stream_error(msgspec.json.encode({"error": response.error}))
        if response.usage is not None:
            self._usage(response.usage)
        reason = response.incomplete_details and response.incomplete_details.reason
        if reason == "content_filter":
            raise ContentFilterError("the model's content filter stopped the answer")
        self._writer.stop("max_tokens" if reason == "max_output_tokens" else "end_turn")
        self.done = True

    def _usage(self, usage: _Usage) -> None:
        given, output = usage.input_tokens or 0, usage.output_tokens or 0
        # xAI counts reasoning beside the output, OpenAI as a part of it; the total tells which.
        output = max(output, (usage.total_tokens or 0) - given)
        details = usage.input_tokens_details or _Details()
        self._writer.usage(given, output, details.cached_tokens or 0, details.cache_write_tokens or 0)
