"""Plugins over REST: the list, and the configuration of those with a manifest.

In: authenticated requests. Out: lists, configurations without secrets. Imported by ``gateway.server.app``.
"""

from gateway.server.plugins.configuration import ConfigRoutes

__all__ = ["ConfigRoutes"]
