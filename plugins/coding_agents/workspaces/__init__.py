"""Workspaces: worktrees of repositories in which agents work, and what becomes of their changes.

In: repositories, tasks and requests of users. Out: files for agents; differences, commits, pushes and pull
requests for users. ``sessions``, ``tools``, ``chat`` and ``api`` import it.
"""

from plugins.coding_agents.workspaces.checkouts import Changes, Checkout, Confine, FileChange, unconfined
from plugins.coding_agents.workspaces.credentials import HELPER, helper_environment
from plugins.coding_agents.workspaces.finalize import FinalizeResult
from plugins.coding_agents.workspaces.records import Checkpoint, Grant, WorkspaceRecord
from plugins.coding_agents.workspaces.service import WorkspaceHost, Workspaces

__all__ = [
    "HELPER",
    "Changes",
    "Checkout",
    "Checkpoint",
    "Confine",
    "FileChange",
    "FinalizeResult",
    "Grant",
    "WorkspaceHost",
    "WorkspaceRecord",
    "Workspaces",
    "helper_environment",
    "unconfined",
]
