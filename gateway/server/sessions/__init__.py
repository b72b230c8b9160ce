"""Sessions over REST: lists, messages, versions, exports, shares, search, and files for messages.

In: requests with their parameters. Out: JSON and downloads. Imported by the server alone.
"""

from gateway.server.sessions.branches import BranchRoutes
from gateway.server.sessions.files import FileRoutes
from gateway.server.sessions.routes import CHANNEL, SearchRoutes, SessionPath, SessionRoutes

__all__ = [
    "CHANNEL",
    "BranchRoutes",
    "FileRoutes",
    "SearchRoutes",
    "SessionPath",
    "SessionRoutes",
]
