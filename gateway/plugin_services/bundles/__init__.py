"""Parts of plugins that are no code: skills, agents and prompt commands.

In: the folder of an admitted plugin. Out: its parts in the running gateway, and a description of them for the
operator. ``plugin_services`` and the CLI import it.
"""

from gateway.plugin_services.bundles.parts import Parts, PartServices, read_parts

__all__ = ["PartServices", "Parts", "read_parts"]
