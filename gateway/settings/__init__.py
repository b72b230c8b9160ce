"""Settings: read from files, variables and flags into one typed, read-only value.

``load_settings`` is the only place of the gateway that reads the environment or a settings file.
"""

from gateway.settings.loading import load_settings
from gateway.settings.rules import ChannelRules
from gateway.settings.sections import (
    Action,
    ChannelSettings,
    Limits,
    LogSettings,
    PluginsSettings,
    ProviderSettings,
    ServerSettings,
    Settings,
    StoreSettings,
    is_loopback,
)

__all__ = [
    "Action",
    "ChannelRules",
    "ChannelSettings",
    "Limits",
    "LogSettings",
    "PluginsSettings",
    "ProviderSettings",
    "ServerSettings",
    "Settings",
    "StoreSettings",
    "is_loopback",
    "load_settings",
]
