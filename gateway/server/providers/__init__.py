"""Model providers over HTTP: keys by alias with their state, replacing a key, and test calls.

In: authenticated requests. Out: states and results, never a key. Imported by the server alone.
"""

from gateway.server.providers.keys import ProviderKeys
from gateway.server.providers.routes import ProviderRoutes

__all__ = ["ProviderKeys", "ProviderRoutes"]
