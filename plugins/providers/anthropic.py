"""Anthropic's Messages protocol."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
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
    ToolCallPart,
    ToolResultPart,
)
from gateway.provider_http import (
    IMAGE_TYPES,
    PLACEHOLDER_TOOL,
    AnswerWriter,
    ContentFilterError,
    FragmentCache,
    HttpClient,
    OneTool,
    RecentEncodings,
    RequestSpec,
    Returned,
    Step,
    StopReason,
    StreamEvent,
    ToolChoice,
    ToolDefinition,
    create_provider,
    log_unsupported,
    output_text,
    raise_stream_error,
    split_steps,
    wire_id,
    without_large_images,
)
from plugins.providers.protocol import (
    CLAUDE_THINKS,
    CLAUDE_WITHOUT_SAMPLING,
    OPENING,
    Block,
    EventParser,
    ProtocolAdapter,
    accepted_choice,
    claude_effort,
    content_blocks,
    decode_event,
    decode_models,
    json_headers,
    result_images,
    system_texts,
    tool_specs,
)

BASE_URL = "https://api.anthropic.com"
VERSION = "2026-10-21"
VERSION_WITH_TEMPERATURE = "2023-06-01"
"""The newer version of the API refuses a temperature for all models, the older one only for newer models."""
DEFAULT_MAX_TOKENS = 32_000
"""The protocol requires a limit, which includes thinking; this is the default, at most the model's limit."""
MOST_IMAGE_CHARACTERS = 10 * 1024 * 1024
"""Largest image in base64."""
CAPABILITIES = Capabilities(reasoning=True)

_FORM = "anthropic"
_CACHED = {"type": "ephemeral"}
_THINKING = {"type": "adaptive", "display": "summarized"}
"""The default of models that think, but with its text, which also reports between tool calls."""
_STOP_REASONS: dict[str, StopReason] = {
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "tool_use": "tool_use",
}


class AnthropicAdapter(ProtocolAdapter):
    """Builds message requests and parses their streams."""

    id = "anthropic"
    name = "Anthropic"

    def __init__(self, capabilities: Capabilities = CAPABILITIES) -> None:
        super().__init__(capabilities)
        self._messages = FragmentCache(_encoder(images=capabilities.images))
        self._system: RecentEncodings[tuple[tuple[str, ...], bool]] = RecentEncodings(_encode_system)
        self._tools: RecentEncodings[tuple[ToolDefinition, ...]] = RecentEncodings(_encode_tools)

    def endpoint(self, config: ProviderConfig) -> str:
        """Return the address of the API."""
        return config.base_url or BASE_URL

    def build_chat_request(
        self, messages: Sequence[Message], options: ChatOptions, config: ProviderConfig
    ) -> RequestSpec:
        """Build the request for a streamed answer."""
        history = self._messages.join(messages)
        if history.startswith(_ASSISTANT):
            history = _OPENING + history
        pieces = [_head(options, config)[:-1], b',"messages":[', history, b"]"]
        if system := system_texts(messages, options, as_json=_asks_for_json(options, config)):
            pieces += [b',"system":', self._system.get((system, _is_own(config)))]
        if offered := options.tools or ((PLACEHOLDER_TOOL,) if _CALL in history else ()):
            pieces += [b',"tools":', self._tools.get(offered)]
            choice, _ = accepted_choice(options)
            if options.tools and choice != "auto":
                pieces += [b',"tool_choice":', _tool_choice(choice)]
        pieces.append(b"}")
        version = VERSION_WITH_TEMPERATURE if _sampling(options) else VERSION
        return RequestSpec(
            _endpoint(config) + "/messages", "POST", _headers(config, version), b"".join(pieces)
        )

    def parser(self, writer: AnswerWriter) -> MessageParser:
        """Make a parser for one answer."""
        return MessageParser(writer)

    def build_models_request(self, config: ProviderConfig) -> RequestSpec:
        """Build the request for the list of models."""
        return RequestSpec(_endpoint(config) + "/models?limit=1000", "GET", _headers(config, VERSION))

    def parse_models_response(self, body: bytes, config: ProviderConfig) -> list[ModelInfo]:
        """Parse the list of models. Raises DeltaParseError."""
        listed = decode_models(_decode_models, body)
        return [
            ModelInfo(model.id, config.id, model.display_name, model.max_input_tokens, model.max_tokens)
            for model in listed.data
        ]


def create(config: ProviderConfig, client: HttpClient | None = None) -> Provider:
    """Make a provider for Anthropic, or for a compatible server at ``base_url`` (with or without ``/v1``)."""
    return create_provider(AnthropicAdapter(config.capabilities_or(CAPABILITIES)), config, client)


def _endpoint(config: ProviderConfig) -> str:
    base_url = (config.base_url or BASE_URL).rstrip("/")
    return base_url if base_url.endswith("/v1") else f"{base_url}/v1"


def _headers(config: ProviderConfig, version: str) -> dict[str, str]:
    return json_headers(config, {"x-api-key": config.api_key or "", "anthropic-version": version})


def _head(options: ChatOptions, config: ProviderConfig) -> bytes:
    head: dict[str, Any] = {
        "model": options.model,
        "max_tokens": options.max_tokens
        or min(options.output_limit or DEFAULT_MAX_TOKENS, DEFAULT_MAX_TOKENS),
        "stream": True,
    }
    sampling = _sampling(options)
    head.update(sampling)
    log_unsupported(config.id, options, "seed", *({"temperature", "top_p"} - sampling.keys()))
    if options.stop_sequences:
        head["stop_sequences"] = options.stop_sequences
    if _is_own(config):
        head["cache_control"] = _CACHED
        if CLAUDE_THINKS.search(options.model) and accepted_choice(options)[0] == "auto":
            head["thinking"] = _THINKING
    head.update(claude_effort(options))
    if options.response_format == "json" and not _asks_for_json(options, config) and options.answer_schema:
        asked = {"type": "json_schema", "schema": options.answer_schema.schema}
        head["output_config"] = {**head.get("output_config", {}), "format": asked}
    return msgspec.json.encode(head)


def _asks_for_json(options: ChatOptions, config: ProviderConfig) -> bool:
    """Return whether a JSON answer is asked for in the prompt: only strict schemas have a parameter."""
    schema = options.answer_schema
    has_parameter = schema is not None and schema.strict and _is_own(config)
    return options.response_format == "json" and not has_parameter


def _sampling(options: ChatOptions) -> dict[str, float]:
    """Return the sampling parameter, if the model accepts one; the API refuses both at once."""
    if CLAUDE_WITHOUT_SAMPLING.search(options.model):
        return {}
    if options.temperature is not None:
        # The API accepts at most 1, other vendors 2.
        return {"temperature": min(options.temperature, 1.0)}
    return {} if options.top_p is None else {"top_p": options.top_p}


def _tool_choice(choice: ToolChoice) -> bytes:
    if isinstance(choice, OneTool):
        return msgspec.json.encode({"type": "tool", "name": choice.name})
    return msgspec.json.encode({"type": "any"})


def _is_own(config: ProviderConfig) -> bool:
    """Return whether to send what compatible servers may refuse, such as prompt caching."""
    return config.base_url is None


def _encode_system(given: tuple[tuple[str, ...], bool]) -> bytes:
    texts, cached = given
    blocks = [_text(text) for text in texts]
    if cached:
        blocks[-1]["cache_control"] = _CACHED
    return msgspec.json.encode(blocks)


def _encode_tools(tools: tuple[ToolDefinition, ...]) -> bytes:
    return msgspec.json.encode(tool_specs(tools, "input_schema"))


def _encoder(*, images: bool) -> Callable[[Message], bytes]:
    """Make an encoder of one message to wire messages joined by commas; empty if nothing is sent."""

    types = IMAGE_TYPES if images else frozenset[str]()

    def encode(message: Message) -> bytes:
        if not message.for_model or message.role == "system":
            return b""
        message = without_large_images(message, MOST_IMAGE_CHARACTERS)
        if message.role == "assistant":
            items = [item for step in split_steps(message, _FORM) for item in _step(step, message.id, types)]
        else:
            content = content_blocks(message, _text, _image, types)
            items = [{"role": "user", "content": content}] if content else []
        return b",".join(map(msgspec.json.encode, items))

    return encode


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _image(mime_type: str, data: str) -> Block:
    return {"type": "image", "source": {"type": "base64", "media_type": mime_type, "data": data}}


def _step(step: Step, message_id: str, types: Collection[str]) -> list[Block]:
    said = [_said(each, message_id) for each in step.said]
    items: list[Block] = [{"role": "assistant", "content": said}]
    if step.results:
        results = [_result(result, message_id, types) for result in step.results]
        items.append({"role": "user", "content": results})
    return items


def _said(said: str | ToolCallPart | Returned, message_id: str) -> Block:
    match said:
        case str():
            return _text(said.rstrip())
        case Returned():
            # A block of thinking, unchanged: its signature covers it.
            return said.data
        case ToolCallPart():
            return {
                "type": "tool_use",
                "id": wire_id(said.tool_call_id, message_id),
                "name": said.tool_name,
                "input": said.arguments,
            }


def _result(result: ToolResultPart, message_id: str, types: Collection[str]) -> Block:
    text = output_text(result, types)
    content = [_text(text)] if text.strip() else []
    content += result_images([result], _image, types)
    block: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": wire_id(result.tool_call_id, message_id),
        "content": content,
    }
    return {**block, "is_error": True} if result.is_error else block


_ASSISTANT = b'{"role":"assistant"'
_CALL = b'{"type":"tool_use"'
_OPENING = msgspec.json.encode({"role": "user", "content": OPENING}) + b","


class _Usage(Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Block(Struct):
    type: str = ""
    id: str = ""
    name: str = ""
    text: str = ""
    thinking: str = ""
    signature: str | None = None
    data: str | None = None
    input: dict[str, Any] = {}


class _Delta(Struct, gc=False):
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Start(Struct):
    usage: _Usage | None = None


class _Event(Struct):
    type: str = ""
    index: int = 0
    delta: _Delta | None = None
    content_block: _Block | None = None
    message: _Start | None = None
    usage: _Usage | None = None


class _Model(Struct):
    id: str
    display_name: str = ""
    max_input_tokens: int | None = None
    max_tokens: int | None = None


class _Models(Struct):
    data: list[_Model]


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_models = msgspec.json.Decoder(_Models).decode


class MessageParser(EventParser):
    """Parses a stream of message events; skips unknown kinds of events and blocks."""

    __slots__ = ("_calls", "_thought", "_tokens")

    def __init__(self, writer: AnswerWriter) -> None:
        super().__init__(writer)
        self._calls: dict[int, str] = {}
        self._thought: _Block | None = None
        """The open block of thinking."""
        self._tokens = _Usage()

    def feed(self, event: StreamEvent) -> None:
        """Parse one event."""
        if not event.data:
            return
        known = decode_event(_decode_event, event, "usage")
        match known.type:
            case "content_block_delta":
                self._delta(known.index, known.delta or _Delta())
            case "content_block_start":
                self._block(known.index, known.content_block or _Block())
            case "content_block_stop":
                self._keep_thought()
            case "message_start":
                self._usage((known.message or _Start()).usage)
            case "message_delta":
                self._usage(known.usage)
                self._stop((known.delta or _Delta()).stop_reason)
            case "message_stop":
                self._end()
            case "error":
                raise_stream_error(event.data)
            case _:
                pass

    def _block(self, index: int, block: _Block) -> None:
        if block.type == "tool_use":
            self._calls[index] = self._writer.call(block.name, block.id)
            if block.input:
                self._writer.arguments(self._calls[index], msgspec.json.encode(block.input).decode())
        elif block.type == "thinking":
            self._thought = block
            if block.thinking:
                self._writer.text(block.thinking, "reasoning")
        elif block.type == "redacted_thinking":
            self._writer.state(_FORM, {"type": block.type, "data": block.data or ""})
        elif block.text:
            self._writer.text(block.text)

    def _delta(self, index: int, delta: _Delta) -> None:
        if delta.text:
            self._writer.text(delta.text)
        elif delta.thinking:
            self._writer.text(delta.thinking, "reasoning")
            if self._thought is not None:
                self._thought.thinking += delta.thinking
        elif delta.signature and self._thought is not None:
            self._thought.signature = (self._thought.signature or "") + delta.signature
        elif delta.partial_json and index in self._calls:
            self._writer.arguments(self._calls[index], delta.partial_json)

    def _keep_thought(self) -> None:
        """Keep a complete block of thinking for the next request."""
        block, self._thought = self._thought, None
        if block is not None:
            thought = {"type": "thinking", "thinking": block.thinking, "signature": block.signature or ""}
            self._writer.state(_FORM, thought)

    def _stop(self, reason: str | None) -> None:
        if reason == "refusal":
            raise ContentFilterError("the model declined to answer")
        if reason is not None:
            self._writer.stop(_STOP_REASONS.get(reason, "end_turn"))

    def _usage(self, usage: _Usage | None) -> None:
        # Counts are totals so far, and later events have only those that changed. ``input_tokens`` excludes
        # the tokens read from and written to the cache.
        if usage is None:
            return
        for name in _Usage.__struct_fields__:
            if (count := getattr(usage, name)) is not None:
                setattr(self._tokens, name, count)
        tokens = self._tokens
        cached, written = tokens.cache_read_input_tokens or 0, tokens.cache_creation_input_tokens or 0
        given = (tokens.input_tokens or 0) + written + cached
        self._writer.usage(given, tokens.output_tokens or 0, cached, written)
