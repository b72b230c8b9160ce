"""Sessions over REST: lists, messages, versions, exports, shares and search.

In: requests with their parameters. Out: JSON and downloads. Imported by the server alone.
"""

from gateway.server.sessions.branches import BranchRoutes
from gateway.server.sessions.routes import CHANNEL, SearchRoutes, SessionPath, SessionRoutes

__all__ = ["CHANNEL", "BranchRoutes", "SearchRoutes", "SessionPath", "SessionRoutes"]
