"""Cohere's chat, version 2."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from gateway import (
    GARBLED,
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
    ServerFailedError,
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
    steps_of,
    told,
    uncounted,
    wire_id,
)

BASE_URL = "https://api.cohere.com"
CAPABILITIES = Capabilities(reasoning=True)
JSON_ONLY = "Answer with a single JSON object and nothing else."
NOTHING = "(no output)"
"""A tool's result may not be empty."""

_SEES = re.compile("vision")
_STOP_REASONS: dict[str, StopReason] = {"MAX_TOKENS": "max_tokens", "TOOL_CALL": "tool_use"}


class CohereAdapter:
    """Builds chat requests and reads their streams."""

    id = "cohere"
    name = "Cohere"
    auth_method: AuthMethod = "api_key"
    transport: Transport = "sse"

    def __init__(self, capabilities: Capabilities = CAPABILITIES, sees: re.Pattern[str] = _SEES) -> None:
        self.capabilities = capabilities
        self._sees = sees
        self._histories = {images: FragmentCache(_encoder(images=images)) for images in (False, True)}
        self._system: RecentEncodings[str] = RecentEncodings(_system)
        self._tools: RecentEncodings[tuple[ToolDefinition, ...]] = RecentEncodings(_tools)

    def able(self, capabilities: Capabilities) -> CohereAdapter:
        """The same for models that can do other things."""
        return CohereAdapter(capabilities, sees=re.compile(""))

    def capabilities_of(self, model: str) -> Capabilities:
        """What a model can do: only some can be shown pictures."""
        sees = self.capabilities.images and self._sees.search(model) is not None
        return msgspec.structs.replace(self.capabilities, images=sees)

    def endpoint(self, config: ProviderConfig) -> str:
        """The address of the API, without a version: its parts have different ones."""
        return re.sub(r"/v[12]$", "", (config.base_url or BASE_URL).rstrip("/"))

    def build_chat_request(
        self, messages: Sequence[Message], options: ChatOptions, config: ProviderConfig
    ) -> RequestSpec:
        """A streamed answer to the conversation."""
        history = self._histories[self.capabilities_of(options.model).images].join(messages)
        if prompt := _prompt(options):
            history = b",".join(filter(None, (self._system.get(prompt), history)))
        pieces = [_head(options)[:-1], b',"messages":[', history, b"]"]
        if options.tools:
            pieces += [b',"tools":', self._tools.get(options.tools)]
        pieces.append(b"}")
        return RequestSpec(f"{self.endpoint(config)}/v2/chat", "POST", _headers(config), b"".join(pieces))

    def parser(self, writer: AnswerWriter) -> ChatParser:
        """A parser for one answer."""
        return ChatParser(writer)

    def build_models_request(self, config: ProviderConfig) -> RequestSpec:
        """The list of models that chat."""
        url = f"{self.endpoint(config)}/v1/models?endpoint=chat&page_size=1000"
        return RequestSpec(url, "GET", _headers(config))

    def parse_models_response(self, body: bytes, config: ProviderConfig) -> list[ModelInfo]:
        """The models of a list. Raises DeltaParseError."""
        try:
            listed = _decode_models(body)
        except GARBLED as error:
            raise DeltaParseError(f"the list of models cannot be read: {error}") from None
        return [
            ModelInfo(model.name, config.id, context_window=int(model.context_length or 0) or None)
            for model in listed.models
        ]


def create(config: ProviderConfig, session: aiohttp.ClientSession | None = None) -> Provider:
    """A provider for Cohere."""
    return create_provider(CohereAdapter(config.capable(CAPABILITIES)), config, session)


def _headers(config: ProviderConfig) -> dict[str, str]:
    return {
        "Authorization": f"Bearer {config.api_key or ''}",
        "Content-Type": "application/json",
        "Accept-Encoding": "identity",
        **config.custom_headers,
    }


def _head(options: ChatOptions) -> bytes:
    head: dict[str, Any] = {"model": options.model, "stream": True}
    if options.temperature is not None:
        head["temperature"] = options.temperature
    if options.max_tokens is not None:
        head["max_tokens"] = options.max_tokens
    if options.stop_sequences:
        head["stop_sequences"] = options.stop_sequences
    if options.response_format == "json" and not options.tools:
        head["response_format"] = {"type": "json_object"}
    return msgspec.json.encode(head)


def _prompt(options: ChatOptions) -> str:
    """The mode for JSON is refused beside tools, and alone wants the model to be told of it too."""
    as_json = JSON_ONLY if options.response_format == "json" else ""
    return "\n\n".join(filter(None, (options.system_prompt, as_json)))


def _system(text: str) -> bytes:
    return msgspec.json.encode({"role": "system", "content": text})


def _tools(tools: tuple[ToolDefinition, ...]) -> bytes:
    offered = [
        {"name": tool.name, "description": tool.description, "parameters": mended(tool.parameters)}
        for tool in tools
    ]
    return msgspec.json.encode([{"type": "function", "function": tool} for tool in offered])


def _encoder(*, images: bool) -> Callable[[Message], bytes]:
    """What makes the wire messages of one message, joined by commas; empty if there is nothing to send."""

    def encode(message: Message) -> bytes:
        if not message.for_model:
            return b""
        if message.role == "assistant":
            items = [item for step in steps_of(message) for item in _step(step, images=images)]
        else:
            content = _content(message, images=images and message.role == "user")
            items = [{"role": message.role, "content": content}] if content else []
        return b",".join(map(msgspec.json.encode, items))

    return encode


def _content(message: Message, *, images: bool) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for part in message.parts:
        if images and is_shown(part):
            blocks.append(_image(part.mime_type, part.data))
        elif text := told(part):
            blocks.append({"type": "text", "text": text})
    return blocks


def _image(mime_type: str, data: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{mime_type};base64,{data}"}}


def _step(step: Step, *, images: bool) -> list[dict[str, Any]]:
    """What is said before calls is called a plan here."""
    said: dict[str, Any] = {"role": "assistant"}
    if step.text:
        said["tool_plan" if step.calls else "content"] = step.text
    if step.calls:
        said["tool_calls"] = [
            {
                "id": wire_id(call.tool_call_id),
                "type": "function",
                "function": {
                    "name": call.tool_name,
                    "arguments": msgspec.json.encode(call.arguments).decode(),
                },
            }
            for call in step.calls
        ]
    results = [
        {
            "role": "tool",
            "tool_call_id": wire_id(result.tool_call_id),
            "content": output_text(result, PICTURES if images else ()).strip() or NOTHING,
        }
        for result in step.results
    ]
    return [said, *results, *(_shown(step.results) if images else ())]


def _shown(results: Sequence[ToolResultPart]) -> list[dict[str, Any]]:
    """Pictures that tools made: a tool message holds only text, so a user message shows them."""
    images = [
        _image(picture.mime_type, picture.data)
        for result in results
        for picture in pictures(result.attachments)
    ]
    text = {"type": "text", "text": "(images from the tools above)"}
    return [{"role": "user", "content": [text, *images]}] if images else []


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


class ChatParser:
    """Reads a stream of chat events. Citations and kinds of events we do not know are passed over."""

    __slots__ = ("_calls", "_writer", "done")

    def __init__(self, writer: AnswerWriter) -> None:
        self._writer = writer
        self._calls: dict[int, str] = {}
        self.done = False

    def feed(self, event: StreamEvent) -> None:
        """Take one event in."""
        if not event.data or event.data == b"[DONE]":
            return
        try:
            known = _decode_event(event.data)
        except GARBLED as error:
            known = uncounted(_decode_event, event.data, "usage", error)
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
                self._end(delta)
            case _:
                pass

    def finish(self) -> None:
        """The stream has ended."""
        if not self._writer.stopped:
            raise StreamAbortedError("the stream ended before the answer did")
        self.done = True

    def _content(self, content: _Content | list[_Content] | None) -> None:
        for piece in content if isinstance(content, list) else (content,):
            if piece is not None and piece.thinking:
                self._writer.text(piece.thinking, "reasoning")
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

    def _end(self, delta: _Delta) -> None:
        if delta.usage is not None:
            self._usage(delta.usage)
        reason = delta.finish_reason or "COMPLETE"
        if reason == "ERROR_TOXIC":
            raise ContentFilterError("the model's filter stopped the answer")
        if reason in ("ERROR", "TIMEOUT"):
            raise ServerFailedError(delta.error or f"the model's server broke the answer off ({reason})")
        self._writer.stop(_STOP_REASONS.get(reason, "end_turn"))
        self.done = True

    def _usage(self, usage: _Usage) -> None:
        """What is billed counts, if that is told: the rest is the vendor's own prompt."""
        tokens = usage.billed_units or usage.tokens or _Tokens()
        self._writer.usage(
            int(tokens.input_tokens or 0), int(tokens.output_tokens or 0), int(usage.cached_tokens or 0)
        )
