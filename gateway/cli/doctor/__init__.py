"""The checks of ``trunkline doctor``; ``config check``, ``run`` and ``channels status`` use some of them.

In: the settings, the store, and what the machine and providers answer. Out: one result for each check, with
the fix. Imported by the command line alone.
"""
