"""``trunkline mcp``: add, list, test and approve MCP servers.

In: arguments, and the settings file. Out: changed settings, approvals and test results. Imported by the
command line alone.
"""
