"""Settings: the settings files, environment variables and flags as one typed, read-only value.

In: TOML, JSON and agent files, ``TRUNKLINE_…`` variables, flags. Out: ``Settings``, or one ``SettingsError``
with every mistake and its place. Only ``load_settings`` reads the environment and these files. Imported by
every package above ``contract``.
"""

from gateway.settings.agents import read_agents
from gateway.settings.channels import ChannelRules, ChannelSettings
from gateway.settings.loader import load_settings
from gateway.settings.models import (
    DEFAULT,
    MAIN,
    AgentSettings,
    BudgetScope,
    BudgetSettings,
    ModelSettings,
    ProviderSettings,
)
from gateway.settings.plugins import PluginSettings, PluginsSettings
from gateway.settings.sections import (
    Action,
    Limits,
    LogSettings,
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
    "PluginSettings",
    "PluginsSettings",
    "ProviderSettings",
    "ServerSettings",
    "Settings",
    "StoreSettings",
    "is_loopback",
    "load_settings",
    "read_agents",
]
