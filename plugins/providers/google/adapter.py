"""Gemini's own API: ``streamGenerateContent`` as server-sent events."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from gateway import Capabilities, ChatOptions, Message, ModelInfo, ProviderConfig
from gateway.provider_http import (
    AnswerWriter,
    FragmentCache,
    OneTool,
    RecentEncodings,
    RequestSpec,
    ToolChoice,
    ToolDefinition,
    raise_stream_error,
)
from plugins.providers.google.contents import (
    Contents,
    encode_system,
    encode_tools,
    join_contents,
)
from plugins.providers.google.parser import ResponseParser
from plugins.providers.protocol import (
    GEMINI_SIGNED,
    ProtocolAdapter,
    decode_models,
    json_headers,
    system_texts,
)

BASE_URL = "https://generativelanguage.googleapis.com"
CAPABILITIES = Capabilities(reasoning=True)

_LEVELS: Mapping[str, str] = {"none": "minimal", "xhigh": "high", "max": "high"}
"""The levels of Gemini 3 and newer models, if they have another name."""
_BUDGETS: Mapping[str, int] = {"none": 0, "minimal": 512, "low": 1024, "medium": 8192}
"""Tokens for the reasoning of Gemini 2.5, as Google's own compatible API translates the efforts."""
_MOST_BUDGET = 24_576
_THINKS = re.compile(r"gemini-(2\.5|(?![12]\b))")
_SPECIAL = re.compile(r"image|tts|live|audio|embedding|robotics|banana|omni")


class GeminiProtocol(ProtocolAdapter):
    """The request bodies and the parser that Google's API and Vertex AI have in common."""

    call_ids = True
    """The API accepts the ids of calls."""

    def __init__(self, capabilities: Capabilities = CAPABILITIES) -> None:
        super().__init__(capabilities)
        images = capabilities.images
        self._histories = {
            signed: FragmentCache(Contents(signed=signed, images=images, ids=self.call_ids).encode)
            for signed in (False, True)
        }
        self._system: RecentEncodings[tuple[str, ...]] = RecentEncodings(encode_system)
        self._tools: RecentEncodings[tuple[ToolDefinition, ...]] = RecentEncodings(encode_tools)

    def parser(self, writer: AnswerWriter) -> ResponseParser:
        """Make a parser for one answer."""
        return ResponseParser(writer)

    def body(self, messages: Sequence[Message], options: ChatOptions) -> bytes:
        """Encode the body of a call."""
        history = join_contents(
            self._histories[GEMINI_SIGNED.search(options.model) is not None].join(messages)
        )
        # The API refuses the JSON mode together with tools.
        as_json = options.response_format == "json"
        texts = system_texts(messages, options, as_json=as_json and bool(options.tools))
        pieces = [b'{"contents":[', history, b"]"]
        if texts:
            pieces += [b',"systemInstruction":', self._system.get(texts)]
        if options.tools:
            pieces += [b',"tools":', self._tools.get(options.tools)]
            if options.tool_choice != "auto":
                pieces += [b',"toolConfig":', _tool_config(options.tool_choice)]
        if generation := _generation(options, as_json=as_json and not options.tools):
            pieces += [b',"generationConfig":', msgspec.json.encode(generation)]
        pieces.append(b"}")
        return b"".join(pieces)


class GeminiAdapter(GeminiProtocol):
    """Builds requests to Gemini's own API and parses their streams."""

    id = "google"
    name = "Google"

    def endpoint(self, config: ProviderConfig) -> str:
        """Return the address of the API with its version."""
        base_url = (config.base_url or BASE_URL).rstrip("/")
        return base_url if re.search(r"/v1\w*$", base_url) else f"{base_url}/{config.api_version or 'v1beta'}"

    def build_chat_request(
        self, messages: Sequence[Message], options: ChatOptions, config: ProviderConfig
    ) -> RequestSpec:
        """Build the request for a streamed answer."""
        model = quote(options.model.removeprefix("models/"), safe="/")
        url = f"{self.endpoint(config)}/models/{model}:streamGenerateContent?alt=sse"
        return RequestSpec(url, "POST", _headers(config), self.body(messages, options))

    def build_models_request(self, config: ProviderConfig) -> RequestSpec:
        """Build the request for the list of models."""
        return RequestSpec(f"{self.endpoint(config)}/models?pageSize=1000", "GET", _headers(config))

    def parse_models_response(self, body: bytes, config: ProviderConfig) -> list[ModelInfo]:
        """Parse the list of models, without those that cannot chat. Raises DeltaParseError."""
        return [
            ModelInfo(
                model.name.removeprefix("models/"),
                config.id,
                model.display_name,
                model.input_token_limit,
                model.output_token_limit,
            )
            for model in parse_models(body).models
            if "generateContent" in model.supported_generation_methods
        ]


class _Model(Struct, rename="camel"):
    name: str
    display_name: str = ""
    input_token_limit: int | None = None
    output_token_limit: int | None = None
    supported_generation_methods: tuple[str, ...] = ("generateContent",)


class Models(Struct, rename="camel"):
    """A list of models from either API."""

    models: tuple[_Model, ...] = ()
    publisher_models: tuple[_Model, ...] = ()
    error: dict[str, Any] | str | None = None


_decode_models = msgspec.json.Decoder(Models).decode


def parse_models(body: bytes) -> Models:
    """Parse a list of models, which may be empty. Raises DeltaParseError, or the error in the body."""
    listed = decode_models(_decode_models, body)
    if listed.error is not None:
        raise_stream_error(body)
    return listed


def _headers(config: ProviderConfig) -> dict[str, str]:
    return json_headers(config, {"x-goog-api-key": config.api_key or ""})


def _tool_config(choice: ToolChoice) -> bytes:
    named = {"allowedFunctionNames": [choice.name]} if isinstance(choice, OneTool) else {}
    return msgspec.json.encode({"functionCallingConfig": {"mode": "ANY", **named}})


def _generation(options: ChatOptions, *, as_json: bool) -> dict[str, Any]:
    """Return the generation options."""
    made: dict[str, Any] = {}
    if options.temperature is not None:
        made["temperature"] = options.temperature
    if options.max_tokens is not None:
        made["maxOutputTokens"] = options.max_tokens
    if options.stop_sequences:
        made["stopSequences"] = options.stop_sequences
    if options.top_p is not None:
        made["topP"] = options.top_p
    if options.seed is not None:
        made["seed"] = options.seed
    if as_json:
        made["responseMimeType"] = "application/json"
        if options.answer_schema is not None:
            made["responseJsonSchema"] = options.answer_schema.schema
    # Models that do not reason refuse a request for their thoughts.
    if _THINKS.search(options.model) and not _SPECIAL.search(options.model):
        made["thinkingConfig"] = {"includeThoughts": True, **_thinking(options)}
    return made


def _thinking(options: ChatOptions) -> dict[str, Any]:
    effort = options.effort
    if effort is None:
        return {}
    if GEMINI_SIGNED.search(options.model):
        return {"thinkingLevel": _LEVELS.get(effort, effort)}
    return {"thinkingBudget": _BUDGETS.get(effort, _MOST_BUDGET)}
