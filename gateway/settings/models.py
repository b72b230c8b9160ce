"""Settings of providers, models, agents and budgets."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from gateway.contract.provider import Effort
from gateway.settings.secrets import Secret
from gateway.settings.section import Milliseconds, Section

Trigger = Literal["rate_limit", "auth_failure", "server_error", "stall"]
Capability = Literal["streaming", "tools", "images", "reasoning", "json_mode"]

CapabilityName = Annotated[
    Capability | Literal["function_calling"],
    AfterValidator(lambda name: "tools" if name == "function_calling" else name),
]
"""A capability in the settings; ``function_calling`` is another name of ``tools``."""

DEFAULT = "default"
"""The name by which users select the model or agent of the settings, so it is reserved."""


MAIN = "main"
"""The agent that the settings outside of ``[agents]`` describe."""

HIDDEN = ("title", "compaction", "drafter")
"""Names of agents that work for the gateway itself."""


class ProviderSettings(Section):
    """One model provider: address, credentials and limits."""

    like: str | None = Field(
        default=None,
        min_length=1,
        description="Provider with the same API, if the id is not that of a built-in provider",
    )
    name: str | None = Field(default=None, min_length=1, description="Display name")
    api_key: Secret = Field(default=None, description="API key")
    auth: str | None = Field(
        default=None,
        pattern=r"^plugin:.+$",
        examples=["plugin:company-login"],
        description="Plugin that provides the tokens, in place of a key: plugin:NAME; default none",
    )
    api_keys: tuple[Secret, ...] = Field(
        default=(),
        description="Further API keys, used in turn; a rejected or rate-limited key is skipped for a while",
    )
    credentials: dict[str, SecretStr] = Field(
        default={}, description="Credentials of providers without API keys; their README lists the names"
    )
    base_url: str | None = Field(
        default=None, description="Base URL of the API; the provider's public URL if unset"
    )
    api_version: str | None = Field(
        default=None, min_length=1, description="API version (azure); the provider's default if unset"
    )
    region: str | None = Field(
        default=None,
        min_length=1,
        description="Cloud region (bedrock, vertex); from the environment if unset",
    )
    organization_id: str | None = Field(default=None, description="Organization to bill (openai)")
    project_id: str | None = Field(default=None, description="Project to bill (openai, vertex)")
    custom_headers: dict[str, SecretStr] = Field(
        default={}, description="HTTP headers added to every request"
    )
    timeout: Milliseconds = Field(
        default=120_000,
        gt=0,
        description="Timeout for the connection and the first byte, in ms; default 120000",
    )
    max_retries: int = Field(
        default=3,
        ge=0,
        le=20,
        description="Retries of a call that failed before any output; 0 to 20, default 3",
    )
    models: tuple[str, ...] = Field(
        default=(), description="Models of a provider that has no model list; the first one is its default"
    )
    capabilities: tuple[CapabilityName, ...] | None = Field(
        default=None, description="Capabilities of its models; the provider's usual ones if unset"
    )
    concurrency: int | None = Field(
        default=None, gt=0, description="Concurrent calls per key; unlimited if unset"
    )
    requests_per_minute: int | None = Field(
        default=None, gt=0, description="Calls per minute and key; unlimited if unset"
    )
    tokens_per_minute: int | None = Field(
        default=None, gt=0, description="Input and output tokens per minute and key; unlimited if unset"
    )


def _full_model_name(name: str) -> str:
    provider, slash, model = name.partition("/")
    if not (provider and slash and model):
        raise ValueError('must name a model with its provider, like "openai/gpt-5.4-mini"')
    return name


ModelName = Annotated[str, AfterValidator(_full_model_name)]
"""The full name of a model."""

Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]


StopSequences = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(max_length=4)]
"""Texts that end a model's answer: at most four, the lowest limit among the vendors."""


class ModelSettings(Section):
    """Facts of one model. What is left out comes from its provider or from the offline data."""

    context_window: int | None = Field(default=None, gt=0, description="Context window, in tokens")
    input_limit: int | None = Field(
        default=None, gt=0, description="Longest input, in tokens; only limited by the window if unset"
    )
    output_limit: int | None = Field(default=None, gt=0, description="Longest answer, in tokens")
    tools: bool | None = Field(default=None, description="Accepts tools")
    images: bool | None = Field(default=None, description="Accepts images")
    reasoning: bool | None = Field(default=None, description="Produces reasoning before the answer")
    json_mode: bool | None = Field(default=None, description="Supports JSON mode")
    input_price: Dollars | None = Field(default=None, description="US dollars per million input tokens")
    output_price: Dollars | None = Field(default=None, description="US dollars per million output tokens")
    cached_price: Dollars | None = Field(
        default=None, description="US dollars per million cached input tokens; the input price if unset"
    )
    cache_write_price: Dollars | None = Field(
        default=None,
        description="US dollars per million tokens written to the cache; the input price if unset",
    )
    equivalents: tuple[ModelName, ...] = Field(
        default=(),
        description="Equivalent models, at most one per provider, used for fallback",
    )


def _share_or_false(value: object) -> object:
    # A variable of the environment is text.
    if value is False or value == "false":
        return False
    try:
        share = 0.0 if value is True else float(str(value))
    except ValueError:
        share = 0.0
    if not 0.5 <= share <= 0.95:
        raise ValueError("must be a share of the context window from 0.5 to 0.95, or false")
    return share


Compaction = Annotated[
    Annotated[float, Field(ge=0.5, le=0.95)] | Literal[False], BeforeValidator(_share_or_false)
]
"""The share of a model's context window from which a conversation is summarized; False is never."""


class AgentSettings(Section):
    """One agent beside ``main``. What is left out comes from the settings outside of ``[agents]``."""

    description: str = Field(default="", description="Purpose, shown by /agent")
    model: str | None = Field(default=None, min_length=1, description="Model; the gateway's model if unset")
    small_model: str | None = Field(
        default=None, min_length=1, description="Model for titles and summaries; the gateway's if unset"
    )
    provider: str | None = Field(
        default=None,
        min_length=1,
        description="Provider of the model; without `model`, the provider's default model",
    )
    mode: Literal["build", "plan"] = Field(
        default="build", description="plan: only built-in tools that change nothing; default build"
    )
    system_prompt: str | None = Field(default=None, description="System prompt; the gateway's if unset")
    temperature: float | None = Field(
        default=None, ge=0, le=2, description="Sampling temperature, 0 to 2; the gateway's if unset"
    )
    max_tokens: int | None = Field(
        default=None, gt=0, description="Longest answer, in tokens; the gateway's limit if unset"
    )
    stop_sequences: StopSequences | None = Field(
        default=None, description="Texts that end an answer, at most 4; the gateway's if unset"
    )
    effort: Effort | None = Field(
        default=None, description="How much the model reasons; the gateway's if unset"
    )
    compaction: Compaction | None = Field(
        default=None,
        description="Share of the context window, 0.5 to 0.95, from which earlier messages are summarized, "
        "or false; the gateway's if unset",
    )
    response_format: Literal["text", "json"] = Field(
        default="text", description="text, or json for answers that are one JSON object; default text"
    )
    tools: tuple[str, ...] | None = Field(default=None, description="Allowed tools; all if unset")
    skills: tuple[str, ...] | None = Field(
        default=None, description="Skills that it may use, by name; the gateway's if unset"
    )
    fallback: tuple[str, ...] | None = Field(
        default=None, description="Fallback chain of provider or provider/model; the gateway's if unset"
    )
    fallback_triggers: tuple[Trigger, ...] | None = Field(
        default=None, description="Failures that trigger fallback; the gateway's if unset"
    )


def checked_names(agents: dict[str, AgentSettings]) -> dict[str, AgentSettings]:
    """Return the agents if their names are valid. Raises ValueError."""
    for name in agents:
        if name == MAIN:
            raise ValueError(f"must not contain {MAIN!r}: the settings outside of it describe that agent")
        if name in HIDDEN:
            raise ValueError(f"must not contain {name!r}: the gateway has an agent of that name")
        if name == DEFAULT or not name or any(map(str.isspace, name)):
            raise ValueError(f'has an invalid name {name!r}: use one word other than "{DEFAULT}"')
    return agents


def _aliases(aliases: dict[str, str]) -> dict[str, str]:
    for alias, model in aliases.items():
        if not alias.strip() or "/" in alias or alias != alias.strip() or alias == DEFAULT:
            raise ValueError(
                f'has an invalid name {alias!r}: use a word without slash other than "{DEFAULT}"'
            )
        if not model.strip():
            raise ValueError(f"is invalid: alias {alias!r} has no target model")
        if model in aliases:
            raise ValueError(
                f"is invalid: the target of alias {alias!r} is the alias {model!r}; name a model"
            )
    return aliases


def _models(models: dict[str, ModelSettings]) -> dict[str, ModelSettings]:
    for name in models:
        _full_model_name(name)
    return models


Aliases = Annotated[dict[str, str], AfterValidator(_aliases)]
AgentTables = Annotated[dict[str, AgentSettings], AfterValidator(checked_names)]
ModelTables = Annotated[dict[str, ModelSettings], AfterValidator(_models)]


BudgetScope = Literal["all", "user", "session", "channel", "agent", "provider", "model", "plugin"]
Amount = Annotated[Decimal, Field(ge=0, le=10**9)]


class BudgetSettings(Section):
    """A limit on the cost of model calls, in US dollars."""

    scope: BudgetScope = Field(
        default="all",
        description="One budget for all, or one for each user, session, channel and so on; default all",
    )
    per: Literal["day", "month", "ever"] = Field(
        default="month", description="Period: day, month or ever; resets at 00:00 UTC; default month"
    )
    only: tuple[str, ...] = Field(
        default=(), description="Ids that the budget applies to (users as channel:id); all if empty"
    )
    warn: Amount | None = Field(
        default=None, description="Warn the chat once when this amount (US dollars) is spent"
    )
    ask: Amount | None = Field(
        default=None, description="Require an approval each time this amount (US dollars) is spent"
    )
    stop: Amount | None = Field(
        default=None, description="Refuse a model call that could exceed this amount (US dollars)"
    )

    unpriced: Literal["allow", "refuse"] = Field(
        default="allow",
        description="allow or refuse models without a known price; allowed ones count as 0; default allow",
    )

    @model_validator(mode="after")
    def _ordered(self) -> BudgetSettings:
        given = [(name, getattr(self, name)) for name in ("warn", "ask", "stop")]
        amounts = [(name, amount) for name, amount in given if amount is not None]
        if not amounts:
            raise ValueError("needs warn, ask or stop, in US dollars")
        for (name, amount), (above, more) in pairwise(amounts):
            if amount > more:
                raise ValueError(f"{name} ({amount}) must not be above {above} ({more})")
        if self.ask == 0:
            raise ValueError("ask must be above 0; to refuse all calls, set stop = 0")
        return self
