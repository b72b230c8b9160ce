"""Parts of plugins that are no code: skills, agents and prompt commands.

In: the folder of an admitted plugin. Out: its parts in the running gateway, and a description of them for the
operator. ``plugin_services``, ``mcp`` and the CLI import it.
"""

from gateway.plugin_services.bundles.parts import Parts, PartServices, read_parts
from gateway.plugin_services.bundles.prompts import PromptTurns, assigned

__all__ = ["PartServices", "Parts", "PromptTurns", "assigned", "read_parts"]
