"""OpenAI's chat completions, as spoken by OpenAI and by the many servers that are compatible with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from gateway import (
    AnswerWriter,
    Capabilities,
    ChatOptions,
    ContentFilterError,
    DeltaParseError,
    FragmentCache,
    ImagePart,
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
    TransportKind,
    create_provider,
    output_text,
    pictures,
    raise_said,
    steps_of,
    told,
    unreadable,
)

BASE_URL = "https://api.openai.com/v1"
PLACEHOLDER_KEY = "none"
"""Sent when no key is set: local servers want the header but do not look at it."""

_STOP_REASONS: dict[str, StopReason] = {"length": "max_tokens", "tool_calls": "tool_use"}


class OpenAIAdapter:
    """Builds chat completion requests and reads their streams."""

    id = "openai"
    name = "OpenAI"
    base_url = BASE_URL
    transport: TransportKind = "sse"
    capabilities = Capabilities(reasoning=True)

    def __init__(self) -> None:
        self._messages = FragmentCache(_message)
        self._system: RecentEncodings[str] = RecentEncodings(_system)
        self._tools: RecentEncodings[tuple[ToolDefinition, ...]] = RecentEncodings(_tools)

    def build_chat_request(
        self, messages: Sequence[Message], options: ChatOptions, config: ProviderConfig
    ) -> RequestSpec:
        """A streamed completion of the conversation."""
        base_url = config.base_url or BASE_URL
        history = self._messages.join(messages)
        if options.system_prompt:
            history = b",".join(filter(None, (self._system.get(options.system_prompt), history)))
        pieces = [_head(options, official=base_url == BASE_URL)[:-1], b',"messages":[', history, b"]"]
        if options.tools:
            pieces += [b',"tools":', self._tools.get(options.tools)]
        pieces.append(b"}")
        url = base_url.rstrip("/") + "/chat/completions"
        return RequestSpec(url, "POST", _headers(config, "text/event-stream"), b"".join(pieces))

    def parser(self, writer: AnswerWriter) -> CompletionParser:
        """A parser for one answer."""
        return CompletionParser(writer)

    def build_models_request(self, config: ProviderConfig) -> RequestSpec:
        """The list of models."""
        url = (config.base_url or BASE_URL).rstrip("/") + "/models"
        return RequestSpec(url, "GET", _headers(config, "application/json"))

    def parse_models_response(self, body: bytes, config: ProviderConfig) -> list[ModelInfo]:
        """The models of a list. Raises DeltaParseError."""
        try:
            listed = _models_decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DeltaParseError(f"the list of models cannot be read: {error}") from None
        models = listed.data if isinstance(listed, _Models) else listed
        return [ModelInfo(model.id, config.id, context_window=model.window) for model in models]


def create(config: ProviderConfig, session: aiohttp.ClientSession | None = None) -> Provider:
    """A provider for OpenAI, or for any compatible server at ``base_url``."""
    return create_provider(OpenAIAdapter(), config, session)


def _headers(config: ProviderConfig, accept: str) -> dict[str, str]:
    headers = {
        "Authorization": f"Bearer {config.api_key or PLACEHOLDER_KEY}",
        "Content-Type": "application/json",
        "Accept": accept,
        "Accept-Encoding": "identity",
    }
    if config.organization_id:
        headers["OpenAI-Organization"] = config.organization_id
    if config.project_id:
        headers["OpenAI-Project"] = config.project_id
    return {**headers, **config.custom_headers}


def _head(options: ChatOptions, *, official: bool) -> bytes:
    """All but messages and tools. OpenAI renamed ``max_tokens``; compatible servers know the old name."""
    head: dict[str, Any] = {
        "model": options.model,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if options.temperature is not None:
        head["temperature"] = options.temperature
    if options.max_tokens is not None:
        head["max_completion_tokens" if official else "max_tokens"] = options.max_tokens
    if options.stop_sequences:
        head["stop"] = options.stop_sequences
    if options.response_format == "json":
        head["response_format"] = {"type": "json_object"}
    return msgspec.json.encode(head)


def _system(text: str) -> bytes:
    return msgspec.json.encode({"role": "system", "content": text})


def _tools(tools: tuple[ToolDefinition, ...]) -> bytes:
    return msgspec.json.encode([{"type": "function", "function": tool} for tool in tools])


def _message(message: Message) -> bytes:
    """The wire messages of one message, joined by commas; empty if there is nothing to send."""
    if not message.for_model:
        return b""
    if message.role == "assistant":
        items = [item for step in steps_of(message) for item in _step(step)]
    else:
        content = _content(message)
        items = [{"role": message.role, "content": content}] if content else []
    return b",".join(map(msgspec.json.encode, items))


def _content(message: Message) -> str | list[dict[str, Any]]:
    texts = [text for part in message.parts if not isinstance(part, ImagePart) and (text := told(part))]
    images = [_image(part.mime_type, part.data) for part in message.parts if isinstance(part, ImagePart)]
    if not images or message.role == "system":
        return "\n\n".join(texts)
    text = "\n\n".join(texts) or "(image attached)"
    return [{"type": "text", "text": text}, *images]


def _image(mime_type: str, data: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{mime_type};base64,{data}"}}


def _step(step: Step) -> list[dict[str, Any]]:
    said: dict[str, Any] = {"role": "assistant", "content": step.text}
    if step.calls:
        said["tool_calls"] = [
            {
                "id": call.tool_call_id,
                "type": "function",
                "function": {
                    "name": call.tool_name,
                    "arguments": msgspec.json.encode(call.arguments).decode(),
                },
            }
            for call in step.calls
        ]
    results = [
        {"role": "tool", "tool_call_id": result.tool_call_id, "content": output_text(result)}
        for result in step.results
    ]
    return [said, *results, *_shown(step.results)]


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
    name: str | None = None
    arguments: str | None = None


class _Fragment(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Fragment] | None = None


class _Choice(Struct):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    prompt_cache_hit_tokens: int | None = None


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: dict[str, Any] | str | None = None


class _Model(Struct):
    id: str
    context_window: int | None = None
    context_length: int | None = None
    max_model_len: int | None = None

    @property
    def window(self) -> int | None:
        return self.context_window or self.context_length or self.max_model_len


class _Models(Struct):
    data: list[_Model]


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_models_decoder = msgspec.json.Decoder(_Models | list[_Model])


class _OpenCall:
    """A tool call under way. Its name may come in pieces, so it is begun only when arguments come."""

    __slots__ = ("begun", "id", "name", "waiting")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.begun = ""
        self.waiting = ""


class CompletionParser:
    """Reads a stream of chat completion chunks."""

    __slots__ = ("_calls", "_writer", "done")

    def __init__(self, writer: AnswerWriter) -> None:
        self._writer = writer
        self._calls: dict[int, _OpenCall] = {}
        self.done = False

    def feed(self, event: StreamEvent) -> None:
        """Take one event in."""
        if event.data == b"[DONE]":
            self._end()
        elif event.data:
            try:
                chunk = _decode_chunk(event.data)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise unreadable(event.data, error) from None
            if chunk.choices:
                self._choice(chunk.choices[0])
            if chunk.usage is not None:
                self._usage(chunk.usage)
            if chunk.error is not None:
                raise_said(event.data)

    def finish(self) -> None:
        """The stream has ended."""
        if not self._writer.stopped:
            raise StreamAbortedError("the stream ended before the answer did")
        self._end()

    def _end(self) -> None:
        self._begin_calls()
        self._writer.stop("end_turn")
        self.done = True

    def _choice(self, choice: _Choice) -> None:
        delta = choice.delta
        if choice.index != 0:
            return
        if delta is not None:
            if reasoning := delta.reasoning_content or delta.reasoning:
                self._writer.text(reasoning, "reasoning")
            if text := delta.content or delta.refusal:
                self._writer.text(text)
            if delta.tool_calls:
                for position, fragment in enumerate(delta.tool_calls):
                    self._fragment(position, fragment)
        if choice.finish_reason:
            self._stop(choice.finish_reason)

    def _stop(self, reason: str) -> None:
        if reason == "content_filter":
            raise ContentFilterError("the model's content filter stopped the answer")
        self._begin_calls()
        self._writer.stop(_STOP_REASONS.get(reason, "end_turn"))

    def _usage(self, usage: _Usage) -> None:
        details = usage.prompt_tokens_details
        cached = (details and details.cached_tokens) or usage.prompt_cache_hit_tokens or 0
        self._writer.usage(usage.prompt_tokens or 0, usage.completion_tokens or 0, cached)

    def _fragment(self, position: int, fragment: _Fragment) -> None:
        function = fragment.function or _Function()
        call = self._call(position if fragment.index is None else fragment.index, fragment.id, function.name)
        if call.begun:
            if function.arguments:
                self._writer.arguments(call.begun, function.arguments)
            return
        call.id = fragment.id or call.id
        if function.name and function.name != call.name:
            call.name += function.name
        call.waiting += function.arguments or ""
        if call.waiting and call.name:
            self._begin(call)

    def _call(self, index: int, call_id: str | None, name: str | None) -> _OpenCall:
        """The call at an index. Some servers number all calls 0: a new id with a name is a new call."""
        call = self._calls.get(index)
        if call is None or (call_id and name and call.id and call_id != call.id):
            self._begin_calls()
            call = self._calls[index] = _OpenCall()
        return call

    def _begin_calls(self) -> None:
        for call in self._calls.values():
            if call.name and not call.begun:
                self._begin(call)

    def _begin(self, call: _OpenCall) -> None:
        call.begun = self._writer.call(call.name, call.id)
        if call.waiting:
            self._writer.arguments(call.begun, call.waiting)
