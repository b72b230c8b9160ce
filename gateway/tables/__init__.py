"""Tables of plugins: durable JSON values by key, scoped to a plugin. Also uploads, the audit log, and the
clock of retention.

In: reads and writes of plugins through ``ctx.table``. Out: rows of the store. Imported by ``conversations``
and everything above it.
"""

from gateway.tables.table import KeyLocks, PluginTable, PluginTables

__all__ = ["KeyLocks", "PluginTable", "PluginTables"]
