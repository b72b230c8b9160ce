"""``trunkline plugin``: find, install, approve, enable, describe, check and pack plugins.

In: arguments, folders and packages. Out: installed plugins, grants, changed settings, reports. Imported by
the command line alone.
"""
