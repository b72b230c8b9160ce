"""Coding agents over HTTP, under ``/api/coding-agents``.

In: requests of the holder of the gateway's token. Out: the sessions of that user. The plugin imports it; it
imports no session before there is one.
"""

from plugins.coding_agents.api.preflight import PreflightReport, check_machine, find_problem, render
from plugins.coding_agents.api.routes import SessionRoutes

__all__ = ["PreflightReport", "SessionRoutes", "check_machine", "find_problem", "render"]
