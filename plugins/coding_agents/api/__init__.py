"""Coding agents over HTTP, under ``/api/coding-agents`` and ``/api/workspaces``.

In: requests of the holder of the gateway's token. Out: sessions and workspaces of that user. The plugin
imports it; it imports no session before there is one.
"""

from plugins.coding_agents.api.preflight import PreflightReport, check_machine, find_problem, render
from plugins.coding_agents.api.routes import SessionRoutes
from plugins.coding_agents.api.workspaces import WorkspaceRoutes

__all__ = [
    "PreflightReport",
    "SessionRoutes",
    "WorkspaceRoutes",
    "check_machine",
    "find_problem",
    "render",
]
