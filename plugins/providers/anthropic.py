"""Anthropic's messages protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from gateway import (
    GARBLED,
    NO_TOOL,
    PICTURES,
    AnswerWriter,
    AuthMethod,
    Capabilities,
    ChatOptions,
    ContentFilterError,
    DeltaParseError,
    FragmentCache,
    Message,
    ModelInfo,
    Provider,
    ProviderConfig,
    RecentEncodings,
    RequestSpec,
    Step,
    StopReason,
    StreamAbortedError,
    StreamEvent,
    ToolDefinition,
    ToolResultPart,
    Transport,
    create_provider,
    is_shown,
    mended,
    output_text,
    pictures,
    raise_said,
    steps_of,
    told,
    uncounted,
    wire_id,
)

BASE_URL = "https://api.anthropic.com"
VERSION = "2026-10-21"
VERSION_WITH_TEMPERATURE = "2023-06-01"
"""The newer version refuses a temperature on every model, the older one only on newer models."""
DEFAULT_MAX_TOKENS = 4096
"""The protocol wants a limit; this one serves when none is set."""
CAPABILITIES = Capabilities(reasoning=True)
JSON_ONLY = "Answer with a single JSON object and nothing else."

_CACHED = {"type": "ephemeral"}
_STOP_REASONS: dict[str, StopReason] = {
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "tool_use": "tool_use",
}


class AnthropicAdapter:
    """Builds message requests and reads their streams."""

    id = "anthropic"
    name = "Anthropic"
    auth_method: AuthMethod = "api_key"
    transport: Transport = "sse"

    def __init__(self, capabilities: Capabilities = CAPABILITIES) -> None:
        self.capabilities = capabilities
        self._messages = FragmentCache(_encoder(images=capabilities.images))
        self._system: RecentEncodings[tuple[tuple[str, ...], bool]] = RecentEncodings(_system)
        self._tools: RecentEncodings[tuple[ToolDefinition, ...]] = RecentEncodings(_tools)

    def able(self, capabilities: Capabilities) -> AnthropicAdapter:
        """The same for models that can do other things."""
        return AnthropicAdapter(capabilities)

    def endpoint(self, config: ProviderConfig) -> str:
        """The address of the API."""
        return config.base_url or BASE_URL

    def build_chat_request(
        self, messages: Sequence[Message], options: ChatOptions, config: ProviderConfig
    ) -> RequestSpec:
        """A streamed answer to the conversation."""
        history = self._messages.join(messages)
        if history.startswith(_ASSISTANT):
            history = _OPENING + history
        pieces = [_head(options, config)[:-1], b',"messages":[', history, b"]"]
        if system := _system_texts(messages, options):
            pieces += [b',"system":', self._system.get((system, _caches(config)))]
        if offered := options.tools or ((NO_TOOL,) if _CALL in history else ()):
            pieces += [b',"tools":', self._tools.get(offered)]
        pieces.append(b"}")
        version = VERSION if options.temperature is None else VERSION_WITH_TEMPERATURE
        return RequestSpec(
            _endpoint(config) + "/messages", "POST", _headers(config, version), b"".join(pieces)
        )

    def parser(self, writer: AnswerWriter) -> MessageParser:
        """A parser for one answer."""
        return MessageParser(writer)

    def build_models_request(self, config: ProviderConfig) -> RequestSpec:
        """The list of models."""
        return RequestSpec(_endpoint(config) + "/models?limit=1000", "GET", _headers(config, VERSION))

    def parse_models_response(self, body: bytes, config: ProviderConfig) -> list[ModelInfo]:
        """The models of a list. Raises DeltaParseError."""
        try:
            listed = _decode_models(body)
        except GARBLED as error:
            raise DeltaParseError(f"the list of models cannot be read: {error}") from None
        return [
            ModelInfo(model.id, config.id, model.display_name, model.max_input_tokens, model.max_tokens)
            for model in listed.data
        ]


def create(config: ProviderConfig, session: aiohttp.ClientSession | None = None) -> Provider:
    """A provider for Anthropic, or for a compatible server at ``base_url`` (with or without ``/v1``)."""
    return create_provider(AnthropicAdapter(config.capable(CAPABILITIES)), config, session)


def _endpoint(config: ProviderConfig) -> str:
    base_url = (config.base_url or BASE_URL).rstrip("/")
    return base_url if base_url.endswith("/v1") else f"{base_url}/v1"


def _headers(config: ProviderConfig, version: str) -> dict[str, str]:
    return {
        "x-api-key": config.api_key or "",
        "anthropic-version": version,
        "Content-Type": "application/json",
        "Accept-Encoding": "identity",
        **config.custom_headers,
    }


def _head(options: ChatOptions, config: ProviderConfig) -> bytes:
    head: dict[str, Any] = {
        "model": options.model,
        "max_tokens": options.max_tokens or DEFAULT_MAX_TOKENS,
        "stream": True,
    }
    if options.temperature is not None:
        head["temperature"] = options.temperature
    if options.stop_sequences:
        head["stop_sequences"] = options.stop_sequences
    if _caches(config):
        head["cache_control"] = _CACHED
    return msgspec.json.encode(head)


def _system_texts(messages: Sequence[Message], options: ChatOptions) -> tuple[str, ...]:
    """The system prompt, then the system messages of the conversation: the protocol keeps them apart."""
    texts = [options.system_prompt] if options.system_prompt else []
    texts += [m.text for m in messages if m.role == "system" and m.for_model and m.text.strip()]
    if options.response_format == "json":
        texts.append(JSON_ONLY)
    return tuple(texts)


def _caches(config: ProviderConfig) -> bool:
    """Whether it is asked to remember: the conversation so far, and apart from it what all have in common."""
    return config.base_url is None


def _system(given: tuple[tuple[str, ...], bool]) -> bytes:
    texts, cached = given
    blocks = [_text(text) for text in texts]
    if cached:
        blocks[-1]["cache_control"] = _CACHED
    return msgspec.json.encode(blocks)


def _tools(tools: tuple[ToolDefinition, ...]) -> bytes:
    return msgspec.json.encode(
        [
            {"name": tool.name, "description": tool.description, "input_schema": mended(tool.parameters)}
            for tool in tools
        ]
    )


def _encoder(*, images: bool) -> Callable[[Message], bytes]:
    """What makes the wire messages of one message, joined by commas; empty if there is nothing to send."""

    def encode(message: Message) -> bytes:
        if not message.for_model or message.role == "system":
            return b""
        if message.role == "assistant":
            items = [item for step in steps_of(message) for item in _step(step, message.id, images=images)]
        else:
            content = _content(message, images=images)
            items = [{"role": "user", "content": content}] if content else []
        return b",".join(map(msgspec.json.encode, items))

    return encode


def _content(message: Message, *, images: bool) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for part in message.parts:
        if images and is_shown(part):
            blocks.append(_image(part.mime_type, part.data))
        elif text := told(part):
            blocks.append(_text(text))
    return blocks


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(mime_type: str, data: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": mime_type, "data": data}}


def _step(step: Step, message_id: str, *, images: bool) -> list[dict[str, Any]]:
    said = [_text(step.text.rstrip())] if step.text else []
    said += [
        {
            "type": "tool_use",
            "id": wire_id(call.tool_call_id, message_id),
            "name": call.tool_name,
            "input": call.arguments,
        }
        for call in step.calls
    ]
    items: list[dict[str, Any]] = [{"role": "assistant", "content": said}]
    if step.results:
        results = [_result(result, message_id, images=images) for result in step.results]
        items.append({"role": "user", "content": results})
    return items


def _result(result: ToolResultPart, message_id: str, *, images: bool) -> dict[str, Any]:
    text = output_text(result, PICTURES if images else ())
    content = [_text(text)] if text.strip() else []
    if images:
        content += [_image(picture.mime_type, picture.data) for picture in pictures(result.attachments)]
    block: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": wire_id(result.tool_call_id, message_id),
        "content": content,
    }
    return {**block, "is_error": True} if result.is_error else block


_ASSISTANT = b'{"role":"assistant"'
_CALL = b'{"type":"tool_use"'
_OPENING = msgspec.json.encode({"role": "user", "content": "(the conversation goes on)"}) + b","
"""A conversation begins with the user here, also when its first messages are out of the window."""


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
    input: dict[str, Any] = {}


class _Delta(Struct, gc=False):
    text: str | None = None
    thinking: str | None = None
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


class MessageParser:
    """Reads a stream of message events. Unknown kinds of events and blocks are passed over."""

    __slots__ = ("_calls", "_tokens", "_writer", "done")

    def __init__(self, writer: AnswerWriter) -> None:
        self._writer = writer
        self._calls: dict[int, str] = {}
        self._tokens = _Usage()
        self.done = False

    def feed(self, event: StreamEvent) -> None:
        """Take one event in."""
        if not event.data:
            return
        try:
            known = _decode_event(event.data)
        except GARBLED as error:
            known = uncounted(_decode_event, event.data, "usage", error)
        match known.type:
            case "content_block_delta":
                self._delta(known.index, known.delta or _Delta())
            case "content_block_start":
                self._block(known.index, known.content_block or _Block())
            case "message_start":
                self._usage((known.message or _Start()).usage)
            case "message_delta":
                self._usage(known.usage)
                self._stop((known.delta or _Delta()).stop_reason)
            case "message_stop":
                self._end()
            case "error":
                raise_said(event.data)
            case _:
                pass

    def finish(self) -> None:
        """The stream has ended."""
        if not self._writer.stopped:
            raise StreamAbortedError("the stream ended before the answer did")
        self._end()

    def _end(self) -> None:
        self._writer.stop("end_turn")
        self.done = True

    def _block(self, index: int, block: _Block) -> None:
        if block.type == "tool_use":
            self._calls[index] = self._writer.call(block.name, block.id)
            if block.input:
                self._writer.arguments(self._calls[index], msgspec.json.encode(block.input).decode())
        elif block.thinking:
            self._writer.text(block.thinking, "reasoning")
        elif block.text:
            self._writer.text(block.text)

    def _delta(self, index: int, delta: _Delta) -> None:
        if delta.text:
            self._writer.text(delta.text)
        elif delta.thinking:
            self._writer.text(delta.thinking, "reasoning")
        elif delta.partial_json and index in self._calls:
            self._writer.arguments(self._calls[index], delta.partial_json)

    def _stop(self, reason: str | None) -> None:
        if reason == "refusal":
            raise ContentFilterError("the model declined to answer")
        if reason is not None:
            self._writer.stop(_STOP_REASONS.get(reason, "end_turn"))

    def _usage(self, usage: _Usage | None) -> None:
        """Counts are totals so far; later events name only those that changed.

        Tokens read from and written to the cache are not in ``input_tokens`` here, but are input.
        """
        if usage is None:
            return
        for name in _Usage.__struct_fields__:
            if (count := getattr(usage, name)) is not None:
                setattr(self._tokens, name, count)
        tokens = self._tokens
        cached, written = tokens.cache_read_input_tokens or 0, tokens.cache_creation_input_tokens or 0
        given = (tokens.input_tokens or 0) + written + cached
        self._writer.usage(given, tokens.output_tokens or 0, cached, written)
