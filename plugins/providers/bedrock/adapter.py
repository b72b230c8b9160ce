"""Bedrock's Converse API, in one region."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from gateway import AuthMethod, Capabilities, ChatOptions, Message, ModelInfo, ProviderConfig, SettingsError
from gateway.provider_http import (
    PLACEHOLDER_TOOL,
    AnswerWriter,
    FragmentCache,
    OneTool,
    RecentEncodings,
    RequestSpec,
    ToolChoice,
    ToolDefinition,
    Transport,
    log_unsupported,
)
from plugins.providers.bedrock.conversation import (
    encode_system,
    encode_tools,
    encoder,
    join_messages,
    with_cache_point,
)
from plugins.providers.bedrock.frames import EventReader
from plugins.providers.bedrock.parser import ConverseParser
from plugins.providers.protocol import (
    CLAUDE_WITHOUT_SAMPLING,
    ProtocolAdapter,
    accepted_choice,
    claude_effort,
    decode_models,
    json_headers,
    system_texts,
)

CAPABILITIES = Capabilities(reasoning=True)

_CACHES = re.compile(
    r"anthropic\.claude-(3-7|3-5-haiku|(opus|sonnet|haiku)-[4-9]|[4-9])|amazon\.nova-(micro|lite|pro|premier)"
)
"""Models with prompt caching; others refuse cache points."""


class BedrockAdapter(ProtocolAdapter):
    """Builds Converse requests and parses their streams."""

    id = "bedrock"
    name = "Amazon Bedrock"
    auth_method: AuthMethod = "custom"
    transport: Transport = EventReader

    def __init__(self, capabilities: Capabilities = CAPABILITIES) -> None:
        super().__init__(capabilities)
        self._messages = FragmentCache(encoder(images=capabilities.images))
        self._system: RecentEncodings[tuple[tuple[str, ...], bool]] = RecentEncodings(encode_system)
        self._tools: RecentEncodings[tuple[ToolDefinition, ...]] = RecentEncodings(encode_tools)

    def endpoint(self, config: ProviderConfig) -> str:
        """Return the address of the API in its region. Raises SettingsError without a region."""
        return _address(config, "bedrock-runtime")

    def build_chat_request(
        self, messages: Sequence[Message], options: ChatOptions, config: ProviderConfig
    ) -> RequestSpec:
        """Build the request for a streamed answer."""
        caches = _CACHES.search(options.model) is not None
        history = join_messages(self._messages.join(messages))
        if caches:
            history = with_cache_point(history)
        offered = options.tools or ((PLACEHOLDER_TOOL,) if b'{"toolUse":' in history else ())
        pieces = [b'{"messages":[', history, b"]"]
        if texts := system_texts(messages, options, as_json=options.response_format == "json"):
            pieces += [b',"system":', self._system.get((texts, caches))]
        if offered:
            pieces += [b',"toolConfig":', self._tools.get(offered)]
            choice, _ = accepted_choice(options)
            if options.tools and choice != "auto":
                # The choice is a field of the object with the tools.
                pieces[-1] = pieces[-1][:-1]
                pieces += [b',"toolChoice":', _tool_choice(choice), b"}"]
        is_claude = "claude" in options.model
        log_unsupported(
            config.id, options, "seed", *_unsupported(options), *(() if is_claude else ("effort",))
        )
        if is_claude and (effort := claude_effort(options)):
            pieces += [b',"additionalModelRequestFields":', msgspec.json.encode(effort)]
        if inference := _inference(options):
            pieces += [b',"inferenceConfig":', msgspec.json.encode(inference)]
        pieces.append(b"}")
        url = f"{self.endpoint(config)}/model/{quote(options.model, safe='')}/converse-stream"
        return RequestSpec(url, "POST", _headers(config), b"".join(pieces))

    def parser(self, writer: AnswerWriter) -> ConverseParser:
        """Make a parser for one answer."""
        return ConverseParser(writer)

    def build_models_request(self, config: ProviderConfig) -> RequestSpec:
        """Build the request for the list of text models."""
        url = f"{_address(config, 'bedrock')}/foundation-models?byOutputModality=TEXT"
        return RequestSpec(url, "GET", _headers(config))

    def parse_models_response(self, body: bytes, config: ProviderConfig) -> list[ModelInfo]:
        """Parse the list of models, without those that cannot stream. Raises DeltaParseError."""
        listed = decode_models(_decode_models, body)
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
        raise SettingsError(f"providers.{config.id}.region is missing; set it or AWS_REGION")
    return (config.base_url or f"https://{service}.{config.region}.amazonaws.com").rstrip("/")


def _headers(config: ProviderConfig) -> dict[str, str]:
    key = config.api_key
    return json_headers(config, None if key is None else {"Authorization": f"Bearer {key}"})


def _unsupported(options: ChatOptions) -> tuple[str, ...]:
    """Return the options that the model refuses."""
    # Newer Claude models refuse both sampling parameters, older ones both at once.
    if "claude" not in options.model:
        return ()
    if CLAUDE_WITHOUT_SAMPLING.search(options.model):
        return ("temperature", "top_p")
    return ("top_p",) if options.temperature is not None else ()


def _tool_choice(choice: ToolChoice) -> bytes:
    if isinstance(choice, OneTool):
        return msgspec.json.encode({"tool": {"name": choice.name}})
    return b'{"any":{}}'


def _inference(options: ChatOptions) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if options.max_tokens is not None:
        made["maxTokens"] = options.max_tokens
    unsupported = _unsupported(options)
    if options.temperature is not None and "temperature" not in unsupported:
        made["temperature"] = options.temperature
    if options.top_p is not None and "top_p" not in unsupported:
        made["topP"] = options.top_p
    if options.stop_sequences:
        made["stopSequences"] = options.stop_sequences
    return made
