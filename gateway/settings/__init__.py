"""Settings: the settings files, environment variables and flags as one typed, read-only value.

In: TOML, JSON and agent files, the file of an organization, ``TRUNKLINE_…`` variables, flags. Out:
``Settings``, or one ``SettingsError`` with every mistake and its place. Only ``load_settings`` reads the
environment and these files. Imported by every package above ``contract``.
"""

from gateway.settings.agents import parse_agent, read_agents
from gateway.settings.channels import (
    ChannelRules,
    ChannelSettings,
    EnvelopeStyle,
    Groups,
    RoomSettings,
    SessionStrategy,
    SharedOptions,
    table_of,
)
from gateway.settings.loader import load_settings, refresh_organization
from gateway.settings.models import (
    DEFAULT,
    HIDDEN,
    MAIN,
    AgentSettings,
    BudgetScope,
    BudgetSettings,
    ModelSettings,
    ProviderSettings,
)
from gateway.settings.plugins import McpServerSettings, PluginSettings, PluginsSettings
from gateway.settings.section import is_loopback
from gateway.settings.sections import (
    Action,
    Limits,
    LogSettings,
    ServerSettings,
    Settings,
    ShareSettings,
)
from gateway.settings.store import ClusterSettings, StoreSettings

__all__ = [
    "DEFAULT",
    "HIDDEN",
    "MAIN",
    "Action",
    "AgentSettings",
    "BudgetScope",
    "BudgetSettings",
    "ChannelRules",
    "ChannelSettings",
    "ClusterSettings",
    "EnvelopeStyle",
    "Groups",
    "Limits",
    "LogSettings",
    "McpServerSettings",
    "ModelSettings",
    "PluginSettings",
    "PluginsSettings",
    "ProviderSettings",
    "RoomSettings",
    "ServerSettings",
    "SessionStrategy",
    "Settings",
    "ShareSettings",
    "SharedOptions",
    "StoreSettings",
    "is_loopback",
    "load_settings",
    "parse_agent",
    "read_agents",
    "refresh_organization",
    "table_of",
]
