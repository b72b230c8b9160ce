"""Cohere's Chat protocol, version 2."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from gateway import (
    Capabilities,
    ChatOptions,
    Message,
    ModelInfo,
    Provider,
    ProviderConfig,
)
from gateway.provider_http import (
    AnswerWriter,
    ContentFilterError,
    FragmentCache,
    HttpClient,
    OneTool,
    RecentEncodings,
    RequestSpec,
    ServerFailedError,
    Step,
    StopReason,
    StreamEvent,
    ToolDefinition,
    create_provider,
    log_unsupported,
    output_text,
    wire_id,
)
from plugins.providers.protocol import (
    EMPTY_OUTPUT,
    Block,
    EventParser,
    ProtocolAdapter,
    decode_event,
    decode_models,
    function_call,
    function_tools,
    image_url,
    json_headers,
    json_instruction,
    message_encoder,
    result_image_messages,
    system_message,
)

BASE_URL = "https://api.cohere.com"
CAPABILITIES = Capabilities(reasoning=True)

_FORM = "cohere"
_VISION = re.compile("vision")
_STOP_REASONS: dict[str, StopReason] = {"MAX_TOKENS": "max_tokens", "TOOL_CALL": "tool_use"}


class CohereAdapter(ProtocolAdapter):
    """Builds chat requests and parses their streams. ``vision`` matches the models that accept images."""

    id = "cohere"
    name = "Cohere"

    def __init__(self, capabilities: Capabilities = CAPABILITIES, vision: re.Pattern[str] = _VISION) -> None:
        super().__init__(capabilities)
        self._vision = vision
        self._histories = {
            images: FragmentCache(message_encoder(_FORM, _step, _text, image_url, images=images))
            for images in (False, True)
        }
        self._system: RecentEncodings[str] = RecentEncodings(system_message)
        self._tools: RecentEncodings[tuple[ToolDefinition, ...]] = RecentEncodings(function_tools)

    def with_capabilities(self, capabilities: Capabilities) -> CohereAdapter:
        """Return the same adapter for models that all have other capabilities."""
        return CohereAdapter(capabilities, vision=re.compile(""))

    def capabilities_of(self, model: str) -> Capabilities:
        """Return the capabilities of a model: only some accept images."""
        images = self.capabilities.images and self._vision.search(model) is not None
        return msgspec.structs.replace(self.capabilities, images=images)

    def endpoint(self, config: ProviderConfig) -> str:
        """Return the address of the API without a version, which differs between its endpoints."""
        return re.sub(r"/v[12]$", "", (config.base_url or BASE_URL).rstrip("/"))

    def build_chat_request(
        self, messages: Sequence[Message], options: ChatOptions, config: ProviderConfig
    ) -> RequestSpec:
        """Build the request for a streamed answer."""
        history = self._histories[self.capabilities_of(options.model).images].join(messages)
        if prompt := _prompt(options):
            history = b",".join(filter(None, (self._system.get(prompt), history)))
        if options.effort != "none":
            log_unsupported(config.id, options, "effort")
        pieces = [_head(options)[:-1], b',"messages":[', history, b"]"]
        if options.tools:
            pieces += [b',"tools":', self._tools.get(_offered(options))]
            if options.tool_choice != "auto":
                pieces.append(b',"tool_choice":"REQUIRED"')
        pieces.append(b"}")
        return RequestSpec(f"{self.endpoint(config)}/v2/chat", "POST", _headers(config), b"".join(pieces))

    def parser(self, writer: AnswerWriter) -> ChatParser:
        """Make a parser for one answer."""
        return ChatParser(writer)

    def build_models_request(self, config: ProviderConfig) -> RequestSpec:
        """Build the request for the list of chat models."""
        url = f"{self.endpoint(config)}/v1/models?endpoint=chat&page_size=1000"
        return RequestSpec(url, "GET", _headers(config))

    def parse_models_response(self, body: bytes, config: ProviderConfig) -> list[ModelInfo]:
        """Parse the list of models. Raises DeltaParseError."""
        listed = decode_models(_decode_models, body)
        return [
            ModelInfo(model.name, config.id, context_window=int(model.context_length or 0) or None)
            for model in listed.models
        ]


def create(config: ProviderConfig, client: HttpClient | None = None) -> Provider:
    """Make a provider for Cohere."""
    return create_provider(CohereAdapter(config.capabilities_or(CAPABILITIES)), config, client)


def _headers(config: ProviderConfig) -> dict[str, str]:
    return json_headers(config, {"Authorization": f"Bearer {config.api_key or ''}"})


def _head(options: ChatOptions) -> bytes:
    head: dict[str, Any] = {"model": options.model, "stream": True}
    if options.temperature is not None:
        head["temperature"] = options.temperature
    if options.max_tokens is not None:
        head["max_tokens"] = options.max_tokens
    if options.stop_sequences:
        head["stop_sequences"] = options.stop_sequences
    if options.top_p is not None:
        head["p"] = min(max(options.top_p, 0.01), 0.99)  # the range of the API
    if options.seed is not None:
        head["seed"] = options.seed
    if options.effort == "none":
        head["thinking"] = {"type": "disabled"}
    if options.response_format == "json" and not options.tools:
        schema = options.answer_schema
        head["response_format"] = {"type": "json_object", **({"schema": schema.schema} if schema else {})}
    return msgspec.json.encode(head)


def _offered(options: ChatOptions) -> tuple[ToolDefinition, ...]:
    """Return the tools to offer."""
    # The API can require a call but not a certain tool, so that tool is offered alone.
    choice = options.tool_choice
    if not isinstance(choice, OneTool):
        return options.tools
    return tuple(tool for tool in options.tools if tool.name == choice.name) or options.tools


def _prompt(options: ChatOptions) -> str:
    # The API refuses the JSON mode together with tools, and without tools requires the instruction too.
    as_json = json_instruction(options) if options.response_format == "json" else ""
    return "\n\n".join(filter(None, (options.system_prompt, as_json)))


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _step(step: Step, types: Collection[str]) -> list[Block]:
    said: Block = {"role": "assistant"}
    if step.returned and step.calls:
        # The model made this reasoning itself, and continues from it after its calls.
        said["content"] = [{"type": "thinking", "thinking": step.reasoning}]
    if step.text:
        # Text before tool calls has its own field.
        said["tool_plan" if step.calls else "content"] = step.text
    if step.calls:
        said["tool_calls"] = [function_call(call, wire_id(call.tool_call_id)) for call in step.calls]
    results = [
        {
            "role": "tool",
            "tool_call_id": wire_id(result.tool_call_id),
            "content": output_text(result, types).strip() or EMPTY_OUTPUT,
        }
        for result in step.results
    ]
    return [said, *results, *result_image_messages(step.results, types)]


class _Function(Struct, gc=False):
    name: str = ""
    arguments: str = ""


class _Call(Struct):
    id: str = ""
    function: _Function | None = None


class _Content(Struct, gc=False):
    text: str | None = None
    thinking: str | None = None


class _Message(Struct):
    content: _Content | list[_Content] | None = None
    tool_plan: str | None = None
    tool_calls: _Call | list[_Call] | None = None


class _Tokens(Struct, gc=False):
    input_tokens: float | None = None
    output_tokens: float | None = None


class _Usage(Struct):
    billed_units: _Tokens | None = None
    tokens: _Tokens | None = None
    cached_tokens: float | None = None


class _Delta(Struct):
    message: _Message | None = None
    finish_reason: str | None = None
    usage: _Usage | None = None
    error: str | None = None


class _Event(Struct):
    type: str = ""
    index: int = 0
    delta: _Delta | None = None


class _Model(Struct):
    name: str
    context_length: float | None = None


class _Models(Struct):
    models: list[_Model]


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_models = msgspec.json.Decoder(_Models).decode


class ChatParser(EventParser):
    """Parses a stream of chat events; skips citations and unknown kinds of events."""

    __slots__ = ("_calls", "_thought")

    def __init__(self, writer: AnswerWriter) -> None:
        super().__init__(writer)
        self._calls: dict[int, str] = {}
        self._thought = False

    def feed(self, event: StreamEvent) -> None:
        """Parse one event."""
        if not event.data or event.data == b"[DONE]":
            return
        known = decode_event(_decode_event, event, "usage")
        delta = known.delta or _Delta()
        message = delta.message or _Message()
        match known.type:
            case "content-start" | "content-delta":
                self._content(message.content)
            case "tool-plan-delta":
                self._writer.text(message.tool_plan or "")
            case "tool-call-start" | "tool-call-delta":
                self._call(known.index, message.tool_calls)
            case "message-end":
                self._message_end(delta)
            case _:
                pass

    def _content(self, content: _Content | list[_Content] | None) -> None:
        for piece in content if isinstance(content, list) else (content,):
            if piece is not None and piece.thinking:
                self._writer.text(piece.thinking, "reasoning")
                self._thought = True
            elif piece is not None and piece.text:
                self._writer.text(piece.text)

    def _call(self, index: int, calls: _Call | list[_Call] | None) -> None:
        for call in calls if isinstance(calls, list) else (calls,):
            if call is None or call.function is None:
                continue
            if call.function.name:
                self._calls[index] = self._writer.call(call.function.name, call.id)
            if call.function.arguments and index in self._calls:
                self._writer.arguments(self._calls[index], call.function.arguments)

    def _message_end(self, delta: _Delta) -> None:
        if delta.usage is not None:
            self._usage(delta.usage)
        reason = delta.finish_reason or "COMPLETE"
        if reason == "ERROR_TOXIC":
            raise ContentFilterError("the model's filter stopped the answer")
        if reason in ("ERROR", "TIMEOUT"):
            raise ServerFailedError(delta.error or f"the model's server aborted the answer ({reason})")
        if self._thought:
            self._writer.state(_FORM, True)
        self._writer.stop(_STOP_REASONS.get(reason, "end_turn"))
        self.done = True

    def _usage(self, usage: _Usage) -> None:
        # Billed units exclude the vendor's own prompt.
        tokens = usage.billed_units or usage.tokens or _Tokens()
        self._writer.usage(
            int(tokens.input_tokens or 0), int(tokens.output_tokens or 0), int(usage.cached_tokens or 0)
        )
