"""Admission of plugins with a manifest: what they declare, what was granted, where they come from.

Nothing here runs code of a plugin. ``gateway.extensions.process`` starts what was admitted.
"""
