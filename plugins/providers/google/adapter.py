"""Gemini's own API: ``streamGenerateContent`` as server-sent events."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from gateway import (
    GARBLED,
    AnswerWriter,
    AuthMethod,
    Capabilities,
    ChatOptions,
    DeltaParseError,
    FragmentCache,
    Message,
    ModelInfo,
    ProviderConfig,
    RecentEncodings,
    RequestSpec,
    ToolDefinition,
    Transport,
    raise_said,
)
from plugins.providers.google.contents import (
    MODEL_FIRST,
    OPENING,
    Contents,
    Signatures,
    system,
    system_texts,
    tools,
)
from plugins.providers.google.parser import ResponseParser

BASE_URL = "https://generativelanguage.googleapis.com"
CAPABILITIES = Capabilities(reasoning=True)
JSON_ONLY = "Answer with a single JSON object and nothing else."

_SIGNED = re.compile(r"gemini-(?![12]\b)")
_THINKS = re.compile(r"gemini-(2\.5|(?![12]\b))")
_SPECIAL = re.compile(r"image|tts|live|audio|embedding|robotics|banana|omni")


class GeminiBody:
    """Bodies of requests, the same for both ways to Gemini."""

    def __init__(self, signatures: Signatures, *, images: bool) -> None:
        self._histories = {
            signed: FragmentCache(Contents(signatures, signed=signed, images=images).encode)
            for signed in (False, True)
        }
        self._system: RecentEncodings[tuple[str, ...]] = RecentEncodings(system)
        self._tools: RecentEncodings[tuple[ToolDefinition, ...]] = RecentEncodings(tools)

    def encode(self, messages: Sequence[Message], options: ChatOptions) -> bytes:
        """The body of a call."""
        history = self._histories[_SIGNED.search(options.model) is not None].join(messages)
        if history.startswith(MODEL_FIRST):
            history = OPENING + history
        texts = system_texts(tuple(messages), options)
        # The mode for JSON is refused beside tools.
        as_json = options.response_format == "json"
        if as_json and options.tools:
            texts = (*texts, JSON_ONLY)
        pieces = [b'{"contents":[', history, b"]"]
        if texts:
            pieces += [b',"systemInstruction":', self._system.get(texts)]
        if options.tools:
            pieces += [b',"tools":', self._tools.get(options.tools)]
        if generation := _generation(options, as_json=as_json and not options.tools):
            pieces += [b',"generationConfig":', msgspec.json.encode(generation)]
        pieces.append(b"}")
        return b"".join(pieces)


class GeminiAdapter:
    """Builds requests to Gemini's own API and reads their streams."""

    id = "google"
    name = "Google"
    auth_method: AuthMethod = "api_key"
    transport: Transport = "sse"

    def __init__(self, capabilities: Capabilities = CAPABILITIES) -> None:
        self.capabilities = capabilities
        self._signatures = Signatures()
        self._body = GeminiBody(self._signatures, images=capabilities.images)

    def able(self, capabilities: Capabilities) -> GeminiAdapter:
        """The same for models that can do other things."""
        return GeminiAdapter(capabilities)

    def endpoint(self, config: ProviderConfig) -> str:
        """The address of the API, with its version."""
        base_url = (config.base_url or BASE_URL).rstrip("/")
        return base_url if re.search(r"/v1\w*$", base_url) else f"{base_url}/{config.api_version or 'v1beta'}"

    def build_chat_request(
        self, messages: Sequence[Message], options: ChatOptions, config: ProviderConfig
    ) -> RequestSpec:
        """A streamed answer to the conversation."""
        model = quote(options.model.removeprefix("models/"), safe="/")
        url = f"{self.endpoint(config)}/models/{model}:streamGenerateContent?alt=sse"
        return RequestSpec(url, "POST", _headers(config), self._body.encode(messages, options))

    def parser(self, writer: AnswerWriter) -> ResponseParser:
        """A parser for one answer."""
        return ResponseParser(writer, self._signatures)

    def build_models_request(self, config: ProviderConfig) -> RequestSpec:
        """The list of models."""
        return RequestSpec(f"{self.endpoint(config)}/models?pageSize=1000", "GET", _headers(config))

    def parse_models_response(self, body: bytes, config: ProviderConfig) -> list[ModelInfo]:
        """The models that can chat. Raises DeltaParseError."""
        return [
            ModelInfo(
                model.name.removeprefix("models/"),
                config.id,
                model.display_name,
                model.input_token_limit,
                model.output_token_limit,
            )
            for model in decoded_models(body).models
            if "generateContent" in model.supported_generation_methods
        ]


class _Model(Struct, rename="camel"):
    name: str
    display_name: str = ""
    input_token_limit: int | None = None
    output_token_limit: int | None = None
    supported_generation_methods: tuple[str, ...] = ("generateContent",)


class Models(Struct, rename="camel"):
    """A list of models, as either way to Gemini gives it."""

    models: tuple[_Model, ...] = ()
    publisher_models: tuple[_Model, ...] = ()
    error: dict[str, Any] | str | None = None


_decode_models = msgspec.json.Decoder(Models).decode


def decoded_models(body: bytes) -> Models:
    """Read a list of models, which may be empty. Raises DeltaParseError, or the error that came instead."""
    try:
        listed = _decode_models(body)
    except GARBLED as error:
        raise DeltaParseError(f"the list of models cannot be read: {error}") from None
    if listed.error is not None:
        raise_said(body)
    return listed


def _headers(config: ProviderConfig) -> dict[str, str]:
    return {
        "x-goog-api-key": config.api_key or "",
        "Content-Type": "application/json",
        "Accept-Encoding": "identity",
        **config.custom_headers,
    }


def _generation(options: ChatOptions, *, as_json: bool) -> dict[str, Any]:
    """How to answer. Models that cannot think refuse to be asked for their thoughts."""
    made: dict[str, Any] = {}
    if options.temperature is not None:
        made["temperature"] = options.temperature
    if options.max_tokens is not None:
        made["maxOutputTokens"] = options.max_tokens
    if options.stop_sequences:
        made["stopSequences"] = options.stop_sequences
    if as_json:
        made["responseMimeType"] = "application/json"
    if _THINKS.search(options.model) and not _SPECIAL.search(options.model):
        made["thinkingConfig"] = {"includeThoughts": True}
    return made
