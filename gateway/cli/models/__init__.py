"""Commands for models, their providers, the keys of those, and the agents that use them.

In: arguments, settings, and the lists of providers. Out: tables or JSON, and stored keys. Imported by the
command line alone.
"""
