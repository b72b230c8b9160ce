"""The contract of model providers: one streaming function, and a few facts about the backend."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, assert_never, runtime_checkable

import msgspec
from msgspec import Struct

from gateway.contract.deltas import Delta
from gateway.contract.errors import ProviderError
from gateway.contract.messages import Message

AuthMethod = Literal["api_key", "oauth", "custom"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model reasons before it answers; ``none`` disables it."""


class Capabilities(Struct, frozen=True):
    """The capabilities of a provider or of one model; features that it lacks are not requested."""

    streaming: bool = True
    tools: bool = True
    images: bool = True
    reasoning: bool = False
    json_mode: bool = True


Capability = Literal["streaming", "tools", "images", "reasoning", "json_mode"]
"""The name of a field of ``Capabilities``."""


class ApiKey(Struct, frozen=True, tag_field="type", tag="api"):
    """A credential that is sent unchanged."""

    key: str

    def __repr__(self) -> str:
        return "ApiKey()"


class OAuth(Struct, frozen=True, tag_field="type", tag="oauth", omit_defaults=True):
    """A credential from a login.

    ``access`` is valid until ``expires`` (seconds since the epoch; 0: it does not expire). Then ``refresh``
    gets a new one, unless it is empty.
    """

    access: str
    refresh: str = ""
    expires: float = 0.0

    def __repr__(self) -> str:
        return f"OAuth(expires={self.expires!r})"


Credential = ApiKey | OAuth


def credential_fields(credential: Credential) -> dict[str, Any]:
    """Return the fields of ProviderConfig that a credential sets."""
    match credential:
        case ApiKey():
            return {"api_key": credential.key, "oauth": None}
        case OAuth():
            return {"api_key": credential.access, "oauth": credential}
        case _:
            assert_never(credential)


class ProviderConfig(Struct, frozen=True, kw_only=True):
    """The settings of one provider. ``timeout`` is milliseconds for the connection and the first byte.

    ``api_keys`` are further keys besides ``api_key``; ``concurrency``, ``requests_per_minute`` and
    ``tokens_per_minute`` are limits of each key. ``like`` names the built-in provider with the same protocol,
    if ``id`` is not one. ``credentials`` has secrets other than a key, by names that the provider
    documents.
    """

    id: str
    like: str | None = None
    name: str | None = None
    api_key: str | None = msgspec.field(default=None)
    api_keys: tuple[str, ...] = ()
    key_names: Mapping[str, str] = {}
    """Names of the keys, by key: ``key 2 (api_keys[0])``, with a place, ``login`` or a variable."""
    credentials: Mapping[str, str] = {}
    base_url: str | None = None
    api_version: str | None = None
    region: str | None = None
    organization_id: str | None = None
    project_id: str | None = None
    custom_headers: Mapping[str, str] = {}
    timeout: int = 120_000
    max_retries: int = 3
    stream_timeout_ms: int = 60_000
    """Milliseconds without a byte after which a stream is aborted."""
    most_answer_bytes: int = 1_048_576
    """Bytes of text and arguments after which an answer is aborted."""
    http_client: Literal["auto", "httptools", "aiohttp"] = "auto"
    models: tuple[str, ...] = ()
    capabilities: tuple[Capability, ...] | None = None
    concurrency: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    oauth: OAuth | None = None
    """The credential of a login; ``api_key`` is its access token."""
    signed_in: bool = False
    """True if ``api_key`` was stored by ``trunkline auth login``."""
    save_login: Callable[[OAuth], None] | None = None
    """Stores the credential that replaces ``oauth``; it waits for the disk, so call it in a thread."""
    fetch_token: Callable[[], Awaitable[tuple[str, float]]] | None = None
    """Fetches a token of a plugin, and the seconds since the epoch until which it is valid."""
    load_login: Callable[[], Credential | None] | None = None
    """Loads the credential of the latest login, if it applies; it waits for the disk too."""

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys, without duplicates."""
        return tuple(dict.fromkeys(filter(None, (self.api_key, *self.api_keys))))

    @property
    def key_name(self) -> str:
        """The name of ``api_key``; empty if it has none."""
        return self.key_names.get(self.api_key or "") or ("key 1 (login)" if self.signed_in else "")

    def capabilities_or(self, default: Capabilities) -> Capabilities:
        """Return ``capabilities`` if they are set, else ``default``."""
        given = self.capabilities
        if given is None:
            return default
        return Capabilities(**{name: name in given for name in Capabilities.__struct_fields__})

    def __repr__(self) -> str:
        return f"ProviderConfig(id={self.id!r}, base_url={self.base_url!r})"


class ToolDefinition(Struct, frozen=True):
    """A tool as a model sees it; ``parameters`` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class OneTool(Struct, frozen=True):
    """A tool choice: the model must call this tool."""

    name: str


ToolChoice = Literal["auto", "required"] | OneTool
"""The model may call tools (``auto``), must call one (``required``), or must call this one."""


class AnswerSchema(Struct, frozen=True):
    """The JSON schema of an answer; with ``strict`` the vendor enforces it, if it can."""

    schema: Mapping[str, Any]
    name: str = "answer"
    strict: bool = False


class TurnOptions(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Model options of one turn; None keeps the agent's setting.

    ``max_tokens`` can only lower the agent's limit, and an agent that answers in JSON keeps doing so.
    ``answer_schema`` is for the format ``json``. ``tools`` are the caller's own tools, offered instead of
    the gateway's: the turn ends with their calls, which the caller answers. An empty tuple offers no tools.
    ``server_retries`` is the number of retries after a server error, at most the provider's ``max_retries``.
    """

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop_sequences: tuple[str, ...] | None = None
    response_format: Literal["text", "json"] | None = None
    answer_schema: AnswerSchema | None = None
    effort: Effort | None = None
    tools: tuple[ToolDefinition, ...] | None = None
    tool_choice: ToolChoice = "auto"
    server_retries: int | None = None


class Ask(Protocol):
    """Asks whether a backend may run one of its tools, such as ``codex:shell``.

    The permissions decide, or a user, which can take minutes.
    """

    async def __call__(self, tool: str, arguments: Mapping[str, Any]) -> bool: ...


OnRetry = Callable[[ProviderError, int, float], None]
"""A callback for retries: the failure, the number of the failed attempt (from 1), the seconds to wait."""


OnLease = Callable[[str | None, float], None]
"""A callback for API keys that calls share: None and the estimated seconds (0 if unknown) as a call begins
to wait for one, then the key's name and 0 as it is sent with it."""


class ChatOptions(Struct, frozen=True, kw_only=True):
    """Options of one model call.

    ``message_id`` and ``first_part`` name the message and the part at which the deltas begin; ``call_ids``
    are the call ids that the message already has. ``ask`` is for backends that run tools themselves; None
    allows none. ``capabilities`` are the model's, if they differ from its provider's. An option without a
    parameter in the vendor's API is left out and logged at debug. ``max_tokens`` and ``effort`` None are the
    provider's default; ``output_limit`` is the model's limit, if known. ``summarize`` asks for a summary of
    reasoning that the vendor hides. ``server_retries`` is as in TurnOptions. ``on_retry`` is called for each
    failure that is followed by another attempt, ``on_lease`` for each lease of a shared key.
    ``allowed_tools`` is for backends with their own tools, ``BACKEND:TOOL``: those of the agent and the
    room; None allows all.
    """

    model: str
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    output_limit: int | None = None
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: ToolChoice = "auto"
    system_prompt: str = ""
    stop_sequences: tuple[str, ...] = ()
    response_format: Literal["text", "json"] = "text"
    answer_schema: AnswerSchema | None = None
    effort: Effort | None = None
    summarize: bool = True
    message_id: str = ""
    first_part: int = 0
    call_ids: frozenset[str] = frozenset()
    ask: Ask | None = None
    capabilities: Capabilities | None = None
    server_retries: int | None = None
    on_retry: OnRetry | None = None
    on_lease: OnLease | None = None
    allowed_tools: frozenset[str] | None = None


class ModelInfo(Struct, frozen=True, omit_defaults=True):
    """A model that a provider offers. Limits are token counts; unknown limits and capabilities are None."""

    id: str
    provider: str
    name: str = ""
    context_window: int | None = None
    output_limit: int | None = None
    tools: bool | None = None
    images: bool | None = None
    reasoning: bool | None = None


@runtime_checkable
class Provider(Protocol):
    """A model backend.

    ``stream`` yields deltas as they arrive: text, reasoning, tool calls, ``metadata_delta`` with the call's
    token counts (and its cost, if the backend reports one), and last ``complete`` with the stop reason. It
    raises a ProviderError if the call fails. A backend that runs tools itself yields their results after
    their calls; the agent runs calls without a result. Closing the iterator ends the call at once.
    Implementations retry only before the first delta.
    """

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def api_endpoint(self) -> str: ...
    @property
    def auth_method(self) -> AuthMethod: ...
    @property
    def capabilities(self) -> Capabilities: ...

    async def initialize(self, config: ProviderConfig) -> None: ...

    async def chat(self, messages: Sequence[Message], options: ChatOptions) -> Message: ...

    def stream(self, messages: Sequence[Message], options: ChatOptions) -> AsyncGenerator[Delta, None]: ...

    async def list_models(self) -> Sequence[ModelInfo]: ...

    async def close(self) -> None: ...


@runtime_checkable
class KnowsModels(Protocol):
    """The ability of a provider or adapter to know the capabilities of each model without a request."""

    def capabilities_of(self, model: str) -> Capabilities:
        """Return the capabilities of one model."""
        ...


@runtime_checkable
class ReloadsCredentials(Protocol):
    """The ability of a provider to change its credentials after a login or logout."""

    def reload(self, config: ProviderConfig) -> None:
        """Use the new credentials from the next call on, and drop the old ones."""
        ...


@runtime_checkable
class TriesKey(Protocol):
    """The ability of a provider to verify its key, if ``list_models`` works without a valid one."""

    async def try_key(self) -> None:
        """Verify the key. Raises AuthFailedError if it is rejected, or another ProviderError."""
        ...


@runtime_checkable
class SignsIn(Protocol):
    """The ability of a provider to sign in a user, for ``trunkline auth login``."""

    async def sign_in(self, show: Callable[[str], None]) -> Credential | None:
        """Show the user the steps, wait for the login, and return the credential to store.

        Returns None if a program of the backend stores the login. Raises a ProviderError, or a SettingsError
        if the machine lacks a requirement of the login.
        """
        ...
