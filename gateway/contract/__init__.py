"""The contract: messages, deltas, events, errors; protocols of channels, providers, tools and plugins.

In: nothing; these modules import only each other. Out: the types that every package exchanges. Any package
may import them; plugin and channel authors get them from ``gateway`` and ``gateway.channel``.
"""
