"""The one adapter for all services that speak chat completions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urljoin

import msgspec

from gateway import (
    AnswerWriter,
    AuthMethod,
    Capabilities,
    ChatOptions,
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
from plugins.providers.openai.listing import models_listed
from plugins.providers.openai.messages import JSON_ONLY, answered, encoder, system, tools
from plugins.providers.openai.parser import CompletionParser
from plugins.providers.openai.profiles import Profile

_OWN_TEMPERATURE = re.compile(
    r"(^|/)(o[1-9](-(mini|pro|preview|deep-research))?|gpt-5(-(mini|nano|pro|codex))?)(-\d{4}.*)?$"
)
"""Models that reason and so choose words in their own way: they refuse to be told a temperature."""

PLACEHOLDER_KEY = "none"
"""Sent when no key is set: local servers want the header but do not look at it."""


class CompletionsAdapter:
    """Builds chat completion requests and reads their streams."""

    transport: Transport = "sse"

    def __init__(self, profile: Profile, capabilities: Capabilities) -> None:
        self._profile = profile
        self.id = profile.id
        self.name = profile.name
        self.auth_method: AuthMethod = profile.auth_method
        self.capabilities = capabilities
        self._messages = FragmentCache(encoder(profile, capabilities))
        self._system: RecentEncodings[str] = RecentEncodings(system)
        self._tools: RecentEncodings[tuple[ToolDefinition, ...]] = RecentEncodings(tools)

    def able(self, capabilities: Capabilities) -> CompletionsAdapter:
        """The same for models that can do other things."""
        return CompletionsAdapter(self._profile, capabilities)

    def endpoint(self, config: ProviderConfig) -> str:
        """The address below which the API lies. Raises SettingsError if nobody says it."""
        base_url = (config.base_url or self._profile.base_url).rstrip("/")
        if not base_url:
            raise SettingsError(f"providers.{config.id}.base_url is needed: the address of its API")
        if self._profile.deployments and not base_url.endswith(("/openai", "/v1")):
            base_url += "/openai"
        if self._profile.deployments and not config.api_version and not base_url.endswith("/v1"):
            base_url += "/v1"
        return base_url

    def build_chat_request(
        self, messages: Sequence[Message], options: ChatOptions, config: ProviderConfig
    ) -> RequestSpec:
        """A streamed completion of the conversation."""
        history = self._messages.join(messages)
        if self._profile.answers_results:
            history = answered(history)
        if prompt := self._prompt(options):
            history = b",".join(filter(None, (self._system.get(prompt), history)))
        pieces = [self._head(options, config)[:-1], b',"messages":[', history, b"]"]
        if options.tools:
            pieces += [b',"tools":', self._tools.get(options.tools)]
        pieces.append(b"}")
        return RequestSpec(
            self._address(config, "/chat/completions", options.model),
            "POST",
            self._headers(config, "text/event-stream"),
            b"".join(pieces),
        )

    def parser(self, writer: AnswerWriter) -> CompletionParser:
        """A parser for one answer."""
        return CompletionParser(writer, reasoning_apart=self._profile.reasoning_apart)

    def build_models_request(self, config: ProviderConfig) -> RequestSpec:
        """The list of models."""
        return RequestSpec(self._address(config, "/models"), "GET", self._headers(config, "application/json"))

    def parse_models_response(self, body: bytes, config: ProviderConfig) -> list[ModelInfo]:
        """The models of a list. Raises DeltaParseError."""
        return models_listed(body, config.id)

    def build_key_request(self, config: ProviderConfig) -> RequestSpec | None:
        """What only a right key is answered; None where the list of models is just that."""
        if not self._profile.key_path:
            return None
        url = urljoin(f"{self.endpoint(config)}/", self._profile.key_path)
        return RequestSpec(url, "GET", self._headers(config, "application/json"))

    def _address(self, config: ProviderConfig, path: str, deployment: str = "") -> str:
        base_url = self.endpoint(config)
        if not (self._profile.deployments and config.api_version):
            return base_url + path
        if deployment:
            base_url += f"/deployments/{quote(deployment, safe='')}"
        return f"{base_url}{path}?api-version={quote(config.api_version, safe='')}"

    def _headers(self, config: ProviderConfig, accept: str) -> dict[str, str]:
        key = config.api_key or PLACEHOLDER_KEY
        header = self._profile.key_header
        headers = {
            header: f"Bearer {key}" if header == "Authorization" else key,
            "Content-Type": "application/json",
            "Accept": accept,
            "Accept-Encoding": "identity",
            **self._profile.headers,
        }
        if config.organization_id:
            headers["OpenAI-Organization"] = config.organization_id
        if config.project_id:
            headers["OpenAI-Project"] = config.project_id
        return {**headers, **config.custom_headers}

    def _prompt(self, options: ChatOptions) -> str:
        if options.response_format == "json" and not self.capabilities.json_mode:
            return "\n\n".join(filter(None, (options.system_prompt, JSON_ONLY)))
        return options.system_prompt

    def _head(self, options: ChatOptions, config: ProviderConfig) -> bytes:
        """All but messages and tools."""
        head: dict[str, Any] = {
            "model": options.model,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if options.temperature is not None and not _OWN_TEMPERATURE.search(options.model):
            head["temperature"] = options.temperature
        if options.max_tokens is not None:
            head[self._limit(config)] = options.max_tokens
        if options.stop_sequences:
            head["stop"] = options.stop_sequences
        if options.response_format == "json" and self.capabilities.json_mode:
            head["response_format"] = {"type": "json_object"}
        return msgspec.json.encode({k: v for k, v in head.items() if k not in self._profile.without})

    def _limit(self, config: ProviderConfig) -> str:
        profile = self._profile
        elsewhere = config.base_url is not None and config.base_url.rstrip("/") != profile.base_url
        return (profile.limit_elsewhere if elsewhere else "") or profile.limit
