"""Bedrock's Converse API, in one region."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from gateway import (
    GARBLED,
    NO_TOOL,
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
    SettingsError,
    ToolDefinition,
    Transport,
)
from plugins.providers.bedrock.conversation import encoder, remembered, system, tools, turns
from plugins.providers.bedrock.frames import EventReader
from plugins.providers.bedrock.stream import ConverseParser

CAPABILITIES = Capabilities(reasoning=True)
JSON_ONLY = "Answer with a single JSON object and nothing else."

_CACHES = re.compile(
    r"anthropic\.claude-(3-7|3-5-haiku|(opus|sonnet|haiku)-[4-9]|[4-9])|amazon\.nova-(micro|lite|pro|premier)"
)
"""Models that can be asked to remember what was sent; others refuse to be asked."""


class BedrockAdapter:
    """Builds Converse requests and reads their streams."""

    id = "bedrock"
    name = "Amazon Bedrock"
    auth_method: AuthMethod = "custom"
    transport: Transport = EventReader

    def __init__(self, capabilities: Capabilities = CAPABILITIES) -> None:
        self.capabilities = capabilities
        self._messages = FragmentCache(encoder(images=capabilities.images))
        self._system: RecentEncodings[tuple[tuple[str, ...], bool]] = RecentEncodings(system)
        self._tools: RecentEncodings[tuple[ToolDefinition, ...]] = RecentEncodings(tools)

    def able(self, capabilities: Capabilities) -> BedrockAdapter:
        """The same for models that can do other things."""
        return BedrockAdapter(capabilities)

    def endpoint(self, config: ProviderConfig) -> str:
        """The address of the API in its region. Raises SettingsError if there is no region."""
        return _address(config, "bedrock-runtime")

    def build_chat_request(
        self, messages: Sequence[Message], options: ChatOptions, config: ProviderConfig
    ) -> RequestSpec:
        """A streamed answer to the conversation."""
        caches = _CACHES.search(options.model) is not None
        history = turns(self._messages.join(messages))
        if caches:
            history = remembered(history)
        offered = options.tools or ((NO_TOOL,) if b'{"toolUse":' in history else ())
        pieces = [b'{"messages":[', history, b"]"]
        if texts := _system_texts(messages, options):
            pieces += [b',"system":', self._system.get((texts, caches))]
        if offered:
            pieces += [b',"toolConfig":', self._tools.get(offered)]
        if inference := _inference(options):
            pieces += [b',"inferenceConfig":', msgspec.json.encode(inference)]
        pieces.append(b"}")
        url = f"{self.endpoint(config)}/model/{quote(options.model, safe='')}/converse-stream"
        return RequestSpec(url, "POST", _headers(config), b"".join(pieces))

    def parser(self, writer: AnswerWriter) -> ConverseParser:
        """A parser for one answer."""
        return ConverseParser(writer)

    def build_models_request(self, config: ProviderConfig) -> RequestSpec:
        """The list of models that write text."""
        url = f"{_address(config, 'bedrock')}/foundation-models?byOutputModality=TEXT"
        return RequestSpec(url, "GET", _headers(config))

    def parse_models_response(self, body: bytes, config: ProviderConfig) -> list[ModelInfo]:
        """The models of a list that stream. Raises DeltaParseError."""
        try:
            listed = _decode_models(body)
        except GARBLED as error:
            raise DeltaParseError(f"the list of models cannot be read: {error}") from None
        return [
            ModelInfo(model.model_id, config.id, model.model_name)
            for model in listed.model_summaries
            if model.response_streaming_supported
        ]


class _Model(Struct, rename="camel"):
    model_id: str
    model_name: str = ""
    response_streaming_supported: bool | None = True


class _Models(Struct, rename="camel"):
    model_summaries: list[_Model]


_decode_models = msgspec.json.Decoder(_Models).decode


def _address(config: ProviderConfig, service: str) -> str:
    if not config.region:
        raise SettingsError(f"providers.{config.id}.region is needed, or AWS_REGION")
    return (config.base_url or f"https://{service}.{config.region}.amazonaws.com").rstrip("/")


def _headers(config: ProviderConfig) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if config.api_key is not None:
        headers["Authorization"] = f"Bearer {config.api_key}"
    return {**headers, **config.custom_headers}


def _inference(options: ChatOptions) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if options.max_tokens is not None:
        made["maxTokens"] = options.max_tokens
    if options.temperature is not None:
        made["temperature"] = options.temperature
    if options.stop_sequences:
        made["stopSequences"] = options.stop_sequences
    return made


def _system_texts(messages: Sequence[Message], options: ChatOptions) -> tuple[str, ...]:
    """The system prompt, then the system messages of the conversation: the protocol keeps them apart."""
    own = (m.text for m in messages if m.role == "system" and m.for_model)
    as_json = JSON_ONLY if options.response_format == "json" else ""
    return tuple(text for text in (options.system_prompt, *own, as_json) if text.strip())
