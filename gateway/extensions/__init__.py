"""Extensions: the registries that plugins register in, their hooks, and how plugins are loaded and activated.

In: the settings, and plugin objects. Out: hooks that the pipeline calls, and the channels, providers, tools
and commands that plugins contribute. Imported by the store and everything above it.
"""
