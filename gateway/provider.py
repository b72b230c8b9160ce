"""The provider contract: a model backend is one streaming function with a few facts around it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec
from msgspec import Struct

from gateway.deltas import Delta
from gateway.messages import Message

AuthMethod = Literal["api_key", "oauth", "custom"]


class Capabilities(Struct, frozen=True):
    """What a provider (or one of its models) can do; features it lacks are not asked of it."""

    streaming: bool = True
    tools: bool = True
    images: bool = True
    reasoning: bool = False
    json_mode: bool = True


Capability = Literal["streaming", "tools", "images", "reasoning", "json_mode"]
"""The name of a field of ``Capabilities``."""


class ApiKey(Struct, frozen=True, tag_field="type", tag="api"):
    """A credential that is shown as it is."""

    key: str

    def __repr__(self) -> str:
        return "ApiKey()"


class OAuth(Struct, frozen=True, tag_field="type", tag="oauth", omit_defaults=True):
    """A credential that a person signed in for.

    ``access`` is shown until ``expires`` (seconds since the epoch; 0 if it does not end); then ``refresh``
    gets another one, unless it is empty.
    """

    access: str
    refresh: str = ""
    expires: float = 0.0

    def __repr__(self) -> str:
        return f"OAuth(expires={self.expires!r})"


Credential = ApiKey | OAuth


def fields_of(credential: Credential) -> dict[str, Any]:
    """The fields of ProviderConfig that a credential fills."""
    if isinstance(credential, ApiKey):
        return {"api_key": credential.key, "oauth": None}
    return {"api_key": credential.access, "oauth": credential}


class ProviderConfig(Struct, frozen=True, kw_only=True):
    """How to reach a provider. ``timeout`` is milliseconds for the connection and the first byte.

    ``api_keys`` are more keys beside ``api_key``; ``concurrency`` and what follows are limits for each.
    ``like`` names the provider whose protocol it speaks, if its own id is not one that we know.
    ``credentials`` are what a key alone cannot say, by names that the provider explains.
    """

    id: str
    like: str | None = None
    name: str | None = None
    api_key: str | None = msgspec.field(default=None)
    api_keys: tuple[str, ...] = ()
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
    """Milliseconds without a byte after which a stream counts as dead."""
    models: tuple[str, ...] = ()
    capabilities: tuple[Capability, ...] | None = None
    concurrency: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    oauth: OAuth | None = None
    """What a login left; ``api_key`` is its access token."""
    renewed: Callable[[OAuth], None] | None = None
    """Keeps what was got in the place of ``oauth``; it waits for the disk, so call it in a thread."""
    login: Callable[[], Credential | None] | None = None
    """What a login left by now, if that may count; it waits for the disk too."""

    @property
    def keys(self) -> tuple[str, ...]:
        """All its keys, each once."""
        return tuple(dict.fromkeys(filter(None, (self.api_key, *self.api_keys))))

    def capable(self, usual: Capabilities) -> Capabilities:
        """What it can do: ``capabilities`` if they are given, else what is usual there."""
        given = self.capabilities
        if given is None:
            return usual
        return Capabilities(**{name: name in given for name in Capabilities.__struct_fields__})

    def __repr__(self) -> str:
        return f"ProviderConfig(id={self.id!r}, base_url={self.base_url!r})"


class ToolDefinition(Struct, frozen=True):
    """A tool as a model sees it; ``parameters`` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class Ask(Protocol):
    """Whether a backend may run a tool of its own, such as ``codex:shell``: by the permissions, or a
    person's word, which may take as long as a person takes.
    """

    async def __call__(self, tool: str, arguments: Mapping[str, Any]) -> bool: ...


class ChatOptions(Struct, frozen=True, kw_only=True):
    """How to run one call of a model.

    ``message_id`` and ``first_part`` say where in which message the produced deltas belong; ``call_ids`` are
    those of the calls in it, which no other call may have. ``ask`` is for backends that run tools themselves;
    where it is None there is nobody to ask, so nothing is allowed.
    ``capabilities`` are the model's, where they differ from what is usual at its provider.
    """

    model: str
    temperature: float | None = None
    max_tokens: int | None = None
    tools: tuple[ToolDefinition, ...] = ()
    system_prompt: str = ""
    stop_sequences: tuple[str, ...] = ()
    response_format: Literal["text", "json"] = "text"
    message_id: str = ""
    first_part: int = 0
    call_ids: frozenset[str] = frozenset()
    ask: Ask | None = None
    capabilities: Capabilities | None = None


class ModelInfo(Struct, frozen=True, omit_defaults=True):
    """A model a provider offers. Token limits are counts; what it can do is None where that is not told."""

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

    ``stream`` yields deltas as they come (text, reasoning, tool calls, ``metadata_delta`` with the call's
    own token counts, and with a cost only where the backend itself says what it took, and last ``complete``
    with the model's stop reason), and raises a ProviderError otherwise. A backend that runs tools
    itself yields their results behind their calls; calls without a result are run by the agent. Closing the
    iterator ends the call at once. Whoever implements it retries only as long as nothing was yielded.
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
    """The ability of a provider, or of an adapter, to tell its models apart without asking anybody."""

    def capabilities_of(self, model: str) -> Capabilities:
        """What one of its models can do."""
        ...


@runtime_checkable
class Adopts(Protocol):
    """The ability of a provider to go on with other credentials: somebody signed in, or out."""

    def adopt(self, config: ProviderConfig) -> None:
        """Show what ``config`` has from the next call on, and keep nothing of what was shown before."""
        ...


@runtime_checkable
class TriesKey(Protocol):
    """The ability of a provider to find out whether its key is right where ``list_models`` does not tell."""

    async def try_key(self) -> None:
        """Show the key. Raises AuthFailedError if it is refused, or another ProviderError."""
        ...


@runtime_checkable
class SignsIn(Protocol):
    """The ability of a provider that a person can sign in to, with ``trunkline auth login``."""

    async def sign_in(self, show: Callable[[str], None]) -> Credential:
        """Tell the person what to do, wait for it, and return what to keep. Raises a ProviderError."""
        ...
