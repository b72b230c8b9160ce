"""Plugins over HTTP: the list, configurations, the state of those that run, and what these answer themselves.

In: authenticated requests. Out: lists, configurations without secrets, stderr of plugins. Imported by
the server alone.
"""

from gateway.server.plugins.configuration import ConfigRoutes
from gateway.server.plugins.live import LivePluginRoutes
from gateway.server.plugins.login import LoginRoutes
from gateway.server.plugins.organization import TeamRoutes
from gateway.server.plugins.pages import PluginPages

__all__ = [
    "ConfigRoutes",
    "LivePluginRoutes",
    "LoginRoutes",
    "PluginPages",
    "TeamRoutes",
]
