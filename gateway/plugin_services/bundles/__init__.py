"""Parts of plugins that are not code: skills, agents, prompt commands and MCP servers.

In: the folder of an admitted plugin. Out: its parts in the running gateway, and a description of them for the
operator. ``plugin_services`` and ``mcp`` import it.
"""

from gateway.plugin_services.bundles.parts import Parts, PartServices, read_parts
from gateway.plugin_services.bundles.prompts import PromptTurns, assigned
from gateway.plugin_services.bundles.servers import PluginServers, check_servers

__all__ = ["PartServices", "Parts", "PluginServers", "PromptTurns", "assigned", "check_servers", "read_parts"]
