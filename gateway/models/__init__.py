"""Models: the provider of each model, the order of fallback, and the cost of calls with its limits.

In: the settings, the registered providers, and the tokens of each call. Out: routes for the pipeline, prices,
and budget decisions. Imported by the pipeline and everything above it.
"""

from gateway.models.agents import (
    BUILT_IN_AGENTS,
    Agents,
    Profile,
    check_agents,
    check_channels,
    unknown_tools,
)
from gateway.models.budgets import Account, Budget, Budgets
from gateway.models.catalog import ANSWER_TOKENS, ContextWindow, ModelFacts, Rates, is_chat_model
from gateway.models.fallback import (
    TRIGGERS,
    Failure,
    Fallback,
    Trigger,
    clamp_max_tokens,
    exhausted_error,
    missing_capability,
    preload_providers,
)
from gateway.models.ledger import Caller, Dimension, Ledger, UsageRow, format_usd, to_usd
from gateway.models.meter import CallCost, Meter, Spending, prices_of
from gateway.models.prices import Prices, Tariff
from gateway.models.providers import default_model
from gateway.models.resolve import ConfiguredModels, Models, Route, provider_capabilities
from gateway.models.retirements import retirement
from gateway.settings.models import MAIN

__all__ = [
    "ANSWER_TOKENS",
    "BUILT_IN_AGENTS",
    "MAIN",
    "TRIGGERS",
    "Account",
    "Agents",
    "Budget",
    "Budgets",
    "CallCost",
    "Caller",
    "ConfiguredModels",
    "ContextWindow",
    "Dimension",
    "Failure",
    "Fallback",
    "Ledger",
    "Meter",
    "ModelFacts",
    "Models",
    "Prices",
    "Profile",
    "Rates",
    "Route",
    "Spending",
    "Tariff",
    "Trigger",
    "UsageRow",
    "check_agents",
    "check_channels",
    "clamp_max_tokens",
    "default_model",
    "exhausted_error",
    "format_usd",
    "is_chat_model",
    "missing_capability",
    "preload_providers",
    "prices_of",
    "provider_capabilities",
    "retirement",
    "to_usd",
    "unknown_tools",
]
