"""MCP servers: programs of others whose tools models may call, and whose prompts are commands of users.

In: ``[mcp.NAME]`` of the settings, and calls of models. Out: a plugin with their tools, each pinned by the
hash of its definition. Only ``plugin_services`` and the CLI import it. The SDK ``mcp`` is imported with the
first connection.
"""

from gateway.mcp.definitions import KnownTools, ToolState
from gateway.mcp.plugin import McpPlugin
from gateway.mcp.search import McpSearch, mcp_plugins
from gateway.mcp.server import Server, ServerStatus

__all__ = ["KnownTools", "McpPlugin", "McpSearch", "Server", "ServerStatus", "ToolState", "mcp_plugins"]
