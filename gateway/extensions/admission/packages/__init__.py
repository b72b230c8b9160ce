"""Packages of plugins: fetching, unpacking and installing them, checking their code, and packing a folder.

Nothing here runs code of a package. Commands use it, and the start for a plugin that is locked but missing.
"""
