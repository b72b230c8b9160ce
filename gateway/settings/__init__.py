"""Settings: read from files, variables and flags into one typed, read-only value.

``load_settings`` is the only place of the gateway that reads the environment or a settings file.
"""

from gateway.settings.agents import read_agents
from gateway.settings.budgets import BudgetScope, BudgetSettings
from gateway.settings.loading import load_settings
from gateway.settings.models import DEFAULT, MAIN, AgentSettings, ModelSettings, ProviderSettings
from gateway.settings.rules import ChannelRules
from gateway.settings.sections import (
    Action,
    ChannelSettings,
    Limits,
    LogSettings,
    PluginsSettings,
    ServerSettings,
    Settings,
    StoreSettings,
    is_loopback,
)

__all__ = [
    "DEFAULT",
    "MAIN",
    "Action",
    "AgentSettings",
    "BudgetScope",
    "BudgetSettings",
    "ChannelRules",
    "ChannelSettings",
    "Limits",
    "LogSettings",
    "ModelSettings",
    "PluginsSettings",
    "ProviderSettings",
    "ServerSettings",
    "Settings",
    "StoreSettings",
    "is_loopback",
    "load_settings",
    "read_agents",
]
