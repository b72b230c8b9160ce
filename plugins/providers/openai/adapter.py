"""The adapter of all services with OpenAI's Chat Completions protocol."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urljoin

import msgspec

from gateway import AuthMethod, Capabilities, ChatOptions, Message, ModelInfo, ProviderConfig, SettingsError
from gateway.provider_http import (
    AnswerWriter,
    FragmentCache,
    OneTool,
    RecentEncodings,
    RequestSpec,
    ToolChoice,
    ToolDefinition,
    log_unsupported,
)
from plugins.providers.openai.messages import Required, encoder, merge_turns, required_by, separate_results
from plugins.providers.openai.model_list import parse_model_list
from plugins.providers.openai.parser import CompletionParser
from plugins.providers.openai.profiles import Profile
from plugins.providers.openai.responses import Responses, ResponsesParser
from plugins.providers.protocol import (
    ProtocolAdapter,
    accepted_choice,
    function_tools,
    json_headers,
    json_instruction,
    system_message,
)

_OWN_TEMPERATURE = re.compile(
    r"(^|/)(o[1-9](-(mini|pro|preview|deep-research))?|gpt-5(-(mini|nano|pro|codex))?)(-\d{4}.*)?$"
    r"|(^|/)gpt-(5\.[6-9]|[6-9])"
)
"""Reasoning models that refuse sampling parameters and stop sequences."""

_MAX_HEADS = 64
"""Encoded beginnings of requests that are kept, one for each combination of options."""

PLACEHOLDER_KEY = "none"
"""The key if none is set: local servers require the header but ignore its value."""


class CompletionsAdapter(ProtocolAdapter):
    """Builds chat completion requests and parses their streams; of some models, in the Responses protocol."""

    def __init__(self, profile: Profile, capabilities: Capabilities) -> None:
        super().__init__(capabilities)
        self._profile = profile
        self._responses = Responses(capabilities)
        self.id = profile.id
        self.name = profile.name
        self.auth_method: AuthMethod = profile.auth_method
        self._histories: dict[Required, FragmentCache] = {}
        self._system: RecentEncodings[str] = RecentEncodings(system_message)
        self._tools: RecentEncodings[tuple[ToolDefinition, ...]] = RecentEncodings(function_tools)
        self._heads: dict[tuple[object, ...], bytes] = {}

    def with_capabilities(self, capabilities: Capabilities) -> CompletionsAdapter:
        """Return the same adapter for models with other capabilities."""
        return CompletionsAdapter(self._profile, capabilities)

    def endpoint(self, config: ProviderConfig) -> str:
        """Return the base address of the API. Raises SettingsError if it is unknown."""
        base_url = (config.base_url or self._profile.base_url).rstrip("/")
        if not base_url:
            raise SettingsError(f"providers.{config.id}.base_url is missing: set the address of the API")
        if self._profile.deployments and not base_url.endswith(("/openai", "/v1")):
            base_url += "/openai"
        if self._profile.deployments and not config.api_version and not base_url.endswith("/v1"):
            base_url += "/v1"
        return base_url

    def build_chat_request(
        self, messages: Sequence[Message], options: ChatOptions, config: ProviderConfig
    ) -> RequestSpec:
        """Build the request for a streamed answer."""
        if self._in_responses(options.model):
            refused = self._refused(options.model)
            log_unsupported(config.id, options, "seed", "stop_sequences", *refused)
            return RequestSpec(
                self._address(config, "/responses"),
                "POST",
                self._headers(config, "text/event-stream"),
                self._responses.body(
                    messages, options, refused, summarize=options.summarize and self._profile.summarizes
                ),
            )
        history = self._history(options.model).join(messages)
        if self._profile.alternates:
            history = merge_turns(history)
        if self._profile.answers_results:
            history = separate_results(history)
        if prompt := self._prompt(options):
            history = b",".join(filter(None, (self._system.get(prompt), history)))
        pieces = [self._head(options, config)[:-1], b',"messages":[', history, b"]"]
        if options.tools:
            pieces += [b',"tools":', self._tools.get(options.tools)]
            choice, _ = accepted_choice(options)
            if choice != "auto":
                pieces += [b',"tool_choice":', _tool_choice(choice)]
        pieces.append(b"}")
        return RequestSpec(
            self._address(config, "/chat/completions", options.model),
            "POST",
            self._headers(config, "text/event-stream"),
            b"".join(pieces),
        )

    def parser(self, writer: AnswerWriter) -> CompletionParser | ResponsesParser:
        """Make a parser for one answer."""
        profile = self._profile
        if self._in_responses(writer.model):
            return ResponsesParser(writer)
        return CompletionParser(writer, reasoning_apart=profile.reasoning_apart, has_costs=profile.has_costs)

    def build_models_request(self, config: ProviderConfig) -> RequestSpec:
        """Build the request for the list of models."""
        return RequestSpec(self._address(config, "/models"), "GET", self._headers(config, "application/json"))

    def parse_models_response(self, body: bytes, config: ProviderConfig) -> list[ModelInfo]:
        """Parse the list of models. Raises DeltaParseError."""
        return parse_model_list(body, config.id)

    def build_key_request(self, config: ProviderConfig) -> RequestSpec | None:
        """Build a request that needs a valid key; None if listing the models needs one."""
        if not self._profile.key_path:
            return None
        url = urljoin(f"{self.endpoint(config)}/", self._profile.key_path)
        return RequestSpec(url, "GET", self._headers(config, "application/json"))

    def _in_responses(self, model: str) -> bool:
        pattern = self._profile.responses
        return bool(pattern) and re.search(pattern, model) is not None

    def _history(self, model: str) -> FragmentCache:
        required = required_by(model, self._profile)
        if required not in self._histories:
            encode = encoder(self._profile, self.capabilities, required)
            self._histories[required] = FragmentCache(encode)
        return self._histories[required]

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
            "Accept": accept,
            **self._profile.headers,
        }
        if config.organization_id:
            headers["OpenAI-Organization"] = config.organization_id
        if config.project_id:
            headers["OpenAI-Project"] = config.project_id
        return json_headers(config, headers)

    def _prompt(self, options: ChatOptions) -> str:
        as_json = options.response_format == "json" and not self.capabilities.json_mode
        texts = (
            options.system_prompt,
            json_instruction(options) if as_json else "",
            accepted_choice(options)[1],
        )
        return "\n\n".join(filter(None, texts))

    def _head(self, options: ChatOptions, config: ProviderConfig) -> bytes:
        """Return the encoded fields of the request other than messages and tools."""
        stops = tuple(options.stop_sequences or ())  # a hook may have set a list
        sampling = (options.temperature, options.top_p, options.seed, stops)
        others = (options.max_tokens, bool(options.tools), options.response_format, options.effort)
        schema = options.answer_schema and msgspec.json.encode(options.answer_schema)
        key = (options.model, *sampling, *others, config.base_url, schema)
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            head = self._heads[key] = self._encode_head(options, config)
        return head

    def _encode_head(self, options: ChatOptions, config: ProviderConfig) -> bytes:
        head: dict[str, Any] = {
            "model": options.model,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        profile, refused = self._profile, self._refused(options.model)
        for field, name in (
            ("temperature", "temperature"),
            ("top_p", "top_p"),
            ("seed", profile.seed),
            ("stop_sequences", "stop"),
        ):
            value = getattr(options, field)
            if value not in (None, ()) and field not in refused:
                head[name] = value
        log_unsupported(config.id, options, *refused)
        if limit := options.max_tokens or profile.default_limit:
            head[self._limit(config)] = limit
        if options.effort is not None:
            head["reasoning_effort"] = options.effort
        pattern = profile.unreasoned_tools
        if options.tools and pattern and re.search(pattern, options.model):
            head["reasoning_effort"] = "none"
        if options.response_format == "json" and self.capabilities.json_mode:
            schema = options.answer_schema
            asked = {"type": "json_schema", "json_schema": schema} if schema else {"type": "json_object"}
            head["response_format"] = asked
        return msgspec.json.encode({k: v for k, v in head.items() if k not in self._profile.without})

    def _refused(self, model: str) -> tuple[str, ...]:
        """Return the fields of ChatOptions that a model refuses."""
        if _OWN_TEMPERATURE.search(model):
            return ("temperature", "top_p", "stop_sequences")
        pattern = self._profile.refuses_stop
        return ("stop_sequences",) if pattern and re.search(pattern, model) else ()

    def _limit(self, config: ProviderConfig) -> str:
        profile = self._profile
        # Compatible servers configured as this service often know the older parameter only.
        elsewhere = config.base_url is not None and config.base_url.rstrip("/") != profile.base_url
        return (profile.limit_elsewhere if elsewhere else "") or profile.limit


def _tool_choice(choice: ToolChoice) -> bytes:
    if isinstance(choice, OneTool):
        return msgspec.json.encode({"type": "function", "function": {"name": choice.name}})
    return msgspec.json.encode(choice)
