"""``trunkline mcp``: add, list, test and approve MCP servers."""
