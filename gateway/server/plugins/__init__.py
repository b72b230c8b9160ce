"""Plugins over REST: the list, configurations, and the state of those that run, with changes at once.

In: authenticated requests. Out: lists, configurations without secrets, stderr of plugins. Imported by
``gateway.server.app``.
"""

from gateway.server.plugins.configuration import ConfigRoutes
from gateway.server.plugins.live import LivePluginRoutes
from gateway.server.plugins.organization import TeamRoutes

__all__ = ["ConfigRoutes", "LivePluginRoutes", "TeamRoutes"]
