"""Layers of settings: the files of this machine, the file of an organization, and what each may set.

In: the working directory, the environment, an address. Out: files to read, entries, and complaints about keys
that a layer must not set. Imported by the loader of the settings.
"""
