"""Plugins that run in their own process, as the gateway sees them: ``Plugin`` objects over a connection.

In: what was admitted, and the process that runs it. Out: a plugin like any other, whose hooks, tools and
commands are calls of that process. The broker answers the calls that the process makes.
"""
