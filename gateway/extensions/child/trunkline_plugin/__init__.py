"""The API of confined plugins: a factory returns what it handles, and the gateway calls it.

    from trunkline_plugin import Block, plugin

    @plugin
    async def security(ctx):
        async def before(event):
            if event.tool == "shell" and "rm -rf /" in " ".join(event.args.argv):
                raise Block("dangerous command")

        return {"on": {"tool.execute.before": before}}

The package uses only the standard library. It runs in the plugin's process, or with ``trust = "full"`` in the
gateway's; the gateway imports it only then.
"""

from .api import Block, CapabilityDenied, Command, Data, Factory, Response, Tool, plugin, tool
from .context import CallContext, Context

__all__ = [
    "Block",
    "CallContext",
    "CapabilityDenied",
    "Command",
    "Context",
    "Data",
    "Factory",
    "Response",
    "Tool",
    "plugin",
    "tool",
]
