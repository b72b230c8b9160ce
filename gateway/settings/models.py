"""Settings of model backends, of their models, and of the agents that use them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from gateway.settings.section import Secret, Section

Trigger = Literal["rate_limit", "auth_failure", "server_error", "stall"]
Capability = Literal["streaming", "tools", "images", "reasoning", "json_mode"]

DEFAULT = "default"
"""What people say for the model or agent that the settings choose, so nothing else goes by that name."""


MAIN = "main"
"""The agent that the settings describe outside of ``[agents]``."""


class ProviderSettings(Section):
    """How to reach one model backend."""

    like: str | None = Field(
        default=None, min_length=1, description="Backend whose protocol it speaks, when its id is not one"
    )
    name: str | None = Field(default=None, min_length=1, description="What people call it")
    api_key: Secret = Field(default=None, description="Credential for the backend")
    api_keys: tuple[Secret, ...] = Field(
        default=(), description="More keys, used in turn; one that is refused or too busy is set aside"
    )
    credentials: dict[str, SecretStr] = Field(
        default={}, description="Credentials of backends that take no key, by names of their own"
    )
    base_url: str | None = Field(default=None, description="Address of its API, when it is not the usual one")
    api_version: str | None = Field(
        default=None, min_length=1, description="Version of its API, where addresses tell it (azure)"
    )
    region: str | None = Field(
        default=None, min_length=1, description="Where its machines stand (bedrock, vertex)"
    )
    organization_id: str | None = Field(
        default=None, description="Organization to bill, where the backend knows them"
    )
    project_id: str | None = Field(default=None, description="Project to bill, where the backend knows them")
    custom_headers: dict[str, SecretStr] = Field(
        default={}, description="HTTP headers to add to every request"
    )
    timeout: int = Field(
        default=120_000, gt=0, description="Milliseconds to wait for a connection and the first byte"
    )
    max_retries: int = Field(
        default=3, ge=0, le=20, description="Tries after the first one, while nothing has come"
    )
    models: tuple[str, ...] = Field(
        default=(), description="Models it offers, when it cannot list them itself"
    )
    capabilities: tuple[Capability, ...] | None = Field(
        default=None, description="What its models can do, when that is not usual there"
    )
    concurrency: int | None = Field(default=None, gt=0, description="Calls at once with one key")
    requests_per_minute: int | None = Field(default=None, gt=0, description="Calls in a minute with one key")
    tokens_per_minute: int | None = Field(
        default=None, gt=0, description="Tokens in a minute with one key, of questions and answers"
    )


def _of_a_provider(name: str) -> str:
    provider, slash, model = name.partition("/")
    if not (provider and slash and model):
        raise ValueError('must name a model with its provider, like "openai/gpt-5-mini"')
    return name


ModelName = Annotated[str, AfterValidator(_of_a_provider)]
"""The full name of a model."""

Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ModelSettings(Section):
    """What is to be known of one model; what is not said here is as its provider or the offline data say."""

    context_window: int | None = Field(default=None, gt=0, description="Tokens that it can read at once")
    output_limit: int | None = Field(default=None, gt=0, description="Tokens of its longest answer")
    tools: bool | None = Field(default=None, description="Whether it can call tools")
    images: bool | None = Field(default=None, description="Whether it can see pictures")
    reasoning: bool | None = Field(default=None, description="Whether it thinks before it answers")
    json_mode: bool | None = Field(default=None, description="Whether it can be held to answer in JSON")
    input_price: Dollars | None = Field(default=None, description="US dollars per million tokens it reads")
    output_price: Dollars | None = Field(default=None, description="US dollars per million tokens it writes")
    cached_price: Dollars | None = Field(
        default=None, description="US dollars per million tokens it reads from its cache"
    )
    cache_write_price: Dollars | None = Field(
        default=None, description="US dollars per million tokens it writes into its cache"
    )
    equivalents: tuple[ModelName, ...] = Field(
        default=(),
        description="Models as good as this one, one of each provider that may answer in its place",
    )


class AgentSettings(Section):
    """One agent beside ``main``; what is not said here is as in the settings around it."""

    description: str = Field(default="", description="What it is for, for those who choose one")
    model: str | None = Field(default=None, min_length=1, description="Model it uses")
    provider: str | None = Field(
        default=None,
        min_length=1,
        description="Backend of its model; alone, the first model of that",
    )
    system_prompt: str | None = Field(
        default=None, description="What its model is told before every conversation"
    )
    temperature: float | None = Field(
        default=None, ge=0, le=2, description="How freely its model chooses words, 0 to 2"
    )
    max_tokens: int | None = Field(default=None, gt=0, description="Its longest answer, in tokens")
    response_format: Literal["text", "json"] = Field(
        default="text", description="json for answers that are one JSON object"
    )
    tools: tuple[str, ...] | None = Field(
        default=None, description="The tools it may use; all when not given"
    )
    fallback: tuple[str, ...] | None = Field(
        default=None, description="Who answers when its model does not: provider or provider/model"
    )
    fallback_triggers: tuple[Trigger, ...] | None = Field(
        default=None, description="Failures after which the next one is asked"
    )


def checked_names(agents: dict[str, AgentSettings]) -> dict[str, AgentSettings]:
    """The agents, if their names can be theirs. Raises ValueError."""
    for name in agents:
        if name == MAIN:
            raise ValueError(f"has {MAIN!r}, which is the agent that the settings around it describe")
        if name == DEFAULT or not name or any(map(str.isspace, name)):
            raise ValueError(f'has {name!r}: the name of an agent is one word, and not "{DEFAULT}"')
    return agents


def _aliases(aliases: dict[str, str]) -> dict[str, str]:
    for alias, model in aliases.items():
        if not alias.strip() or "/" in alias or alias != alias.strip() or alias == DEFAULT:
            raise ValueError(f'has {alias!r}: an alias is a word without a slash, and not "{DEFAULT}"')
        if not model.strip():
            raise ValueError(f"says no model for {alias!r}")
        if model in aliases:
            raise ValueError(f"says {model!r} for {alias!r}, which is an alias too; name the model itself")
    return aliases


def _models(models: dict[str, ModelSettings]) -> dict[str, ModelSettings]:
    for name in models:
        _of_a_provider(name)
    return models


Aliases = Annotated[dict[str, str], AfterValidator(_aliases)]
AgentTables = Annotated[dict[str, AgentSettings], AfterValidator(checked_names)]
ModelTables = Annotated[dict[str, ModelSettings], AfterValidator(_models)]
